#!/bin/bash
# The manual page from the command's own help. usage: generate.sh COMMAND > draintile.1
set -euo pipefail
command=$1

# A help text of draintile as roff: paragraphs, then tagged entries whose text may go over several lines.
roff() {
  awk '
    function escape(text) {
      gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.\x27]/, "\\\\\\&&", text)
      return text
    }
    function flush() { if (tag != "") { print ".TP\n.B " escape(tag) "\n" escape(text); tag = text = "" } }
    /^Usage: / { next }
    /^  [^ ]/ { flush()
      if (match($0, /   */) && match(substr($0, 3), /  +/)) {
        tag = substr($0, 3, RSTART - 1); text = substr($0, 2 + RSTART + RLENGTH)
      } else tag = substr($0, 3)
      next }
    /^   / { sub(/^ +/, ""); text = text == "" ? $0 : text " " $0; next }
    /^$/ { flush(); print ".PP"; next }
    /:$/ && NF <= 5 { flush(); next }
    { flush(); print escape($0) }
    END { flush() }' | awk '!(/^\.PP$/ && last == ".PP") { print } { last = $0 }'
}

names() { # help of which the indented first words are wanted
  sed -n '/:$/,/^$/s/^  \([a-z]\{1,\}\) .*/\1/p' <<<"$1"
}

overview=$("$command" --help)
version=$("$command" --version | cut -d ' ' -f 2)
cat <<EOF
.\" Made by man/generate.sh; do not edit.
.TH DRAINTILE 1 "" "draintile $version" "User Commands"
.SH NAME
draintile \- mixture\-of\-experts layers with their all\-to\-alls hidden behind their GEMMs
.SH SYNOPSIS
.B draintile
.I COMMAND
.RI [ options ]
.SH DESCRIPTION
EOF
roff <<<"$overview"
echo '.SH COMMANDS'
for name in $(names "$overview"); do
  help=$("$command" "$name" --help)
  kinds=
  grep -q '^WHAT is one of:' <<<"$help" && kinds=$(names "$help")
  echo ".SS draintile $name"
  [ -n "$kinds" ] || roff <<<"$help"
  for kind in $kinds; do
    echo ".SS draintile $name $kind"
    roff < <("$command" "$name" "$kind" --help)
  done
done
cat <<'EOF'
.SH SEE ALSO
The formats of all files are described in docs/formats.md, the figures in docs/command.md.
EOF
