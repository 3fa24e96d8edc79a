#!/bin/bash
# What the pages and the README point to is there: links and their anchors, files in `code`, options of the command;
# and what scripts share with the source is the same.
# usage: check_docs.sh [COMMAND]; with the command, options too. One line each for what is missing; exit 1 then.
set -u
cd "$(dirname "$0")/.." || exit 3
command=${1:-}
bad=0
missing() { # page, what
  echo "$1: $2" >&2
  bad=1
}

# A heading's anchor, as GitHub makes it.
anchors() { # page
  sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

pages=(README.md)
while read -r page; do pages+=("$page"); done < <(find docs -name '*.md' | sort)
files=$(find . -path ./.git -prune -o -path './build*' -prune -o -type f -print | sed 's#^\./##')

# A name in code: a whole path or the end of one, `_d128.cu` the end of a name, or a page that a script would write.
known() { # name
  local end
  end=$(sed 's/[.[\*^$+?(){|]/\\&/g' <<<"$1")
  case $1 in _*) ;; *) end="(^|/)$end" ;; esac
  grep -qE "$end\$" <<<"$files" || grep -qF "\$docs/${1##*/}" scripts/*.sh
}

for page in "${pages[@]}"; do
  folder=$(dirname "$page")
  while read -r link; do
    case $link in *://* | mailto:*) continue ;; esac
    target=${link%%#*}
    file=${target:+$folder/$target}
    file=${file:-$page}
    [ -e "$file" ] || { missing "$page" "link to $link, which is not there"; continue; }
    [ "$link" = "$target" ] || anchors "$file" | grep -qx -- "${link#*#}" || missing "$page" "no heading for $link"
  done < <(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//')
  while read -r name; do
    known "$name" || missing "$page" "no file $name"
  done < <(grep -oE '`[^` ]+`' "$page" | tr -d '`' |
    grep -E '^[a-z0-9_./-]+\.(c|h|cu|cuh|sh|py|bats|bash|md|svg|cmake|txt|pml)$' |
    grep -v '^/' | sed 's#^\./##; s#^\.\./##' | sort -u)
done

# Numbers in two languages: by how little `auto` takes prices for the same.
for number in same_price same_price_dedup; do
  in_c=$(sed -n "s/^static const double $number = \(.*\);\$/\1/p" src/sim/layer_choose.c)
  in_jq=$(sed -n "s/^def $number: \(.*\);\$/\1/p" scripts/tables.jq)
  [ -n "$in_c" ] && [ "$in_c" = "$in_jq" ] ||
    missing scripts/tables.jq "$number: $in_jq; src/sim/layer_choose.c has ${in_c:-none}"
done

if [ -n "$command" ]; then
  options=$(for name in info model plan moe attention simulate calibrate 'synth checkpoint' 'synth tokens' 'synth qkv' \
    'bench moe' 'bench combine' 'bench attention' 'bench residual'; do
    # shellcheck disable=SC2086  # two words
    "$command" $name --help | grep -oE '^  --[a-z0-9-]+' | tr -d ' '
  done | sort -u)
  while read -r option; do
    grep -qx -- "$option" <<<"$options" || missing docs "no command has $option"
  done < <(grep -hoE '`--[a-z0-9-]+' README.md docs/*.md | tr -d '`' | grep -vx -e --wrap | sort -u) # the linker's
fi
exit $bad
