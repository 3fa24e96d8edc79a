#!/usr/bin/env bats
# bench: what it refuses, and that it skips where there are too few GPUs.
load common

@test "bench combine: exit 77 without a GPU" {
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 1 ]; then skip "a GPU"; fi
  run -77 "$DRAINTILE" bench combine --ranks 8 --json "$BATS_TEST_TMPDIR/none.json"
  [[ "$output" == *"GPU"* ]]
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
}

@test "bench combine: options out of range, a platform file that is not there" {
  run -2 "$DRAINTILE" bench combine --ranks 1
  [[ "$output" == *"--ranks"*"2 to 8"* ]]
  run -2 "$DRAINTILE" bench combine --router even
  [[ "$output" == *"balanced, moderate, stress, crossed"* ]]
  run -2 "$DRAINTILE" bench combine --mode bulk,none
  run -2 "$DRAINTILE" bench combine --launch three
  [[ "$output" == *"one, two"* ]]
  run -2 "$DRAINTILE" bench combine --entry after
  run -2 "$DRAINTILE" bench combine --pacing none
  run -2 "$DRAINTILE" bench combine --platform "$BATS_TEST_TMPDIR/missing.json"
  [[ "$output" == *missing.json* ]]
  run -2 "$DRAINTILE" bench
}

@test "bench combine: predictions need a platform file, and cannot be left out of nothing else" {
  local platform="$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json"
  run --separate-stderr "$DRAINTILE" bench combine --predict-only
  refused 2 '^draintile bench combine: --platform: required with --predict-only$'
  run --separate-stderr "$DRAINTILE" bench combine --predict-only --platform "$platform" --no-prediction
  refused 2 '--no-prediction: allowed: without --predict-only$'
}

@test "bench combine: --timestamps needs the link's rate and capacity" {
  run -2 --separate-stderr "$DRAINTILE" bench combine --timestamps
  [[ $stderr == *"--timestamps: "*"allowed: with --platform"* ]]
}

@test "bench combine: lists of settings are predicted without a GPU" {
  local platform="$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json"
  run -2 "$DRAINTILE" bench combine --rows 16384,1
  [[ "$output" == *"--rows"*"16384,1"* ]]
  run -2 "$DRAINTILE" bench combine --experts 4,
  run -2 "$DRAINTILE" bench combine --experts 4,x
  run -0 "$DRAINTILE" bench combine --predict-only --platform "$platform" --rows 2048,4096 --experts 4,8 \
    --router balanced,crossed --consumers 8,16 --json "$BATS_TEST_TMPDIR/predicted.json"
  run -0 jq -e '(.runs | length) == 16 and
    ([.runs[] | [.rows, .experts, .router, .consumers]] | unique | length) == 16 and
    all(.runs[].predicted; .direct_s >= .gemm_s and .signal_s >= .gemm_s and .direct_paced_s > 0)' \
    "$BATS_TEST_TMPDIR/predicted.json"
  # Where every row crosses, nothing is faster than the link.
  run -0 jq -e 'all(.runs[] | select(.router == "crossed"); .predicted.direct_s > .rows * .n * 2 / 372.2e9)' \
    "$BATS_TEST_TMPDIR/predicted.json"
}

@test "bench combine: mixing bands is priced where an expert has two units, and only there" {
  local platform="$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json"
  run -0 "$DRAINTILE" bench combine --predict-only --platform "$platform" --rows 16384 --experts 4,8 \
    --pacing auto,off --entry beside,before --json "$BATS_TEST_TMPDIR/paced.json"
  run -0 jq -e '.runs as $r | def of($e; $p; $entry):
      $r[] | select(.experts == $e and .pacing == $p and .entry == $entry) | .predicted.direct_s;
    ($r | length) == 8 and of(4; "auto"; "beside") < of(4; "off"; "beside")
    and of(8; "auto"; "beside") == of(8; "off"; "beside") and of(8; "auto"; "beside") < of(8; "auto"; "before")' \
    "$BATS_TEST_TMPDIR/paced.json"
}

@test "bench residual: exit 77 without a GPU; what is refused" {
  local platform=$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json
  run -2 "$DRAINTILE" bench residual
  [[ $output == *"--platform: required"* ]]
  run -2 "$DRAINTILE" bench residual --platform "$platform" --ranks 1
  run -2 "$DRAINTILE" bench residual --platform "$platform" --to 128
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 1 ]; then skip "a GPU"; fi
  run -77 "$DRAINTILE" bench residual --platform "$platform" --json "$BATS_TEST_TMPDIR/none.json"
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
}

@test "bench attention: exit 77 without a GPU; unknown shapes are refused" {
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 1 ]; then skip "a GPU"; fi
  run -77 "$DRAINTILE" bench attention --ranks 8 --json "$BATS_TEST_TMPDIR/none.json"
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
  run -2 "$DRAINTILE" bench attention --shape flux,none
  [[ $output == *"--shape"* ]]
  run -2 "$DRAINTILE" bench attention --ranks 9
}

