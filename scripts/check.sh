#!/bin/bash
# All tests. Each stage builds and runs one preset; ends with one line: N passed, N failed.
set -u
cd "$(dirname "$0")/.." || exit 3
jobs=$(nproc)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

# ctest's own summary, added up over the stages. A stage that does not build counts as one failure.
stage() { # name, preset, ctest arguments
  local name=$1 preset=$2
  shift 2
  echo "== $name"
  if ! { cmake --preset "$preset" --log-level=WARNING && cmake --build --preset "$preset" --parallel "$jobs"; }; then
    echo "== $name: does not build"
    failed=$((failed + 1))
    return
  fi
  ctest --preset "$preset" -j "$jobs" "$@" 2>&1 | tee "$log"
  local total bad
  total=$(sed -n 's/.*tests failed out of \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of.*/\1/p' "$log" | tail -n 1)
  if [ -z "$total" ]; then failed=$((failed + 1)); return; fi
  passed=$((passed + total - bad)) failed=$((failed + bad))
}

stage release release -LE timing
stage "release, tests of times (other load may disturb one: up to three tries)" release -L timing --repeat until-pass:3
stage "address and undefined behaviour sanitizers" asan -LE timing
stage "thread sanitizer" tsan -L threads -LE timing
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
