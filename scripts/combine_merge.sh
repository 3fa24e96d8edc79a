#!/bin/bash
# Makes bench/results/h200x2/combine.json of what one job wrote:
#   combine_merge.sh FOLDER PLATFORM OUTPUT
# FOLDER holds grid*.json (all methods), small*.json (small K), sweep*.json (consumers and segments), orders*.json and
# layouts*.json (ablation), forms*.json (launches, entry, pacing), paced*.json (signal and direct, paced), kact*.json
# (with timestamps), counts*.json (what counts on the device cost), checks*.json, all of `draintile bench combine`;
# torch.json of bench/peers/torch_combine.py; gemm.json of bench/peers/torch_gemm.py; stress.txt: what stress_combine
# printed; job.json: {"commit", "driver", "commands", "notes": []}. All but grid and checks may be missing: what they
# say is then null. Where files name a setting twice, the later file's counts (by name). Limits are computed again with
# the constants that PLATFORM has now.
set -euo pipefail
folder=$1 platform=$2 output=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for part in grid small sweep orders layouts forms paced kact counts checks torch gemm job; do
  find "$folder" -name "$part*.json" | sort | xargs -r cat | jq -s 'if length == 0 then null elif .[0].runs then .[0] +
    {runs: map(.runs) | add, max_relative_error: map(.max_relative_error) | max} else .[0] end' >"$work/$part.json"
done
if [ -f "$folder/stress.txt" ]; then
  jq -Rn '
    [inputs] | {rounds: (map(capture("^ok +(?<n>[0-9]+) of [0-9]+ rounds.* 0 words wrong") | .n | tonumber) | first),
      output: .}' \
    "$folder/stress.txt" >"$work/stress.json"
else
  echo null >"$work/stress.json"
