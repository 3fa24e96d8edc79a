#!/bin/sh
# Attention on two H200. With files, merges what `draintile bench attention` and bench/peers/torch_ulysses.py
# measured into bench/results/h200x2/attention.json, with the figures of causal attention and D = 256, which they do not
# time, from bench/results/h200/attention.json; then writes docs/results/ulysses.md from that file. Nothing in either is
# typed.
#
#   ulysses_tables.sh [BENCH.json TORCH.json COMMIT [BENCH.json ...]]     of one job; rows that torch lacks are left out
#   ulysses_tables.sh --rows BENCH.json COMMIT REASON     these rows instead of those that are there, of a later run of
#                                                         ours; each says so, and the libraries' medians stay
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results/h200x2/attention.json
out=$root/docs/results/ulysses.md
work=$(mktemp)
joined=$(mktemp)
trap 'rm -f "$work" "$joined"' EXIT
# With $t, what torch took: medians and the library form of a row. $alone: the summary of causal attention and D = 256.
# shellcheck disable=SC2016 # jq's variables
shared='include "tables";
  def of($row; $name): $row | part($name).median_s;
  def best($row; $a; $b): [of($row; $a), of($row; $b)] | min;
  def beside($t): . as $r | $r + {
    torch: $t,
    over: {
      kernel_cudnn: ($t.median_s.attention / of($r; "kernel")),
      fused_kernel: (best($r; "fused"; "fused-graph") / of($r; "kernel")),
      fused_minus_kernel_s: (best($r; "fused"; "fused-graph") - of($r; "kernel")),
      whole_kernel: (best($r; "whole"; "whole-graph") / of($r; "kernel")),
      whole_minus_kernel_s: (best($r; "whole"; "whole-graph") - of($r; "kernel")),
      library: ($t.library_s / best($r; "fused"; "fused-graph")),
      torch: ($t.median_s.whole_graph / best($r; "whole"; "whole-graph")),
      one_gpu: ($t.median_s.one_gpu / best($r; "whole"; "whole-graph"))}} +
    if $r.kernel_asleep then {over_asleep: {
      fused_kernel: (best($r; "fused"; "fused-graph") / $r.kernel_asleep.median_s),
      whole_kernel: (best($r; "whole"; "whole-graph") / $r.kernel_asleep.median_s)}} else {} end;
  def summary($rows; $alone; $equal):
    def least(wanted; $key): [$rows[] | select(wanted) | .over[$key]] | min;
    def most(wanted; $key): [$rows[] | select(wanted) | .over[$key]] | max;
    {kernel_over_cudnn_min_d128: least(.head_dim == 128; "kernel_cudnn"),
     kernel_over_cudnn_min_d64: least(.head_dim == 64; "kernel_cudnn"),
     kernel_over_cudnn_min_causal: $alone.kernel_over_cudnn_min_causal,
     kernel_over_cudnn_min_d256: $alone.kernel_over_cudnn_min_d256,
     fused_over_kernel_max_s16384: most(.tokens >= 16384; "fused_kernel"),
     fused_minus_kernel_max_s_short: most(.tokens < 16384; "fused_minus_kernel_s"),
     whole_over_kernel_max_s16384: most(.tokens >= 16384; "whole_kernel"),
     whole_minus_kernel_max_s_short: most(.tokens < 16384; "whole_minus_kernel_s"),
     library_speedup_flux: least(.shape == "flux"; "library"),
     library_speedup_sd35: least(.shape == "sd35"; "library"),
     library_speedup_min: least(true; "library"),
     torch_speedup_min_image: least(.tokens < 16384; "torch"),
     torch_speedup_min_video: least(.tokens >= 16384; "torch"),
     one_gpu_speedup_min: least(true; "one_gpu"),
     bit_equal: $equal,
     max_error_over_torch: ([$alone.max_error_over_torch,
                             ($rows[] | .max_relative_error / .torch.max_relative_error)] | max)};'
if [ "${1-}" = --rows ]; then
  jq -L "$root/scripts" --slurpfile ours "$2" --arg commit "$3" --arg reason "$4" "$shared"'
    . as $old | .rows |= map(. as $r | [$ours[0].rows[] | select(.shape == $r.shape)] |
      if length == 0 then $r else .[0] | beside($r.torch) + {commit: $commit, date: $ours[0].date, reason: $reason}
      end) | .summary = summary(.rows; $old.alone.summary; $old.summary.bit_equal and $ours[0].summary.bit_equal)' \
    "$results" >"$work"
  cp "$work" "$results"
