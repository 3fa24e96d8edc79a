#!/bin/bash
# A trace (Chrome JSON of `draintile moe --trace`) as one PNG: a panel a schedule, a row a worker, consumer and link of
# the first ranks. usage: plot_timeline.sh TRACE PNG [RANKS]
set -euo pipefail
trace=$1 png=$2 shown=${3:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# schedule, rank, track, kind, begin ms, end ms, track's name
jq -r --argjson shown "$shown" '
  def named(what): [.traceEvents[] | select(.ph == "M" and .name == what)];
  (named("process_name") | map({key: "\(.pid)", value: (.args.name | capture("^(?<s>.*) rank (?<r>[0-9]+)$"))})
    | from_entries) as $process
  | (named("thread_name") | map({key: "\(.pid).\(.tid)", value: .args.name}) | from_entries) as $thread
  | .traceEvents[] | select(.ph == "X") | $process["\(.pid)"] as $p | select(($p.r | tonumber) < $shown)
  | [$p.s, $p.r, .tid, .name, .ts / 1000, (.ts + .dur) / 1000, $thread["\(.pid).\(.tid)"]] | @tsv
' "$trace" >"$work/slices.tsv"
schedules=$(cut -f1 "$work/slices.tsv" | awk '!seen[$0]++')
panels=$(printf '%s\n' "$schedules" | wc -l)

# Each schedule from its own begin; rows counted downwards over (rank, track).
: >"$work/plot"
longest=0 panel=0
for schedule in $schedules; do
  awk -F '\t' -v OFS='\t' -v want="$schedule" '
    $1 == want { if (!n++ || $5 < first) first = $5; line[n] = $0; seen[$2 + 0, $3 + 0] = "r" $2 " " $7
                 if ($3 + 0 > most) most = $3 + 0; if ($2 + 0 > ranks) ranks = $2 + 0 }
    END {
      for (r = 0; r <= ranks; r++) for (t = 0; t <= most; t++)
        if ((r, t) in seen) { row[r, t] = rows++; print row[r, t], seen[r, t] > (names) }
      for (i = 1; i <= n; i++) {
        split(line[i], f, "\t")
        print f[4], row[f[2] + 0, f[3] + 0], f[5] - first, f[6] - first
      }
    }' names="$work/$schedule.rows" "$work/slices.tsv" >"$work/$schedule.tsv"
  end=$(awk -F '\t' '$4 > m { m = $4 } END { print m }' "$work/$schedule.tsv")
  longest=$(awk -v a="$longest" -v b="$end" 'BEGIN { print (a > b ? a : b) }')
done
for schedule in $schedules; do
  tics=$(awk -F '\t' '{ printf "%s\"%s\" %s", (NR > 1 ? "," : ""), $2, $1 }' "$work/$schedule.rows")
  rows=$(wc -l <"$work/$schedule.rows")
  {
    panel=$((panel + 1))
    echo "set title '$schedule' offset 0,-0.8"
    [ "$panel" -lt "$panels" ] || echo "set format x '%g ms'"
    echo "set ytics ($tics) font ',8'"
    echo "set yrange [$rows - 0.4:-0.6]"
    printf 'plot '
    sep=
    while read -r kind colour; do
      printf "%s'< grep -P \"^%s\\\\t\" %s' " "$sep" "$kind" "$work/$schedule.tsv"
      printf "using (\$3):2:3:4:(\$2-0.4):(\$2+0.4) with boxxyerrorbars fs solid 0.9 noborder lc rgb '%s' title '%s'" \
        "$colour" "$kind"
      sep=', '
    done < <(printf '%s\n' 'plan #999999' 'dispatch #e6a817' 'shared #8c6bb1' 'L1 #3b7dd8' 'L2 #1b9e77' \
      'segment #d95f02' 'reduce #666666' 'link #f2c6a0' 'store #d95f02' 'wait #f4f4f4' 'barrier #eeeeee' |
      while read -r kind colour; do grep -qP "^$kind\t" "$work/$schedule.tsv" && echo "$kind $colour"; done)
    echo
  } >>"$work/plot"
done
gnuplot <<EOF
set terminal pngcairo size 1500,$((130 + panels * 190)) font 'sans,10'
set output '$work/timeline.png'
set datafile separator '\t'
set multiplot layout $panels,1 margins 0.09,0.86,0.04,0.97 spacing 0,0.035
set xrange [0:$longest * 1.01]
set key outside right top
set format x ''
set grid x
$(cat "$work/plot")
unset multiplot
EOF
mv "$work/timeline.png" "$png"
