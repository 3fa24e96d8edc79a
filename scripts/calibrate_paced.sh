#!/bin/sh
# Calibrates the paced CPU fabric between two rank processes for 12 settings and compares with what was set: the rate
# within 3 %, the capacity within 10 %. Writes bench/results/cpu/paced.json. About 2 minutes.
# Usage: scripts/calibrate_paced.sh [path of draintile]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
command=${1:-$root/build/draintile}
out=$root/bench/results/cpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
failed=0
rows=""
for rate in 20e6 50e6 100e6 200e6 500e6 1e9; do
  for milliseconds in 1 2.5; do
    capacity=$(awk "BEGIN { printf \"%.0f\", $rate * $milliseconds / 1000 }")
    "$command" calibrate --device cpu --quick --link-rate "$rate" --link-capacity "$capacity" \
      --output "$work/platform.json" > /dev/null
    row=$(awk -v rate="$rate" -v capacity="$capacity" '
      # The value after the constant'"'"'s name: one key a line, or several.
      { text = text $0 }
      function value(name,   rest) {
        rest = substr(text, index(text, "\"" name "\""))
        rest = substr(rest, index(rest, "\"value\""))
        sub(/^"value" *: */, "", rest)
        return rest + 0
      }
      END {
        r = value("rate_bytes_per_s"); q = value("capacity_bytes")
        re = r / rate - 1; qe = q / capacity - 1
        ok = (re <= 0.03 && re >= -0.03 && qe <= 0.10 && qe >= -0.10)
        printf "{\"rate_set_bytes_per_s\": %.1f, \"rate_bytes_per_s\": %.1f, \"capacity_set_bytes\": %.1f, ", rate, r, capacity
        printf "\"capacity_bytes\": %.1f, \"rate_error_ratio\": %.5f, \"capacity_error_ratio\": %.5f, \"pass\": %s}\n", q, re, qe, ok ? "true" : "false"
      }' "$work/platform.json")
    echo "$row"
    case $row in *'"pass": false'*) failed=$((failed + 1)) ;; esac
    rows="$rows${rows:+,
    }$row"
  done
done
cat > "$work/paced.json" << EOF
{
  "schema": "draintile-paced", "version": 1,
  "command": "scripts/calibrate_paced.sh", "failed": $failed,
  "rows": [
    $rows
  ]
}
EOF
mv "$work/paced.json" "$out/paced.json"
echo "$((12 - failed)) of 12 within 3 % of the rate and 10 % of the capacity: $out/paced.json"
[ "$failed" = 0 ]
