#!/usr/bin/env bats
# Synthetic inputs: the same seed gives the same bytes, whole or absent.
load common

@test "tokens: deterministic, the right shape, not zero" {
  local a=$BATS_TEST_TMPDIR/a b=$BATS_TEST_TMPDIR/b c=$BATS_TEST_TMPDIR/c
  "$DRAINTILE" synth tokens --count 33 --hidden 20 --dtype bf16 --seed 5 "$a"
  "$DRAINTILE" synth tokens --count 33 --hidden 20 --dtype bf16 --seed 5 "$b"
  "$DRAINTILE" synth tokens --count 33 --hidden 20 --dtype bf16 --seed 6 "$c"
  cmp "$a" "$b"
  run ! cmp -s "$a" "$c"
  local header
  header=$(od -An -t u8 -N 8 "$a" | tr -d ' ')
  tail -c +9 "$a" | head -c "$header" | jq -e '.hidden_states | .shape == [33, 20] and .dtype == "BF16"'
  [ "$(tail -c $((33 * 20 * 2)) "$a" | od -An -v -t x2 -w2 | sort -u | wc -l)" -gt 200 ]
}

@test "tokens: with experts, ids and weights" {
  local file=$BATS_TEST_TMPDIR/routed header
  "$DRAINTILE" synth tokens --count 64 --hidden 8 --experts 16 --top-k 4 --routing stress_skew "$file"
  header=$(od -An -t u8 -N 8 "$file" | tr -d ' ')
  tail -c +9 "$file" | head -c "$header" | jq -e '.topk_ids.shape == [64, 4] and .topk_weights.dtype == "F32"'
  # stress: half of the slots go to the first eighth of the experts
  local hot
  hot=$(tail -c +$(($(tensor_offset "$file" topk_ids) + 1)) "$file" | head -c $((64 * 4 * 8)) | od -An -v -t d8 -w8 |
    awk '$1 < 2' | wc -l)
  [ "$hot" -ge 128 ]
}

@test "checkpoint: a folder with config and weights; sharded above a size; replaced only when ours" {
  local dir=$BATS_TEST_TMPDIR/model
  "$DRAINTILE" synth checkpoint --arch qwen3_moe --hidden 64 --intermediate 32 --experts 4 --top-k 2 --layers 2 \
    --dtype f32 --seed 3 "$dir"
  jq -e '.model_type == "qwen3_moe" and .num_experts == 4 and .moe_intermediate_size == 32' "$dir/config.json"
  [ -f "$dir/model.safetensors" ]
  "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 32 --experts 4 --top-k 2 --shard-size 30kB "$dir/"
  [ ! -e "$dir/model.safetensors" ]
  local shards
  shards=$(jq -r '[.weight_map[]] | unique | .[]' "$dir/model.safetensors.index.json")
  [ "$(wc -l <<<"$shards")" -gt 1 ]
  for shard in $shards; do [ -f "$dir/$shard" ]; done
  jq 'del(.draintile_synth_seed)' "$dir/config.json" >"$BATS_TEST_TMPDIR/config"
  cp "$BATS_TEST_TMPDIR/config" "$dir/config.json"
  run --separate-stderr "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 32 --experts 4 --top-k 2 "$dir"
  refused 2 'holds files that synth did not make'
  [ "$(find "$BATS_TEST_TMPDIR" -maxdepth 1 -name '*.tmp' | wc -l)" -eq 0 ]
}

@test "checkpoint: weights deviate by 1/sqrt(columns), norms are ones" {
  local folder=$BATS_TEST_TMPDIR/model name columns want
  "$DRAINTILE" synth checkpoint --hidden 256 --intermediate 64 --experts 2 --top-k 1 --dtype f32 "$folder"
  while read -r name columns want; do
    tail -c +$(($(tensor_offset "$folder/model.safetensors" "model.layers.0.$name") + 1)) "$folder/model.safetensors" |
      head -c $((256 * 4 * (columns ? 64 : 1))) | od -An -v -t f4 -w4 |
      awk -v want="$want" '{ n++; sum += $1; squares += $1 * $1 }
        END { mean = sum / n; deviation = sqrt(squares / n)
              exit !(n >= 256 && deviation >= 0.97 * want && deviation <= 1.03 * want &&
                     (want == 1 ? mean == 1 : mean ^ 2 < want ^ 2 / 1000)) }'
  done <<TENSORS
mlp.experts.1.gate_proj.weight 256 0.0625
mlp.experts.1.down_proj.weight 64 0.125
input_layernorm.weight 0 1
TENSORS
}

