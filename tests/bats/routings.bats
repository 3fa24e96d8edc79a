#!/usr/bin/env bats
# Routings and sizes that broke other systems, through the command, and the memory of a rank.
load common

layer() { # hidden, intermediate, experts, top-k
  "$DRAINTILE" synth checkpoint --hidden "$1" --intermediate "$2" --experts "$3" --top-k "$4" --dtype f32 --seed 4 \
    "$BATS_TEST_TMPDIR/model"
}

run_checked() { # tokens file, ranks, further options
  local file=$1 ranks=$2
  shift 2
  moe --checkpoint "$BATS_TEST_TMPDIR/model" --input "$file" --ranks "$ranks" --schedule all --check --repeat 1 \
    --tile-m 16 "$@" --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  jq -e '.runs | length == 6 and all(.bit_equal)' "$BATS_TEST_TMPDIR/results.json"
}

@test "one expert gets everything; every token goes to one rank" {
  layer 32 16 8 1
  local file=$BATS_TEST_TMPDIR/tokens
  "$DRAINTILE" synth tokens --count 100 --hidden 32 --dtype f32 --experts 8 --top-k 1 "$file"
  local offset
  offset=$(tensor_offset "$file" topk_ids)
  dd if=/dev/zero of="$file" bs=1 seek="$offset" count=800 conv=notrunc status=none
  run_checked "$file" 4
  jq -e '.router.experts.max_rows == 100 and .router.ranks.max_over_mean == 4' "$BATS_TEST_TMPDIR/results.json"
}

@test "tokens that name an expert twice" {
  layer 32 16 8 3
  local file=$BATS_TEST_TMPDIR/tokens
  "$DRAINTILE" synth tokens --count 20 --hidden 32 --dtype f32 --experts 8 --top-k 3 "$file"
  dd if=/dev/zero of="$file" bs=1 seek="$(tensor_offset "$file" topk_ids)" count=480 conv=notrunc status=none
  run_checked "$file" 8
  jq -e '.router.experts.max_rows == 60' "$BATS_TEST_TMPDIR/results.json"
}

@test "all slots dropped: the output is zero" {
  layer 32 16 8 1
  local file=$BATS_TEST_TMPDIR/tokens
  "$DRAINTILE" synth tokens --count 10 --hidden 32 --dtype f32 --experts 8 --top-k 1 "$file"
  for i in $(seq 0 9); do
    patch "$file" $(($(tensor_offset "$file" topk_ids) + 8 * i)) '\xff\xff\xff\xff\xff\xff\xff\xff'
  done
  run_checked "$file" 2 --schedule all,auto
  jq -e '.router.dropped_slots == 10 and (.runs | all(.rows == 0 and .max_relative_error == 0))' \
    "$BATS_TEST_TMPDIR/results.json"
  [ "$(tail -c 1280 "$BATS_TEST_TMPDIR/output.safetensors" | tr -d '\0' | wc -c)" -eq 0 ]
}

@test "exactly 128 tokens, 40 tokens, 5 tokens over 256 experts" {
  layer 32 16 256 2
  for count in 128 40 5; do
    "$DRAINTILE" synth tokens --count $count --hidden 32 --dtype f32 "$BATS_TEST_TMPDIR/tokens"
    run_checked "$BATS_TEST_TMPDIR/tokens" 4
  done
}

@test "512 experts on 8 ranks; 33 experts a rank; 3 ranks" {
  layer 16 8 512 8
  "$DRAINTILE" synth tokens --count 70 --hidden 16 --dtype f32 "$BATS_TEST_TMPDIR/tokens"
  run_checked "$BATS_TEST_TMPDIR/tokens" 8
  layer 16 8 99 3
  for count in 1 70 7; do
    "$DRAINTILE" synth tokens --count $count --hidden 16 --dtype f32 "$BATS_TEST_TMPDIR/tokens"
    run_checked "$BATS_TEST_TMPDIR/tokens" 3 --layout aligned
  done
}

@test "skew: moderate and stress" {
  layer 32 16 16 4
  for routing in balanced moderate_skew stress_skew; do
    "$DRAINTILE" synth tokens --count 150 --hidden 32 --dtype f32 --experts 16 --top-k 4 --routing $routing \
      "$BATS_TEST_TMPDIR/tokens"
    run_checked "$BATS_TEST_TMPDIR/tokens" 4 --link-rate 50MB/s
    jq .router.ranks.max_over_mean "$BATS_TEST_TMPDIR/results.json"
  done >"$BATS_TEST_TMPDIR/loads"
  # balanced is even, moderate is not, stress loads rank 0 far above the mean
  awk '$1 != "true" { load[++n] = $1 } END { exit !(load[1] < 1.05 && load[2] > 1.1 && load[3] > 1.5) }' \
    "$BATS_TEST_TMPDIR/loads"
}

@test "a rank's memory: its own experts, three times its activations, 104 MiB" {
  case $DRAINTILE in *asan* | *tsan*) skip 'sanitizers take memory of their own' ;; esac
  "$DRAINTILE" synth checkpoint --hidden 1024 --intermediate 512 --experts 64 --top-k 4 --dtype bf16 \
    "$BATS_TEST_TMPDIR/model"
  "$DRAINTILE" synth tokens --count 2000 --hidden 1024 "$BATS_TEST_TMPDIR/tokens"
  moe --checkpoint "$BATS_TEST_TMPDIR/model" --input "$BATS_TEST_TMPDIR/tokens" --ranks 4 --repeat 1 \
    --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  # activations of the most loaded rank: its rows in and out (bf16), between L1 and L2 (f32); its tokens in and out
  jq -e '(16 * 3 * 1024 * 512 * 2) as $experts | .router.ranks.max_rows as $rows
    | ($rows * (2 * 2 * 1024 + 4 * 512) + 500 * 2 * 2 * 1024) as $activations
    | .runs | all(.device_bytes < $experts + 3 * $activations + 104 * 1048576)' "$BATS_TEST_TMPDIR/results.json"
}
