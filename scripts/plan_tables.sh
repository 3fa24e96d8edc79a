#!/bin/sh
# docs/results/device_plan.md: what a plan on the device costs, from bench/results/*/device-plan.json. Nothing in it is
# typed.
#
#   plan_tables.sh                       the page
#   plan_tables.sh FILE COMMIT DRIVER    first takes what bench_device_plan wrote into FILE as the results of an H200
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -eq 3 ]; then
  jq --arg commit "$2" --arg driver "$3" '
    {schema, version, command: (.command | sub(" [^ ]*/"; " ")), commit: $commit,
    machine: (.machine + {driver: $driver}),
    ranks, experts, slots, chain, samples, summary, runs}' "$1" |
    jq -r '(del(.runs) | to_entries[] | " \(.key | tojson): \(.value | tojson),"),
      (.runs as $r | " \"runs\": [", ($r | to_entries[] | "  " +
        "\(.value | tojson)\(if .key + 1 < ($r | length) then "," else "" end)"), " ]")' |
    { echo '{' && cat && echo '}'; } >"$root/bench/results/h200/device-plan.json.$$"
  jq -e '.summary.plans_different == 0' "$root/bench/results/h200/device-plan.json.$$" >/dev/null ||
    { rm -f "$root/bench/results/h200/device-plan.json.$$"; echo "plan_tables: plans differ" >&2; exit 1; }
  mv "$root/bench/results/h200/device-plan.json.$$" "$root/bench/results/h200/device-plan.json"
fi
out=$root/docs/results/device_plan.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# A plan on the device"
  echo
  echo "Made by \`scripts/plan_tables.sh\` from \`bench/results/*/device-plan.json\`; nothing here is typed. One" \
    "rank's plan"
  echo "([plan.md](../plan.md)), the exchange of counts apart, medians, us."
  echo
  echo "- **replay**: a CUDA graph of the two launches between two events. **counting**: the first alone, which" \
    "shows what a"
  echo "  graph's launch costs on that machine. **in a row**: a share of a graph that holds them many times." \
    "**live**: without"
  echo "  a graph."
  echo "- **limit**: replays over 12 us. **hot**: three experts take 12 of 16 slots; where they are this rank's, it" \
    "has six"
  echo "  times the tasks (the first of four inputs in turn is listed)."
  for input in "$root"/bench/results/*/device-plan.json; do
    [ -f "$input" ] || continue
    echo
    jq -L "$root/scripts" -r 'include "tables";
      "## \(.machine.gpu)", "",
      "Commit \(.commit // "-"), driver \(.machine.driver // "-"): \(.ranks) ranks, \(.experts) experts, " +
        "\(.slots) slots a rank;",
      "\(.summary.plans_checked) random plans compared with the host, \(.summary.plans_different) differ.", "",
      "| layout | order | schedule | routing | tasks | replay | counting | in a row | live | limit |",
      "|---|---|---|---|---|---|---|---|---|---|",
      (.runs[] | "| \(.layout) | \(.order) | \(.schedule) | \(.routing) | \(.tasks) | \(.replay_s | us2) | " +
        "\(.count_replay_s | us2) | \(.chain_s | us2) | \(.live_s | us2) | " +
        "\(.replay_s / .limit_s * 100 | round / 100) |")' "$input"
  done
} >"$work"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