fi
jq -L "$(dirname "$0")" -n --slurpfile grid "$work/grid.json" --slurpfile small "$work/small.json" \
  --slurpfile sweep "$work/sweep.json" \
  --slurpfile orders "$work/orders.json" --slurpfile layouts "$work/layouts.json" --slurpfile forms "$work/forms.json" \
  --slurpfile paced "$work/paced.json" --slurpfile kact "$work/kact.json" --slurpfile counts "$work/counts.json" \
  --slurpfile checks "$work/checks.json" \
  --slurpfile torch "$work/torch.json" --slurpfile gemm "$work/gemm.json" --slurpfile stress "$work/stress.json" \
  --slurpfile job "$work/job.json" --slurpfile platform "$platform" 'include "tables";
  def timing: .median_s |= short | .samples_s |= map(short) | if .over_limit? then .over_limit |= (. * 1e4 |
    round / 1e4) else . end;
  def settings: [.rows, .n, .k, .experts, .router, .consumers, .segment_bands, .raster_bands, .layout, .order];
  ($platform[0].constants) as $c |
  (["entry_barrier_s", "first_fill_s", "link_latency_s", "fence_sys_s", "flag_release_s"] |
    map(select($c[.])) | map({key: ., value: $c[.].value}) | from_entries) as $constants |
  ($constants | add) as $constants_s |
  def limited: if .limit then
      .limit.link_s = .limit.bytes / $c.rate_bytes_per_s.value |
      .limit.weights_s = .limit.weights_bytes / $c.memory_bytes_per_s.value |
      .limit.limit_s = ([.limit.compute_s, .limit.link_s, .limit.weights_s] | max) + $constants_s |
      .limit.limit_s as $l | .timings |= map(if .over_limit then .over_limit = .median_s / $l else . end)
    else . end;
  def latest(key): reduce .[] as $r ({}; .[$r | key | tostring] = $r) | [.[]];
  def prepared(key): if . == null or .runs == null then . else .runs |= (latest(key) | map(limited)) end;
  def prepared: prepared(settings);
  def rows: (.runs // []) | map(.timings |= map(timing));
  def best: [timed("signal").median_s, timed("direct").median_s] | least;
  def checked: [.timings[] | select(.method == "signal" or .method == "direct")] |
    length > 0 and all(.words_wrong == 0 and .max_relative_error <= 8e-3);
  ($grid[0] | prepared) as $grid | ($small[0] | prepared) as $small | ($torch[0] | prepared) as $torch |
  ($sweep[0] | prepared) as $sweep | ($orders[0] | prepared) as $orders | ($layouts[0] | prepared) as $layouts |
  ($forms[0] | prepared(settings + [.launch, .entry, .pacing])) as $forms |
  ($paced[0] | prepared) as $paced | ($kact[0] | prepared) as $kact | ($counts[0] | prepared) as $counts |
    $gemm[0] as $gemm | $checks[0] as $checks |
  (($paced // {runs: []}) | [.runs[] | {key: (setting | tostring), value: {best: best, limit: .limit.limit_s}}] |
    from_entries) as $paced_of |
  # Over the smaller of the limits of both runs: a GEMM in that order may be slower than the natural one.
  def over_paced: .limit.limit_s as $l | $paced_of[setting | tostring] |
    if . then .best / ([.limit, $l] | min) else null end;
  (($torch // {runs: []}) | [.runs[] | {key: (setting | tostring), value: (timed("grouped_graph").median_s)}] |
    from_entries) as $torch_graph |
  ($grid.runs + $small.runs) as $measured |
  [$grid.runs[] | select(.n == 8192 and .k == 2048)] as $bar |
  [$bar[] | select(.experts == 64 and .rows == 16384)] as $bar_64 |
  {schema: "draintile-combine-results", version: 1, job: $job[0], device: $grid.device, date: $grid.date,
   cublas: $grid.cublas, nccl: $grid.nccl, torch: $torch.torch, torch_nccl: $torch.nccl, ranks: $grid.ranks,
   repeat: $grid.repeat, rate_bytes_per_s: $c.rate_bytes_per_s.value, constants_s: $constants_s, constants: $constants,
   summary: {
     gemm_over_best_library_min: $gemm.summary.gemm_over_best_library_min,
     gemm_over_best_library_geomean: $gemm.summary.gemm_over_best_library_geomean,
     over_limit_max_k_2048: ([$measured[] | select(.k >= 2048) | [best / .limit.limit_s, over_paced] |
       least] | most),
     over_limit_max_k_512: ([$measured[] | select(.k < 2048) | best / .limit.limit_s] | max),
     loop_live_speedup_min_experts_64: ([$bar_64[] | best as $b | timed("loop").median_s | over($b)] | least),
     loop_graph_speedup_min_experts_64: ([$bar_64[] | best as $b | timed("loop-graph").median_s | over($b)] | least),
     grouped_graph_speedup_min_n8192_k2048:
       ([$bar[] | best as $b | [timed("grouped-graph").median_s, $torch_graph[setting | tostring]] | least | over($b)] |
         least),
     checks_passed_first: ([$checks.runs[]? | select(checked)] | length),
     checks: ([$checks.runs[]?] | length),
     stress_rounds: $stress[0].rounds,
     max_relative_error: ([$checks, $grid, $small | select(. != null) | .max_relative_error] | max),
     over_limit_max_k_2048_paper_routers: ([$measured[] | select(.k >= 2048 and .router != "crossed") |
       best / .limit.limit_s] | max),
     loop_live_speedup_balanced_experts_64: ([$bar_64[] | select(.router == "balanced") | best as $b |
       timed("loop").median_s | over($b)] | least),
     loop_graph_speedup_balanced_experts_64: ([$bar_64[] | select(.router == "balanced") | best as $b |
       timed("loop-graph").median_s | over($b)] | least)},
   rows: ($grid | rows), small: ($small | rows), sweep: (($sweep // {}) | rows),
   orders: (($orders // {}) | rows), layouts: (($layouts // {}) | rows), forms: (($forms // {}) | rows),
     paced: (($paced // {}) | rows),
   kact: (($kact // {}) | rows), counts: (($counts // {}) | rows), torch_rows: (($torch // {}) | rows),
   checks: [$checks.runs[]? | [.rows, .n, .experts, .router, .segment_bands, .consumers, checked]],
   gemm: (if $gemm then $gemm | del(.shapes[].candidates[].samples_s) else null end), stress: $stress[0]}
' >"$work/out.json"
# A row of an array a line.
jq -r 'to_entries | map("\(.key | tojson): " + (if .value | type == "array" then "[\n" + (.value | map(tojson) |
  join(",\n")) + "\n]"
  else .value | tojson end)) | "{\n" + join(",\n") + "\n}"' "$work/out.json" >"$output"
