#!/usr/bin/env bats
# `calibrate`: platform files that are refused, pictures from the committed results, no GPU.
load common

RESULTS=$BATS_TEST_DIRNAME/../../bench/results/h200x2

setup() {
  platform=$BATS_TEST_TMPDIR/platform.json
  cp "$RESULTS/platform.json" "$platform"
}

verify() {
  run --separate-stderr "$DRAINTILE" calibrate --verify "$platform" --output "$BATS_TEST_TMPDIR/verify.json"
  [ ! -e "$BATS_TEST_TMPDIR/verify.json" ]
}

@test "a truncated platform file" {
  head -c 5000 "$RESULTS/platform.json" > "$platform"
  verify
  refused 2 'platform\.json'
}

@test "a NaN" {
  sed -i '0,/"value": [0-9.e+-]*/s//"value": NaN/' "$platform"
  verify
  refused 2 'platform\.json'
}

@test "a missing field" {
  jq 'del(.constants.rate_bytes_per_s.method)' "$RESULTS/platform.json" > "$platform"
  verify
  refused 2 'rate_bytes_per_s\.method'
}

@test "a wrong unit" {
  jq '.constants.rate_bytes_per_s.unit = "s"' "$RESULTS/platform.json" > "$platform"
  verify
  refused 2 'rate_bytes_per_s\.unit'
}

@test "an interval that does not hold its value" {
  jq '.constants.rate_bytes_per_s.low = 1e15' "$RESULTS/platform.json" > "$platform"
  verify
  refused 2 'rate_bytes_per_s'
}

@test "another schema version" {
  jq '.version = 2' "$RESULTS/platform.json" > "$platform"
  verify
  refused 2 'version'
}

@test "no GPU: exit 77, and nothing written" {
  [ ! -e /dev/nvidia0 ] || skip "there is a GPU"
  run --separate-stderr "$DRAINTILE" calibrate --output "$BATS_TEST_TMPDIR/none.json"
  refused 77 '.'
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
}

@test "pictures from the committed results" {
  command -v gnuplot > /dev/null || skip "gnuplot is not installed"
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --residuals "$RESULTS/verify.json" \
    --plot "$BATS_TEST_TMPDIR/pictures"
  [ "$status" -eq 0 ]
  for name in rate gap isolated residuals sensitivity-10 sensitivity-14 sensitivity-20; do
    [ "$(head -c 4 "$BATS_TEST_TMPDIR/pictures/calibration-$name.png" | od -An -c | tr -d ' ')" = '211PNG' ]
    grep -q '</svg>' "$BATS_TEST_TMPDIR/pictures/calibration-$name.svg"
  done
}

@test "the committed verification passed and fits its platform file" {
  jq -e '.summary | .issue_error_median <= 0.05 and .issue_error_p90 <= 0.15 and .rate_half_width <= 0.02
         and .capacity_half_width <= 0.10 and (.both_ways_over_one_way - 1 | fabs) <= 0.02' "$RESULTS/verify.json"
  [ "$(jq -r .platform_date "$RESULTS/verify.json")" = "$(jq -r .device.date "$RESULTS/platform.json")" ]
}

@test "model explains where its constants come from" {
  run --separate-stderr "$DRAINTILE" model --platform "$platform" --producers 132 --producer-bytes 32KiB --gap 4us \
    --pattern one-way --operation st.v4 --explain
  [ "$status" -eq 0 ]
  grep -q 'table rate_bytes_per_s, pattern one-way, operation st.v4' <<< "$output"
  grep -q 'NVIDIA H200' <<< "$output"
}

@test "a platform file of another kind of device" {
  run --separate-stderr "$DRAINTILE" calibrate --device cpu --quick --verify "$platform"
  refused 2 'device\.kind'
}

@test "model refuses an operation that was not measured" {
  run --separate-stderr "$DRAINTILE" model --platform "$platform" --producers 132 --producer-bytes 32KiB --gap 4us \
    --operation st.v9
  refused 2 'st\.v9'
}

@test "simulate prices a layer by the calibrated file alone" {
  run --separate-stderr "$DRAINTILE" simulate --platform "$platform" --ranks 8 --experts 64 --tokens 8192 \
    --workers 132 --schedule serial,direct --json "$BATS_TEST_TMPDIR/file.json"
  [ "$status" -eq 0 ]
  # Another rate of the workers, another time: the file's was used.
  run --separate-stderr "$DRAINTILE" simulate --platform "$platform" --ranks 8 --experts 64 --tokens 8192 \
    --workers 132 --schedule serial,direct --gemm-rate 1e12 --json "$BATS_TEST_TMPDIR/given.json"
  [ "$status" -eq 0 ]
  ! cmp -s "$BATS_TEST_TMPDIR/file.json" "$BATS_TEST_TMPDIR/given.json"
}

