#!/bin/bash
# Writes docs/results.md, the pages of docs/results, and what stands between the markers in README.md, from the
# committed JSON under bench/results.
# Nothing in them is typed by hand.
set -euo pipefail
cd "$(dirname "$0")/.."
results=bench/results

scripts/gemm_tables.sh
scripts/combine_tables.sh
scripts/attention_tables.sh
scripts/ulysses_tables.sh
scripts/residual_tables.sh
scripts/moe_tables.sh
scripts/moe_prices.sh
scripts/stores_tables.sh
scripts/calibration_tables.sh
scripts/plan_tables.sh

overlap_table() { # file
  jq -L scripts -r 'include "tables";
    def ms: . * 1e5 | round / 100 | tostring + " ms";
    def two: . * 100 | round / 100;
    "| schedule | total | predicted | total/limit | speedup over serial | communication hidden | bits |",
    "|---|---|---|---|---|---|---|",
    (.runs[] | "| \(.schedule) | \(.total_s | ms) | \(.predicted_s | ms) | \(.total_s / .limit_s | two) | " +
      "\(.speedup_over_serial | two) | \(.hidden_ratio | three) | \(if .bit_equal then "equal" else "DIFFER" end) |")
  ' "$1"
}

overlap_setting() { # file
  jq -r '
    "\(.setting.ranks) ranks of \(.setting.workers) worker, hidden \(.setting.hidden), intermediate " +
    "\(.setting.intermediate), \(.setting.experts) experts, top-\(.setting.top_k), \(.setting.tokens) tokens in " +
    "\(.setting.dtype), a paced link of \(.setting.link_bytes_per_s / 1e6 | round) MB/s; computation alone " +
    "\(.runs[0].compute_alone_s * 1e5 | round / 100) ms, communication alone " +
    "\(.runs[0].comm_alone_s * 1e5 | round / 100) ms; medians of \(.setting.repeat); " +
    (.measured | "commit \(.commit), \(.date[:10]), \(.machine.processors) processors, \(.machine.cpu).")
  ' "$1"
}

summary_table() { # file: {"summary": {...}, "notes": [...]}
  jq -r '.notes // .job.notes? // [] | .[] | "\(.)\n"' "$1"
  printf '| figure | value |\n|---|---|\n'
  jq -r '
    def four: if type == "number" and . != 0 and (. | floor) != . then
        (. | fabs | log10 | floor) as $e | . * pow(10; 3 - $e) | round / pow(10; 3 - $e) else . end;
    .summary | paths(type != "object" and type != "array") as $p | "| `\($p | join("."))` | \(getpath($p) | four) |"
  ' "$1"
}

