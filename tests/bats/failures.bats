#!/usr/bin/env bats
# A rank that is killed or stopped in any stage: the command exits 3 in bounded time and names it; nothing is left.
load common

setup_file() {
  make_inputs 400
  "$DRAINTILE" synth checkpoint --hidden 128 --intermediate 64 --experts 32 --top-k 2 "$BATS_FILE_TMPDIR/wide"
}

# Starts a slow run in the background and waits until its ranks are there: sets `parent` and `ranks`.
start() { # further options
  moe --ranks 4 --repeat 50 --link-rate 300kB/s --link-capacity 16KiB --timeout 2s "$@" \
    >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  shell=$!
  for _ in $(seq 200); do
    parent=$(pgrep -P $shell -f 'draintile moe' || true)
    [ -n "$parent" ] || parent=$shell
    mapfile -t ranks < <(pgrep -P "$parent" | sort -n)
    [ "${#ranks[@]}" -eq 4 ] && return 0
    sleep 0.01
  done
  echo "ranks did not start"
  return 1
}

# Neither running nor stopped; a zombie that a container's init never reaps counts as gone.
gone() { # process
  [ ! -e "/proc/$1/stat" ] || grep -qE '\) [ZX]' "/proc/$1/stat"
}

# The run ends with this code within some seconds and leaves no rank.
ends_with() { # code, seconds
  local waited=0 code=0
  while kill -0 $shell 2>/dev/null && [ $waited -lt $(($2 * 20)) ]; do
    sleep 0.05
    waited=$((waited + 1))
  done
  ! kill -0 $shell 2>/dev/null || { echo "still running after $2 s"; kill -9 "$parent"; return 1; }
  wait $shell || code=$?
  [ "$code" -eq "$1" ] || { echo "code $code: $(cat "$BATS_TEST_TMPDIR/err")"; return 1; }
  for rank in "${ranks[@]}"; do
    gone "$rank" || { echo "rank process $rank is left"; return 1; }
  done
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
  [ "$(find "$BATS_TEST_TMPDIR" -name '*output*' | wc -l)" -eq 0 ]
}

one_line() { # pattern
  [ "$(wc -l <"$BATS_TEST_TMPDIR/err")" -eq 1 ]
  grep -qE -- "$1" "$BATS_TEST_TMPDIR/err" || { cat "$BATS_TEST_TMPDIR/err"; return 1; }
}

@test "SIGKILL of a rank, from start to steady state" {
  for delay in 0 0.05 0.2 0.7 1.5; do
    for schedule in serial signal interleave; do
      start --schedule $schedule
      sleep $delay
      kill -9 "${ranks[2]}"
      ends_with 3 9
      one_line "rank [0-3] \(process ${ranks[2]}\) was killed by signal 9"
    done
  done
}

@test "SIGSTOP of a rank, from start to steady state" {
  for delay in 0 0.1 0.7 1.3; do
    for schedule in serial direct; do
      start --schedule $schedule
      sleep $delay
      kill -STOP "${ranks[1]}"
      ends_with 3 9
      one_line "rank [0-3] \(process ${ranks[1]}\) is stopped"
    done
  done
}

@test "SIGSTOP where nobody is left to wait: all ranks, a rank alone" {
  start --schedule serial
  sleep 0.3
  kill -STOP "${ranks[@]}"
  ends_with 3 9
  one_line 'rank 0 \(process [0-9]+\) is stopped'
  "$DRAINTILE" synth qkv --tokens 300 --heads 2 --head-dim 64 "$BATS_TEST_TMPDIR/qkv"
  "$DRAINTILE" attention --input "$BATS_TEST_TMPDIR/qkv" --output "$BATS_TEST_TMPDIR/output.safetensors" --ranks 1 \
    --repeat 100000 --timeout 2s >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  shell=$!
  parent=$shell
  sleep 0.5
  mapfile -t ranks < <(pgrep -P $parent)
  kill -STOP "${ranks[0]}"
  ends_with 3 9
  one_line "rank 0 \(process ${ranks[0]}\) is stopped"
}

@test "two ranks at once, all ranks at once" {
  start --schedule alternate
  sleep 0.5
  kill -9 "${ranks[0]}" "${ranks[3]}"
  ends_with 3 9
  start --schedule wave
  sleep 0.5
  kill -9 "${ranks[@]}"
  ends_with 3 9
}

@test "SIGTERM and SIGINT to the command" {
  for signal in TERM INT; do
    start --schedule signal
    sleep 0.3
    kill -$signal "$parent"
    ends_with 3 5
    one_line 'interrupted by signal'
  done
}