elif [ $# -ge 3 ]; then
  first=$1 torch=$2 commit=$3
  shift 3
  jq -s '.[0] + {rows: [.[].rows[]], summary: {bit_equal: ([.[].summary.bit_equal] | all)}}' "$first" "$@" >"$joined"
  jq -L "$root/scripts" -n --slurpfile ours "$joined" --slurpfile torch "$torch" --arg commit "$commit" \
    --slurpfile alone "$root/bench/results/h200/attention.json" "$shared"'
    ($ours[0].rows | map(. as $r | ($torch[0].rows[] | select(.shape == $r.shape)) |
        {median_s, library_s, repeats, max_relative_error} as $t | $r | beside($t))) as $rows |
    {schema: "draintile-attention-results", version: 1, commit: $commit, device: $ours[0].device, date: $ours[0].date,
     ranks: $ours[0].ranks, command: "draintile bench attention; bench/peers/torch_ulysses.py, in one job",
     torch: ($torch[0] | {torch, cuda, cudnn, nccl, driver, command, sm_clock}),
     alone: ($alone[0] | {commit, command, device, driver, torch, repeats, summary}),
     summary: summary($rows; $alone[0].summary; $ours[0].summary.bit_equal), rows: $rows}' >"$work"
  cp "$work" "$results"
fi
[ -f "$results" ] || exit 0
{
  echo "# Attention on two H200"
  echo
  echo "Made by \`scripts/ulysses_tables.sh\` from \`bench/results/h200x2/attention.json\`, which holds all samples" \
    "of ours and"
  echo "the libraries' medians; nothing here is typed."
  echo
  jq -L "$root/scripts" -r 'include "tables";
    def of($row; $name): $row | part($name).median_s;
    "\(.device) x \(.ranks), torch \(.torch.torch), cuDNN \(.torch.cudnn), NCCL \(.torch.nccl), commit \(.commit); " +
      "us, medians of the slower rank.",
    "kernel: the attention of a rank alone; fused: with the way out, to remote completion; in: the way in alone; " +
      "whole: all, the way",
    "in beside the attention; cuDNN, torch: attention alone, and pack, NCCL, cuDNN, NCCL, unpack from a CUDA graph.",
      "",
    (.alone // empty | "`kernel_over_cudnn_min_causal` and `_d256` are of [one GPU](attention.md), commit " +
      "\(.commit); `max_error_over_torch` is the most of its rows and of these.", ""),
    (.notes // [] | .[] | "\(.)", ""),
    (.rows[] | select(.commit) | "\(.shape): ours from a run of its own, commit \(.commit): \(.reason).", ""),
    "| shape | tokens | heads x dim | TFLOP/s | kernel | cuDNN | fused | fused, graph | in | serial | whole " +
      "| whole, graph | torch | one GPU | whole / kernel | torch / whole | one GPU / whole | samples |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | . as $r | "| \(.shape) | \(.tokens) | \(.heads) x \(.head_dim) | " +
      "\(.kernel_flop_per_s / 1e12 | round) | \(of($r; "kernel") | us) | \(.torch.median_s.attention | us) | " +
      "\(of($r; "fused") | us) | \(of($r; "fused-graph") | us) | \(of($r; "in") | us) | \(of($r; "serial") | us) | " +
      "\(of($r; "whole") | us) | \(of($r; "whole-graph") | us) | \(.torch.median_s.whole_graph | us) | " +
      "\(.torch.median_s.one_gpu | us) | \(.over.whole_kernel | three) | \(.over.torch | three) | " +
      "\(.over.one_gpu | three) | \(.repeat) |"),
    ([.rows[] | select(.kernel_asleep)] | select(length > 0) | "",
      "At the power limit a kernel that stores to nobody is faster once the links sleep, after 50 ms without traffic " +
        "([ulysses.md](../ulysses.md)):",
      "above the methods of these rows come behind traffic and behind themselves; here the kernel behind itself alone,",
      "which dips of the power controller may hide.",
      "", "| shape | kernel, links asleep | fused over it | whole over it |", "|---|---|---|---|",
      (.[] | "| \(.shape) | \(.kernel_asleep.median_s | us) | \(.over_asleep.fused_kernel | three) | " +
        "\(.over_asleep.whole_kernel | three) |")),
    "", "| figure | value |", "|---|---|",
    (.summary | to_entries[] | "| `\(.key)` | \(.value | if type != "number" then . elif . < 0.01
      then "\(. * 1e7 | round / 10) us" else . * 1000 | round / 1000 end) |")
  ' "$results"
} >"$work"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
