#!/usr/bin/env bats
# draintile attention end to end: figures, checks, shapes that broke other systems, refusals, a lost rank.
load common

# An input file of this test: synth OPTIONS
synth() {
  "$DRAINTILE" synth qkv --seed 3 "$@" "$BATS_TEST_TMPDIR/qkv"
}

attention() { # further options
  "$DRAINTILE" attention --input "$BATS_TEST_TMPDIR/qkv" --output "$BATS_TEST_TMPDIR/output.safetensors" "$@"
}

# Both schedules are checked and right.
checked() { # options
  run -0 --separate-stderr attention --check --repeat 1 --json - "$@"
  [ -z "$stderr" ]
  jq -e '.schema == "draintile-attention" and .version == 1 and ([.runs[].schedule] == ["serial", "piggyback"])
    and .tolerance as $t | .runs | all(.bit_equal and .max_relative_error >= 0 and .max_relative_error <= $t)' \
    <<<"$output"
}

@test "both schedules, checked, at 1, 2, 3, 4 and 8 ranks, in every type" {
  for dtype in f32 bf16 f16; do
    synth --tokens 203 --heads 8 --kv-heads 4 --head-dim 32 --dtype $dtype
    for ranks in 1 2 3 4 8; do
      checked --ranks $ranks --tile-rows 32
      checked --ranks $ranks --causal --overlap-in off
    done
  done
}

@test "uneven heads and lengths: 30 heads on 4 ranks, 12 on 8, 28 and 7 key heads on 2" {
  synth --tokens 101 --heads 30 --head-dim 16
  checked --ranks 4
  jq -e '[.setting.shares[].heads] == [8, 8, 7, 7] and [.setting.shares[].rows_in] == [26, 25, 25, 25]' <<<"$output"
  synth --tokens 50 --heads 12 --head-dim 16
  checked --ranks 8
  synth --tokens 50 --heads 28 --kv-heads 7 --head-dim 16
  checked --ranks 2
  jq -e '[.setting.shares[].kv_heads] == [4, 4] and [.setting.shares[].first_kv_head] == [0, 3]' <<<"$output"
}

@test "no token is dropped or padded: 56,700 and 57,826 tokens on 8 ranks" {
  for tokens in 56700 57826; do
    synth --tokens $tokens --kv-tokens 16 --heads 8 --head-dim 8 --dtype f32
    checked --ranks 8
    jq -e "([.setting.shares[].rows_out] | add) == $tokens" <<<"$output"
    local header
    header=$(od -An -t u8 -N 8 "$BATS_TEST_TMPDIR/output.safetensors" | tr -d ' ')
    tail -c +9 "$BATS_TEST_TMPDIR/output.safetensors" | head -c "$header" |
      jq -e ".o | .shape == [$tokens, 8, 8] and .dtype == \"F32\""
  done
}

@test "text and image: sharded or replicated, the same result" {
  synth --tokens 622 --heads 4 --head-dim 32 --dtype f32
  for ranks in 2 3 4; do
    checked --ranks $ranks --text-tokens 126 --text sharded
    checked --ranks $ranks --text-tokens 126 --text replicated --causal
  done
  jq -e '[.setting.shares[].rows_in] == [250, 250, 250, 250]
    and [.setting.shares[].rows_out] == [156, 156, 155, 155]' <<<"$output"
}

@test "lengths that differ, masked rows, tiles of 192 rows, large logits, no tokens" {
  synth --tokens 1024 --kv-tokens 77 --heads 2 --head-dim 64
  checked --tile-rows 192
  checked --causal # the first 947 rows see nothing
  synth --tokens 64 --heads 2 --head-dim 64 --deviation 10
  checked --ranks 2
  synth --tokens 0 --heads 2 --head-dim 8
  checked --ranks 2
  synth --tokens 3 --kv-tokens 0 --heads 4 --head-dim 8
  checked --ranks 4
}

