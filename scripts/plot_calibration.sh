#!/bin/sh
# The calibration pictures of docs/results, from the committed results of 2 x H200; measures nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results/h200x2
cd "$root"
exec "${1:-build/draintile}" calibrate --from "$results/platform.json" --residuals "$results/verify.json" --plot docs/results
