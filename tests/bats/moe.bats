#!/usr/bin/env bats
# draintile moe end to end on a small layer: figures, checks, formats.
load common

setup_file() {
  make_inputs 200
}

@test "all schedules, checked, at 1, 2, 4 and 8 ranks" {
  for ranks in 1 2 4 8; do
    run -0 --separate-stderr moe --ranks $ranks --schedule all --check --repeat 2 --tile-m 32 --json -
    [ -z "$stderr" ]
    jq -e '.schema == "draintile-moe" and .version == 1 and (.runs | length) == 6
      and ([.runs[].schedule] == ["serial", "signal", "direct", "wave", "interleave", "alternate"])
      and (.runs | all(.bit_equal and .max_relative_error > 0 and .max_relative_error < 8e-3 and .rows == 400
        and (.samples_s | length) == 2 and .total_s > 0 and .limit_s > 0 and .predicted_s > 0))' <<<"$output"
  done
}

@test "figures follow their definitions" {
  run -0 --separate-stderr moe --ranks 2 --schedule signal,interleave --repeat 3 --link-rate 5MB/s \
    --link-capacity 64KiB --json -
  jq -e 'def near($a; $b): ($a - $b | fabs) <= 1e-9 * ($b | fabs) + 1e-15;
    def median: sort | .[1];
    .runs[0] as $serial | .runs | all(
      .compute_alone_s == $serial.stages.compute_s and .serial_s == $serial.total_s
      and near(.comm_alone_s; $serial.stages.dispatch_s + $serial.stages.combine_s)
      and .total_s == (.samples_s | median)
      and near(.hidden_ratio; 1 - ([0, .total_s - .compute_alone_s] | max) / .comm_alone_s)
      and near(.efficiency; (.compute_alone_s + .comm_alone_s - .total_s) / ([.compute_alone_s, .comm_alone_s] | min))
      and near(.speedup_over_serial; .serial_s / .total_s)
      and near(.limit_s; .limit_parts.constants_s +
        ([.limit_parts.compute_s, .limit_parts.link_s, .limit_parts.memory_s] | max))
      and ([.bytes_sent_to_peer[][]] | add) == .bytes_sent and .bytes_sent_to_peer[0][0] == 0
      and .max_relative_error == null)' <<<"$output"
}

@test "the limit of few tokens is the reading of their experts' weights" {
  "$DRAINTILE" synth checkpoint --hidden 512 --intermediate 512 --experts 8 --top-k 2 --seed 1 "$BATS_TEST_TMPDIR/large"
  "$DRAINTILE" synth tokens --count 2 --hidden 512 --seed 2 "$BATS_TEST_TMPDIR/two"
  run -0 --separate-stderr moe --checkpoint "$BATS_TEST_TMPDIR/large" --input "$BATS_TEST_TMPDIR/two" --repeat 1 \
    --json -
  jq -e '.runs | all(.limit_parts.memory_s > .limit_parts.compute_s
    and .limit_s == .limit_parts.memory_s + .limit_parts.constants_s)' <<<"$output"
}

@test "bytes: what the counts say, both ways, whatever the schedule" {
  run -0 --separate-stderr moe --ranks 4 --schedule all --repeat 1 --json -
  jq -e '[.runs[].bytes_sent] | max == min' <<<"$output"
  # dispatch and combine move 256 bytes a remote row; the rest is the counts
  jq -e '.runs[0] | .bytes_sent > 0 and .bytes_sent % 64 == 0' <<<"$output"
}

@test "the limit's bytes: a token once to a rank, a slot once back, own rows never" {
  local file=$BATS_TEST_TMPDIR/tokens
  "$DRAINTILE" synth tokens --count 100 --hidden 128 --experts 8 --top-k 2 "$file"
  dd if=/dev/zero of="$file" bs=1 seek="$(tensor_offset "$file" topk_ids)" count=1600 conv=notrunc status=none
  run -0 --separate-stderr moe --ranks 2 --input "$file" --schedule signal --repeat 1 --link-rate 50MB/s \
    --link-latency 2ms --json -
  # all to expert 0: rank 1 sends its 50 tokens, rank 0 returns their 100 slots, of 256 bytes each; a latency each way
  jq -e '.runs | length == 2 and all(.limit_parts | (.link_s * 50e6 - 100 * 256 | fabs < 1e-3)
    and .constants_s == 4e-3)' <<<"$output"
}