@test "checkpoint: what a folder holds of the user's is never removed" {
  cd "$BATS_TEST_TMPDIR"
  make() { "$DRAINTILE" synth checkpoint --intermediate 8 --experts 4 --top-k 2 "$@"; }
  mkdir empty
  run --separate-stderr bash -c 'ulimit -f 8; "$@"' - "$DRAINTILE" synth checkpoint --hidden 256 --intermediate 256 \
    --experts 2 --top-k 1 empty
  refused 3 'empty'
  [ -d empty ]
  make --hidden 8 empty
  make --hidden 8 --seed 1 model
  local before after
  for name in notes.txt modelling model.safetensors.orig model-1-of-2.safetensors~ model-mine.safetensors sub; do
    [ $name = sub ] && mkdir model/sub || echo mine >model/$name
    before=$(find model | sort)
    run --separate-stderr make --hidden 8 model
    refused 2 "model: holds files that synth did not make: $name; allowed: "
    after=$(find model | sort)
    [ "$before" = "$after" ]
    [ -z "$(find . -maxdepth 1 -name '*.tmp')" ]
    rm -r "model/$name"
  done
  for name in . .. empty/. model/..; do
    run --separate-stderr make --hidden 8 $name
    refused 2 "$name: cannot be replaced; allowed: a folder in it"
  done
  make --hidden 8 --shard-size 1kB model
  make --hidden 8 model
  [ "$(ls model | tr '\n' ' ')" = 'config.json model.safetensors ' ]
  mkdir volume
  mount -t tmpfs -o size=100k tmpfs volume 2>/dev/null || skip 'needs a root who may mount'
  run --separate-stderr make --hidden 8 volume
  umount volume
  refused 2 'volume: cannot be replaced; allowed: a folder in it'
}

@test "qkv: grouped heads" {
  local file=$BATS_TEST_TMPDIR/qkv header
  "$DRAINTILE" synth qkv --tokens 10 --heads 4 --head-dim 8 --kv-heads 2 --kv-tokens 6 "$file"
  header=$(od -An -t u8 -N 8 "$file" | tr -d ' ')
  tail -c +9 "$file" | head -c "$header" | jq -e '.q.shape == [10, 4, 8] and .v.shape == [6, 2, 8]'
  run --separate-stderr "$DRAINTILE" synth qkv --tokens 10 --heads 4 --head-dim 8 --kv-heads 3 "$file"
  refused 2 '--kv-heads: 3; allowed: a divisor of 4'
}

@test "bad sizes, unwritable places, a file too large: one line, nothing left" {
  run --separate-stderr "$DRAINTILE" synth checkpoint --hidden 64 --intermediate 32 --experts 4 --top-k 5 \
    "$BATS_TEST_TMPDIR/x"
  refused 2 '--top-k: 5; allowed: 1 to 4'
  run --separate-stderr "$DRAINTILE" synth tokens --count 4 --hidden 4 --top-k 2 "$BATS_TEST_TMPDIR/x"
  refused 2 '--experts: required with --top-k$'
  run --separate-stderr "$DRAINTILE" synth tokens --count 4 --hidden 4 /no/such/folder/x
  refused 3 '/no/such/folder/x'
  run --separate-stderr bash -c 'ulimit -f 8; "$1" synth tokens --count 400 --hidden 400 "$2"' - "$DRAINTILE" \
    "$BATS_TEST_TMPDIR/x"
  refused 3 "$BATS_TEST_TMPDIR/x"
  run --separate-stderr bash -c 'ulimit -f 8; "$1" synth checkpoint --hidden 256 --intermediate 256 --experts 2 \
    --top-k 1 "$2"' - "$DRAINTILE" "$BATS_TEST_TMPDIR/x"
  refused 3 "$BATS_TEST_TMPDIR/x"
  run -0 find "$BATS_TEST_TMPDIR" -name 'x*'
  [ -z "$output" ]
}

# Moments of the values of a safetensors file of F32 tensors: "count zeros mean deviation".
moments() { # file
  local header
  header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
  od -An -v -w4 -t f4 -j $((8 + header)) "$1" | awk '
    { n++; zeros += $1 == 0; sum += $1; squares += $1 * $1 }
    END { printf "%d %d %.6f %.6f\n", n, zeros, sum / n, sqrt(squares / n - (sum / n)^2) }'
}

@test "what is timed is random, not zeros" {
  "$DRAINTILE" synth tokens --count 500 --hidden 64 --dtype f32 --seed 3 "$BATS_TEST_TMPDIR/t"
  "$DRAINTILE" synth qkv --tokens 100 --heads 5 --head-dim 64 --dtype f32 --seed 3 "$BATS_TEST_TMPDIR/q"
  local count zeros mean deviation
  for file in t q; do
    read -r count zeros mean deviation < <(moments "$BATS_TEST_TMPDIR/$file")
    [ "$count" -ge 32000 ]
    [ "$zeros" -lt 3 ]
    awk -v m="$mean" -v d="$deviation" 'BEGIN { exit !(m > -0.03 && m < 0.03 && d > 0.97 && d < 1.03) }'
  done
}
