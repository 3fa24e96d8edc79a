#!/bin/sh
# docs/results/moe.md: the MoE layer's tables, from bench/results/h200x2/moe.json and h200/moe-issue.json. Nothing in
# them is typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200x2/moe.json
issue=$root/bench/results/h200/moe-issue.json
alone=$root/bench/results/h200/layer-alone.json
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
  jq -L "$root/scripts" -r --slurpfile alone "$([ -f "$alone" ] && echo "$alone" || echo /dev/null)" 'include "tables";
    def of($name): method($name).median_s | us;
    def priced($name): method($name).predicted_s | us;
    "Layer and prices are those of that commit, prices made before the run; [moe_prices.md](moe_prices.md) has what " +
      "they are off by, the end of this page host time on one GPU alone.",
    "compute: both GEMMs alone in one launch; limit: the largest of compute, link and weights, and constants. auto: " +
      "the form of the least price; dedup, group and lead as in [moe_cuda.md](../moe_cuda.md).",
    "torch: \(if all(.rows[]; .torch_same_job) then "of the same job" else "rows marked with a star are of another " +
      "job" end); DeepEP as printed by others, times the ratio of torch'"'"'s " +
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
    "## What was asked, and what is",
    "",
    "| figure | asked | is | rows beyond |",
    "|---|---|---|---|",
    (.summary as $s | .rows as $rows | ($alone[0] // {shapes: []}) as $alone |
      [$alone.shapes[] | ((candidate("one launch").median_s / candidate("cublas dense").median_s) /
        (.prototype_s / .prototype_dense_s))] as $over_prototype |
      [$alone.shapes[] | candidate("L1 fused").median_s / candidate("L1 plain").median_s] as $fused |
      def beyond($most): map(select(. != null)) | "\(map(select(. > $most)) | length) of \(length)";
      "| best over limit, 4,096 and 8,192 tokens, most | 1.15 | \($s.over_limit_max_tokens_4096 | three) | " +
        "\([$rows[] | select(.tokens >= 4096).over_limit] | beyond(1.15)) |",
      "| the same, 128 tokens | 1.3 | \($s.over_limit_max_tokens_128 | three) | " +
        "\([$rows[] | select(.tokens == 128).over_limit] | beyond(1.3)) |",
      "| speed over torch, least and geometric mean | 1, 1.7 | \($s.torch_speedup_min | three), " +
        "\($s.torch_speedup_geomean | three) | \([$rows[] | select(.router != "crossed" and .torch_speedup) |
        1 / .torch_speedup] | beyond(1)) |",
      ([$rows[] | select(.router == "crossed").torch_speedup | select(. != null)] | if length == 0 then empty else
        "| the same, crossed | - | \(min | three), \(map(log) | add / length | exp | three) | \(map(1 / .) | beyond(1)) |"
        end),
      "| over the DeepEP layer, scaled | 1, 1.35 | \($s.deepep_speedup_min | three), " +
        "\($s.deepep_speedup_geomean | three) | \([$rows[] | select(.deepep_speedup) | 1 / .deepep_speedup] |
        beyond(1)) |",
      "| L1 and L2 alone, over the prototype'"'"'s ratio to cuBLAS, most | 1.02 | " +
        "\($alone.summary.over_prototype_max | three) | \($over_prototype | beyond(1.02)) |",
      "| L1 with its activation over plain, most | 1 | \($alone.summary.l1_fused_over_plain_max | three) | " +
        "\($fused | beyond(1.005)) |",
      "| L1 and L2 in place, all rows remote, best over limit | 1.08 | \($s.in_place_over_limit_min | three) | - |",
      "| gain of interleave or alternate over wave, off its price, most | 5 % | " +
        "\($s.prediction_error_max | percent) % | \($s.prediction_error_over_5_percent) of \($s.predictions) |",
      "| wave over its own bound, most and geometric mean | 1.05 | \($s.wave_over_bound_max | three), " +
        "\($s.wave_over_bound_geomean | three) | \([$rows[].wave_over_bound] | beyond(1.05)) |",
      "| auto within 3 % of the best | 95 % of rows | \($s.auto_within_3_percent | percent) % | " +
        "\([$rows[].auto_regret] | beyond(0.03)) |",
      "| auto over torch, most | 1 | \([$rows[] | select(.router != "crossed").auto_over_torch] | most | three) | " +
        "\([$rows[] | select(.router != "crossed").auto_over_torch] | beyond(1)) |",
      "| device memory over what it must hold, most | 1.1 | \([$rows[].device_bytes_over_plain] | most | three) | " +
        "\([$rows[].device_bytes_over_plain] | beyond(1.1)) |",
      "| host time to issue a layer, once a round, us | 15 | \($s.host_issue_s | us), \($s.host_issue_median_s | us) " +
        "in the middle | \([$rows[] | method("direct live").host_issue_s] | beyond(15e-6)) |",
      "| error against float64, most | 8e-3 | \($s.max_relative_error * 1e5 | round / 1e5) | - |"),
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
