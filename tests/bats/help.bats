#!/usr/bin/env bats
# Help, version, usage errors: exit codes and messages.
load common

@test "help lists every command, and every command's help its options" {
  run -0 --separate-stderr "$DRAINTILE" --help
  [ -z "$stderr" ]
  for command in $(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$output"); do
    case $command in synth | bench) continue ;; esac
    "$DRAINTILE" "$command" --help | grep -q -- '^  --help '
  done
  for kind in checkpoint tokens qkv; do
    "$DRAINTILE" synth $kind --help | grep -q -- '--seed S'
  done
  "$DRAINTILE" bench combine --help | grep -q -- '--consumers C'
  grep -q '^  moe ' <<<"$output"
  grep -q '^  simulate ' <<<"$output"
}

@test "version" {
  run -0 "$DRAINTILE" --version
  [[ "$output" =~ ^draintile\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "help shows defaults, choices and what is required" {
  run -0 "$DRAINTILE" moe --help
  grep -q -- '--tile-m M .*(default 128)' <<<"$output"
  grep -q 'packed, aligned' <<<"$output"
  grep -q -- '--input FILE .*safetensors' <<<"$output"
  grep -q '(required)' <<<"$output"
}

@test "no command, an unknown one, a near miss" {
  run -2 --separate-stderr "$DRAINTILE"
  [ -z "$output" ]
  grep -q '^Usage' <<<"$stderr"
  run --separate-stderr "$DRAINTILE" modl
  refused 2 "'modl': no such command; did you mean 'model'\?"
  run --separate-stderr "$DRAINTILE" qqqqqqqqqqqq
  refused 2 'no such command; draintile --help'
  run --separate-stderr "$DRAINTILE" synth token
  refused 2 "did you mean 'tokens'"
  run --separate-stderr "$DRAINTILE" synth
  refused 2 'which command'
}

@test "options: unknown, near, without a value, with one too many, short, operands" {
  run --separate-stderr "$DRAINTILE" moe --schedul serial
  refused 2 '^draintile moe: --schedul: no such option; did you mean --schedule\?$'
  run --separate-stderr "$DRAINTILE" moe --layer
  refused 2 '^draintile moe: --layer: needs a value$'
  run --separate-stderr "$DRAINTILE" moe --check=yes
  refused 2 '^draintile moe: --check: takes no value$'
  run --separate-stderr "$DRAINTILE" moe -r 2
  refused 2 'options are long'
  run --separate-stderr "$DRAINTILE" model 3
  refused 2 'no operand is allowed here'
  run --separate-stderr "$DRAINTILE" moe
  refused 2 '^draintile moe: --checkpoint: required$'
  run --separate-stderr "$DRAINTILE" synth tokens --count 1 --hidden 1
  refused 2 'FILE: required'
}

@test "values: the message names the option, the value and what is allowed" {
  run --separate-stderr "$DRAINTILE" moe --ranks 65
  refused 2 '^draintile moe: --ranks: "65"; allowed: 1 to 64$'
  run --separate-stderr "$DRAINTILE" moe --ranks two
  refused 2 '^draintile moe: --ranks: "two"; allowed: an integer$'
  run --separate-stderr "$DRAINTILE" moe --schedule serial,fast
  refused 2 '--schedule: "serial,fast"; allowed: serial, signal, direct, wave, interleave, alternate, auto, all$'
  run --separate-stderr "$DRAINTILE" moe --layout dense
  refused 2 '--layout: "dense"; allowed: packed, aligned$'
  run --separate-stderr "$DRAINTILE" model --t0 3kg
  refused 2 '--t0: "3kg"; allowed: '
  run --separate-stderr "$DRAINTILE" model --rate nan
  refused 2 '--rate: "nan"; allowed: '
  run --separate-stderr "$DRAINTILE" model --capacity 4us
  refused 2 '--capacity: "4us"; allowed: '
  run --separate-stderr "$DRAINTILE" moe --timeout 0 --checkpoint x --input y --output z
  refused 2 '--timeout: "0"; allowed: more than 0'
}

@test "info: a table, and JSON with units in its keys" {
  run -0 "$DRAINTILE" info
  grep -q '^version' <<<"$output"
  run -0 --separate-stderr "$DRAINTILE" info --json -
  jq -e '.schema == "draintile-info" and .version == 1 and .memory_bytes > 0 and .processors >= 1' <<<"$output"
}

@test "a full standard output is an error" {
  [ -e /dev/full ] || skip 'no /dev/full'
  run -3 --separate-stderr bash -c '"$1" info > /dev/full' - "$DRAINTILE"
  grep -q 'standard output' <<<"$stderr"
}
