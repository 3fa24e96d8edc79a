#!/usr/bin/env bats
# The manual page and the completion say what the command says.
load common
ROOT=$BATS_TEST_DIRNAME/../..

complete_line() { # words; the last one is being typed
  # shellcheck disable=SC1091
  source "$ROOT/completions/draintile"
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _draintile
  printf '%s\n' "${COMPREPLY[@]}"
}

@test "the manual page is current: man/generate.sh build/draintile > man/draintile.1" {
  diff "$ROOT/man/draintile.1" <("$ROOT/man/generate.sh" "$DRAINTILE")
}

@test "completion: commands, options, choices" {
  run -0 complete_line "$DRAINTILE" mo
  [ "$output" = $'model\nmoe' ]
  run -0 complete_line "$DRAINTILE" synth to
  [ "$output" = tokens ]
  run -0 complete_line "$DRAINTILE" moe --link-c
  [ "$output" = --link-capacity ]
  run -0 complete_line "$DRAINTILE" moe --layout ''
  [ "$output" = $'packed\naligned' ]
  run -0 complete_line "$DRAINTILE" moe --schedule in
  [ "$output" = interleave ]
  run -0 complete_line "$DRAINTILE" bench combine --router cr
  [ "$output" = crossed ]
  run -0 complete_line "$DRAINTILE" synth tokens --routing str
  [ "$output" = stress_skew ]
}
