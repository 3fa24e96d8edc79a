#!/bin/bash
# docs/results/combine.md: the combine operator's tables, from bench/results/h200x2/combine.json and direct.json.
# Nothing in them is typed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200x2/combine.json
direct=$root/bench/results/h200x2/direct.json
out=$root/docs/results/combine.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT
definitions='include "tables";
  def of($name): timed($name).median_s;
  def best: [of("signal"), of("direct")] | least;
  def routers: ["balanced", "moderate", "stress", "crossed"];
  . as $all |
  ([$all.torch_rows[]? | {key: (setting | tostring), value: .}] | from_entries) as $torch_of |
  def torch: $torch_of[setting | tostring];
  ([$all.paced[]? | {key: (setting | tostring), value: .}] | from_entries) as $paced_of |
  def paced: $paced_of[setting | tostring];
  def ratios: [{name: "signal", value: (of("signal") / .limit.limit_s)}, {name: "direct",
    value: (of("direct") / .limit.limit_s)}] +
    (.limit.limit_s as $l | paced as $p | if $p then ([$l, $p.limit.limit_s] | min) as $m |
      [{name: "direct, paced", value: (($p | of("direct")) / $m)},
       {name: "signal, paced", value: (($p | of("signal")) / $m)}] else [] end) | min_by(.value);
  def grouped: [of("grouped-graph"), (torch // {timings: []} | of("grouped_graph"))] | least;
'
table() { # jq program that prints lines
  jq -L "$root/scripts" -r "$definitions $1" "$input"
}
{
  echo "# The combine operator on two H200"
  echo
  echo "Made by \`scripts/combine_tables.sh\` from \`bench/results/h200x2/combine.json\` and \`direct.json\`, which" \
    "hold the commands"
  echo "and all samples; nothing here is typed. Each method's result was checked before it was timed."
  echo
  table '
    "\(.device) x \(.ranks), driver \(.job.driver), cuBLAS \(.cublas), NCCL \(.nccl), torch \(.torch), commit " +
      "\(.job.commit), \(.date); medians of \(.repeat), us, of",
    "the slowest rank. M: rows a rank on average. compute: our GEMM alone; link: the bytes of the rank that sends " +
      "or receives most",
    "over \(.rate_bytes_per_s / 1e9 | three) GB/s; limit: the largest of compute, link and the weights over the " +
      "memory bandwidth, and \(.constants_s | us) us of constants",
    "(\(.constants | to_entries | map("\(.key) \(.value | us)") | join(", "))).", "", (.job.notes // [] | .[] |
      "\(.)", ""),
    "| figure | value |", "|---|---|",
    (.summary | to_entries[] | "| `\(.key)` | \(.value | if . == null then "-" elif type == "number" and . < 1
      and . > 0 then . * 1e6 | round / 1e6 else three end) |")'
  echo
  echo "## All methods"
  echo
  echo "Behind a time, in brackets, what the simulator predicted from the platform file before the run. grouped: the" \
    "faster of"
  echo "cuBLAS grouped and torch \`_grouped_mm\`, then NCCL, replayed from a CUDA graph. direct, paced: bands in" \
    "that order, beside a GEMM"
  echo "of its own run; its ratio is to the smaller limit of both; the others are in natural order. Speedups are" \
    "over the better of signal and direct,"
  echo "in natural order, of the same turns."
  table '
    (.rows | group_by([.n, .rows])[] | "", "### N \(.[0].n), K \(.[0].k), M \(.[0].rows)", "",
     "| experts | router | compute | link | limit | GEMM reserved | bulk | signal | direct | direct, paced " +
       "| best / limit | wins | loop, live | loop, graph | grouped, graph | loop live / best | loop graph / best " +
       "| grouped graph / best |",
     "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
     (sort_by([(.router as $r | routers | index($r)), .experts])[] | best as $b |
      "| \(.experts) | \(.router) | \(.limit.compute_s | us) | \(.limit.link_s | us) | \(.limit.limit_s | us) | " +
        "\(of("gemm-reserved") | us) | \(of("bulk") | us) | \(of("signal") | us) (\(.predicted.signal_s | us)) " +
        "| \(of("direct") | us) (\(.predicted.direct_s | us)) " +
        "| \(paced as $p | if $p then "\($p | of("direct") | us) (\(.predicted.direct_paced_s |
        us))" else "-" end) | \(ratios.value | three) | \(ratios.name) | \(of("loop") | us) | " +
        "\(of("loop-graph") | us) | \(grouped | us) | \(of("loop") | over($b) | three) | " +
        "\(of("loop-graph") | over($b) | three) | \(grouped | over($b) | three) |"))'
  echo
  echo "## Small K"
  echo
  table '
    "| N | K | experts | router | compute | link | limit | bulk | signal | direct | direct, paced | best / limit " +
      "| wins |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.small | sort_by([(.router as $r | routers | index($r)), .n, .k, .experts])[] |
     "| \(.n) | \(.k) | \(.experts) | \(.router) | \(.limit.compute_s | us) | \(.limit.link_s | us) | " +
       "\(.limit.limit_s | us) | \(of("bulk") | us) | \(of("signal") | us) (\(.predicted.signal_s | us)) " +
       "| \(of("direct") | us) (\(.predicted.direct_s | us)) " +
       "| \(paced as $p | if $p then "\($p | of("direct") | us)" else "-" end) | \(ratios.value | three) | " +
       "\(ratios.name) |")'
  echo
  echo "## Consumers and segments of signal"
  echo
  table '
    ([.sweep[].consumers] | unique) as $c |
    "| M | N | experts | router | segment bands | \($c | map("\(.)") | join(" | ")) |",
    "|---|---|---|---|---|\($c | map("---|") | join(""))",
    (.sweep | group_by([.rows, .n, (.router as $r | routers | index($r)), .experts, .segment_bands])[] | . as $g |
     "| \(.[0].rows) | \(.[0].n) | \(.[0].experts) | \(.[0].router) | \(.[0].segment_bands) | " +
       "\($c | map(. as $x | [$g[] | select(.consumers == $x)][0] | if . then of("signal") | us else "-" end) |
       join(" | ")) |")'
  echo
  echo "## What each step is worth"
  echo
  echo "loop: cuBLAS by experts, then NCCL, from a graph; grouped: one GEMM of all experts, then NCCL; bulk: our" \
    "GEMM and our put;"
  echo "signal: the put beside the GEMM, with 16 consumers; the best number of them, behind what it takes of the time" \
    "with 16, both of the sweep above; reserved: the GEMM alone on the SMs that 16 leave, so what reserving costs."
  echo
  table '
    "| M | N | experts | router | loop | grouped | bulk | signal | best consumers | GEMM | reserved | direct |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | select(.k == 2048 and .router != "crossed") | setting as $s |
     select([$all.orders[] | select(setting == $s)] | length > 0) |
     [$all.sweep[] | select(setting == $s and .segment_bands == 1) | {c: .consumers, t: of("signal")}] as $swept |
     ($swept | min_by(.t)) as $c | ([$swept[] | select(.c == 16).t] | first) as $of_16 |
     "| \(.rows) | \(.n) | \(.experts) | \(.router) | \(of("loop-graph") | us) | \(grouped | us) | " +
       "\(of("bulk") | us) | \(of("signal") | us) | " +
       "\(if $of_16 then "\($c.t / $of_16 | three) (\($c.c))" else "-" end) | " +
       "\(of("gemm") | us) | \(of("gemm-reserved") | us) | \(of("direct") | us) |")'
  echo
  echo "## Orders of the bands"
  echo
  echo "GEMM: alone in that order, of the same turns."
  echo
  table '
    def in($order): [.[] | select(.order == $order)][0];
    ["natural", "paced", "remote-first"] as $orders |
    "| M | N | experts | router | \($orders | map("GEMM, \(.)") | join(" | ")) | " +
      "\($orders | map("signal, \(.)") | join(" | ")) | \($orders | map("direct, \(.)") | join(" | ")) |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.orders | group_by([.rows, .n, .experts, (.router as $r | routers | index($r))])[] | . as $g |
     "| \(.[0].rows) | \(.[0].n) | \(.[0].experts) | \(.[0].router) | " +
       "\([("gemm", "signal", "direct") as $m | $orders[] as $o | $g | in($o) | of($m) | us] | join(" | ")) |")'
  echo
  echo "## Launches, entry, pacing"
  echo
  echo "us over the GEMM alone of the same turns. signal: consumers as roles of the GEMM's launch or in a kernel of" \
    "their own; beside: tiles"
  echo "begin while the ranks still meet, before: afterwards. direct, natural order: an expert's bands mixed where" \
    "it has two units"
  echo "(auto), or not (off)."
  echo
  table '
    def form($l; $e; $p): [.[] | select(.launch == $l and .entry == $e and .pacing == $p)][0];
    def more($name): if . == null or of($name) == null then null else of($name) - of("gemm") end | us;
    if (.forms // []) == [] then "Not measured yet." else
    "| M | N | K | experts | router | consumers | GEMM | signal, one launch, beside | one, before | two, before " +
      "| direct, auto, beside | auto, before | off, before |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.forms | group_by([.n, .k, .rows, (.router as $r | routers | index($r)), .experts, .consumers])[] | . as $g |
     "| \(.[0].rows) | \(.[0].n) | \(.[0].k) | \(.[0].experts) | \(.[0].router) | \(.[0].consumers) | " +
       "\([.[] | of("gemm")] | sort | .[length / 2 | floor] | us) | " +
       "\($g | form("one"; "beside"; "auto") | more("signal")) | " +
       "\($g | form("one"; "before"; "auto") | more("signal")) | " +
       "\($g | form("two"; "before"; "auto") | more("signal")) | " +
       "\($g | form("one"; "beside"; "auto") | more("direct")) | " +
       "\($g | form("one"; "before"; "auto") | more("direct")) | " +
       "\($g | form("one"; "before"; "off") | more("direct")) |") end'
  echo
  echo "## Packed against aligned rows"
  echo
  echo "Tiles: 128 rows by 256 columns, of the GEMMs of all ranks, short ones included; what aligned has more of is" \
    "padding's."
  echo "balanced needs no padding: what differs there is the clock of the cards, on which all of packed ran before" \
    "all of aligned."
  echo
  table '
    def tiles: if .tiles then .tiles | add else "-" end;
    "| M | N | experts | router | padded rows, all ranks | tiles, packed | aligned | GEMM: packed | aligned " +
      "| signal: packed | aligned | direct: packed | aligned | packed gains, direct |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.layouts | group_by([.rows, .n, (.router as $r | routers | index($r)), .experts])[] |
     ([.[] | select(.layout == "packed")][0]) as $p | ([.[] | select(.layout == "aligned")][0]) as $a |
       select($p and $a) |
     "| \(.[0].rows) | \(.[0].n) | \(.[0].experts) | \(.[0].router) | \($a.padded_rows | add) | " +
       "\($p | tiles) | \($a | tiles) | \($p | of("gemm") | us) | \($a | of("gemm") | us) | " +
       "\($p | of("signal") | us) | \($a | of("signal") | us) | " +
       "\($p | of("direct") | us) | \($a | of("direct") | us) | " +
        "\(($a | of("direct")) / ($p | of("direct")) | three) |")'
  echo
  echo "## The reduction at the owner; counts on the device"
  echo
  echo "Each token's two rows weighted and summed; torch: gather, multiply, sum. Exchange: entry and exit of a run" \
    "whose entry exchanges"
  echo "the counts; counts: the same with the plan and the tables."
  echo
  table '
    def cell($name): [.[] | of($name) | select(. != null)] | if length > 0 then min | us else "-" end;
    "| M | N | reduction, ours | torch | exchange | counts, E 8 | counts, E 64 |", "|---|---|---|---|---|---|---|",
    ([.rows[] | select(of("reduce"))] | group_by([.rows, .n])[] | . as $g |
     [$all.counts[]? | select(.rows == $g[0].rows and .n == $g[0].n)] as $c |
     "| \(.[0].rows) | \(.[0].n) | \($g[0] | of("reduce") | us) | " +
       "\([$all.torch_rows[]? | select(.rows == $g[0].rows and .n == $g[0].n)] | cell("reduce_gather_sum")) | " +
       "\($c | cell("exchange")) | \([$c[] | select(.experts == 8)] | cell("counts")) | " +
       "\([$c[] | select(.experts == 64)] | cell("counts")) |")'
  echo
  echo "## How many multiprocessors store at once"
  echo
  echo "direct with timestamps, the rank with more bytes: bursts under way from the first to the last on average and" \
    "at most; K_act: the 95th"
  echo "percentile over their starts of those that start within one drain time of the link's capacity; the model" \
    "takes all multiprocessors."
  echo
  table '
    "| N | K | router | drain time | bursts | span, median | p95 | storing, mean | most | K_act | model |",
      "|---|---|---|---|---|---|---|---|---|---|---|",
    ([.kact[]? | select(.stores)] | sort_by([.n, .k, (.router as $r | routers | index($r))])[] | (.stores.ranks |
      max_by(.bytes)) as $s |
     "| \(.n) | \(.k) | \(.router) | \(.stores.window_s | us) | \($s.bursts) | \($s.span_median_s | us) | " +
       "\($s.span_p95_s | us) | \($s.active_mean | one) | \($s.active_max) | \($s.k_act | one) | " +
       "\(.stores.producers) |")'
  echo
  echo "## Direct stores of the GEMM alone (no entry, no exit)"
  echo
  jq -L "$root/scripts" -r 'include "tables";
    def of($stores; $remote): .runs[] | select(.stores == $stores and .remote == $remote) | .median_s | us;
    "Half of every expert'"'"'s rows belong to the other GPU; us, medians of \(.repeats); commit \(.commit), " +
      "\(.date).", "",
    "| rows | N | K | experts | rows wrong | row stores: local | half remote | copy engine: local | half remote |",
    "|---|---|---|---|---|---|---|---|---|",
    (.shapes[] | "| \(.rows) | \(.n) | \(.k) | \(.experts) | \(.rows_wrong) | \(of("rows"; false)) | " +
      "\(of("rows"; true)) | \(of("copy engine"; false)) | \(of("copy engine"; true)) |")
  ' "$direct"
} >"$work"
mkdir -p "$(dirname "$out")"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
