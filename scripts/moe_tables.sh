#!/bin/sh
# docs/results/moe.md: the MoE layer's tables, from bench/results/h200x2/moe.json and h200/moe-issue.json. Nothing in
# them is typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200x2/moe.json
issue=$root/bench/results/h200/moe-issue.json
out=$root/docs/results/moe.md
[ -f "$input" ] || exit 0
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# The MoE layer on two H200"
  echo
  echo "Made by \`scripts/moe_tables.sh\` from \`bench/results/h200x2/moe.json\`, which holds all samples; nothing" \
    "here is typed."
  jq -r '
    "\(.device) x \(.ranks), driver \(.driver), commit \(.commit), seed \(.seed); medians of \(.repeat), every " +
      "method in turns, the cache cold, us of the slowest rank:\n\n    \(.command)\n",
    (.notes[] | "- \(.)"), ""' "$input"
  jq -L "$root/scripts" -r 'include "tables";
    def of($name): method($name).median_s | us;
    def priced($name): method($name).predicted_s | us;
    "Layer and prices are those of that commit, prices made before the run; [moe_prices.md](moe_prices.md) has what " +
      "they are off by, the end of this page host time on one GPU alone.",
    "compute: both GEMMs alone in one launch; limit: the largest of compute, link and weights, and constants. auto: " +
      "the form of the least price; dedup, group and lead as in [moe_cuda.md](../moe_cuda.md).",
    "torch: rows marked with a star are of another job; DeepEP as printed by others, times the ratio of torch'"'"'s " +
      "compute in these rows and then.",
    "",
    "| model | router | tokens | compute | limit | serial | signal | direct | wave | interleave | alternate | best " +
      "| best / limit | torch | torch / best | DeepEP scaled | DeepEP / best | auto |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | "| \(.model) | \(.router) | \(.tokens) | \(.limit.compute_s | us) | \(.limit.limit_s | us) | " +
      "\(of("serial")) | \(of("signal")) | \(of("direct")) | \(of("wave")) | \(of("interleave")) | " +
      "\(of("alternate")) | \(.best) | \(.over_limit | three) | " +
      "\(.torch_layer_s | us)\(if .torch_layer_s and (.torch_same_job | not) then "*" else "" end) | " +
      "\(.torch_speedup | three) | \(.deepep_scaled_s | us) | \(.deepep_speedup | three) | \(.auto // "-") |"),
    "",
    "## Parts alone, prices, and gains over wave",
    "",
    "| model | router | tokens | dispatch alone | combine alone | reduce alone | link | weights | priced: serial " +
      "| signal | direct | wave | interleave | alternate | wave / interleave | priced | wave / alternate | priced |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | "| \(.model) | \(.router) | \(.tokens) | \(of("dispatch alone")) | \(of("combine alone")) | " +
      "\(of("reduce alone")) | \(.limit.link_s | us) | \(.limit.memory_s | us) | \(priced("serial")) | " +
      "\(priced("signal")) | \(priced("direct")) | \(priced("wave")) | \(priced("interleave")) | " +
      "\(priced("alternate")) | \(.interleave_over_wave | three) | \(.interleave_over_wave_predicted | three) | " +
      "\(.alternate_over_wave | three) | \(.alternate_over_wave_predicted | three) |"),
    "",
    (if (.in_place // []) == [] then empty else
      "## L1 and L2 in place",
      "",
      "Every row of dispatch where it belongs, L2'"'"'s rows to their owners, the table before; no plan, dispatch or " +
        "reduction. Limit: the longest of both GEMMs alone, of the combine'"'"'s rows over the link and of the " +
        "weights; and the constants.",
      "",
      "| model | router | tokens | compute | combine | limit | form | time | priced | time / limit |",
      "|---|---|---|---|---|---|---|---|---|---|",
      (.in_place[] | . as $row | .methods[] | "| \($row.model) | \($row.router) | \($row.tokens) | " +
        "\($row.compute_s | us) | \($row.combine_s | us) | \($row.limit_s | us) | \(.name) | \(.median_s | us) | " +
        "\(.predicted_s | us) | \(.over_limit | three) |"),
      "" end),
    (if (.waves // []) == [] then empty else
      "## Waves of other sizes",
      "",
      "By L1 tasks of a wave; bound: L1 at the rate of L1 and L2 alone, then the longer of L2 and of its rows over " +
        "the link, the reduction alone, the constants.",
      "",
      "| model | router | tokens | form | time | bound | time / bound |",
      "|---|---|---|---|---|---|---|",
      (.waves[] | . as $row | .waves[] | "| \($row.model) | \($row.router) | \($row.tokens) | \(.name) | " +
        "\(.median_s | us) | \(.bound_s | us) | \(.over_bound | three) |"),
      "" end),
    "## Summary",
    "",
    "| figure | value |", "|---|---|",
    (.summary | to_entries[] | "| `\(.key)` | \(.value | if . == null then "not measured" elif type == "number"
      and . >= 1 then . * 1000 | round / 1000 else . end) |")
  ' "$input"
  [ ! -f "$issue" ] || jq -L "$root/scripts" -r 'include "tables";
    "",
    "## Host time to issue a layer",
    "",
    "From `bench/results/h200/moe-issue.json`, commit \(.commit), one \(.machine.gpu): medians of " +
      "\(.runs[0].samples_s | length), of the slower thread, us. Limit: \(.limit_s | us). A new",
    "input differs from that of the call before. In a row: \(.in_a_row) without waiting; after a wait: the host has " +
      "just waited for the device.",
    "",
    "| threads at once | schedule | input | in a row | after a wait |",
    "|---|---|---|---|---|",
    ([.runs[] | select(.waits)] as $after | .runs[] | select(.waits | not) | . as $r |
      "| \(.threads) | \(.schedule) | \(.input) | \(.median_s | us) | " +
        "\($after[] | select(.threads == $r.threads and .schedule == $r.schedule and .input == $r.input) | .median_s |
        us) |"),
    "| largest median | | | \(.summary.median_max_s | us) | |"
  ' "$issue"
} >"$work"
mkdir -p "$(dirname "$out")"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