@test "ranks that cannot be started: one line, and nobody else is killed" {
  # in a session of its own: killing "process 0" would take this test along
  run setsid --wait bash -c 'ulimit -n 24; "$@" 2>"$0"; echo "code $?"' "$BATS_TEST_TMPDIR/err" "$DRAINTILE" moe \
    --checkpoint "$BATS_FILE_TMPDIR/wide" --input "$BATS_FILE_TMPDIR/tokens.safetensors" \
    --output "$BATS_TEST_TMPDIR/output.safetensors" --ranks 32 --repeat 1
  [ "$output" = 'code 3' ]
  one_line 'rank [0-9]+: socket: Too many open files'
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "too little address space: an error, not a wait for memory that never comes" {
  local limit
  ! ldd "$DRAINTILE" | grep -q libasan || skip 'the address sanitizer needs terabytes of it'
  for limit in 60000 100000 150000; do # kB; the BLAS library wants 128 MiB a worker
    run setsid --wait timeout 20 bash -c 'ulimit -v "$1"; shift; "$@" 2>&1 >/dev/null; echo "code $?"' - $limit \
      "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" --input "$BATS_FILE_TMPDIR/tokens.safetensors" \
      --output "$BATS_TEST_TMPDIR/output.safetensors" --repeat 1
    grep -qE 'memory|memfd|mapp|Cannot allocate' <<<"$output"
    grep -qx 'code 3' <<<"$output"
  done
}

@test "SIGHUP ends the command, but not one that was told to ignore it" {
  start --schedule signal
  sleep 0.3
  kill -HUP "$parent"
  ends_with 3 5
  one_line 'interrupted by signal'
  trap '' HUP
  start --schedule serial --repeat 4 --timeout 60s --link-rate 1MB/s
  trap - HUP
  sleep 0.3
  kill -HUP "$parent"
  wait $shell
  [ -f "$BATS_TEST_TMPDIR/output.safetensors" ]
}

@test "synth, interrupted: nothing is left" {
  for signal in TERM INT HUP; do
    "$DRAINTILE" synth checkpoint --hidden 2048 --intermediate 2048 --experts 256 --top-k 2 "$BATS_TEST_TMPDIR/big" \
      2>"$BATS_TEST_TMPDIR/err" 3>&- &
    sleep 0.2
    [ -e "$BATS_TEST_TMPDIR/big.$!.0.tmp" ]
    kill -$signal $!
    local code=0
    wait $! || code=$?
    [ "$code" -eq 3 ]
    one_line 'interrupted by signal'
    [ "$(find "$BATS_TEST_TMPDIR" -name 'big*' | wc -l)" -eq 0 ]
  done
}

@test "simulate, ended while it writes: a file is whole or absent, and no other is left" {
  cd "$BATS_TEST_TMPDIR"
  for delay in 0.05 0.1 0.2 0.3 0.4 0.6; do
    for signal in TERM INT; do
      "$DRAINTILE" simulate --ranks 8 --experts 128 --tokens 65536 --gemm-rate 1e12 --link-rate 1GB/s \
        --trace trace --json results >/dev/null 3>&- &
      sleep $delay
      kill -$signal $! 2>/dev/null || true
      wait $! || true
      [ ! -e trace ] || [ "$(tail -n 1 trace)" = ']}' ]
      [ ! -e results ] || jq -e '.schema == "draintile-simulate"' results >/dev/null
      rm -f trace results
      [ -z "$(ls)" ]
    done
  done
}

@test "SIGKILL of the command takes its ranks along" {
  start --schedule signal
  sleep 0.3
  kill -9 "$parent"
  sleep 0.5
  wait $shell || true
  for rank in "${ranks[@]}"; do
    gone "$rank"
  done
  [ "$(find "$BATS_TEST_TMPDIR" -name '*output*' | wc -l)" -eq 0 ]
}

@test "an existing output survives a failed run" {
  echo precious >"$BATS_TEST_TMPDIR/output.safetensors"
  moe --ranks 4 --repeat 50 --link-rate 300kB/s --link-capacity 16KiB --timeout 2s \
    >/dev/null 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  shell=$!
  sleep 0.7
  parent=$(pgrep -P $shell -f 'draintile moe' || echo $shell)
  kill -9 "$(pgrep -P "$parent" | head -n 1)"
  local code=0
  wait $shell || code=$?
  [ "$code" -eq 3 ]
  [ "$(cat "$BATS_TEST_TMPDIR/output.safetensors")" = precious ]
}

@test "a rank that is late but alive is waited for" {
  start --schedule serial --repeat 4 --timeout 60s --link-rate 1MB/s
  kill -STOP "${ranks[1]}"
  sleep 2.5
  kill -CONT "${ranks[1]}"
  local code=0
  wait $shell || code=$?
  [ "$code" -eq 0 ]
  [ -f "$BATS_TEST_TMPDIR/output.safetensors" ]
}
