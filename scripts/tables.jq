# What the scripts that merge results and make their tables share: `jq -L scripts 'include "tables"; ...'`.

# Figures as they are shown, "-" where nothing was measured. us, us2: of seconds, with one decimal and with two.
def figure($scale; $digits): . * $scale * pow(10; $digits) | round / pow(10; $digits);
def us: if . == null then "-" else . * 1e7 | round / 10 end;
def us2: if . == null then "-" else . * 1e8 | round / 100 end;
def one: . * 10 | round / 10;
def three: if . == null then "-" else . * 1000 | round / 1000 end;
def percent: . * 1000 | round / 10 + 0;

# Of lists, and of figures that may be missing.
def least: map(select(. != null)) | min;
def most: map(select(. != null)) | max;
def at($share): if length == 0 then null else sort | .[([(length * $share | ceil), 1] | max) - 1] end;
# Median, the least that 95 of 100 do not exceed, and the most, of errors whichever way.
def figures: map(if . < 0 then -. else . end) | "\(at(0.5) | percent) | \(at(0.95) | percent) | \(at(1) | percent)";
def over($other): if . == null or $other == null then null else . / $other end;
# Samples, so that a file holds no digits that a clock does not have.
def short: if type == "number" then . * 1e10 | round / 1e10 else . end;

# What a row was: of bench combine, of bench moe.
def setting: [.rows, .n, .k, .experts, .router];
def key: "\(.model) \(.router) \(.tokens)";

# One of a row's timings by name: of bench/peers/torch_gemm.py and torch_attention.py, of bench combine, bench moe and
# bench attention.
def candidate($name): .candidates[] | select(.name == $name);
def timed($name): [.timings[] | select(.method == $name)][0] // {median_s: null};
def method($name): [.methods[] | select(.name == $name)][0] // {};
def part($name): .methods[] | select(.method == $name);

# The price of the form `$name` as `auto` compares it: prices that differ by less are the same, and direct is taken, and
# none with dedup. The numbers are those of src/sim/layer_choose.c; scripts/check_docs.sh compares.
def same_price: 0.005;
def same_price_dedup: 0.015;
def weighed($price; $name):
  $price * (1 + (if $name | test("dedup") then same_price_dedup elif $name | startswith("direct") then 0
    else same_price end));