@test "one key head for all, a scale of its own" {
  synth --tokens 90 --heads 6 --kv-heads 1 --head-dim 24 --dtype f32
  checked --ranks 4 --scale 0.5 --workers 2 --consumers 0
  jq -e '.setting.scale == 0.5 and ([.setting.shares[].kv_heads] == [1, 1, 1, 1])' <<<"$output"
}

@test "figures follow their definitions" {
  synth --tokens 300 --heads 4 --head-dim 32
  run -0 --separate-stderr attention --ranks 2 --repeat 3 --link-rate 20MB/s --link-capacity 16KiB \
    --link-latency 1ms --json -
  jq -e 'def near($a; $b): ($a - $b | fabs) <= 1e-9 * ($b | fabs) + 1e-15;
    def median: sort | .[1];
    .runs[0] as $serial | .runs | all(
      .compute_alone_s == $serial.stages.compute_s and .serial_s == $serial.total_s
      and near(.comm_alone_s; $serial.stages.in_s + $serial.stages.out_s)
      and .total_s == (.samples_s | median)
      and near(.hidden_ratio; 1 - ([0, .total_s - .compute_alone_s] | max) / .comm_alone_s)
      and near(.efficiency; (.compute_alone_s + .comm_alone_s - .total_s) / ([.compute_alone_s, .comm_alone_s] | min))
      and near(.speedup_over_serial; .serial_s / .total_s)
      and near(.limit_s; .limit_parts.constants_s + ([.limit_parts.compute_s, .limit_parts.link_s] | max))
      and near(.limit_parts.constants_s; 2e-3)
      and ([.bytes_sent_to_peer[][]] | add) == .bytes_sent and .bytes_sent_to_peer[0][0] == 0
      and .max_relative_error == null)' <<<"$output"
  # q, k, v and o: 150 remote rows of 2 remote heads of 64 bytes, from each rank
  jq -e '.runs | all(.bytes_sent == 2 * 4 * 150 * 2 * 64)' <<<"$output"
}

@test "the output: the same bytes from both schedules and any tables" {
  synth --tokens 333 --heads 6 --head-dim 32
  attention --ranks 3 --schedule serial --repeat 1 >/dev/null
  mv "$BATS_TEST_TMPDIR/output.safetensors" "$BATS_TEST_TMPDIR/serial"
  attention --ranks 3 --schedule piggyback --repeat 1 --own-lag 6 --workers 2 --delay 100us >/dev/null
  cmp "$BATS_TEST_TMPDIR/serial" "$BATS_TEST_TMPDIR/output.safetensors"
}

@test "trace: one process a rank and schedule, slices that nest" {
  synth --tokens 300 --heads 4 --head-dim 32
  attention --ranks 2 --repeat 2 --link-rate 50MB/s --link-capacity 16KiB \
    --trace "$BATS_TEST_TMPDIR/trace.json" >/dev/null
  jq -e '([.traceEvents[] | select(.ph == "M" and .name == "process_name")] | length) == 4
    and ([.traceEvents[] | select(.ph == "X" and (.name | startswith("attention")))] | length) > 0
    and ([.traceEvents[] | select(.ph == "X" and (.ts < 0 or .dur < 0))] | length) == 0' "$BATS_TEST_TMPDIR/trace.json"
  slices_nest "$BATS_TEST_TMPDIR/trace.json"
}

@test "a path that is not UTF-8 leaves the JSON valid" {
  synth --tokens 40 --heads 2 --head-dim 8
  local input=$BATS_TEST_TMPDIR/$'q\xff'
  mv "$BATS_TEST_TMPDIR/qkv" "$input"
  attention --input "$input" --repeat 1 --json "$BATS_TEST_TMPDIR/results.json" >/dev/null
  jq -e '.setting.input | endswith("/q?")' "$BATS_TEST_TMPDIR/results.json"
}

