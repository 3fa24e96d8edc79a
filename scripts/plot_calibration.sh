#!/bin/sh
# The calibration pictures and tables of docs/results, from the committed results of 2 x H200; measures nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results/h200x2
cd "$root"
"${1:-build/draintile}" calibrate --from "$results/platform.json" --residuals "$results/verify.json" --plot docs/results
exec scripts/calibration_tables.sh