# Where a file's figures come from, as far as it says.
provenance() { # file
  jq -r '[(.commit // .job.commit | if . then "commit \(.)" else empty end),
    (.date // empty), (.command // empty | gsub("\n *"; "; ") | "`\(.)`")] |
    if . == [] then empty else join(", ") + ".\n" end' "$1"
}

failed_checks() { # file of the GPU suite
  jq -r '
    [.checks | arrays | .[] | objects | select(.verdict == "failed") | .name] |
      if . == [] then empty else "Failed: \(join(", ")).\n" end' "$1"
}

# What README says of GPUs: a line a figure, each with its file and the commit that ran.
gpu_table() {
  echo '| on H200s | figure | of |'
  echo '|---|---|---|'
  jq -nr --slurpfile attention $results/h200/attention.json --slurpfile gemm $results/h200/gemm.json \
    --slurpfile issue $results/h200/moe-issue.json --slurpfile moe $results/h200x2/moe.json \
    --slurpfile combine $results/h200x2/combine.json --slurpfile ulysses $results/h200x2/attention.json \
    --slurpfile suite $results/h200x2/gpu-suite.json '
    def cents: tostring | if length < 3 then "0" * (3 - length) + . else . end | .[:-2] + "." + .[-2:];
    def two: . * 100 | round | cents;
    def floor2: . * 100 + 1e-9 | floor | cents; # a bound is rounded to the side on which it holds
    def ceil2: . * 100 - 1e-9 | ceil | cents;
    def range_us: "\(min * 1e6 | floor) to \(max * 1e6 | ceil)";
    def of($file; $page): "[\($file)](docs/results/\($page).md)";
    ($attention[0].summary) as $a | ($gemm[0]) as $g | ($moe[0]) as $m | ($combine[0].summary) as $c |
      ($ulysses[0].summary) as $u |
    "| attention kernel, speed over cuDNN | at least \($a.kernel_over_cudnn_min_d64 | floor2) (D 64), " +
      "\($a.kernel_over_cudnn_min_d128 | floor2) (D 128), \($a.kernel_over_cudnn_min_d256 | floor2) (D 256), " +
      "\($a.kernel_over_cudnn_min_causal | floor2) (causal) | one GPU, \(of($attention[0].commit; "attention")) |",
    "| grouped GEMM, speed over the best library | at least \($g.summary.gemm_over_best_library_min | floor2), " +
      "geometric mean \($g.summary.gemm_over_best_library_geomean | two) | one GPU, \($g.shapes | length) shapes, " +
      "\(of($g.commit; "gemm")) |",
    "| MoE layer, speed over torch and NCCL in a CUDA graph | at least \($m.summary.torch_speedup_min | floor2), " +
      "geometric mean \($m.summary.torch_speedup_geomean | two) | two GPUs, " +
      "\([$m.rows[] | select(.router != "crossed")] | length) layers that are not crossed" +
      "\([$m.rows[] | select(.router != "crossed" and (.torch_same_job | not))] | length | if . == 0 then "" else
      " (torch of \(.) in an earlier job)" end), \(of($m.commit; "moe")) |",
    "| its time over the limit of compute, link and memory | geometric mean \($m.summary.over_limit_geomean | two), " +
      "most \([$m.rows[].over_limit] | max | ceil2), from 4,096 tokens " +
      "\($m.summary.over_limit_max_tokens_4096 | ceil2) | same run, all \($m.summary.rows) layers |",
    "| interleave, speed over expert waves | geometric mean \($m.summary.interleave_over_wave_geomean | two), " +
      "\($m.summary.interleave_over_wave_min | floor2) to \($m.summary.interleave_over_wave_max | ceil2) | same run |",
    "| time of the form that `auto` picks over the best | at most " +
      "\($m.summary.auto_regret_p95 * 1000 - 1e-9 | ceil / 10) % longer in 95 of 100, as priced before the run | " +
      "same run |",
    "| GEMM and combine in one (direct), time over its limit | at most \($c.over_limit_max_k_2048 | ceil2) at K " +
      "2048, \($c.over_limit_max_k_512 | ceil2) below | two GPUs, \(of($combine[0].job.commit; "combine")) |",
    "| attention and both all-to-alls, speed over cuDNN and NCCL in a CUDA graph " +
      "| at least \($u.torch_speedup_min_image | floor2) (below 16,384 tokens), " +
      "\($u.torch_speedup_min_video | floor2) (from there on) | two GPUs, \(of($ulysses[0].commit; "ulysses")) |",
    ([$m.rows[].methods[] | select(.name == "direct live").host_issue_s]) as $live |
      $issue[0].summary.limit_s as $most |
    "| host time to issue a MoE layer | \([$issue[0].runs[].median_s] | range_us) us; on two " +
      "GPUs, after the cache was evicted, \($live | range_us), over \($most * 1e6 | round) in " +
      "\([$live[] | select(. > $most)] | length | if . == 0 then "none" else . end) of \($live | length) layers " +
      "| one GPU, [\($issue[0].commit)](docs/results.md); two, \(of($m.commit; "moe")) |",
    "| GPU suite | \($suite[0].summary.passed) of \($suite[0].checks | length) checks " +
      "pass\([$suite[0].checks[] | select(.verdict == "failed") | .name] |
      if . == [] then "" else "; failed: \(join(", "))" end) | two GPUs, [\($suite[0].commit)](docs/results.md) |"
  '
}

# Replaces what stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->` in README.md by standard input.
fill() { # NAME
  local text
  text=$(mktemp)
  awk -f scripts/wrap.awk >"$text"
  awk -v name="$1" -v text="$text" '
    $0 == "<!-- " name ": begin -->" { print; while ((getline line < text) > 0) print line; skip = 1; next }
    $0 == "<!-- " name ": end -->" { skip = 0 }
    !skip' README.md >README.md.tmp
  rm "$text"
  mv README.md.tmp README.md
}

{
  echo '# Results'
  echo
  echo "Generated by \`make docs\` from the JSON under \`bench/results/\`; each file holds its raw samples and its" \
    "setting."
  echo "The GPU figures in full: [calibration](results/calibration.md), [grouped GEMM](results/gemm.md), [both GEMMs" \
    "of a layer](results/layer-alone.md),"
  echo "[combine operator](results/combine.md), [MoE layer](results/moe.md), [its prices](results/moe_prices.md)," \
    "[stores](results/stores.md), [attention](results/attention.md), [Ulysses](results/ulysses.md), [what stays" \
    "visible of its output](results/residual.md)."
  for ratio in 0.5 0.8; do
    file=$results/cpu/overlap-$ratio.json
    [ -f "$file" ] || continue
    printf '\n## CPU, communication alone = %s of computation alone\n\n' "$ratio"
    overlap_setting "$file"
    printf '\n'
    overlap_table "$file"
    printf '\n![timeline](../%s)\n' "$results/cpu/overlap-$ratio.png"
  done
  for file in "$results"/h200*/*.json; do
    [ -f "$file" ] || continue
    jq -e 'has("summary")' "$file" >/dev/null || continue
    printf '\n## %s\n\n' "${file#"$results"/}"
    provenance "$file"
    failed_checks "$file"
    summary_table "$file"
  done
} | awk -f scripts/wrap.awk >docs/results.md.tmp
mv docs/results.md.tmp docs/results.md

if [ -f "$results/cpu/overlap-0.5.json" ]; then
  {
    overlap_setting "$results/cpu/overlap-0.5.json"
    echo
    overlap_table "$results/cpu/overlap-0.5.json"
  } | fill figures
fi
gpu_table | fill 'gpu figures'
