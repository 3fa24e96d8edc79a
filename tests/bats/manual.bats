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

@test "manual and completion have every option of every command" {
  commands=(info model plan moe attention simulate calibrate)
  for kind in synth bench; do
    while read -r what; do commands+=("$kind $what"); done < <(complete_line "$DRAINTILE" $kind '')
  done
  overview=$("$DRAINTILE" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p')
  [ "$(printf '%s\n' "${commands[@]}" | cut -d ' ' -f 1 | sort -u)" = "$(sort <<<"$overview")" ]
  [ "${#commands[@]}" -ge 14 ]
  for command in "${commands[@]}"; do
    # shellcheck disable=SC2086  # two words
    options=$("$DRAINTILE" $command --help | grep -oE '^  --[a-z0-9-]+' | tr -d ' ' | sort)
    # shellcheck disable=SC2086
    [ "$(complete_line "$DRAINTILE" $command -- | sort)" = "$options" ]
    manual=$(awk -v section=".SS draintile $command" '$0 == section { on = 1; next } /^\.S[SH]/ { on = 0 } on' \
      "$ROOT/man/draintile.1" | sed -n 's/^\.B \(\\-\\-[^ ]*\).*/\1/p' | sed 's/\\-/-/g' | sort)
    [ "$manual" = "$options" ]
  done
}
