#!/bin/bash
# Makes bench/results/h200x2/combine.json of what one job wrote:
#   combine_merge.sh FOLDER OUTPUT
# FOLDER holds grid*.json (all methods), small*.json (small K), sweep*.json (consumers and segments), orders*.json and
# layouts*.json (ablation), checks*.json, all of `draintile bench combine`; torch.json of bench/peers/torch_combine.py;
# gemm.json of bench/peers/torch_gemm.py; stress.json; job.json: {"commit", "driver", "commands"}. All but grid and checks
# may be missing: what they say is then null.
set -euo pipefail
folder=$1 output=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for part in grid small sweep orders layouts checks torch gemm stress job; do
  find "$folder" -name "$part*.json" | sort | xargs -r cat | jq -s 'if length == 0 then null elif .[0].runs then .[0] +
    {runs: map(.runs) | add, max_relative_error: map(.max_relative_error) | max} else .[0] end' >"$work/$part.json"
done
jq -n --slurpfile grid "$work/grid.json" --slurpfile small "$work/small.json" --slurpfile sweep "$work/sweep.json" \
  --slurpfile orders "$work/orders.json" --slurpfile layouts "$work/layouts.json" --slurpfile checks "$work/checks.json" \
  --slurpfile torch "$work/torch.json" --slurpfile gemm "$work/gemm.json" --slurpfile stress "$work/stress.json" \
  --slurpfile job "$work/job.json" '
  def short: if type == "number" then . * 1e10 | round / 1e10 else . end;
  def timing: .median_s |= short | .samples_s |= map(short) | if .over_limit? then .over_limit |= (. * 1e4 | round / 1e4) else . end;
  def rows: (.runs // []) | map(.timings |= map(timing));
  def of($name): ([.timings[] | select(.method == $name)][0] // {median_s: null});
  def over($b): if . == null or $b == null then null else . / $b end;
  def least: map(select(. != null)) | min;
  def most: map(select(. != null)) | max;
  def best: [of("signal").median_s, of("direct").median_s] | least;
  def setting: [.rows, .n, .k, .experts, .router];
  def checked: [.timings[] | select(.method == "signal" or .method == "direct")] |
    length > 0 and all(.words_wrong == 0 and .max_relative_error <= 8e-3);
  $grid[0] as $grid | $small[0] as $small | $torch[0] as $torch | $gemm[0] as $gemm | $checks[0] as $checks |
  (($torch // {runs: []}) | [.runs[] | {key: (setting | tostring), value: (of("grouped_graph").median_s)}] | from_entries) as $torch_graph |
  ($grid.runs + $small.runs) as $measured |
  [$grid.runs[] | select(.n == 8192 and .k == 2048)] as $bar |
  [$bar[] | select(.experts == 64 and .rows == 16384)] as $bar_64 |
  {schema: "draintile-combine-results", version: 1, job: $job[0], device: $grid.device, date: $grid.date,
   cublas: $grid.cublas, nccl: $grid.nccl, torch: $torch.torch, torch_nccl: $torch.nccl, ranks: $grid.ranks,
   repeat: $grid.repeat, rate_bytes_per_s: $grid.rate_bytes_per_s, constants_s: $grid.constants_s, constants: $grid.constants,
   summary: {
     gemm_over_best_library_min: $gemm.summary.gemm_over_best_library_min,
     gemm_over_best_library_geomean: $gemm.summary.gemm_over_best_library_geomean,
     over_limit_max_k_2048: ([$measured[] | select(.k >= 2048) | best / .limit.limit_s] | most),
     over_limit_max_k_512: ([$measured[] | select(.k < 2048) | best / .limit.limit_s] | max),
     loop_live_speedup_min_experts_64: ([$bar_64[] | best as $b | of("loop").median_s | over($b)] | least),
     loop_graph_speedup_min_experts_64: ([$bar_64[] | best as $b | of("loop-graph").median_s | over($b)] | least),
     grouped_graph_speedup_min_n8192_k2048:
       ([$bar[] | best as $b | [of("grouped-graph").median_s, $torch_graph[setting | tostring]] | least | over($b)] | least),
     checks_passed_first: ([$checks.runs[]? | select(checked)] | length),
     checks: ([$checks.runs[]?] | length),
     stress_rounds: $stress[0].rounds,
     max_relative_error: ([$checks, $grid, $small | select(. != null) | .max_relative_error] | max),
     over_limit_max_k_2048_paper_routers: ([$measured[] | select(.k >= 2048 and .router != "crossed") | best / .limit.limit_s] | max),
     loop_live_speedup_balanced_experts_64: ([$bar_64[] | select(.router == "balanced") | best as $b | of("loop").median_s | over($b)] | least),
     loop_graph_speedup_balanced_experts_64: ([$bar_64[] | select(.router == "balanced") | best as $b | of("loop-graph").median_s | over($b)] | least)},
   rows: ($grid | rows), small: ($small | rows), sweep: (($sweep[0] // {}) | rows),
   orders: (($orders[0] // {}) | rows), layouts: (($layouts[0] // {}) | rows), torch_rows: (($torch // {}) | rows),
   checks: [$checks.runs[]? | [.rows, .n, .experts, .router, .segment_bands, .consumers, checked]],
   gemm: (if $gemm then $gemm | del(.shapes[].candidates[].samples_s) else null end), stress: $stress[0]}
' >"$work/out.json"
mv "$work/out.json" "$output"
