#!/bin/bash
# Six schedules of one MoE layer on this machine: 4 ranks, a paced link on which the communication alone takes half as
# long as the computation alone. Prints one table; writes the results, traces and a picture to build/demo.
# CHECKPOINT= and TOKENS= take a Hugging Face folder and a tokens file instead of synthetic ones; RANKS=, RATIO= and
# REPEAT= change the setting.
set -euo pipefail
cd "$(dirname "$0")/.."
command=build/draintile
out=${OUT_DIR:-build/demo}
ranks=${RANKS:-4} ratio=${RATIO:-0.5} repeat=${REPEAT:-3}
schedules=serial,signal,direct,wave,interleave,alternate
mkdir -p "$out"

checkpoint=${CHECKPOINT:-$out/checkpoint}
tokens=${TOKENS:-$out/tokens.safetensors}
[ -n "${CHECKPOINT:-}" ] || $command synth checkpoint --arch qwen3_moe --hidden 1024 --intermediate 768 --experts 16 \
  --top-k 4 --layers 1 --dtype bf16 --seed 1 "$checkpoint"
[ -n "${TOKENS:-}" ] || $command synth tokens --count 4096 --hidden 1024 --dtype bf16 --seed 2 "$tokens"

layer=(moe --checkpoint "$checkpoint" --layer 0 --input "$tokens" --ranks "$ranks")
number() { jq -r "$1" "$2"; }

# The link: first the computation alone and the bytes, then one correction by what the paced link really took.
$command "${layer[@]}" --schedule serial --repeat 3 --output "$out/probe.safetensors" \
  --json "$out/probe.json" >/dev/null
compute=$(number '.runs[0].compute_alone_s' "$out/probe.json")
bytes=$(number '.runs[0].bytes_sent' "$out/probe.json")
rate=$(jq -n "$bytes / $ranks / ($ratio * $compute)")
capacity=$(jq -n "[($rate * 0.004), 262144] | max")
$command "${layer[@]}" --schedule serial --repeat 3 --output "$out/probe.safetensors" --json "$out/probe.json" \
  --link-rate "${rate}B/s" --link-capacity "${capacity}B" --link-latency 20us >/dev/null
rate=$(jq -n "$rate * $(number '.runs[0].comm_alone_s / .runs[0].compute_alone_s' "$out/probe.json") / $ratio")
rm -f "$out/probe.safetensors" "$out/probe.json"

$command "${layer[@]}" --schedule $schedules --repeat "$repeat" --check --output "$out/output.safetensors" \
  --link-rate "${rate}B/s" --link-capacity "${capacity}B" --link-latency 20us \
  --json "$out/results.json" --trace "$out/trace.json"
scripts/plot_timeline.sh "$out/trace.json" "$out/timeline.png"
printf '\nresults   %s\ntrace     %s (open in ui.perfetto.dev)\npicture   %s\noutput    %s\n' \
  "$out/results.json" "$out/trace.json" "$out/timeline.png" "$out/output.safetensors"