@test "the output: the same bytes from every schedule, the input's type and shape" {
  moe --ranks 2 --schedule serial --repeat 1 >/dev/null
  mv "$BATS_TEST_TMPDIR/output.safetensors" "$BATS_TEST_TMPDIR/serial"
  for schedule in signal direct wave interleave alternate; do
    moe --ranks 2 --schedule $schedule --repeat 1 --layout aligned --order natural --tile-m 16 >/dev/null
    mv "$BATS_TEST_TMPDIR/output.safetensors" "$BATS_TEST_TMPDIR/$schedule"
  done
  for schedule in direct wave interleave alternate; do
    cmp "$BATS_TEST_TMPDIR/signal" "$BATS_TEST_TMPDIR/$schedule"
  done
  local header
  header=$(od -An -t u8 -N 8 "$BATS_TEST_TMPDIR/serial" | tr -d ' ')
  tail -c +9 "$BATS_TEST_TMPDIR/serial" | head -c "$header" |
    jq -e '.hidden_states | .shape == [200, 128] and .dtype == "BF16"'
}

@test "ids and weights in the file replace the router; dropped slots are valid" {
  local file=$BATS_TEST_TMPDIR/routed
  "$DRAINTILE" synth tokens --count 50 --hidden 128 --experts 8 --top-k 3 --routing stress_skew "$file"
  patch "$file" "$(tensor_offset "$file" topk_ids)" '\xff\xff\xff\xff\xff\xff\xff\xff'
  run -0 --separate-stderr moe --ranks 4 --input "$file" --schedule all --check --repeat 1 --json -
  jq -e '.setting.top_k == 3 and .router.dropped_slots == 1 and .router.slots == 150 and (.runs | all(.rows == 149))' \
    <<<"$output"
}

@test "no tokens, one token, fewer tokens than ranks" {
  for count in 0 1 3; do
    "$DRAINTILE" synth tokens --count $count --hidden 128 --dtype f32 "$BATS_TEST_TMPDIR/few"
    run -0 --separate-stderr moe --ranks 4 --input "$BATS_TEST_TMPDIR/few" --schedule all,auto --check --repeat 1 \
      --json -
    [ -z "$stderr" ]
    jq -e ".setting.tokens == $count and (.runs | all(.bit_equal))" <<<"$output"
    [ -f "$BATS_TEST_TMPDIR/output.safetensors" ]
  done
}

@test "auto picks a schedule and explains" {
  run -0 --separate-stderr moe --ranks 2 --schedule auto --explain --repeat 1 --json -
  [ "$(grep -c 'draintile moe: auto: ' <<<"$stderr")" -eq 6 ]
  [ "$(grep -c 'chosen' <<<"$stderr")" -eq 1 ]
  jq -e '.runs | length >= 1 and length <= 2' <<<"$output"
  run -0 --separate-stderr moe --ranks 2 --schedule auto --explain --repeat 1 --consumers 0 --json -
  [ "$(grep -c 'auto: signal .*needs a consumer' <<<"$stderr")" -eq 1 ]
}

@test "paths that are not UTF-8 leave the JSON valid" {
  local input=$BATS_TEST_TMPDIR/$'t\xff'
  cp "$BATS_FILE_TMPDIR/tokens.safetensors" "$input"
  moe --input "$input" --repeat 1 --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  jq -e '.setting.input | endswith("/t?")' "$BATS_TEST_TMPDIR/results.json"
}