@test "auto on GPUs: every schedule is priced, the least chosen" {
  run --separate-stderr "$DRAINTILE" simulate --platform "$platform" --ranks 2 --experts 128 --tokens 8192 \
    --workers 132 --consumers 0 --schedule auto --explain
  [ "$status" -eq 0 ]
  [ "$(grep -c 'auto: [a-z]* *[0-9]' <<< "$stderr")" -eq 6 ]
  [ "$(grep -c '<- chosen' <<< "$stderr")" -eq 1 ]
}

@test "a platform file without tile times and rates prices no layer" {
  jq 'del(.tables[] | select(.name == "tile_s" or .name == "gemm_flop_per_s"))' "$RESULTS/platform.json" > "$platform"
  run --separate-stderr "$DRAINTILE" simulate --platform "$platform" --ranks 2 --experts 16 --tokens 512
  refused 2 'l1_row_s'
}

@test "pictures without gnuplot: a message, not a signal" {
  mkdir "$BATS_TEST_TMPDIR/empty"
  run --separate-stderr env PATH="$BATS_TEST_TMPDIR/empty" "$DRAINTILE" calibrate --from "$platform" \
    --plot "$BATS_TEST_TMPDIR/pictures"
  [ "$status" -eq 3 ]
  grep -q 'gnuplot: failed, or is not installed' <<< "$stderr"
}

@test "pictures of a platform without issue times" {
  jq 'del(.tables[] | select(.name == "issue_s"))' "$RESULTS/platform.json" > "$platform"
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --plot "$BATS_TEST_TMPDIR/pictures"
  refused 2 'issue_s'
  grep -q 'allowed: ' <<< "$stderr"
  [ ! -e "$BATS_TEST_TMPDIR/pictures" ]
}

@test "residuals that are no verification" {
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --residuals "$platform" \
    --plot "$BATS_TEST_TMPDIR/pictures"
  [ "$status" -eq 2 ]
  grep -q 'schema' <<< "$stderr"
}

@test "an output that cannot be written is refused before measuring" {
  run --separate-stderr timeout 2 "$DRAINTILE" calibrate --device cpu --output /nonexistent/platform.json
  refused 3 '/nonexistent'
  run --separate-stderr timeout 2 "$DRAINTILE" calibrate --device cpu --output -
  refused 2 '--output'
  run --separate-stderr timeout 2 "$DRAINTILE" calibrate --device cpu --output /dev/stdout
  refused 2 '--output'
}

@test "an output whose name cannot be is refused before measuring, of a verification too" {
  "$DRAINTILE" calibrate --device cpu --quick --link-rate 200MB/s --link-capacity 400kB --output "$platform" >/dev/null
  local name=$BATS_TEST_TMPDIR/$(printf '%0256d' 1)
  for verify in '' "--verify $platform"; do
    run --separate-stderr timeout 2 "$DRAINTILE" calibrate --device cpu $verify --output "$name"
    refused 3 '--output: .*: File name too long'
  done
}

@test "a report that nobody takes is one line, and exit status 3" {
  link=(--device cpu --quick --link-rate 200MB/s --link-capacity 400kB)
  lost() { "$DRAINTILE" calibrate "${link[@]}" "$@" >/dev/full; }
  run --separate-stderr lost --output "$platform"
  refused 3 '^draintile calibrate: standard output: write failed$'
  jq -e '.schema == "draintile-platform"' "$platform" # it was written
  run --separate-stderr lost --verify "$platform"
  refused 3 '^draintile calibrate: standard output: write failed$'
  run --separate-stderr lost --verify "$platform" --output -
  refused 3 '^draintile calibrate: --output: standard output: No space left on device$'
  run --separate-stderr "$DRAINTILE" calibrate "${link[@]}" --verify "$platform" --output /dev/full
  refused 3 '^draintile calibrate: --output: /dev/full: No space left on device$'
}

@test "memory that is not paced: ends, and the file says how it was made" {
  run --separate-stderr timeout 60 "$DRAINTILE" calibrate --device cpu --quick --seed 3 \
    --output "$BATS_TEST_TMPDIR/plain.json"
  if [ "$status" -ne 0 ]; then # memory is no queue: where no burst stalls, or none recovers, a constant cannot be had
    refused 3 'samples: '
    [ ! -e "$BATS_TEST_TMPDIR/plain.json" ]
    return
  fi
  [ "$status" -eq 0 ]
  jq -e '.notes | index("draintile calibrate --device cpu --quick --seed 3")' "$BATS_TEST_TMPDIR/plain.json"
}

