#!/usr/bin/env bats
# simulate on rates alone: its trace, auto's choice, counts from a file, what is refused.
load common

simulate() { # further options
  "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 512 --hidden 256 --intermediate 128 --top-k 2 --gemm-rate 1e9 \
    --memory-rate 1GB/s --copy-rate 1GB/s --link-rate 20MB/s --link-capacity 64KiB "$@"
}

@test "trace: slices that nest and end when the schedule's rank does" {
  simulate --schedule direct,interleave --trace "$BATS_TEST_TMPDIR/trace.json" --json "$BATS_TEST_TMPDIR/results.json"
  slices_nest "$BATS_TEST_TMPDIR/trace.json"
  jq -n -e --slurpfile trace "$BATS_TEST_TMPDIR/trace.json" --slurpfile results "$BATS_TEST_TMPDIR/results.json" '
    $trace[0].traceEvents as $events
    | [$events[] | select(.ph == "M" and .name == "process_name") | .pid as $pid
       | {name: .args.name, end: ([$events[] | select(.ph == "X" and .pid == $pid) | .ts + .dur] | max)}] as $seen
    | [$results[0].runs[] | .schedule as $schedule | .rank_total_s | to_entries[]
       | {name: "\($schedule) rank \(.key)", end: (.value * 1e6)}] as $want
    | ($want | length) == 6 and ($seen | length) == 6
      and all(range(6); $seen[.].name == $want[.].name and ($seen[.].end - $want[.].end | fabs) < 0.01)'
}

@test "auto runs the cheapest of all" {
  run -0 --separate-stderr simulate --json -
  local least
  least=$(jq -r '.runs | min_by(.predicted_s).schedule' <<<"$output")
  run -0 --separate-stderr simulate --schedule auto --json -
  grep -q "auto: $least\$" <<<"$stderr"
  jq -e --arg least "$least" '[.runs[].schedule] == ["serial", $least]' <<<"$output"
}

@test "explain: the price of every schedule, and which is chosen" {
  run -0 --separate-stderr simulate --json -
  local results=$output
  run -0 --separate-stderr simulate --schedule auto --explain --json -
  [ "$(grep -c '^draintile simulate: auto: [a-z]* *[0-9.]* [mu]*s' <<<"$stderr")" -eq 6 ]
  local chosen
  chosen=$(sed -n 's/^draintile simulate: auto: \([a-z]*\) .*  <- chosen$/\1/p' <<<"$stderr")
  jq -e --arg chosen "$chosen" '.runs | min_by(.predicted_s).schedule == $chosen' <<<"$results"
}

@test "costs: a tile's time may be its weights' alone, but not by a memory's rate without a GEMM's" {
  local costs=$BATS_TEST_TMPDIR/costs.json
  echo '{"costs": {"l1_panel_s": 0.001}}' >"$costs"
  "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --costs "$costs" --json - |
    jq -e '.runs[0].predicted_s > 0.001'
  echo '{"costs": {"l2_row_s": 0.001}}' >"$costs"
  run --separate-stderr "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --costs "$costs" --memory-rate 1GB/s
  refused 2 'l1_row_s: 0; allowed: more than 0'
}

@test "counts from a file: as many tokens as their slots need" {
  local counts=$BATS_TEST_TMPDIR/counts.json
  echo '{"counts": [[3, 0, 1, 3], [0, 4, 2, 0]]}' >"$counts"
  run -0 --separate-stderr "$DRAINTILE" simulate --counts "$counts" --top-k 2 --gemm-rate 1e9 --json -
  jq -e '.ranks == 2 and .experts == 4 and .tokens == [4, 3]' <<<"$output"
  run -0 --separate-stderr "$DRAINTILE" simulate --counts "$counts" --top-k 2 --tokens 9 --gemm-rate 1e9 --json -
  jq -e '.tokens == [5, 4]' <<<"$output"
}

