#!/bin/sh
# Checks readiness.pml with and without the release: the first must verify, the second must find the lost store.
# Exit 0: both as expected; 1: not; 77: spin or a C compiler is not there.
set -eu

model=$(cd "$(dirname "$0")" && pwd)/readiness.pml
compiler=${CC:-cc}
command -v spin >/dev/null 2>&1 || { echo "spin is not installed: skipped"; exit 77; }
command -v "$compiler" >/dev/null 2>&1 || { echo "no C compiler: skipped"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# verify NAME SPIN-OPTION...: the verifier's report to $work/NAME.txt; complete searches only.
verify() {
  name=$1
  shift
  mkdir "$work/$name"
  (
    cd "$work/$name"
    spin "$@" -a "$model" >spin.txt
    "$compiler" -O2 -DSAFETY -o pan pan.c
    ./pan -m100000 >"$work/$name.txt" 2>&1
  )
  if grep -q 'max search depth too small' "$work/$name.txt"; then
    echo "$name: search not complete"
    exit 1
  fi
}

verify with-release -DRELEASE
verify without-release

if ! grep -q 'errors: 0' "$work/with-release.txt"; then
  echo "with the release the model must verify:"
  cat "$work/with-release.txt"
  exit 1
fi
if ! grep -q 'assertion violated' "$work/without-release.txt"; then
  echo "without the release an assertion must fail:"
  cat "$work/without-release.txt"
  exit 1
fi
grep 'states, stored' "$work/with-release.txt" | sed 's/^ */with release: verified, /'
grep 'assertion violated' "$work/without-release.txt" | sed 's/^/without release: /'
