#!/usr/bin/env bats
# Files and values that nobody means: one line, in bounded time.
load common

@test "an input without an end: a device, a stream of blanks" {
  for path in /dev/zero /dev/full; do
    run --separate-stderr timeout 20 "$DRAINTILE" model --platform $path --producers 1 --producer-bytes 1
    refused 2 "$path: more than [0-9]+ bytes"
    run --separate-stderr timeout 20 "$DRAINTILE" plan --experts-per-rank 1 --counts $path
    refused 2 "$path: line 1: "
  done
  run --separate-stderr timeout 20 "$DRAINTILE" plan --experts-per-rank 1 --counts <(yes ' ')
  refused 2 'more than [0-9]+ bytes'
}

@test "a folder and a pipe in place of a file" {
  run --separate-stderr "$DRAINTILE" plan --experts-per-rank 1 --counts "$BATS_TEST_TMPDIR"
  refused 2 'Is a directory'
  run --separate-stderr "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 8 --costs "$BATS_TEST_TMPDIR"
  refused 2 'Is a directory'
  run --separate-stderr "$DRAINTILE" model --platform "$BATS_TEST_TMPDIR" --producers 1 --producer-bytes 1
  refused 2 'Is a directory'
  mkdir "$BATS_TEST_TMPDIR/model"
  mkfifo "$BATS_TEST_TMPDIR/model/config.json" # nobody writes to it
  run --separate-stderr timeout 20 "$DRAINTILE" moe --checkpoint "$BATS_TEST_TMPDIR/model" --input x --output y
  refused 2 'config.json: must be a regular file'
  run --separate-stderr timeout 20 "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 32 --experts 4 --top-k 2 \
    "$BATS_TEST_TMPDIR/model"
  refused 2 'holds files that synth did not make'
}

@test "integers at the ends of their type, in a list too" {
  for value in 9223372036854775807 -9223372036854775808 9223372036854775808 99999999999999999999; do
    run --separate-stderr "$DRAINTILE" bench moe --predict --tokens $value
    refused 2 "--tokens: \"$value\"; allowed: integers"
    run --separate-stderr "$DRAINTILE" moe --ranks $value
    refused 2 "--ranks: \"$value\"; allowed: "
  done
}

@test "what a message repeats cannot break its line or speak to a terminal" {
  run --separate-stderr "$DRAINTILE" moe --layout $'a\nb\033[2J\rc\177'
  refused 2 'allowed: packed'
  run ! env LC_ALL=C grep -q '[[:cntrl:]]' <<<"$stderr"
}

@test "an endless argument: the line still says what is allowed" {
  local long
  long=$(printf 'x%.0s' {1..5000})
  run --separate-stderr "$DRAINTILE" moe --tile-m "$long"
  refused 2 '^draintile moe: --tile-m: "x+ \.\.\. x+"; allowed: '
  run --separate-stderr "$DRAINTILE" plan --experts-per-rank 1 --counts "$long"
  refused 2 '^draintile plan: x+ \.\.\. x+: cannot be opened: File name too long'
  run --separate-stderr "$DRAINTILE" model --producers 1 --producer-bytes 1 --platform "$(printf 'x/%.0s' {1..900})x"
  refused 2 '^draintile model: x/.* \.\.\. .*/x: cannot be opened: No such file'
}

@test "results over what is read are refused" {
  cd "$BATS_TEST_TMPDIR"
  echo '{"counts": [[1, 2], [3, 4]]}' >counts
  cp "$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json" platform
  sha256sum counts platform >sums
  run --separate-stderr "$DRAINTILE" plan --counts counts --experts-per-rank 1 --json ./counts
  refused 2 '--json: ./counts; allowed: another file than --counts'
  run --separate-stderr "$DRAINTILE" simulate --counts counts --platform platform --trace platform
  refused 2 '--trace: platform; allowed: another file than --platform'
  run --separate-stderr "$DRAINTILE" model --platform platform --producers 1 --producer-bytes 1 --json platform
  refused 2 '--json: platform; allowed: another file than --platform'
  run --separate-stderr "$DRAINTILE" calibrate --device cpu --quick --verify platform --output platform
  refused 2 '--output: platform; allowed: another file than --verify'
  run --separate-stderr "$DRAINTILE" bench residual --platform platform --json platform
  refused 2 '--json: platform; allowed: another file than --platform'
  sha256sum --check --quiet sums
}