@test "refusals: one line, no output" {
  synth --tokens 40 --heads 4 --kv-heads 2 --head-dim 8
  run --separate-stderr attention --ranks 5
  refused 2 '--ranks: 5; allowed: 1 to 4, the heads of .*qkv'
  run --separate-stderr attention --text-tokens 41
  refused 2 '--text-tokens: 41; allowed: 0 to 40'
  run --separate-stderr attention --text replicated
  refused 2 '--text-tokens: required with --text'
  run --separate-stderr attention --schedule wave
  refused 2 '--schedule: "wave"; allowed: serial, piggyback'
  run --separate-stderr attention --scale huge
  refused 2 '--scale: "huge"; allowed: a number'
  run --separate-stderr attention --link-capacity 1MiB
  refused 2 '--link-rate: required'
  run --separate-stderr attention --json "$BATS_TEST_TMPDIR/output.safetensors"
  refused 2 '--json: .*/output.safetensors; allowed: another file than --output'
  run --separate-stderr attention --json "$BATS_TEST_TMPDIR/a" --trace "$BATS_TEST_TMPDIR/a"
  refused 2 '--json: .*/a; allowed: another file than --trace'
  [ ! -e "$BATS_TEST_TMPDIR/a" ]
  run --separate-stderr attention --input "$BATS_TEST_TMPDIR/none"
  refused 2 'none'
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
  run --separate-stderr attention --output /dev/full
  refused 2 '--output: /dev/full: not a regular file'
  run --separate-stderr attention --output /no/such/folder/o
  refused 3 '/no/such/folder/o'
}

