#!/bin/bash
# Makes bench/results/h200x2/moe.json:
#   moe_merge.sh TORCH.jsonl OTHER.jsonl PREDICTED.json NOTES.json ROWS.json... [--apart ROWS.json...] >moe.json
# ROWS are of `draintile bench moe --platform`, TORCH of bench/peers/torch_moe.py in the same job with the same seed (or
# /dev/null), OTHER of another job, for rows that TORCH lacks; PREDICTED holds the prices made before the run; NOTES is
# {"commit", "driver", "command", "notes": []}. A row that several files have is the first one's, with the forwards of
# the others that it lacks, each held to the limit of its own file's turns. What no file holds is null in the summary.
# Of files behind --apart no row is in the grid: L1 and L2 in place (`in_place`, held to the longest of both GEMMs, the
# combine's rows over the link and the weights) and waves of other sizes (`waves`).
set -euo pipefail
cd "$(dirname "$0")/.."
torch=$1 other=$2 predicted=$3 notes=$4
shift 4
grid=() apart=()
to=grid
for file in "$@"; do
  if [ "$file" = --apart ]; then to=apart; elif [ $to = grid ]; then grid+=("$file"); else apart+=("$file"); fi
done
jq -L scripts -n --slurpfile torch "$torch" --slurpfile other "$other" --slurpfile predicted "$predicted" \
  --slurpfile notes "$notes" --slurpfile listed bench/peers/moe_layers.json \
  --slurpfile files <(cat "${grid[@]}") --slurpfile apart <(cat /dev/null "${apart[@]}") 'include "tables";
  def geomean: map(select(. != null)) | if length == 0 then null else (map(log) | add / length | exp) end;
  def p95: at(0.95);
  def layers: [.methods[] | select(.graph == true)];
  def best: [layers[].median_s] | min;
  def named: if .dedup == true and (.name | test("dedup") | not) then .name |= sub("^(?<s>[a-z]+)"; "\(.s) dedup")
    else . end;
  # A wave by itself: L1 at the rate of L1 and L2 alone, then the longer of L2 and of its rows over the link (or all
  # rows over the link, if that is longer), the reduction alone and the constants. Of a row.
  def wave_bound($wave): method("compute alone").median_s as $compute | method("reduce alone").median_s as $reduction |
    $files[0].constants.rate_bytes_per_s as $rate | .limit.constants_s as $constants |
    if $compute and $reduction and $wave.median_s and $rate and $constants then
      ($wave.combine_bytes / $rate) as $combine |
      ([$compute * 2 / 3 + ([$compute / 3, $combine] | max), $wave.dispatch_bytes / $rate + $combine] | max) +
        $reduction + $constants
    else null end;
  def in_place: [.methods[] | select(.name | endswith(" in place"))];
  ([$other[] | select(.model) | {key: key, value: .}] + [$torch[] | select(.model) | {key: key,
    value: (. + {same: true})}] |
    from_entries) as $peer |
  ([$predicted[0].rows[] | {key: key, value: .predicted_s}] | from_entries) as $prices |
  ($listed[0] as $l | [$l.models[] | . as $m | range($l.tokens | length) as $i |
    {key: "\($m.model) balanced \($l.tokens[$i])",
     value: {layer_s: ($m.deepep_us[$i] * 1e-6), compute_s: ($m.compute_us[$i] * 1e-6)}}] | from_entries) as $deepep |
  (reduce ($files[].rows[] | .methods |= map(named)) as $r ({order: [], of: {}}; ($r | key) as $k |
    if .of[$k] then ([.of[$k].methods[].name] as $has | .of[$k].methods += [$r.methods[] | select(.graph and (.name |
      IN($has[]) | not))])
    else .order += [$k] | .of[$k] = $r end) | .of as $of | [.order[] | $of[.]]) as $joined |
  [$joined[] | (key) as $key | .methods |= map(if .graph then .predicted_s = $prices[$key][.name] else . end) |
   . as $row | best as $best |
   ([layers[] | select(.predicted_s != null)] | if length > 0 then min_by(weighed(.predicted_s; .name))
     else null end) as $auto |
   . + {
     best: ([layers[] | select(.median_s != null)] | min_by(.median_s).name), over_limit: ([layers[].over_limit |
       select(. != null)] | min),
     interleave_over_wave: (method("wave").median_s | over($row | method("interleave").median_s)),
     interleave_over_wave_predicted: (method("wave").predicted_s | over($row | method("interleave").predicted_s)),
     alternate_over_wave: (method("wave").median_s | over($row | method("alternate").median_s)),
     alternate_over_wave_predicted: (method("wave").predicted_s | over($row | method("alternate").predicted_s)),
     auto: $auto.name, auto_regret: ($auto.median_s | over($best) | if . then . - 1 else null end),
     wave_bound_s: ($row | wave_bound(method("wave"))),
     torch_layer_s: $peer[$key].layer_s, torch_compute_s: $peer[$key].compute_s, torch_gemms_s: $peer[$key].gemms_s,
     torch_same_job: ($peer[$key].same == true),
     torch_speedup: ($peer[$key].layer_s | over($best)),
     deepep_scaled_s: (if $deepep[$key] and $peer[$key]
       then $deepep[$key].layer_s * $peer[$key].compute_s / $deepep[$key].compute_s else null end)} |
   .deepep_speedup = (.deepep_scaled_s | over($best)) |
   .wave_over_bound = (.wave_bound_s as $bound | method("wave").median_s | over($bound)) |
   .auto_over_torch = (.torch_layer_s as $torch | $auto.median_s | over($torch)) |
   .methods |= map(.median_s |= short | .samples_s |= map(short))] as $rows |
  # Counts, their exchange and the table: dispatch alone where there is least to dispatch.
  (reduce ($rows[] | {model, plan_s: method("dispatch alone").median_s} | select(.plan_s)) as $r ({};
    .[$r.model] = ([.[$r.model], $r.plan_s] | least))) as $plans |
  [$rows[] | (.wave_bound_s as $b | $plans[.model] as $p | method("wave").median_s | over(if $b and $p then $b + $p
    else null end))] as $planned |
  [$apart[].rows[] | select(in_place != []) | (method("direct").combine_bytes / $apart[0].constants.rate_bytes_per_s) as
    $combine_s | (([.limit.compute_s, $combine_s, .limit.memory_s] | max) + .limit.constants_s) as $limit_s |
    {model, router, tokens, compute_s: .limit.compute_s, combine_s: $combine_s, limit_s: $limit_s,
     methods: [(key) as $key | in_place[] | {name: (.name | sub(" in place$"; "")), schedule, group_tasks, lead,
       predicted_s: $prices[$key][.name], median_s: (.median_s | short), over_limit: (.median_s / $limit_s),
       words_wrong, samples_s: (.samples_s | map(short))}]}] as $in_place |
  [$apart[].rows[] | select(in_place == []) | . as $row | {model, router, tokens, waves: [.methods[] |
    select(.schedule == "wave") | . as $wave | {name, group_tasks, median_s: (.median_s | short),
      bound_s: ($row | wave_bound($wave)), words_wrong, samples_s: (.samples_s | map(short))} |
    .over_bound = (.bound_s as $b | .median_s | over($b))]}] as $waves |
  [$rows[] | select(.router != "crossed")] as $common |
  ([$rows[].auto_regret | select(. != null)] | sort) as $regrets |
  ([$rows[] |
    (if .interleave_over_wave and .interleave_over_wave_predicted
     then .interleave_over_wave / .interleave_over_wave_predicted - 1 | fabs else empty end),
    (if .alternate_over_wave and .alternate_over_wave_predicted
     then .alternate_over_wave / .alternate_over_wave_predicted - 1 | fabs else empty end)] | sort) as $errors |
  ([$rows[].methods[] | select(.graph and .predicted_s != null and .median_s != null) |
    .predicted_s / .median_s - 1 | fabs] | sort) as $time_errors |
  {schema: "draintile-moe-results", version: 1} + $notes[0] +
  ($files[0] | {device, date, ranks, repeat, seed, constants}) +
  {torch: ($torch[0].setting // null), torch_other: ($other[0].setting // null), deepep: $listed[0].note,
   summary: {
     over_limit_max_tokens_4096: ([$rows[] | select(.tokens >= 4096) | .over_limit] | most),
     over_limit_max_tokens_128: ([$rows[] | select(.tokens == 128) | .over_limit] | most),
     torch_speedup_min: ([$common[].torch_speedup] | least),
     torch_speedup_geomean: ([$common[].torch_speedup] | geomean),
     deepep_speedup_min: ([$rows[].deepep_speedup] | least),
     deepep_speedup_geomean: ([$rows[].deepep_speedup] | geomean),
     interleave_over_wave_geomean: ([$rows[].interleave_over_wave] | geomean),
     interleave_over_wave_max: ([$rows[].interleave_over_wave] | most),
     interleave_over_wave_min: ([$rows[].interleave_over_wave] | least),
     alternate_over_wave_geomean: ([$rows[].alternate_over_wave] | geomean),
     alternate_over_wave_max: ([$rows[].alternate_over_wave] | most),
     alternate_over_wave_min: ([$rows[].alternate_over_wave] | least),
     prediction_error_max: ($errors | max),
     prediction_error_p95: ($errors | p95),
     prediction_error_over_5_percent: ($errors | map(select(. > 0.05)) | length),
     predictions: ($errors | length),
     predicted_time_error_median: ($time_errors | at(0.5)),
     predicted_time_error_p95: ($time_errors | p95),
     wave_over_bound_max: ([$rows[].wave_over_bound] | most),
     wave_over_bound_geomean: ([$rows[].wave_over_bound] | geomean),
     wave_over_bound_and_plan_max: ($planned | most),
     wave_over_bound_and_plan_geomean: ($planned | geomean),
     in_place_over_limit_min: ([$in_place[].methods[].over_limit] | least),
     auto_regret_p95: ($regrets | p95),
     auto_regret_max: ($regrets | max),
     auto_within_3_percent: (if $regrets == [] then null else ($regrets | map(select(. <= 0.03)) |
       length) / ($regrets | length) end),
     auto_slower_than_torch: ([$common[].auto_over_torch | select(. != null and . > 1)] | length),
     max_relative_error: ([$rows[].methods[] | .max_relative_error] | most),
     bit_equal: ([$rows[].methods[], $in_place[].methods[], $waves[].waves[] | select(has("words_wrong")) |
       .words_wrong == 0] | length > 0 and all),
     host_issue_s: ([$rows[] | method("direct live").host_issue_s] | most),
     host_issue_over_15_us: ([$rows[] | method("direct live").host_issue_s | select(. != null and . > 15e-6)] | length),
     host_issue_median_s: ([$rows[] | method("direct live").host_issue_s | select(. != null)] | sort |
       .[(length - 1) / 2 | floor]),
     over_limit_geomean: ([$rows[].over_limit] | geomean),
     torch_same_job_rows_not_crossed: ([$common[] | select(.torch_same_job)] | length),
     rows: ($rows | length)},
   rows: $rows, in_place: $in_place, waves: $waves}'