@test "JSON: valid, no NaN, integers that a double holds, replaced whole" {
  "$DRAINTILE" synth tokens --count 0 --hidden 128 "$BATS_TEST_TMPDIR/none"
  echo old >"$BATS_TEST_TMPDIR/results.json"
  moe --ranks 2 --input "$BATS_TEST_TMPDIR/none" --repeat 1 --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  run ! grep -iqE '\bnan\b|\binf' "$BATS_TEST_TMPDIR/results.json"
  jq -e '[.. | numbers | select(fabs > 9007199254740992)] | length == 0' "$BATS_TEST_TMPDIR/results.json"
  [ "$(find "$BATS_TEST_TMPDIR" -name '*.tmp' | wc -l)" -eq 0 ]
  if [ -e /dev/full ]; then
    run --separate-stderr moe --ranks 2 --repeat 1 --json /dev/full
    [ "$status" -eq 3 ]
    [ -c /dev/full ]
  fi
  run --separate-stderr moe --ranks 2 --repeat 1 --json /no/such/folder/results.json
  [ "$status" -eq 3 ]
}

@test "trace: one process a rank and schedule, times in us, slices that nest" {
  moe --ranks 2 --schedule signal,direct --repeat 2 --link-rate 20MB/s --trace "$BATS_TEST_TMPDIR/trace.json" >/dev/null
  jq -e '([.traceEvents[] | select(.ph == "M" and .name == "process_name")] | length) == 6
    and ([.traceEvents[] | select(.ph == "X" and (.ts < 0 or .dur < 0))] | length) == 0
    and ([.traceEvents[] | select(.ph == "X") | .ts + .dur] | max) < 60e6' "$BATS_TEST_TMPDIR/trace.json"
  slices_nest "$BATS_TEST_TMPDIR/trace.json"
}

