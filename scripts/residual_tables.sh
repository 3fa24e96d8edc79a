#!/bin/sh
# What stays visible of attention's output all-to-all (`draintile bench residual`): a page and pictures in docs/results
# from bench/results/h200x2/residual*.json, one a number of heads; measures nothing. Without such a file: nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
results=${RESULTS:-$root/bench/results/h200x2}
docs=${DOCS:-$root/docs/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -- "$results"/residual*.json
[ -f "$1" ] || exit 0

draw() { # JSON, name
  jq -r '.rows[] | [.tokens, .residual_s, .residual_low_s, .residual_high_s, .model.residual_s, .model.residual_high_s,
    .model.coupled_s] | map(tostring) | join(" ")' "$1" |
    awk '{ printf "%s", $1; for (i = 2; i <= NF; i++) printf " %.3f", 1e6 * $i; print "" }' >"$work/data"
  title=$(jq -r '"\(.heads) heads of \(.head_dim) columns a GPU, \(.ranks) x \(.device); " +
    "M* measured \(.summary.least_tokens), predicted \(.summary.least_tokens_predicted)"' "$1")
  for terminal in png svg; do
    {
      case $terminal in
      png) echo "set terminal pngcairo size 1100,600" ;;
      svg) echo "set terminal svg size 1100,600 dynamic" ;;
      esac
      cat <<PLOT
set output "$work/$2.$terminal"
set title "$title"
set key left top
set grid
set logscale x 2
set xlabel "tokens"
set ylabel "attention with its output at the owners, minus attention alone, us"
plot "$work/data" using 1:2:3:4 with yerrorbars title "measured, median and quartiles" pointtype 7, \
  "$work/data" using 1:5 with lines title "X-Stage" linewidth 2, \
  "$work/data" using 1:6 with lines title "X-Stage, if all tiles end together" dashtype 2, \
  "$work/data" using 1:7 with lines title "completion-coupled" linewidth 2
PLOT
    } | gnuplot
    mv "$work/$2.$terminal" "$docs/$2.$terminal"
  done
}

{
  echo "# What stays visible of attention's output all-to-all"
  echo
  echo "Made by \`scripts/residual_tables.sh\` from \`bench/results/h200x2/residual*.json\`, which hold all samples;" \
    "nothing here is typed."
  echo "Residual: attention with its rows at their owners (entry, exit and remote completion included) minus" \
    "attention alone, turn by"
  echo "turn. Curves: \`dt_sim_piggyback\` with \`platform.json\` and the kernel's own time for 128 x 128 scores" \
    "(docs/model.md)."
  for file in "$@"; do
    name=$(basename "$file" .json)
    draw "$file" "$name"
    echo
    jq -L "$root/scripts" -r 'include "tables";
      "## \(.heads) heads of \(.head_dim) columns a GPU", "",
      "\(.device) x \(.ranks), \([.rows[].samples_s | length] | if min == max then min
        else "\(min) to \(max)" end) samples a row, us. Floor \(.summary.floor_s | us) (quartiles " +
        "\(.summary.floor_low_s | us) to \(.summary.floor_high_s | us)); M* measured \(.summary.least_tokens), " +
        "predicted \(.summary.least_tokens_predicted); \(if .summary.bit_equal
        then "every row equal to serial to the bit" else "rows differ from serial" end).",
      "Commit \(.commit), `\(.command)`.", "",
      "| tokens | kernel | fused | residual | quartiles | X-Stage | if aligned | coupled |",
        "|---|---|---|---|---|---|---|---|",
      (.rows[] | "| \(.tokens) | \(.kernel_s | us) | \(.fused_s | us) | \(.residual_s | us) | " +
        "\(.residual_low_s | us) to \(.residual_high_s | us) | \(.model.residual_s | us) | " +
        "\(.model.residual_high_s | us) | \(.model.coupled_s | us) |")' "$file"
    echo
    echo "![residual]($name.png)"
  done
} >"$work/page"
awk -f "$root/scripts/wrap.awk" "$work/page" >"$docs/residual.md"
