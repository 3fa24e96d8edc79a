#!/usr/bin/env bats
# bench: what it refuses, and that it skips where there are too few GPUs.
load common

@test "bench combine: exit 77 with fewer GPUs than ranks" {
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 8 ]; then skip "eight GPUs"; fi
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
  run -2 "$DRAINTILE" bench combine --platform "$BATS_TEST_TMPDIR/missing.json"
  [[ "$output" == *missing.json* ]]
  run -2 "$DRAINTILE" bench
}
