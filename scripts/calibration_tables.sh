#!/bin/sh
# docs/results/calibration.md: the tables of the calibration, from the committed results of 2 x H200.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results/h200x2
platform=$results/platform.json
verify=$results/verify.json
out=$root/docs/results/calibration.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT

# Of one table: what, pattern, operation, alignment ("": none).
points() {
  jq -c --arg name "$1" --arg pattern "$2" --arg operation "$3" --arg alignment "$4" '.tables[]
    | select(.name == $name and (.pattern // "") == $pattern and (.operation // "") == $operation
             and (.alignment // "") == $alignment) | .points[]' "$platform"
}

{
  echo "# Calibration of 2 x H200"
  echo
  echo "Made by \`scripts/plot_calibration.sh\` from \`bench/results/h200x2/platform.json\` and \`verify.json\`;" \
    "nothing here is typed."
  jq -r '
    "\(.device.count) x \(.device.name), driver \(.device.driver), \(.device.date), SM clock " +
      "\(.device.clocks_before.sm_hz / 1e6 | round) MHz before and \(.device.clocks_after.sm_hz / 1e6 | round) MHz " +
      "after\(if .device.throttled then ", THROTTLED" else "" end)."' "$platform"
  echo
  jq -r '.notes[] | "- \(.)"' "$platform"
  echo
  echo "## Held-out settings"
  echo
  echo "| pattern | operation | alignment | settings | median error | 90th percentile | within 5 % / 15 % |"
  echo "|---|---|---|---|---|---|---|"
  jq -L "$root/scripts" -r 'include "tables";
    .groups[] | "| \(.pattern) | \(.operation) | \(.alignment) | \(.n) | \(.issue_error_median | figure(100; 2)) % " +
      "| \(.issue_error_p90 | figure(100; 2)) % | \(if .pass then "yes" else "NO" end) |"' "$verify"
  echo
  jq -L "$root/scripts" -r 'include "tables";
    .summary | "All: median \(.issue_error_median | figure(100; 2)) %, 90th percentile " +
      "\(.issue_error_p90 | figure(100; 2)) %. Half-width of R \(.rate_half_width | figure(100; 2)) %, of Q " +
      "(widest) \(.capacity_half_width | figure(100; 2)) %. R both ways over one way " +
      "\(.both_ways_over_one_way | figure(1; 4))."' "$verify"
  jq -r '
    "Measured inside the predicted interval: \([.rows[] | select(.predicted_low_s <= .issue_s
      and .issue_s <= .predicted_high_s)] | length) of \(.rows | length) settings: the intervals are the " +
      "repeatability of the constants, not the error of the law."' "$verify"
  jq -r '"Aligned settings left out because their bursts did not start together: \(.late_settings)."' "$verify"
  echo
  echo "Pairs with 0 < G < Q/R among them, Q at the nearest measured K and B:"
  echo
  echo "| pattern | operation | settings | median error | largest error |"
  echo "|---|---|---|---|---|"
  jq -L "$root/scripts" -r --slurpfile platform "$platform" 'include "tables";
    [.rows[] | select(.alignment == "aligned") | . as $row
      | ([$platform[0].tables[] | select(.name == "capacity_bytes" and .pattern == $row.pattern and .operation ==
        $row.operation) | .points[]]
         | min_by(((.at.producers - $row.producers) | fabs) * 1e9 + ((.at.producer_bytes - $row.producer_bytes) |
           fabs)) | .value) as $q
      | select(.gap_s < $q / $platform[0].constants.rate_bytes_per_s.value)]
    | group_by([.pattern, .operation])[] | (map(.error_ratio) | sort) as $e
    | "| \(.[0].pattern) | \(.[0].operation) | \(length) | \((($e[(length - 1) / 2 | floor] + $e[length / 2 |
      floor]) / 2) | figure(100; 2)) % | \($e[-1] | figure(100; 2)) % |"' "$verify"
  echo
  echo "## Do aligned bursts recover by waiting?"
  echo
  echo "The second burst of a pair, held-out settings, one way, st.v4. max law: max(T0, V/R - G)."
  echo
  echo "| K | B, KiB | G, us | T measured, us | T with finite Q, us | T by the max law, us | G below Q/R |"
  echo "|---|---|---|---|---|---|---|"
  jq -L "$root/scripts" -r --slurpfile platform "$platform" 'include "tables";
    def near($name; $k; $b): [$platform[0].tables[] | select(.name == $name and .pattern == "one-way"
      and .operation == "st.v4") | .points[]]
      | min_by(((.at.producers - $k) | fabs) * 1e9 + ((.at.producer_bytes - $b) | fabs)) | .value;
    .rows | map(select(.alignment == "aligned" and .pattern == "one-way" and .operation == "st.v4")) |
      sort_by(.producers, .producer_bytes, .gap_s)[]
    | (.producers * .producer_bytes) as $v | near("rate_bytes_per_s"; .producers; .producer_bytes) as $r
    | near("capacity_bytes"; .producers; .producer_bytes) as $q | near("t0_s"; .producers; .producer_bytes) as $t0
    | "| \(.producers) | \(.producer_bytes / 1024) | \(.gap_s | figure(1e6; 2)) | \(.issue_s | figure(1e6; 2)) | " +
      "\(.predicted_s | figure(1e6; 2)) | \([$t0, $v / $r - .gap_s] | max | figure(1e6; 2)) | " +
      "\(if .gap_s < $q / $r then "yes" else "no" end) |"' "$verify"
  echo
  echo "## Capacity Q, MB"
  echo
  echo "In the machine's usual state and, where a second was seen in at least 5 rounds, in the other."
  echo
  echo "| pattern | operation | K | B, KiB | Q | low | high | Q in the other state | low | high |"
  echo "|---|---|---|---|---|---|---|---|---|---|"
  jq -L "$root/scripts" -r 'include "tables";
    .tables as $tables | .tables[] | select(.name == "capacity_bytes") | . as $t | .points[]
    | .at as $at | ([$tables[] | select(.name == "other_capacity_bytes" and .pattern == $t.pattern and .operation ==
      $t.operation) | .points[] | select(.at == $at)] | first) as $other
    | "| \($t.pattern) | \($t.operation) | \(.at.producers) | \(.at.producer_bytes / 1024) | " +
      "\(.value | figure(1e-6; 3)) | \(.low | figure(1e-6; 3)) | \(.high | figure(1e-6; 3)) | " +
      "\(if $other then [$other | .value, .low, .high | figure(1e-6; 3) | tostring] |
      join(" | ") else "- | - | -" end) |"' "$platform"
  echo
  echo "| pattern | operation | rounds in the other state, % | low | high | rounds |"
  echo "|---|---|---|---|---|---|"
  jq -L "$root/scripts" -r 'include "tables"; .tables[] | select(.name == "other_state_share_ratio")
    | "| \(.pattern) | \(.operation) | \(.points[0] | .value | figure(100; 0)) | " +
      "\(.points[0] | .low | figure(100; 0)) | \(.points[0] | .high | figure(100; 0)) | \(.points[0].n) |"' "$platform"
  echo
  echo "## Local loads right after an isolated burst, us"
  echo
  echo "| K | B, KiB | burst to the peer | burst to local memory |"
  echo "|---|---|---|---|"
  points load_after_burst_s one-way st.v4 drained > "$work"
  points load_after_burst_s local st.v4 drained | jq -L "$root/scripts" -r --slurpfile remote "$work" 'include "tables";
    . as $p | "| \(.at.producers) | \(.at.producer_bytes / 1024) | \($remote[] | select(.at == $p.at) | .value |
      figure(1e6; 2)) | \(.value | figure(1e6; 2)) |"'
  echo
  echo "## Puts, GB/s, by message and number of SMs"
  echo
  echo "| SMs | 64 KiB | 256 KiB | 1 MiB | 4 MiB | 16 MiB |"
  echo "|---|---|---|---|---|---|"
  points put_bytes_per_s one-way put free | jq -L "$root/scripts" -rs 'include "tables"; group_by(.at.sms_count)[]
    | "| \(.[0].at.sms_count) | \(sort_by(.at.message_bytes) | map(.value | figure(1e-9; 1) | tostring) |
      join(" | ")) |"'
  echo
  echo "## NCCL all-to-all and the copy engine, GB/s"
  echo
  echo "| bytes | NCCL all-to-all, off-rank bytes | peer copy |"
  echo "|---|---|---|"
  points alltoall_bytes_per_s all-to-all nccl "" > "$work"
  points copy_bytes_per_s one-way copy-engine "" | jq -L "$root/scripts" -r --slurpfile nccl "$work" 'include "tables";
    . as $p | "| \(.at.message_bytes / 1048576) MiB | \([$nccl[] | select(.at == $p.at) | .value | figure(1e-9; 1) |
      tostring] | join("")) | \(.value | figure(1e-9; 1)) |"'
  echo
  echo "## Constants"
  echo
  echo "| constant | value | low | high | n | method |"
  echo "|---|---|---|---|---|---|"
  jq -r 'def digits: if . == 0 then "0" else (fabs | log10 | floor) as $e |
  "\(. / pow(10; $e - 3) | round | . / 1000)" + (if $e == 0 then "" else "e\($e)" end) end;
    .constants | to_entries[] | "| \(.key) | \(.value.value | digits) | \(.value.low | digits) | " +
      "\(.value.high | digits) | \(.value.n) | \(.value.method) |"' "$platform"
} | awk -f "$root/scripts/wrap.awk" > "$out.tmp"
mv "$out.tmp" "$out"
echo "$out"
