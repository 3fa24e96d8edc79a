#!/bin/sh
# Calibrates the paced CPU fabric between two rank processes for 12 settings and compares with what was set: the rate
# within 3 %, the capacity within 10 %. Writes bench/results/cpu/paced.json. About 2 minutes. A setting that misses is
# measured once more, since whatever else the machine does delays bursts; the file says how often each was measured.
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
    for attempts in 1 2; do
      "$command" calibrate --device cpu --quick --link-rate "$rate" --link-capacity "$capacity" \
        --output "$work/platform.json" > /dev/null
      jq -c --argjson attempts "$attempts" --argjson rate "$rate" --argjson capacity "$capacity" '.constants | {
          attempts: $attempts, rate_set_bytes_per_s: $rate, rate_bytes_per_s: .rate_bytes_per_s.value,
          rate_n: .rate_bytes_per_s.n, rate_low_bytes_per_s: .rate_bytes_per_s.low,
          rate_high_bytes_per_s: .rate_bytes_per_s.high,
          capacity_set_bytes: $capacity, capacity_bytes: .capacity_bytes.value, capacity_n: .capacity_bytes.n,
          capacity_low_bytes: .capacity_bytes.low, capacity_high_bytes: .capacity_bytes.high}
        | .rate_error_ratio = .rate_bytes_per_s / $rate - 1 | .capacity_error_ratio = .capacity_bytes / $capacity - 1
        | .pass = (.rate_error_ratio | fabs <= 0.03) and (.capacity_error_ratio | fabs <= 0.1)' \
        "$work/platform.json" > "$work/row"
      [ "$(jq .pass "$work/row")" = false ] || break
    done
    tee -a "$work/rows" < "$work/row"
  done
done
jq -s --slurpfile platform "$work/platform.json" '{schema: "draintile-paced", version: 1,
        command: "scripts/calibrate_paced.sh", device: $platform[0].device.name, date: $platform[0].device.date,
        failed: map(select(.pass | not)) | length, rows: .}' "$work/rows" > "$work/paced.json"
mv "$work/paced.json" "$out/paced.json"
failed=$(jq .failed "$out/paced.json")
echo "$((12 - failed)) of 12 within 3 % of the rate and 10 % of the capacity: $out/paced.json"
[ "$failed" = 0 ]
