#!/bin/sh
# Calibrates the paced CPU fabric between two rank processes for 12 settings and compares with what was set: the rate
# within 3 %, the capacity within 10 %. Writes bench/results/cpu/paced.json. About 3 minutes.
# Usage: scripts/calibrate_paced.sh [path of draintile]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
command=${1:-$root/build/draintile}
out=$root/bench/results/cpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
for rate in 20e6 50e6 100e6 200e6 500e6 1e9; do
  for milliseconds in 1 2.5; do
    capacity=$(jq -n "$rate * $milliseconds / 1000")
    "$command" calibrate --device cpu --quick --link-rate "$rate" --link-capacity "$capacity" \
      --output "$work/platform.json" > /dev/null
    jq -c --argjson rate "$rate" --argjson capacity "$capacity" '.constants | {
        rate_set_bytes_per_s: $rate, rate_bytes_per_s: .rate_bytes_per_s.value,
        capacity_set_bytes: $capacity, capacity_bytes: .capacity_bytes.value}
      | .rate_error_ratio = .rate_bytes_per_s / $rate - 1 | .capacity_error_ratio = .capacity_bytes / $capacity - 1
      | .pass = (.rate_error_ratio | fabs <= 0.03) and (.capacity_error_ratio | fabs <= 0.1)' \
      "$work/platform.json" | tee -a "$work/rows"
  done
done
jq -s '{schema: "draintile-paced", version: 1, command: "scripts/calibrate_paced.sh",
        failed: map(select(.pass | not)) | length, rows: .}' "$work/rows" > "$work/paced.json"
mv "$work/paced.json" "$out/paced.json"
failed=$(jq .failed "$out/paced.json")
echo "$((12 - failed)) of 12 within 3 % of the rate and 10 % of the capacity: $out/paced.json"
[ "$failed" = 0 ]