@test "what is missing or does not fit is named" {
  run --separate-stderr "$DRAINTILE" simulate --gemm-rate 1e9
  refused 2 '--counts: required; allowed: a file, or --ranks, --experts and --tokens'
  run --separate-stderr "$DRAINTILE" simulate --ranks 2 --experts 9 --tokens 8 --gemm-rate 1e9
  refused 2 'experts: 9; allowed: a multiple of 2 ranks'
  run --separate-stderr simulate --link-rate 0
  refused 2 '--link-rate: "0"; allowed: more than 0'
  run --separate-stderr "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --gemm-rate 1e12 --copy-rate 1e-308
  refused 2 'costs: rank 0 ends at inf s; allowed: costs that add up to a finite time'
  run --separate-stderr "$DRAINTILE" simulate --platform "$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json" \
    --workers 132 --ranks 2 --experts 8 --tokens 512 --trace "$BATS_TEST_TMPDIR/trace.json"
  refused 2 '--trace: .*; allowed: without a platform of GPUs'
}

@test "auto on GPUs: what the layer does not take is named with what it takes" {
  for option in '--consumers 131' '--consumers 3' '--raster-bands 7' '--workers 1'; do
    # shellcheck disable=SC2086  # two words
    run --separate-stderr "$DRAINTILE" simulate --schedule auto --ranks 2 --experts 8 --tokens 512 --workers 132 \
      --platform "$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json" $option
    refused 2 "^draintile simulate: ${option% *}: ${option#* }; allowed: (an even number|2 or more)"
  done
}

@test "with a platform of GPUs: options of CPUs are refused, none is passed over" {
  for option in '--memory-rate 1GB/s' '--copy-rate 1GB/s' '--link-rate 1GB/s' '--link-capacity 1MiB' \
    '--link-latency 1us' '--receiver-rate 1GB/s' '--cores 2' '--tile-m 64' '--tile-n 64' '--layout aligned' \
    '--reduce-tokens 8' '--dtype f32'; do
    # shellcheck disable=SC2086  # two words
    run --separate-stderr "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 512 --workers 132 \
      --platform "$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json" $option
    refused 2 "^draintile simulate: ${option% *}: \"${option#* }\"; allowed: (bf16 with|without) a platform of GPUs"
  done
}

@test "a link to a file stays a link, also one to standard output" {
  cd "$BATS_TEST_TMPDIR"
  ln -s results.json link
  ln -s trace.json trace
  ln -s tokens.safetensors tokens
  ln -s /proc/self/fd/1 stdout
  echo old | tee results.json trace.json >tokens.safetensors
  simulate --json link --trace trace >/dev/null
  "$DRAINTILE" synth tokens --count 4 --hidden 8 tokens
  simulate --json stdout >printed
  simulate --json stdout | jq -e .runs
  for name in link trace tokens stdout; do [ -L $name ]; done
  jq -e .runs results.json printed
  jq -e .traceEvents trace.json
  [ "$(stat -c %s tokens.safetensors)" -gt 64 ]
  [ "$(find . -name '*.partial' -o -name '*.tmp' | wc -l)" -eq 0 ]
}

@test "a link to a file that is not there yet stays a link, one that leads nowhere is refused" {
  cd "$BATS_TEST_TMPDIR"
  mkdir far links
  for name in results trace tokens; do
    ln -s ../far/$name links/$name
    ln -s links/$name $name # a link to a link
  done
  simulate --json results --trace trace >/dev/null
  "$DRAINTILE" synth tokens --count 4 --hidden 8 tokens
  for name in results trace tokens; do
    [ -L $name ]
    [ -L links/$name ]
    [ -f far/$name ]
  done
  ln -s ring ring
  ln -s /no/such/folder/x nowhere
  for name in ring nowhere; do
    run --separate-stderr simulate --json $name
    refused 3 "--json: $name: (No such file|Too many levels)"
    run --separate-stderr "$DRAINTILE" synth tokens --count 4 --hidden 8 $name
    refused 3 "$name: cannot create a file there: (No such file|Too many levels)"
    [ -L $name ]
  done
  [ "$(find . -name '*.partial' -o -name '*.tmp' | wc -l)" -eq 0 ]
}