@test "a verification of the CPU fabric keeps its samples" {
  link=(--device cpu --quick --link-rate 200MB/s --link-capacity 400kB)
  "$DRAINTILE" calibrate "${link[@]}" --output "$platform" > /dev/null
  run --separate-stderr "$DRAINTILE" calibrate "${link[@]}" --verify "$platform" \
    --output "$BATS_TEST_TMPDIR/verify.json"
  [ "$status" -le 1 ] # on a busy machine it may not pass
  jq -e '(.rows | length > 5 and all(.n == (.samples | length)))
         and (.summary.pass == ('"$status"' == 0)) and (.command | contains("--link-capacity 400kB"))' \
    "$BATS_TEST_TMPDIR/verify.json"
  # each bar stands beside its figure; what was not measured has none
  grep -q 'interval [0-9.]* % (at most 2 %), of .* % (at most 10 %)$' <<<"$output"
  grep -q 'R both ways / one way [01].* (1 within 2 %)$' <<<"$output"
  jq 'del(.constants.both_ways_over_one_way_ratio)' "$platform" >"$BATS_TEST_TMPDIR/one-way.json"
  run --separate-stderr "$DRAINTILE" calibrate "${link[@]}" --verify "$BATS_TEST_TMPDIR/one-way.json" \
    --output "$BATS_TEST_TMPDIR/verify.json"
  [ "$status" -le 1 ]
  jq -e '.summary.both_ways_over_one_way == null' "$BATS_TEST_TMPDIR/verify.json"
  [[ $output != *'both ways / one way'* ]]
}

@test "options that do not go together" {
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform"
  refused 2 '--from: ".*/platform.json"; allowed: with --plot$'
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --verify "$platform" --plot p
  refused 2 '--verify: ".*/platform.json"; allowed: without --from$'
  run --separate-stderr "$DRAINTILE" calibrate --verify "$platform" --plot p
  refused 2 '--plot: "p"; allowed: without --verify, with --from$'
  run --separate-stderr "$DRAINTILE" calibrate --residuals "$platform"
  refused 2 '--residuals: ".*/platform.json"; allowed: with --plot$'
  run --separate-stderr "$DRAINTILE" calibrate --device cpu --link-rate 0
  refused 2 '--link-rate'
}

@test "a latency that would make minutes of seconds" {
  for latency in 10.1ms 1.5 1h; do
    run --separate-stderr "$DRAINTILE" calibrate --device cpu --quick --link-rate 1GB/s --link-latency $latency \
      --output "$platform.new"
    refused 2 "--link-latency: \"$latency\"; allowed: 0 to 10ms"
    [ ! -e "$platform.new" ]
  done
}

@test "a wait between ranks is bounded by --timeout" {
  local file=$BATS_TEST_TMPDIR/none.json
  run --separate-stderr timeout 20 "$DRAINTILE" calibrate --device cpu --quick --timeout 1s --link-rate 1kB/s \
    --link-capacity 1kB --output "$file"
  refused 3 'allowed: the timeout of 1 s'
  run --separate-stderr timeout 20 "$DRAINTILE" calibrate --device cpu --quick --timeout 0 --output "$file"
  refused 2 '--timeout: "0"; allowed: more than 0'
  [ ! -e "$file" ]
}

@test "a rank that is stopped is given up after --timeout" {
  timeout 60 "$DRAINTILE" calibrate --device cpu --quick --timeout 1s --link-rate 100MB/s \
    --output "$BATS_TEST_TMPDIR/none.json" >/dev/null 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  local guard=$! parent ranks=() code=0
  for _ in $(seq 200); do
    parent=$(pgrep -P $guard || true)
    [ -z "$parent" ] || mapfile -t ranks < <(pgrep -P "$parent" | sort -n)
    [ "${#ranks[@]}" -eq 2 ] && break
    sleep 0.01
  done
  [ "${#ranks[@]}" -eq 2 ]
  sleep 0.3
  kill -STOP "${ranks[1]}"
  wait $guard || code=$?
  [ "$code" -eq 3 ]
  grep -qE "rank [01] \(process ${ranks[1]}\) is stopped" "$BATS_TEST_TMPDIR/err"
  [ ! -e "/proc/${ranks[1]}/stat" ] || grep -qE '\) [ZX]' "/proc/${ranks[1]}/stat"
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
}

@test "options of rank processes are refused on GPUs, before one is looked for" {
  for option in '--link-rate 1GB/s' '--link-capacity 1MB' '--link-latency 1us' '--timeout 1s' '--entry-timeout 1s' \
    '--producers 2'; do
    # shellcheck disable=SC2086  # two words
    run --separate-stderr "$DRAINTILE" calibrate $option --output "$BATS_TEST_TMPDIR/none.json"
    refused 2 "^draintile calibrate: ${option% *}: \"${option#* }\"; allowed: with --device cpu\$"
  done
}
