#!/bin/sh
# docs/results/stores.md: what a tile's stores cost, by schedule and payload, from bench/results/*/stores.json, and how
# many multiprocessors of the combine store at once, from bench/results/*/combine-k-act.json. Nothing in it is typed.
set -eu
ls "$(dirname "$0")"/../bench/results/*/stores.json >/dev/null 2>&1 || exit 0
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/docs/results/stores.md
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# A tile's stores, by schedule and payload"
  echo
  echo "Made by \`scripts/stores_tables.sh\` from \`bench/results/*/stores.json\`; nothing here is typed. From" \
    "in-kernel timestamps"
  echo "([spans.md](../spans.md)), means over L2 tiles of 128 rows, us, rank 0."
  echo
  echo "- **span**: a warpgroup's stores of a tile, from the first to their completion (while the next tile is" \
    "multiplied); p95 behind it."
  echo "- **issue**: to when the last one is issued."
  echo "- **period**: from the end of a warpgroup's tile to the end of its next. **T mma**: the tile's" \
    "multiplications at the tensor cores' full rate. **stall**: the difference."
  echo "- **operands**: of the stall, waiting for a tile's first operands."
  echo "- **predicted**: what V/R, all CTAs' payload over the link's rate, exceeds of the control's period (wave," \
    "direct), or of that and of rho tiles of L1 (interleave, alternate); beside **measured**: the period less the" \
    "control's."
  echo "- **storing**: multiprocessors with a burst under way, mean and most. **K_act**: 95th percentile of the" \
    "bursts that start within one drain time Q/R."
  echo "- Targets: peer: every row crosses the link. local: the same tiles in the same order, rows to this GPU's" \
    "memory (the control). own rank: one rank alone."
  for input in "$root"/bench/results/*/stores.json; do
    [ -f "$input" ] || continue
    echo
    jq -L "$root/scripts" -r 'include "tables";
      def drain: if $root.rate_bytes_per_s > 0 then .ctas * .payload_bytes / $root.rate_bytes_per_s else null end;
      . as $root |
      def control($r): [$root.rows[] | select(.shape == $r.shape and .schedule == $r.schedule
        and .target == "local")][0];
      def hidden_s: . as $r | control($r) as $c |
        $c.period_s.mean + (if .schedule == "interleave" or .schedule == "alternate"
          then 2 * .intermediate / (if .hidden < 256 then 256 else .hidden end) * $c.l1_period_s.mean else 0 end);
      def predicted: if .target != "peer" or .schedule == "serial" then null
        else (.ctas * .payload_bytes / $root.rate_bytes_per_s - hidden_s) as $d | if $d > 0 then $d else 0 end end;
      "## \(.device) x \(.gpus), \(.ranks) rank\(if .ranks > 1 then "s" else "" end)", "",
      "\(.date // ""), driver \(.driver // "-"), commit \(.commit // "-"); \(.repeat) forwards a row; R " +
        "\(.rate_bytes_per_s / 1e9) GB/s, Q \(.capacity_bytes / 1e6) MB.", "",
      "    \(.command // "")", "",
      "| shape | payload | V/R | schedule | target | span | p95 | issue | T mma | period | L1 period | stall " +
        "| operands | predicted | measured | storing | most | K_act |",
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
      (.rows[] | . as $r | "| \(.shape) | \(.payload_bytes / 1024) KiB " +
        "| \(.ctas * .payload_bytes / $root.rate_bytes_per_s | us2) | \(.schedule) | \(.target) | " +
        "\(.store_span_s.mean | us2) | \(.store_span_s.p95 | us2) | \(.store_issue_s.mean | us2) | " +
        "\(.matrix_s | us2) | \(.period_s.mean | us2) | \(.l1_period_s.mean | us2) | \(.stall_s.mean | us2) | " +
        "\(.operand_wait_s.mean | us2) | \(predicted | us2) | " +
        "\(if .target == "local" then "-" else .period_s.mean - control($r).period_s.mean | us2 end) | " +
        "\(.active_mean.mean | one) | \(.active_max.mean | one) | \(.k_act.mean | one) |"),
      (if any(.rows[]; .target == "peer") then "",
      "Issue time of a tile by the model: T0 is the control\u0027s, G the measured period less the measured issue; " +
        "(2) with all CTAs, (2\u0027) with all and with K_act ([model.md](../model.md)); us.", "",
      "| shape | payload | schedule | T0 | G | (2) | (2\u0027) | (2\u0027), K_act | measured |",
        "|---|---|---|---|---|---|---|---|---|",
      (.rows[] | select(.target == "peer" and .schedule != "serial") | . as $r | control($r).store_issue_s.mean as $t0 |
        (.period_s.mean - .store_issue_s.mean) as $g | ($root.capacity_bytes / $root.rate_bytes_per_s) as $window |
        def law($k; $least): [$t0, $k * $r.payload_bytes / $root.rate_bytes_per_s - $least] | max;
        ([$g, $window] | min) as $recovered |
        "| \(.shape) | \(.payload_bytes / 1024) KiB | \(.schedule) | \($t0 | us2) | \($g | us2) | " +
          "\(law(.ctas; $g) | us2) | \(law(.ctas; $recovered) | us2) | \(law(.k_act.mean; $recovered) | us2) | " +
          "\(.store_issue_s.mean | us2) |")
      else empty end),
      "", "What timestamps cost: the layer, `direct`, without and with them, us.", "",
      "| shape | without | with | ratio |", "|---|---|---|---|",
      ([.rows[] | {shape, layer_s, layer_stamped_s}] | unique_by(.shape)[] |
        "| \(.shape) | \(.layer_s | us2) | \(.layer_stamped_s | us2) | " +
        "\(.layer_stamped_s / .layer_s * 1000 | round / 1000) |")
    ' "$input"
  done
  for input in "$root"/bench/results/*/combine-k-act.json; do
    [ -f "$input" ] || continue
    echo
    jq -L "$root/scripts" -r 'include "tables";
      "## Combine, direct: \(.device) x \(.gpus), \(.ranks) ranks", "",
      "Rows to other ranks; K: the multiprocessors that the model takes for the producers of a burst. \(.date), " +
        "commit \(.commit // "-").", "",
      "    \(.command // "")", "",
      "| M | N | K dim | experts | router | window, us | rank | bursts | span, us | p95 | storing | most | K_act | K |",
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
      (.runs[] | select(.stores) | . as $run | .stores.ranks | to_entries[] | .value as $s |
        "| \($run.rows) | \($run.n) | \($run.k) | \($run.experts) | \($run.router) | " +
          "\($run.stores.window_s * 1e6 | one) | \(.key) | \($s.bursts) | \($s.span_median_s * 1e6 | one) | " +
          "\($s.span_p95_s * 1e6 | one) | \($s.active_mean | one) | \($s.active_max) | \($s.k_act | one) | " +
          "\($run.stores.producers) |")
    ' "$input"
  done
} >"$work"
mkdir -p "$root"/docs/results
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
