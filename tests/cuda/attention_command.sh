#!/bin/bash
# draintile attention --device cuda as a command, on one GPU or more: ranks are processes, which share GPUs where they
# outnumber them. The inputs of cases 16 to 21 at 1 to 8 ranks; --check compares every row with float64 and every
# schedule with serial to the bit, the exit code says so. Then a trace, figures that agree, a refusal, a rank that is
# killed and one that is stopped. Exit 77 without a GPU.
#
#   attention_command.sh DRAINTILE
set -u
draintile=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

synth() { "$draintile" synth qkv --seed 3 "$@" "$work/qkv" || failed=1; }
attend() { "$draintile" attention --device cuda --input "$work/qkv" --output "$work/o" --json "$work/json" "$@"; }

checked() { # options
  local begin code message=
  begin=$(date +%s.%N)
  message=$(attend --check --repeat 1 "$@" 2>&1)
  code=$?
  [ $code -eq 77 ] && { echo "$message"; exit 77; }
  [ $code -eq 0 ] || failed=1
  printf '%-4s %s (%.1f s)\n' "$([ $code -eq 0 ] && echo ok || echo FAIL)" "$*" \
    "$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')"
  [ $code -eq 0 ] || echo "     exit $code: $message"
}

expect() { # what it is, command
  local what=$1
  shift
  if "$@"; then echo "ok   $what"; else echo "FAIL $what"; failed=1; fi
}

# How many values of the file's one tensor have all bits of their exponent; -1: there is none.
not_finite() { # file, dtype
  local header
  header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
  od -An -v -w2 -t u2 -j $((8 + header)) "$1" | awk -v low="$([ "$2" = bf16 ] && echo 32640 || echo 31744)" '
    $1 % 32768 >= low { found++ }
    END { print NR ? found + 0 : -1 }'
}

children() { # process
  awk -v parent="$1" '$4 == parent { print $1 }' /proc/[0-9]*/stat 2>/dev/null | sort -n
}

# Rank 1 of a long run gets a signal: exit 3 in time, a line that names it, no rank and no output left.
loses() { # signal, what the line says of it
  local parent ranks code=0 begin
  "$draintile" attention --device cuda --input "$work/qkv" --output "$work/lost" --ranks 2 --repeat 10000 --timeout 2s \
    >/dev/null 2>"$work/error" &
  parent=$!
  sleep 2.5 # contexts and the warm-up take about one
  mapfile -t ranks < <(children "$parent")
  kill -"$1" "${ranks[1]:-$parent}"
  begin=$SECONDS
  wait "$parent" || code=$?
  expect "a rank's SIG$1: exit 3" test "$code" -eq 3
  expect '  within the time limit and some seconds' test $((SECONDS - begin)) -le 9
  expect '  a line that names it' grep -q "rank 1 (process ${ranks[1]:-?}) $2" "$work/error"
  expect '  no rank is left' test -z "$(grep -hvsE '\) [ZX]' "/proc/${ranks[0]:-0}/stat" "/proc/${ranks[1]:-0}/stat")"
  expect '  and no output' test ! -e "$work/lost"
  sed 's/^/     /' "$work/error"
}

synth --tokens 203 --heads 8 --kv-heads 4 --head-dim 64 --dtype f16
checked --ranks 1
checked --ranks 3 --causal --overlap-in off
synth --tokens 101 --heads 30 --head-dim 64 # case 16
checked --ranks 4
synth --tokens 50 --heads 28 --kv-heads 7 --head-dim 128
checked --ranks 2
synth --tokens 57826 --kv-tokens 16 --heads 12 --head-dim 64 # case 17, and 12 heads on 8 ranks
checked --ranks 8
synth --tokens 622 --heads 4 --head-dim 128 # case 18
checked --ranks 2 --text-tokens 126 --text sharded
checked --ranks 3 --text-tokens 126 --text replicated --causal
synth --tokens 1024 --kv-tokens 77 --heads 2 --head-dim 64 # cases 19 and 20: the first 947 rows see nothing
checked --ranks 2 --causal
synth --tokens 64 --heads 2 --head-dim 256 --deviation 10 --dtype f16 # case 21
checked --ranks 2 --scale 0.5
for dtype in bf16 f16; do # queries and keys of scale 100: float32 does not hold such scores to what --check asks for
  synth --tokens 300 --heads 4 --head-dim 128 --deviation 100 --dtype $dtype
  rm -f "$work/o"
  attend --ranks 2 --repeat 1 >/dev/null 2>&1
  expect "$dtype inputs of scale 100 stay finite" test "$(not_finite "$work/o" $dtype)" -eq 0
done

trace=$work/trace
attend --ranks 2 --repeat 2 --trace "$trace" >/dev/null 2>&1
expect 'a trace with every rank and schedule' test "$(grep -o '"process_name"' "$trace" | wc -l)" -eq 4
expect 'kernels of every rank in it' test "$(grep -o '"attention' "$trace" | wc -l)" -ge 4
expect 'figures' grep -q '"hidden_ratio"' "$work/json"
attend --ranks 2 --workers 2 >"$work/out" 2>&1
expect 'options of the CPU are refused' test $? -eq 2
synth --tokens 2000 --heads 8 --head-dim 128
loses KILL 'was killed by signal 9'
loses STOP 'is stopped'
exit $failed