@test "bench moe: exit 77 with fewer GPUs than ranks; what is refused" {
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 8 ]; then skip "eight GPUs"; fi
  run -77 "$DRAINTILE" bench moe --ranks 8 --json "$BATS_TEST_TMPDIR/none.json"
  [[ $output == *"ranks: 8; this machine has"* || $output == *"not in this build"* ]]
  [[ $output == *"GPU"* ]]
  [ ! -e "$BATS_TEST_TMPDIR/none.json" ]
  run -2 "$DRAINTILE" bench moe --ranks 3
  [[ $output == *"--ranks: 3"*"128 experts of qwen3-30b"* ]]
  run -2 "$DRAINTILE" bench moe --model mixtral,none
  [[ $output == *"--model"*"deepseek-v3"* ]]
  run -2 "$DRAINTILE" bench moe --tokens 128,0
  run -2 "$DRAINTILE" bench moe --schedule bulk
  run -2 "$DRAINTILE" bench moe --schedule signal --consumers 65
  run -2 "$DRAINTILE" bench moe --order natural,random
  run -2 "$DRAINTILE" bench moe --dedup on,maybe
  run -2 "$DRAINTILE" bench moe --head 0,1025
  run -2 "$DRAINTILE" bench moe --ahead -2
  run -2 "$DRAINTILE" bench moe --sms 100
  [[ $output == *"--predict: required with --sms"* ]]
  run -2 "$DRAINTILE" bench moe --predict
  [[ $output == *"--platform"* ]]
  run -2 "$DRAINTILE" bench moe --platform "$BATS_TEST_TMPDIR/missing.json"
}

@test "bench moe: rows are priced without a GPU" {
  local platform="$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json"
  run -2 "$DRAINTILE" bench moe --predict --platform "$platform" --group-tasks 1,2,3,4,5,6,7,8,9 --lead 1,2,3,4,5,6,7
  [[ $output == *"64 methods"* ]]
  run -0 "$DRAINTILE" bench moe --predict --platform "$platform" --model olmoe --router balanced,crossed \
    --tokens 128,2048 --json "$BATS_TEST_TMPDIR/priced.json"
  run -0 jq -e '.schema == "draintile-bench-moe" and .device == null and (.rows | length) == 4
    and (.rows | all([.methods[] | select(.graph) | .predicted_s] | length == 7 and all(. > 0)))
    and (.rows | all([.methods[] | has("median_s")] | any | not))' "$BATS_TEST_TMPDIR/priced.json"
  run -0 "$DRAINTILE" bench moe --predict --platform "$platform" --schedule signal --consumers 2,0 --segment-bands 2 \
    --order natural,paced --json "$BATS_TEST_TMPDIR/orders.json"
  run -0 jq -e '[.rows[].methods[] | select(.schedule == "signal")] |
    map("\(.name) \(.order) \(.consumers) \(.segment_bands)")
    == ["signal consumers 2 segments 2 natural 2 2", "signal segments 2 natural 0 2",
        "signal paced consumers 2 segments 2 paced 2 2", "signal paced segments 2 paced 0 2"]' \
    "$BATS_TEST_TMPDIR/orders.json"
  run -0 jq -e '[.rows[].methods[] | select(.schedule == "signal").predicted_s] | .[0] > .[1]' \
    "$BATS_TEST_TMPDIR/orders.json"
  # L1 and L2 with every row in place: of what stores direct, and less than the layer.
  run -0 "$DRAINTILE" bench moe --predict --platform "$platform" --schedule signal,wave,interleave --lead 1,2 \
    --in-place --json "$BATS_TEST_TMPDIR/place.json"
  run -0 jq -e '.rows[0].methods | [.[] | select(.name | test("in place"))] as $in |
    ($in | map(.name) == ["wave in place", "interleave lead 1 in place", "interleave lead 2 in place"]) and
    (. as $all | $in | all((.name | sub(" in place"; "")) as $of |
      .predicted_s < ([$all[] | select(.name == $of)][0].predicted_s) and (has("graph") | not)))' \
    "$BATS_TEST_TMPDIR/place.json"
  # What is timed in place has its table before it: one that takes 1.022 ms, not 22 us, makes each a millisecond longer.
  jq '1.022e-3 as $s | .constants.sim_layer_table_s = {unit: "s", method: "none", value: $s, low: $s, high: $s, n: 1}' \
    "$platform" >"$BATS_TEST_TMPDIR/platform.json"
  run -0 "$DRAINTILE" bench moe --predict --platform "$BATS_TEST_TMPDIR/platform.json" --schedule wave --in-place \
    --json "$BATS_TEST_TMPDIR/table.json"
  run -0 jq -e --slurpfile before "$BATS_TEST_TMPDIR/place.json" '
    [., $before[0] | .rows[0].methods[] | select(.name == "wave in place").predicted_s] |
    .[0] - .[1] - 1e-3 | fabs < 1e-6' "$BATS_TEST_TMPDIR/table.json"
  # Where every row crosses, nothing is faster than the link carries the combine.
  run -0 jq -e '[.rows[] | select(.router == "crossed" and .tokens == 2048) | .methods[].predicted_s |
      select(. != null)] | min > 2048 * 8 * 2048 * 2 / 372.2e9' "$BATS_TEST_TMPDIR/priced.json"
}

@test "bench moe: several models to a pipe are one JSON; without a row the results of an earlier run stay" {
  local platform="$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json"
  priced() {
    timeout 60 "$DRAINTILE" bench moe --predict --platform "$platform" --tokens 64 --model olmoe,mixtral "$@"
  }
  priced --json - | jq -es 'length == 1 and (.[0].rows | length) == 2'
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  jq -es 'length == 1 and (.[0].rows | length) == 2' <"$BATS_TEST_TMPDIR/pipe" 3>&- &
  priced --json "$BATS_TEST_TMPDIR/pipe" >/dev/null
  wait $!
  priced --json "$BATS_TEST_TMPDIR/file" >/dev/null
  cp "$BATS_TEST_TMPDIR/file" "$BATS_TEST_TMPDIR/before"
  run --separate-stderr priced --raster-bands 31 --json "$BATS_TEST_TMPDIR/file"
  refused 2 'raster_bands: 31; even'
  cmp "$BATS_TEST_TMPDIR/before" "$BATS_TEST_TMPDIR/file"
  run --separate-stderr priced --raster-bands 31 --json "$BATS_TEST_TMPDIR/none"
  [ ! -e "$BATS_TEST_TMPDIR/none" ]
}