@test "--device cuda: what it cannot do is refused, with a GPU or without" {
  local option
  for option in '--workers 2' '--tile-m 64' '--tile-n 64' '--layout packed' '--link-rate 1GB/s' '--delay 1ms'; do
    # shellcheck disable=SC2086  # an option and its value
    run --separate-stderr moe --device cuda $option
    refused 2 "${option%% *}: given with --device cuda; allowed: with --device cpu"
  done
  run --separate-stderr moe --device cuda --schedule signal --consumers 3
  refused 2 '--consumers: 3; allowed on cuda: an even number up to 64'
  run --separate-stderr moe --device cuda --dedup on --order paced
  refused 2 '--order: paced; allowed on cuda with --dedup on: natural'
  run --separate-stderr moe --device cuda --schedule auto
  refused 2 '--platform: required with --schedule auto and --device cuda'
  run --separate-stderr moe --device cuda --schedule auto --platform "$BATS_TEST_TMPDIR/missing.json"
  refused 2 'missing.json'
  run --separate-stderr moe --device cuda --ranks 3
  refused 2 '--ranks: 3; allowed: a divisor of the 8 experts'
  run --separate-stderr moe --device cuda --raster-bands 3
  refused 2 '--raster-bands: 3; allowed on cuda: even'
  run --separate-stderr moe --device cuda --dedup on --trace "$BATS_TEST_TMPDIR/trace.json"
  refused 2 "--trace: \"$BATS_TEST_TMPDIR/trace.json\"; allowed on cuda: with --dedup off"
  run --separate-stderr moe --device cpu --dedup on
  refused 2 '--dedup: "on"; allowed: off on the cpu'
  run --separate-stderr moe --platform "$BATS_TEST_TMPDIR/missing.json"
  refused 2 '--platform: ".*missing.json"; allowed: with --device cuda'
  "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 32 --experts 16 --top-k 2 --seed 1 "$BATS_TEST_TMPDIR/wide"
  "$DRAINTILE" synth tokens --count 20 --hidden 64 --seed 2 "$BATS_TEST_TMPDIR/wide.safetensors"
  local files=(--checkpoint "$BATS_TEST_TMPDIR/wide" --input "$BATS_TEST_TMPDIR/wide.safetensors")
  run --separate-stderr moe "${files[@]}" --device cuda --ranks 16
  refused 2 '--ranks: 16; allowed on cuda: 1 to 8'
  "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 36 --experts 8 --top-k 2 --seed 1 "$BATS_TEST_TMPDIR/odd"
  run --separate-stderr moe "${files[@]}" --checkpoint "$BATS_TEST_TMPDIR/odd" --device cuda
  refused 2 'hidden, intermediate: 64, 36; allowed on cuda: multiples of 8'
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "a device that is not there is skipped" {
  run --separate-stderr moe --device cuda
  [ "$status" -eq 77 ] || skip 'a CUDA device is here'
  [ "$(wc -l <<<"$stderr")" -eq 1 ]
}

@test "simulate: the measured costs priced for other sizes" {
  moe --ranks 2 --schedule all --repeat 2 --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  run -0 --separate-stderr "$DRAINTILE" simulate --costs "$BATS_TEST_TMPDIR/results.json" --ranks 8 --experts 64 \
    --tokens 4096 --top-k 4 --hidden 128 --intermediate 64 --routing moderate_skew --link-rate 100MB/s \
    --link-capacity 1MiB --json -
  jq -e '.schema == "draintile-simulate" and (.runs | length) == 6 and (.tokens | add) == 4096
    and (.runs | all(.predicted_s > 0 and (.rank_total_s | length) == 8))' <<<"$output"
  local first=$output
  run -0 --separate-stderr "$DRAINTILE" simulate --costs "$BATS_TEST_TMPDIR/results.json" --ranks 8 --experts 64 \
    --tokens 4096 --top-k 4 --hidden 128 --intermediate 64 --routing moderate_skew --link-rate 100MB/s \
    --link-capacity 1MiB --json -
  [ "$output" = "$first" ]
  run --separate-stderr "$DRAINTILE" simulate --ranks 8 --experts 64 --tokens 4096
  refused 2 '--costs: required; allowed: a file, or --platform or --gemm-rate'
  local measured=$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json platform=$BATS_TEST_TMPDIR/platform.json
  "$DRAINTILE" simulate --platform "$measured" --workers 132 --ranks 2 --experts 16 --tokens 4096 --json - |
    jq -e '.costs == null and ([.runs[] | .predicted_s > 0 and .store_stall_s == null] | all)' >/dev/null
  run --separate-stderr "$DRAINTILE" simulate --platform "$measured" --ranks 2 --experts 16 --tokens 4096
  refused 2 "--workers: 1; allowed: 2 or more with a GPU's platform file"
  # knows the link alone
  jq 'del(.tables[] | select(.name == "gemm_flop_per_s" or .name == "tile_s"))' "$measured" >"$platform"
  run --separate-stderr "$DRAINTILE" simulate --platform "$platform" --ranks 2 --experts 16 --tokens 4096
  refused 2 'l1_row_s: 0; allowed: more than 0, by --gemm-rate'
  "$DRAINTILE" simulate --platform "$platform" --gemm-rate 1e12 --ranks 2 --experts 16 --tokens 4096 >/dev/null
  echo '{"costs": {"l1_rows_s": 1}}' >"$BATS_TEST_TMPDIR/bad.json"
  run --separate-stderr "$DRAINTILE" simulate --costs "$BATS_TEST_TMPDIR/bad.json" --ranks 8 --experts 64 --tokens 4096
  refused 2 'costs.l1_rows_s: no such cost; did you mean l1_row_s'
}

@test "--check in f16: values that the type holds in steps of 6e-8 are as right as they can be" {
  local input=$BATS_TEST_TMPDIR/small
  "$DRAINTILE" synth tokens --count 10 --hidden 128 --dtype f16 --experts 8 --top-k 2 "$input"
  patch "$input" $(($(tensor_offset "$input" topk_weights) + 4 * 2 * 3)) '\x17\xb7\xd1\x37\x17\xb7\xd1\x37' # 2.5e-5
  moe --input "$input" --check --repeat 1 --json "$BATS_TEST_TMPDIR/json"
  jq -e '.runs[0].max_relative_error | . > 0 and . < 1e-3' "$BATS_TEST_TMPDIR/json"
}
