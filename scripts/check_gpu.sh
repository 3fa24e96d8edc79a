#!/bin/bash
# The GPU suite: runs each line of scripts/gpu-suite.txt (name, seconds it may take, command with %B for the build
# folder) and writes one JSON with the machine, the commit, the clocks and what each said. Exit 77 without a GPU.
# BUILD= takes another build folder, RESULT= another result file.
set -u
cd "$(dirname "$0")/.." || exit 3
build=${BUILD:-build}
smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1 | sed 's/^ *//'; }

name=$(smi name)
if [ -z "$name" ]; then
  echo "check-gpu: no NVIDIA GPU here: skipped"
  exit 77
fi
count=$(nvidia-smi -L | wc -l)
folder=$(printf '%s' "$name" | tr '[:upper:]' '[:lower:]' | sed 's/nvidia //; s/[^a-z0-9]//g')
[ "$count" -eq 1 ] || folder=${folder}x$count
result=${RESULT:-bench/results/$folder/gpu-suite.json}
mkdir -p "$(dirname "$result")"

# Text as a JSON string: backslashes, quotes and control characters.
quote() {
  printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' |
    awk '{printf "%s%s", (NR > 1 ? "\\n" : ""), $0}')"
}

temporary=$result.$$
passed=0 failed=0 skipped=0 separator=
clock_before=$(smi clocks.sm)
{
  printf '{\n "schema": "draintile-gpu-suite",\n "version": 1,\n'
  printf ' "machine": {"name": %s, "count": %d, "driver": %s},\n' \
    "$(quote "$name")" "$count" "$(quote "$(smi driver_version)")"
  printf ' "commit": %s,\n "date": "%s",\n "checks": [' \
    "$(quote "${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}")" "$(date -u +%FT%TZ)"
} >"$temporary"
while read -r check seconds command; do
  case $check in '' | '#'*) continue ;; esac
  echo "== $check"
  begin=$(date +%s.%N)
  # shellcheck disable=SC2086  # the command's words
  output=$(timeout -k 5 "$seconds" ${command//%B/$build} 2>&1)
  code=$?
  took=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.2f", b - a }')
  printf '%s\n' "$output" | tail -n 12
  case $code in
  0) verdict=passed passed=$((passed + 1)) ;;
  77) verdict=skipped skipped=$((skipped + 1)) ;;
  *) verdict=failed failed=$((failed + 1)) ;;
  esac
  echo "== $check: $verdict (exit $code, $took s)"
  printf '%s\n  {"name": %s, "verdict": "%s", "exit_code": %d, "wall_s": %s, "output": %s}' "$separator" \
    "$(quote "$check")" "$verdict" "$code" "$took" "$(quote "$(printf '%s' "$output" | tail -n 40)")" >>"$temporary"
  separator=,
done <scripts/gpu-suite.txt
{
  printf '\n ],\n "sm_clock_mhz": {"before": %s, "after": %s},\n' "${clock_before:-0}" "$(smi clocks.sm)"
  printf ' "summary": {"passed": %d, "failed": %d, "skipped": %d}\n}\n' "$passed" "$failed" "$skipped"
} >>"$temporary"
mv "$temporary" "$result"
echo "result: $result"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
