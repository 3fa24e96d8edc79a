# What every file of the command's tests shares. DRAINTILE is the command under test.
bats_require_minimum_version 1.5.0
: "${DRAINTILE:=$BATS_TEST_DIRNAME/../../build/draintile}"
DATA=$BATS_TEST_DIRNAME/../data

# A small layer and its tokens, once a file: $BATS_FILE_TMPDIR/checkpoint and tokens.safetensors.
make_inputs() { # tokens
  "$DRAINTILE" synth checkpoint --hidden 128 --intermediate 64 --experts 8 --top-k 2 --seed 1 \
    "$BATS_FILE_TMPDIR/checkpoint"
  "$DRAINTILE" synth tokens --count "${1:-200}" --hidden 128 --seed 2 "$BATS_FILE_TMPDIR/tokens.safetensors"
}

moe() { # further options
  "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" --input "$BATS_FILE_TMPDIR/tokens.safetensors" \
    --output "$BATS_TEST_TMPDIR/output.safetensors" "$@"
}

# Offset in a safetensors file of a tensor's first byte.
tensor_offset() { # file, tensor
  local header
  header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
  echo $((8 + header + $(tail -c +9 "$1" | head -c "$header" | jq --arg name "$2" '.[$name].data_offsets[0]')))
}

# Overwrites bytes of a file: patch FILE OFFSET '\x00\x01...'
patch() {
  printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# The last run failed with this code, wrote nothing but one line on stderr, and that line matches.
refused() { # code, pattern
  [ "$status" -eq "$1" ] || { echo "status $status: $output $stderr"; return 1; }
  [ "$(wc -l <<<"$stderr")" -eq 1 ] || { echo "not one line: $stderr"; return 1; }
  grep -qE -- "$2" <<<"$stderr" || { echo "does not match $2: $stderr"; return 1; }
}

# On every track of a trace, a slice that begins inside another ends inside it; times are rounded to 0.001 us.
slices_nest() { # file
  jq -r '.traceEvents[] | select(.ph == "X") | [.pid, .tid, .ts, .ts + .dur] | @tsv' "$1" |
    sort -k1,1n -k2,2n -k3,3g -k4,4gr | awk '
      $1 != pid || $2 != tid { depth = 0; pid = $1; tid = $2 }
      { while (depth && end[depth] <= $3 + 0.0005) depth--
        if (depth && $4 > end[depth] + 0.0015) { print "crosses:", $0; bad = 1 }
        end[++depth] = $4 }
      END { exit bad }'
}
