#!/usr/bin/env bats
# Bad input to `moe`: one line naming file, field, value and what is allowed; no output file.
load common

setup_file() {
  make_inputs 40
}

setup() {
  dir=$BATS_TEST_TMPDIR/checkpoint
  input=$BATS_TEST_TMPDIR/tokens.safetensors
  cp -r "$BATS_FILE_TMPDIR/checkpoint" "$dir"
  cp "$BATS_FILE_TMPDIR/tokens.safetensors" "$input"
}

teardown() {
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "a missing tensor" {
  LC_ALL=C sed -i 's/experts\.3\.up_proj/experts.3.xx_proj/' "$dir/model.safetensors"
  run --separate-stderr moe --checkpoint "$dir"
  refused 2 'experts\.3\.up_proj'
}

@test "a truncated checkpoint" {
  truncate -s -100 "$dir/model.safetensors"
  run --separate-stderr moe --checkpoint "$dir"
  refused 2 'model\.safetensors'
}

@test "no such folder, no such layer, no such input" {
  run --separate-stderr moe --checkpoint "$dir/none"
  refused 2 'checkpoint/none'
  run --separate-stderr moe --layer 1
  refused 2 '--layer: 1; allowed: 0 to 0'
  run --separate-stderr moe --input "$input.none"
  refused 2 'tokens.safetensors.none'
}

@test "experts not divisible by ranks" {
  run --separate-stderr moe --ranks 3
  refused 2 '--ranks: 3; allowed: a divisor of the 8 experts'
}

@test "top-k above the experts, in the configuration and in the file" {
  jq '.num_experts_per_tok = 9' "$dir/config.json" >"$BATS_TEST_TMPDIR/config"
  cp "$BATS_TEST_TMPDIR/config" "$dir/config.json"
  run --separate-stderr moe --checkpoint "$dir"
  refused 2 'num_experts_per_tok.*9'
  "$DRAINTILE" synth tokens --count 4 --hidden 128 --experts 16 --top-k 9 "$input"
  run --separate-stderr moe --input "$input"
  refused 2 'topk_ids: top-k 9; allowed: 1 to 8'
}

@test "a NaN and an infinity in the input" {
  patch "$input" $(($(tensor_offset "$input" hidden_states) + 2 * (128 * 7 + 5))) '\xc0\x7f'
  run --separate-stderr moe --input "$input"
  refused 2 "$input: hidden_states: token 7, value 5: nan; allowed: finite values"
  patch "$input" $(($(tensor_offset "$input" hidden_states) + 2 * (128 * 7 + 5))) '\x80\xff'
  run --separate-stderr moe --input "$input"
  refused 2 'token 7, value 5: infinite'
}

@test "an id out of range, a NaN weight" {
  "$DRAINTILE" synth tokens --count 10 --hidden 128 --experts 8 --top-k 2 "$input"
  cp "$input" "$input.2"
  patch "$input" $(($(tensor_offset "$input" topk_ids) + 8 * (2 * 6 + 1))) '\x08\x00\x00\x00\x00\x00\x00\x00'
  run --separate-stderr moe --input "$input"
  refused 2 'topk_ids: token 6, choice 1: 8; allowed: 0 to 7, or -1'
  patch "$input" $(($(tensor_offset "$input" topk_ids) + 8 * (2 * 6 + 1))) '\xfe\xff\xff\xff\xff\xff\xff\xff'
  run --separate-stderr moe --input "$input"
  refused 2 'topk_ids: token 6, choice 1: -2; allowed'
  patch "$input.2" $(($(tensor_offset "$input.2" topk_weights) + 4 * 3)) '\x00\x00\xc0\x7f'
  run --separate-stderr moe --input "$input.2"
  refused 2 'topk_weights: token 1, choice 1: nan'
}

@test "another hidden size, another type, a file that is no tensor file" {
  "$DRAINTILE" synth tokens --count 10 --hidden 64 "$input"
  run --separate-stderr moe --input "$input"
  refused 2 'hidden_states: 64 values a token; allowed: 128'
  "$DRAINTILE" synth qkv --tokens 4 --heads 2 --head-dim 8 "$input"
  run --separate-stderr moe --input "$input"
  refused 2 'hidden_states'
  echo nonsense >"$input"
  run --separate-stderr moe --input "$input"
  refused 2 'tokens.safetensors'
}

@test "outputs that cannot be: no folder, no room, no regular file" {
  run --separate-stderr moe --output /no/such/folder/x
  refused 3 '/no/such/folder/x'
  run --separate-stderr bash -c 'ulimit -f 4; shift; "$@"' - x "$DRAINTILE" moe --checkpoint "$dir" --input "$input" \
    --output "$BATS_TEST_TMPDIR/output.safetensors" --repeat 1
  refused 3 'output.safetensors'
  run --separate-stderr moe --output /dev/full
  refused 2 '/dev/full: not a regular file'
  if [ "$(id -u)" -eq 0 ] && mkdir "$BATS_TEST_TMPDIR/small" &&
    mount -t tmpfs -o size=4k tmpfs "$BATS_TEST_TMPDIR/small" 2>/dev/null; then
    run --separate-stderr moe --output "$BATS_TEST_TMPDIR/small/x"
    local left
    left=$(ls -A "$BATS_TEST_TMPDIR/small")
    umount "$BATS_TEST_TMPDIR/small"
    refused 3 'small/x.*([Nn]o space|space)'
    [ -z "$left" ]
  fi
}

@test "options that do not fit together" {
  run --separate-stderr moe --trace "$BATS_TEST_TMPDIR/output.safetensors"
  refused 2 '--trace: .*/output.safetensors; allowed: another file than --output'
  run --separate-stderr moe --json "$BATS_TEST_TMPDIR/a" --trace "$BATS_TEST_TMPDIR/a"
  refused 2 '--json: .*/a; allowed: another file than --trace'
  ln "$BATS_FILE_TMPDIR/tokens.safetensors" "$BATS_TEST_TMPDIR/b" # the same file by another name
  for option in --output --json --trace; do
    run --separate-stderr moe $option "$BATS_TEST_TMPDIR/b"
    refused 2 "$option: .*/b; allowed: another file than --input"
  done
  run --separate-stderr moe --json "$BATS_TEST_TMPDIR/c" --trace "$BATS_TEST_TMPDIR/./c" # not there yet
  refused 2 '--json: .*/c; allowed: another file than --trace'
  for file in config.json model.safetensors; do
    run --separate-stderr moe --checkpoint "$dir" --output "$dir/$file"
    refused 2 "--output: .*/$file; allowed: another file than --checkpoint"
  done
  ln -s "$dir/model.safetensors" "$BATS_TEST_TMPDIR/d" # a link that would be followed
  run --separate-stderr moe --checkpoint "$dir" --output "$BATS_TEST_TMPDIR/d"
  refused 2 '--output: .*/d; allowed: another file than --checkpoint'
  mkdir "$BATS_TEST_TMPDIR/blobs" # as in the hub's cache
  mv "$dir/config.json" "$BATS_TEST_TMPDIR/blobs/0123"
  ln -s "$BATS_TEST_TMPDIR/blobs/0123" "$dir/config.json"
  run --separate-stderr moe --checkpoint "$dir" --json "$BATS_TEST_TMPDIR/blobs/0123"
  refused 2 '--json: .*/0123; allowed: another file than --checkpoint'
  ln -s e "$BATS_TEST_TMPDIR/f" # to a name that another option writes
  run --separate-stderr moe --json "$BATS_TEST_TMPDIR/e" --trace "$BATS_TEST_TMPDIR/f"
  refused 2 '--json: .*/e; allowed: another file than --trace'
  moe --checkpoint "$dir" --output "$dir/output" --repeat 1 >/dev/null # a folder may hold other things
  [ -f "$dir/output" ]
  echo '{"counts": [[1, 2], [3, 4]]}' >"$BATS_TEST_TMPDIR/counts"
  run --separate-stderr "$DRAINTILE" simulate --counts "$BATS_TEST_TMPDIR/counts" --ranks 4 --gemm-rate 1e9
  refused 2 '--counts: .*/counts; allowed: without --ranks, --experts and --routing'
  run --separate-stderr moe --link-capacity 1MiB
  refused 2 '--link-rate: required'
  run --separate-stderr moe --consumers 0 --schedule signal
  refused 2 '--consumers: 0; allowed: 1 or more with the schedule signal'
  run --separate-stderr moe --dedup on
  refused 2 '--dedup: "on"; allowed: off on the cpu'
}
