#!/usr/bin/env bats
# model and plan against the committed vectors: tests/data.
load common

# Results (one JSON document after the other) against the cases of a file: every key of `expect` has its value, numbers
# within 1e-12 of it.
compare() { # cases file, results file, least number of cases
  jq -n -e --slurpfile cases "$1" --slurpfile got "$2" --argjson least "$3" '
    def near($a; $b): ($a == $b) or (($a - $b | fabs) <= 1e-12 * ([($a | fabs), ($b | fabs)] | max));
    def same($want; $got): $want | to_entries | all(.value as $w | $got[.key] as $g
      | if ($w | type) == "number" then ($g | type) == "number" and near($w; $g) else $w == $g end);
    $cases[0].cases as $all | ($all | length) as $n | [range($n) | select(same($all[.].expect; $got[.]) | not)] as $bad
    | if $n < $least or ($got | length) != $n then error("\($n) cases, \($got | length) results")
      elif ($bad | length) > 0 then error("cases \($bad)") else true end'
}

@test "model: all vectors" {
  jq -r '.cases[] | ["--t0", .t0_s, "--rate", "\(.rate_bytes_per_s)B/s", "--capacity", "\(.capacity_bytes)B",
    "--burst", .burst_bytes, "--gap", "\(.gap_s)s"] + (if .aligned then ["--aligned"] else [] end) | join(" ")' \
    "$DATA/model.json" >"$BATS_TEST_TMPDIR/options"
  local options
  while read -ra options; do
    "$DRAINTILE" model "${options[@]}" --json -
  done <"$BATS_TEST_TMPDIR/options" >"$BATS_TEST_TMPDIR/results"
  compare "$DATA/model.json" "$BATS_TEST_TMPDIR/results" 49
}

@test "model: units, and the answer of the published example" {
  run -0 --separate-stderr "$DRAINTILE" model --t0 0.76us --rate 717GB/s --capacity 4.25MiB --burst 4.625MiB --gap 2us \
    --json -
  jq -e '.schema == "draintile-model" and .version == 1 and .answer == "unsafe" and .rate_ok == false
    and .capacity_ok and .regime == "drain" and .burst_bytes == 4849664 and (.t_issue_s * 1e9 | floor) == 4763' \
    <<<"$output"
  run -0 "$DRAINTILE" model --t0 0.76us --rate 717GB/s --capacity 4.25MiB --burst 4.625MiB --gap 10us
  grep -qE '^answer +safe' <<<"$output"
}

plan_vectors() { # file, least number of cases
  local counts options
  while read -r counts && read -ra options; do
    echo "$counts" >"$BATS_TEST_TMPDIR/counts.json"
    "$DRAINTILE" plan --counts "$BATS_TEST_TMPDIR/counts.json" "${options[@]}" --json -
  done < <(jq -r '.cases[] | "\({counts})", ([. as $c | ["experts_per_rank", "rank", "tile_m", "layout", "order",
    "segment_bands", "schedule", "columns_1", "columns_2", "raster_bands", "lead", "wave_experts", "group_tasks"][]
    | select($c[.] != null) | "--" + gsub("_"; "-"), $c[.]] | join(" "))' "$1") >"$BATS_TEST_TMPDIR/results"
  compare "$1" "$BATS_TEST_TMPDIR/results" "$2"
}

@test "plan: all layout vectors" {
  plan_vectors "$DATA/plan.json" 24
}

@test "plan: all task vectors" {
  plan_vectors "$DATA/tasks.json" 26
}

@test "plan: the tables say what the JSON does" {
  echo '{"counts": [[2, 0, 1, 3], [0, 4, 2, 0]]}' >"$BATS_TEST_TMPDIR/counts.json"
  run -0 "$DRAINTILE" plan --counts "$BATS_TEST_TMPDIR/counts.json" --experts-per-rank 2 --tile-m 2 --schedule wave
  grep -q '^rank 0 of 2, 2 experts a rank, packed layout, ' <<<"$output"
  local results
  results=$("$DRAINTILE" plan --counts "$BATS_TEST_TMPDIR/counts.json" --experts-per-rank 2 --tile-m 2 \
    --schedule wave --json -)
  jq -r '"\(.rows) rows in memory, \(.padded_rows) of them padding; \(.groups | length) groups, " +
    "\(.bands | length) bands, " +
    "\(.segments | length) segments, \(.tasks | length) tasks (wave)"' <<<"$results" >"$BATS_TEST_TMPDIR/summary"
  grep -qxFf "$BATS_TEST_TMPDIR/summary" <<<"$output"
  # position, band, expert, first row, rows, remote rows, owners
  diff <(jq -r '.band_order as $order | .bands as $b | range($order | length) | [., $order[.]] + ($b[$order[.]] |
    [.expert, .row, .rows, .remote_rows] + [.parts[].owner]) | map(tostring) | join(" ")' <<<"$results") \
    <(sed -n '/^position  *band /,/^$/p' <<<"$output" | sed '1d;/^$/d' | tr -s ' ' | sed 's/^ //;s/ $//')
  # position, segment, expert, owner, first row, rows, owner's row, bands
  diff <(jq -r '.segment_order as $order | .segments as $s | range($order | length) | [., $order[.]] + ($s[$order[.]] |
    [.expert, .owner, .row, .rows, .dst_row, "\(.first_band)..\(.first_band + .bands - 1)"]) |
    map(tostring) | join(" ")' <<<"$results") \
    <(sed -n '/^position  *segment /,$p' <<<"$output" | sed 1d | tr -s ' ' | sed 's/^ //;s/ $//')
}

@test "plan: bad counts are named" {
  local file=$BATS_TEST_TMPDIR/counts.json
  echo '{"counts": [[1, 2], [3]]}' >"$file"
  run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 1
  refused 2 'counts\[1\]: 1 entries; allowed: 2'
  echo '{"counts": [[1, 2], [3, 4]]}' >"$file"
  run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 2
  refused 2 '--experts-per-rank: 2; allowed: 1, as counts has 2 rows of 2'
  echo '{"counts": [[0, 2, 3], [3, 1, 1]]}' >"$file"
  run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 1
  refused 2 'counts: 3 columns; allowed: a multiple of its 2 rows'
  for value in -1 1.5 '"x"' 2147483648; do
    echo "{\"counts\": [[0, $value], [3, 1]]}" >"$file"
    run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 1
    refused 2 "counts\\[0\\]\\[1\\]: $value; allowed: an integer from 0 to 2147483647"
  done
  echo '{"counts": [[1, 2], [3, 4]]}' >"$file"
  run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 1 --rank 2
  refused 2 '--rank: 2; allowed: 0 to 1'
  echo '{"counts": [[1, 2]' >"$file"
  run --separate-stderr "$DRAINTILE" plan --counts "$file" --experts-per-rank 1
  refused 2 'counts.json: line [0-9]+: '
  run --separate-stderr "$DRAINTILE" plan --counts "$file.missing" --experts-per-rank 1
  refused 2 'counts.json.missing'
}