@test "bad input files: a NaN, a missing tensor, shapes that do not fit" {
  local file=$BATS_TEST_TMPDIR/qkv
  synth --tokens 40 --heads 4 --kv-heads 2 --head-dim 8
  patch "$file" $(($(tensor_offset "$file" k) + 2 * (16 * 7 + 8 + 5))) '\xc0\x7f'
  run --separate-stderr attention
  refused 2 'k: token 7, head 1, value 5: nan; allowed: finite values'
  # shapes of the same size as the right ones, so that the file itself stays whole
  synth --tokens 40 --heads 4 --kv-heads 2 --head-dim 8
  LC_ALL=C sed -i '1s/"q":/"x":/' "$file"
  run --separate-stderr attention
  refused 2 "$file: tensor 'q': not in this file"
  synth --tokens 40 --heads 4 --head-dim 8
  LC_ALL=C sed -i '1s/\("k":[^}]*"shape":\)\[40,4,8\]/\1[20,8,8]/' "$file"
  run --separate-stderr attention
  refused 2 'k: 8 heads; allowed: a divisor of the 4 heads of q'
  synth --tokens 40 --heads 4 --head-dim 8
  LC_ALL=C sed -i '1s/\("v":[^}]*"shape":\)\[40,4,8\]/\1[80,2,8]/' "$file"
  run --separate-stderr attention
  refused 2 'v: shape \[80, 2, 8\]; allowed: \[40, 4, 8\], as k'
  synth --tokens 40 --heads 4 --head-dim 16
  LC_ALL=C sed -i '1s/\("k":[^}]*"shape":\)\[40,4,16\]/\1[80,4,8] /' "$file"
  run --separate-stderr attention
  refused 2 'k: head dim 8; allowed: 16, as q'
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "a wrong result is caught: more than the tolerance, and what differs between runs" {
  # float32 holds logits of ten thousands to about 1e-2: such an input must fail the check, not pass it
  synth --tokens 64 --heads 2 --head-dim 64 --deviation 100 --dtype f32
  run --separate-stderr attention --check --repeat 1
  [ "$status" -eq 1 ]
  grep -q 'check: serial: token .*relative error' <<<"$stderr"
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "--device cuda: what it cannot do is refused, with a GPU or without" {
  synth --tokens 40 --heads 12 --head-dim 64
  local option
  for option in '--workers 2' '--consumers 0' '--tile-rows 64' '--own-lag 1' '--link-rate 1GB/s' '--delay 1ms'; do
    # shellcheck disable=SC2086  # an option and its value
    run --separate-stderr attention --device cuda $option
    refused 2 "${option%% *}: given with --device cuda; allowed: with --device cpu"
  done
  run --separate-stderr attention --device cuda --ranks 9
  refused 2 '--ranks: 9; allowed on cuda: 1 to 8'
  for option in 0 -1 1e-60; do # the last is 0 in float32
    run --separate-stderr attention --device cuda --scale $option
    refused 2 '--scale: -?[01]; allowed on cuda: above 0'
  done
  synth --tokens 1 --heads 1025 --head-dim 64
  run --separate-stderr attention --device cuda --ranks 1
  refused 2 '--device: cuda: .*qkv has 1025 heads; allowed: 4096, and 1024 a rank'
  synth --tokens 40 --heads 2 --head-dim 64 --dtype f32
  run --separate-stderr attention --device cuda
  refused 2 '--device: cuda: .*qkv is f32; allowed: bf16, f16'
  synth --tokens 40 --heads 2 --head-dim 96
  run --separate-stderr attention --device cuda
  refused 2 '--device: cuda: .*qkv has head dim 96; allowed: 64, 128, 256'
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "a device that is not there is skipped" {
  synth --tokens 4 --heads 2 --head-dim 64
  run --separate-stderr attention --device cuda
  [ "$status" -eq 77 ] || skip 'a CUDA device is here'
  [ "$(wc -l <<<"$stderr")" -eq 1 ]
}

# Starts a slow run of three ranks in the background and waits until they are there: sets `shell`, `parent`, `ranks`.
start() { # further options
  attention --ranks 3 --link-rate 20MB/s --link-capacity 64KiB --timeout 2s "$@" \
    >/dev/null 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  shell=$!
  for _ in $(seq 200); do
    parent=$(pgrep -P $shell -f 'draintile attention' || true)
    [ -n "$parent" ] || parent=$shell
    mapfile -t ranks < <(pgrep -P "$parent" | sort -n)
    [ "${#ranks[@]}" -eq 3 ] && return 0
    sleep 0.01
  done
  echo "ranks did not start"
  return 1
}

# The run ends with 3 in time, one line that matches, and nothing left.
lost() { # pattern
  local code=0 rank
  SECONDS=0
  wait $shell || code=$?
  [ "$code" -eq 3 ]
  [ "$SECONDS" -le 9 ]
  [ "$(wc -l <"$BATS_TEST_TMPDIR/err")" -eq 1 ]
  grep -qE "$1" "$BATS_TEST_TMPDIR/err" || { cat "$BATS_TEST_TMPDIR/err"; return 1; }
  for rank in "${ranks[@]}"; do
    [ ! -e "/proc/$rank/stat" ] || grep -qE '\) [ZX]' "/proc/$rank/stat"
  done
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "SIGKILL and SIGSTOP of a rank: exit 3 within the timeout, nothing is left" {
  synth --tokens 2000 --heads 8 --head-dim 32 --dtype f32
  for signal in KILL STOP; do
    for schedule in serial piggyback; do
      start --schedule $schedule --repeat 500
      sleep 0.4
      kill -$signal "${ranks[1]}"
      lost "rank [0-2] \(process ${ranks[1]}\) (was killed by signal 9|is stopped)"
    done
  done
}

@test "all ranks killed, or the command told to end: as for one rank; a rank that is late is waited for" {
  synth --tokens 2000 --heads 8 --head-dim 32 --dtype f32
  start --repeat 500
  sleep 0.2
  kill -9 "${ranks[@]}"
  lost 'rank [0-2] \(process [0-9]+\) was killed by signal 9'
  for signal in TERM INT; do
    start --repeat 500
    sleep 0.2
    kill -$signal "$parent"
    lost 'interrupted by signal'
  done
  start --repeat 1 --timeout 60s
  kill -STOP "${ranks[1]}"
  sleep 1
  kill -CONT "${ranks[1]}"
  wait $shell
  [ -f "$BATS_TEST_TMPDIR/output.safetensors" ]
}
