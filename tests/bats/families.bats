#!/usr/bin/env bats
# Every checkpoint family of tests/golden through the command: all schedules equal to the bit, and right.
load common
GOLDEN=$BATS_TEST_DIRNAME/../golden

family() { # folder, ranks, further options
  local folder=$1 ranks=$2
  shift 2
  moe --checkpoint "$GOLDEN/$folder" --layer 1 --input "$GOLDEN/$folder/input.safetensors" --ranks "$ranks" \
    --schedule all --check --repeat 1 "$@" --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  jq -e '.runs | length == 6 and all(.bit_equal)' "$BATS_TEST_TMPDIR/results.json"
}

folders() {
  jq -r '[.[].checkpoint] | unique | .[]' "$GOLDEN/cases.json"
}

@test "packed, each schedule's own order, 1, 2, 4 and 8 ranks" {
  [ "$(folders | wc -l)" -ge 12 ]
  for folder in $(folders); do
    for ranks in 1 2 4 8; do
      family "$folder" $ranks --tile-m 16
    done
  done
}

@test "aligned, every order, two workers" {
  for folder in $(folders); do
    for order in natural remote-first paced; do
      family "$folder" 4 --layout aligned --order $order --tile-m 32 --workers 2 --segment-bands 2
    done
  done
}