@test "options that would be ignored are refused" {
  for option in '--pattern one-way' '--operation st.v4' --explain; do
    run --separate-stderr "$DRAINTILE" model --t0 1us --rate 1GB/s --capacity 1MiB --burst 1MiB $option
    refused 2 "${option%% *}: needs --platform"
  done
}

@test "help ends with a line" {
  for command in moe calibrate 'bench moe' 'bench combine' 'bench attention' 'bench residual' 'synth qkv'; do
    [ "$("$DRAINTILE" $command --help | tail -c 1 | od -An -c | tr -d ' ')" = '\n' ]
  done
}

@test "results that could not be written are refused before anything runs" {
  make_inputs 40
  for option in --json --trace; do
    run --separate-stderr moe $option /no/such/folder/x
    refused 3 "$option: /no/such/folder/x: No such file"
    run --separate-stderr moe $option "$BATS_TEST_TMPDIR"
    refused 3 "$option: $BATS_TEST_TMPDIR: Is a directory"
    run --separate-stderr moe $option "$BATS_TEST_TMPDIR/$(printf '%0300d' 1)"
    refused 3 'File name too long'
    run --separate-stderr moe --repeat 1 $option /dev/full # which only writing tells
    [ "$status" -eq 3 ]
    grep -q 'No space left' <<<"$stderr"
    [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
  done
  run --separate-stderr moe --trace -
  refused 2 '--trace: "-"; allowed: a file'
  run --separate-stderr "$DRAINTILE" bench residual --platform x --json /no/such/folder/x
  refused 3 '--json: /no/such/folder/x: No such file'
}

@test "synth: sizes whose product no file holds" {
  local file=$BATS_TEST_TMPDIR/x
  run --separate-stderr timeout 20 "$DRAINTILE" synth tokens --count 1000000000 --hidden 1 --experts 1024 \
    --top-k 1024 "$file"
  refused 3 'topk_ids: would fill about .* of memory; .* are available'
  run --separate-stderr "$DRAINTILE" synth qkv --tokens 1000000000 --heads 65536 --head-dim 65536 --dtype f32 "$file"
  refused 2 'q'
  run --separate-stderr "$DRAINTILE" synth checkpoint --hidden 1000000 --intermediate 1000000 --experts 65536 \
    --top-k 1 --layers 1000 "$file"
  [ "$status" -eq 3 ] || [ "$status" -eq 2 ]
  [ ! -e "$file" ]
}

@test "closed standard streams: what is written there does not end up in a file" {
  make_inputs 40
  moe --repeat 1 >/dev/null
  mv "$BATS_TEST_TMPDIR/output.safetensors" "$BATS_TEST_TMPDIR/expected"
  moe --repeat 1 --schedule auto --explain --json "$BATS_TEST_TMPDIR/results" >/dev/null 2>&-
  cmp "$BATS_TEST_TMPDIR/expected" "$BATS_TEST_TMPDIR/output.safetensors"
  rm "$BATS_TEST_TMPDIR/output.safetensors"
  local code=0
  moe --repeat 1 --schedule auto --explain --json "$BATS_TEST_TMPDIR/results" <&- >&- 2>&- || code=$?
  [ "$code" -eq 3 ] # the tables went nowhere
  [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
  jq -e '.schema == "draintile-moe"' "$BATS_TEST_TMPDIR/results"
}

@test "tables that nobody takes: no output file" {
  make_inputs 40
  "$DRAINTILE" synth qkv --tokens 40 --heads 4 --head-dim 16 "$BATS_TEST_TMPDIR/qkv"
  attention() { "$DRAINTILE" attention --input "$BATS_TEST_TMPDIR/qkv" --repeat 1 \
    --output "$BATS_TEST_TMPDIR/output.safetensors"; }
  for command in 'moe --repeat 1' attention; do
    $command 2>"$BATS_TEST_TMPDIR/err" >/dev/full && false
    [ "$(wc -l <"$BATS_TEST_TMPDIR/err")" -eq 1 ]
    grep -q 'standard output: write failed' "$BATS_TEST_TMPDIR/err"
    { sleep 0.3; $command 2>"$BATS_TEST_TMPDIR/err"; } | true # whose reader has gone by then
    [ "${PIPESTATUS[0]}" -ne 0 ]
    [ ! -e "$BATS_TEST_TMPDIR/output.safetensors" ]
    $command >/dev/null
    rm "$BATS_TEST_TMPDIR/output.safetensors"
  done
}

@test "without /proc, where files that have no name cannot get one" {
  ! ldd "$DRAINTILE" | grep -q libasan || skip 'the address sanitizer reads /proc'
  unshare -m sh -c 'umount -l /proc' 2>/dev/null || skip 'needs a root who may unmount'
  cd "$BATS_TEST_TMPDIR"
  DRAINTILE=$DRAINTILE unshare -m sh -ec 'umount -l /proc
    "$DRAINTILE" synth tokens --count 4 --hidden 8 tokens
    "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --gemm-rate 1e12 --trace trace >/dev/null'
  [ "$(ls | tr '\n' ' ')" = 'tokens trace ' ]
}

@test "pictures: a folder that is none, a name that gnuplot would run, no gnuplot" {
  local platform=$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json
  plot() { "$DRAINTILE" calibrate --from "$platform" --plot "$1"; }
  touch "$BATS_TEST_TMPDIR/file"
  run --separate-stderr plot "$BATS_TEST_TMPDIR/file"
  refused 3 "--plot: $BATS_TEST_TMPDIR/file: Not a directory"
  [ -z "$output" ]
  cd "$BATS_TEST_TMPDIR"
  for name in '|touch run #' 'a`touch run`' 'a"b'; do
    run --separate-stderr plot "$name"
    refused 2 'allowed: no quotes, backslashes, backticks or bars'
  done
  [ ! -e run ]
  echo '{"schema": "draintile-plan"}' >plan
  for file in plan none "$platform"; do # no picture is drawn before all is read
    run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --plot pictures --residuals $file
    refused 2 "$file: (schema: another; allowed: draintile-verification|cannot be opened)"
    [ -z "$(ls pictures)" ]
  done
  run --separate-stderr env PATH=/nonexistent "$DRAINTILE" calibrate --from "$platform" --plot pictures
  refused 3 'gnuplot: failed, or is not installed'
}

@test "pictures where there is no room: whole or absent" {
  local platform=$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json small=$BATS_TEST_TMPDIR/small
  command -v gnuplot >/dev/null || skip 'gnuplot is not installed'
  mkdir "$small"
  mount -t tmpfs -o size=40k tmpfs "$small" 2>/dev/null || skip 'needs a root who may mount'
  run --separate-stderr "$DRAINTILE" calibrate --from "$platform" --plot "$small/pictures"
  local cut left
  cut=$(find "$small" -name '*.svg' -exec grep -L '</svg>' {} +) || true
  left=$(find "$small" -type f -size 0 -o -name '*.tmp')
  umount "$small"
  refused 3 '--plot: .*small/pictures/.*: No space left on device'
  [ -z "$cut$left" ]
}

@test "more tokens than memory: said at once, not found out by the kernel" {
  run --separate-stderr timeout 20 "$DRAINTILE" simulate --ranks 2 --experts 1024 --tokens 100000000 --top-k 1024 \
    --gemm-rate 1e12
  refused 3 '--tokens, --top-k: would fill about .* of memory; .* are available'
  make_inputs 40
  local file=$BATS_TEST_TMPDIR/huge.safetensors
  sparse() { # header, bytes of data
    local header=$1
    while ((${#header} % 8)); do header+=' '; done
    printf '%b%s' "$(printf '\\x%02x' $((${#header} % 256)) $((${#header} / 256)) 0 0 0 0 0 0)" "$header" >"$file"
    truncate -s $((8 + ${#header} + $2)) "$file" 2>/dev/null || skip 'no sparse files of this size'
  }
  sparse '{"hidden_states":{"dtype":"BF16","shape":[2000000000,128],"data_offsets":[0,512000000000]}}' 512000000000
  run --separate-stderr timeout 20 "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" --input "$file" \
    --output x
  refused 3 'huge.safetensors: would fill about .* of memory; .* are available'
  local shape='"dtype":"F16","shape":[1000000000,1,64],"data_offsets":['
  local q="\"q\":{${shape}0,128000000000]}" k="\"k\":{${shape}128000000000,256000000000]}"
  sparse "{$q,$k,\"v\":{${shape}256000000000,384000000000]}}" 384000000000
  run --separate-stderr timeout 20 "$DRAINTILE" attention --ranks 1 --input "$file" --output x
  refused 3 'huge.safetensors: would fill about .* of memory'
}

@test "a temporary of a killed process with the same number is in nobody's way" {
  cd "$BATS_TEST_TMPDIR"
  after_kill() { # name of the temporary's target, command...
    local name=$1
    shift
    DRAINTILE=$DRAINTILE bash -c 'name=$1; shift
      mkdir "$name.$$.tmp" && for i in 0 1; do echo stale >"$name.$$.$i.tmp"; done
      exec "$DRAINTILE" "$@"' - "$name" "$@"
    [ "$(cat "$name".*.1.tmp)" = stale ]
    [ "$(ls -d "$name".* | wc -l)" -eq 3 ]
  }
  after_kill results model --t0 1us --rate 1GB/s --capacity 1MiB --burst 1MiB --json results
  jq -e '.schema == "draintile-model"' results
  after_kill folder synth checkpoint --hidden 8 --intermediate 8 --experts 4 --top-k 2 folder
  [ -f folder/config.json ]
  after_kill tokens synth tokens --count 4 --hidden 8 tokens
  after_kill trace simulate --ranks 2 --experts 8 --tokens 64 --gemm-rate 1e12 --trace trace
  [ -f tokens ] && [ -f trace ]
}

@test "names of outputs: as long as a name may be; what can be none is refused before anything runs" {
  make_inputs 40
  cd "$BATS_TEST_TMPDIR"
  mkdir out
  local longest
  longest=out/$(printf '%0255d' 1)
  "$DRAINTILE" synth qkv --tokens 40 --heads 4 --head-dim 16 qkv
  written() { # command with the longest name last
    "$@" "$longest" >/dev/null
    [ -s "$longest" ]
    rm "$longest"
    [ -z "$(ls -A out)" ]
  }
  named_moe() {
    "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" --input "$BATS_FILE_TMPDIR/tokens.safetensors" "$@"
  }
  written named_moe --repeat 1 --output
  written "$DRAINTILE" attention --input qkv --repeat 1 --output
  written "$DRAINTILE" synth tokens --count 4 --hidden 8
  written "$DRAINTILE" model --t0 1us --rate 1GB/s --capacity 1MiB --burst 1MiB --json
  written "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --gemm-rate 1e12 --trace
  "$DRAINTILE" synth checkpoint --hidden 8 --intermediate 8 --experts 4 --top-k 2 "$longest"
  [ -f "$longest/config.json" ]
  rm -r out/*
  run --separate-stderr timeout 20 "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" \
    --input "$BATS_FILE_TMPDIR/tokens.safetensors" --repeat 10000 --link-rate 1kB/s --timeout 1h --output "${longest}0"
  refused 3 '/0+10: cannot create a file there: File name too long'
  run --separate-stderr timeout 20 "$DRAINTILE" attention --input qkv --repeat 10000 --link-rate 1kB/s --timeout 1h \
    --output "${longest}0"
  refused 3 '/0+10: cannot create a file there: File name too long'
}

@test "a file that is mounted by itself: written in place, or refused before anything runs" {
  make_inputs 40
  cd "$BATS_TEST_TMPDIR"
  echo old >source
  touch mounted
  mount --bind source mounted 2>/dev/null || skip 'needs a root who may mount'
  local failed=
  {
    "$DRAINTILE" model --t0 1us --rate 1GB/s --capacity 1MiB --burst 1MiB --json mounted >/dev/null &&
      jq -e '.schema == "draintile-model"' mounted &&
      "$DRAINTILE" simulate --ranks 2 --experts 8 --tokens 64 --gemm-rate 1e12 --trace mounted >/dev/null &&
      jq -e '.traceEvents | length > 0' mounted
  } || failed=yes
  run --separate-stderr timeout 20 "$DRAINTILE" moe --checkpoint "$BATS_FILE_TMPDIR/checkpoint" \
    --input "$BATS_FILE_TMPDIR/tokens.safetensors" --repeat 10000 --link-rate 1kB/s --timeout 1h --output mounted
  umount mounted
  [ -z "$failed" ]
  refused 3 'mounted: a mount point; it cannot be replaced'
}

@test "too little memory for what is read is no bad input" {
  ! ldd "$DRAINTILE" | grep -q libasan || skip 'the address sanitizer reserves terabytes'
  cd "$BATS_TEST_TMPDIR"
  local platform=$BATS_TEST_DIRNAME/../../bench/results/h200x2/platform.json seen=0
  jq -nc '{counts: [range(64) | [range(16384) | 1]]}' >counts
  jq -nc '{schema: "draintile-verification", rows: [range(300000)]}' >residuals
  mkdir wide index
  jq -nc '{model_type: "mixtral", hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_local_experts: 8,
    num_experts_per_tok: 2, padding: ("x" * 20000000)}' >wide/config.json
  jq -c 'del(.padding)' wide/config.json >index/config.json
  jq -nc '{weight_map: ([range(200000) | {key: "tensor \(.)", value: "model.safetensors"}] | from_entries)}' \
    >index/model.safetensors.index.json
  touch tokens
  local header
  header=$(jq -nc '[range(100000) | {key: "tensor \(.)", value: {dtype: "F32", shape: [0], data_offsets: [0, 0]}}] |
    from_entries')
  while ((${#header} % 8)); do header+=' '; done
  printf '%b%s' "$(printf '\\x%02x' $((${#header} & 255)) $((${#header} >> 8 & 255)) $((${#header} >> 16 & 255)) \
    $((${#header} >> 24)) 0 0 0 0)" "$header" >many
  limited() { # too little to start is no failure of the command
    run --separate-stderr bash -c 'ulimit -v "$1"; shift; "$@" || { code=$?; [ $code -eq 127 ] || exit $code; }' \
      - "$1" "$DRAINTILE" "${@:2}"
  }
  for limit in 22000 26000 30000 34000 38000 44000 50000 60000; do
    for command in "plan --counts counts --experts-per-rank 256" "simulate --counts counts --gemm-rate 1e12" \
      "model --platform $platform --producers 1 --producer-bytes 1" "calibrate --from $platform --plot pictures" \
      "calibrate --from $platform --plot pictures --residuals residuals" \
      "moe --checkpoint wide --input tokens --output out --repeat 1" "moe --checkpoint index --input x --output out" \
      "attention --input many --output out --repeat 1"; do
      limited $limit $command
      [ "$status" -eq 0 ] && continue
      [[ $stderr == *gnuplot* || $stderr == *Fontconfig* ]] && continue # which has the same limit
      refused 3 'memory'
      seen=$((seen + 1))
    done
  done
  [ $seen -gt 3 ]
}

@test "a file of another user in a folder like /tmp is refused before anything runs" {
  [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null || skip 'needs a root who may be another'
  local folder
  folder=$(mktemp -d /tmp/dt-kept-XXXXXX)
  chmod 1777 "$folder"
  cp "$DATA"/../../bench/results/h200x2/platform.json "$folder/other"
  chmod 666 "$folder/other"
  "$DRAINTILE" synth qkv --tokens 40 --heads 4 --head-dim 16 "$folder/qkv"
  ln -s other "$folder/link"
  as_nobody() { timeout 20 setpriv --reuid 65534 --regid 65534 --clear-groups "$DRAINTILE" "$@"; }
  as_nobody info >/dev/null 2>&1 || skip 'another user cannot run the command'
  long() { as_nobody attention --input "$folder/qkv" --repeat 10000 --link-rate 1kB/s --timeout 1h "$@"; }
  for name in other link; do
    run --separate-stderr long --output "$folder/$name"
    refused 3 "$name: another user's, cannot be replaced: Operation not permitted"
    for option in --json --trace; do
      run --separate-stderr long --output "$folder/own" $option "$folder/$name"
      refused 3 "^draintile attention: $option: $folder/$name: Operation not permitted"
    done
  done
  as_nobody attention --input "$folder/qkv" --repeat 1 --output "$folder/own" --json "$folder/results" >/dev/null
  as_nobody attention --input "$folder/qkv" --repeat 1 --output "$folder/own" --json "$folder/results" >/dev/null
  rm -r "$folder"
}

@test "a million experts of one value each" {
  cd "$BATS_TEST_TMPDIR"
  local experts=1048576 header
  mkdir model
  jq -nc --argjson n $experts '{model_type: "qwen3_moe", hidden_size: 1, moe_intermediate_size: 1, num_hidden_layers: 1,
    num_experts: $n, num_experts_per_tok: 2, torch_dtype: "float32"}' >model/config.json
  tensor() { printf '"model.layers.0.mlp.%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}' "$@"; }
  header="{$(tensor gate.weight $experts,1 0 $((4 * experts))),"
  header+="$(tensor experts.gate_up_proj $experts,2,1 $((4 * experts)) $((12 * experts))),"
  header+="$(tensor experts.down_proj $experts,1,1 $((12 * experts)) $((16 * experts)))}"
  while ((${#header} % 8)); do header+=' '; done
  printf '%b%s' "$(printf '\\x%02x' $((${#header} % 256)) $((${#header} / 256)) 0 0 0 0 0 0)" "$header" \
    >model/model.safetensors
  truncate -s $((8 + ${#header} + 16 * experts)) model/model.safetensors
  "$DRAINTILE" synth tokens --count 4 --hidden 1 --dtype f32 tokens
  timeout 100 "$DRAINTILE" moe --checkpoint model --input tokens --output out --ranks 1 --repeat 1 >/dev/null
  [ -f out ]
}

@test "what a container leaves of memory is what there is" {
  local group=/sys/fs/cgroup/memory/dt-test-$$ limit=memory.limit_in_bytes
  [ -d /sys/fs/cgroup/memory ] || { group=/sys/fs/cgroup/dt-test-$$; limit=memory.max; }
  mkdir "$group" 2>/dev/null && mkdir "$group/inner" || skip 'needs a root who may make control groups'
  echo 300000000 >"$group/$limit" || { rmdir "$group/inner" "$group"; skip 'no memory controller'; }
  inside() { bash -c 'echo $$ >"$1/inner/cgroup.procs" && shift && exec "$@"' - "$group" "$DRAINTILE" "$@"; }
  run --separate-stderr inside synth tokens --count 10000000 --hidden 1 --experts 8 "$BATS_TEST_TMPDIR/tokens"
  local code=$status message=$stderr
  run -0 inside info --json -
  rmdir "$group/inner" "$group"
  jq -e '.memory_available_bytes <= 300000000 and .memory_available_bytes > 200000000' <<<"$output"
  status=$code stderr=$message
  refused 3 'topk_ids: would fill about 305.* MiB of memory; 2.* MiB are available'
  "$DRAINTILE" info --json - | jq -e '.memory_available_bytes > 300000000'
}
