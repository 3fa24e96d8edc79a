#!/bin/sh
# docs/results/combine.md: the combine operator's tables, from bench/results/h200x2/combine-first.json and direct.json.
# Nothing in them is typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200x2/combine-first.json
direct=$root/bench/results/h200x2/direct.json
out=$root/docs/results/combine.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# The combine operator on two H200"
  echo
  echo "Made by \`scripts/combine_tables.sh\` from \`bench/results/h200x2/combine-first.json\` and \`direct.json\`, which hold the"
  echo "command of every row and all samples; nothing here is typed."
  echo
  jq -r '
    def us: if . == null then "-" else . * 1e7 | round / 10 end;
    def three: if . == null then "-" else . * 1000 | round / 1000 end;
    def of($name): (.timings[] | select(.method == $name)) // null;
    def columns: "| K | N | experts | router | consumers | raster | segment | compute | link | limit | GEMM reserved | bulk | signal | direct | best / limit | loop | loop, graph | grouped, graph | loop / best |",
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";
    def best: [of("signal").median_s, of("direct").median_s] | map(select(. != null)) | min;
    def row: "| \(.k) | \(.n) | \(.experts) | \(.router) | \(.consumers) | \(.raster_bands) | \(.segment_bands) | \(.limit.compute_s | us) | \(.limit.link_s | us) | \(.limit.limit_s | us) | \(of("gemm-reserved").median_s | us) | \(of("bulk").median_s | us) | \(of("signal").median_s | us) | \(of("direct").median_s | us) | \(best / .limit.limit_s | three) | \(of("loop").median_s | us) | \(of("loop-graph").median_s | us) | \(of("grouped-graph").median_s | us) | \(of("loop").median_s as $l | best as $b | if $l then $l / $b | three else "-" end) |";
    "\(.machine.name) x \(.machine.count), driver \(.machine.driver), cuBLAS \(.runs[0].cublas), NCCL \(.runs[0].nccl), commit \(.commit); M \(.runs[0].rows) rows a rank on",
    "average, medians of \(.runs[0].repeat), us. compute: the GEMM of the slowest rank alone; link: the bytes of the rank with most over",
    "\(.runs[0].limit.rate_bytes_per_s / 1e9 | three) GB/s; limit: the larger and \(.runs[0].limit.constants_s | us) us of constants (\(.runs[0].limit.constants | to_entries | map("\(.key) \(.value | us)") | join(", "))).",
    "",
    columns, (.runs[] | row),
    "",
    "Before the launches around the GEMM overlapped it (commit of that run in the file):",
    "",
    columns, (.before_earlier_launches[] | row),
    "",
    "| figure | value |", "|---|---|",
    (.summary | to_entries[] | "| `\(.key)` | \(.value | if type == "number" and . < 1 then . else (. * 1000 | round / 1000) end) |")
  ' "$input"
  echo
  echo "## Direct stores of the GEMM alone (no entry, no exit)"
  echo
  jq -r '
    def us: . * 1e7 | round / 10;
    def of($stores; $remote): .runs[] | select(.stores == $stores and .remote == $remote) | .median_s | us;
    "Half of every expert'"'"'s rows belong to the other GPU; us, medians of \(.repeats).", "",
    "| rows | N | K | experts | rows wrong | row stores: local | half remote | copy engine: local | half remote |",
    "|---|---|---|---|---|---|---|---|---|",
    (.shapes[] | "| \(.rows) | \(.n) | \(.k) | \(.experts) | \(.rows_wrong) | \(of("rows"; false)) | \(of("rows"; true)) | \(of("copy engine"; false)) | \(of("copy engine"; true)) |")
  ' "$direct"
} >"$work"
mkdir -p "$(dirname "$out")"
cp "$work" "$out"
