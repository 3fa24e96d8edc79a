#!/bin/sh
# docs/results/gemm.md: the grouped GEMM's tables, from bench/results/h200/gemm.json. Nothing in them is typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results/h200
out=$root/docs/results/gemm.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT

tables() { # file
  jq -r '
    "\(.device | split("\n")[0]), driver \(.driver | split("\n")[0]), torch \(.torch), commit \(.commit); medians " +
      "of \(.repeats) spaced launches, all candidates in turn in one job. us, and TFLOP/s in brackets.\n\n    " +
      "\(.command)\n", (.notes // [] | .[] | "\(.)\n")' "$1"
  jq -L "$root/scripts" -r 'include "tables";
    "| rows | N | K | experts | sizes | ours | ours, row stores | torch grouped_mm | cuBLAS grouped | cuBLAS dense " +
      "| over best library | over dense |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.shapes[] | "| \(.rows) | \(.n) | \(.k) | \(.experts) | \(.sizes) | " +
      "\(candidate("draintile_tensor") | "\(.median_s | us) (\(.flop_per_s / 1e12 | round))") | " +
      "\(candidate("draintile_rows").median_s | us) | \(candidate("torch_grouped_mm").median_s | us) | " +
      "\(candidate("cublas_grouped").median_s | us) | \(candidate("cublas_dense").median_s | us) | " +
      "\(.over_best_library | three) | \(.over_cublas_dense | three) |"),
    "",
    "Over the best library: at least \(.summary.gemm_over_best_library_min | three), geometric mean " +
      "\(.summary.gemm_over_best_library_geomean | three).",
    "",
    "| uneven sizes at 64 experts | time over even |",
    "|---|---|",
    (.summary.uneven_over_even_time | to_entries[] | "| \(.key) | \(.value | three) |")
  ' "$1"
}

{
  echo "# Grouped GEMM on an H200"
  echo
  echo "Made by \`scripts/gemm_tables.sh\` from \`bench/results/h200/gemm.json\`; nothing here is typed."
  echo
  tables "$results/gemm.json"
} >"$work"
mkdir -p "$(dirname "$out")"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"

# docs/results/layer-alone.md: both GEMMs of a layer in one launch, from bench/results/h200/layer-alone.json.
alone=$root/bench/results/h200/layer-alone.json
[ -f "$alone" ] || exit 0
{
  echo "# Both GEMMs of a MoE layer alone, on one H200"
  echo
  echo "Made by \`scripts/gemm_tables.sh\` from \`bench/results/h200/layer-alone.json\`; nothing here is typed."
  jq -L "$root/scripts" -r 'include "tables";
    def of($name): candidate($name).median_s;
    "\(.device), commit \(.commit); medians of \(.repeats) spaced launches, all candidates in turn in one job. us. " +
      "cuBLAS dense: as many flops in two GEMMs, every row",
    "by one expert'"'"'s weights. Prototype: another engine on another card, so ratios are what can be compared. L1 " +
      "plain stores gate and up.",
    "",
    "| model | rows | experts | sizes | one launch | with its table | cuBLAS dense | ratio | prototype " +
      "| its cuBLAS dense | its ratio | ratio over its | L1, activation fused | L1 plain | fused / plain |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.shapes[] | (of("one launch") / of("cublas dense")) as $ratio | (.prototype_s / .prototype_dense_s) as $its |
      "| \(.model) | \(.rows) | \(.experts) | \(.sizes) | \(of("one launch") | us) | " +
        "\(of("one launch and its table") | us) | \(of("cublas dense") | us) | \($ratio | three) | " +
        "\(.prototype_s | us) | \(.prototype_dense_s | us) | \($its | three) | \($ratio / $its | three) | " +
        "\(of("L1 fused") | us) | \(of("L1 plain") | us) | \(of("L1 fused") / of("L1 plain") | three) |"),
    "",
    "Ratio over the prototype'"'"'s: at most \(.summary.over_prototype_max | three), geometric mean " +
      "\(.summary.over_prototype_geomean | three)."
  ' "$alone"
} >"$work"
awk -f "$root/scripts/wrap.awk" "$work" >"$root/docs/results/layer-alone.md"
