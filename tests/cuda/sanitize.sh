#!/bin/bash
# compute-sanitizer over one small run of each operator: each tool must find nothing. Exit code 77 without it or a
# Hopper GPU. Under racecheck a wait may take many seconds (docs/testing.md).
#
#   tests/cuda/sanitize.sh PROGRAM      check_small of the build folder
set -u
program=${1:?usage: sanitize.sh PROGRAM}
tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$tool" ]; then
  echo "skipped: no compute-sanitizer in PATH or /usr/local/cuda/bin"
  exit 77
fi
export CUDA_MODULE_LOADING=LAZY # the tool changes every kernel that is loaded
failed=0
for check in "memcheck combine moe attention held" "synccheck held" "initcheck held" \
  "racecheck --limit 30 combine moe-short"; do
  # shellcheck disable=SC2086  # the tool, then the program's words
  set -- $check
  name=$1
  shift
  begun=$SECONDS
  output=$("$tool" --tool "$name" --error-exitcode 9 --print-limit 5 "$program" "$@" 2>&1)
  code=$?
  [ $code -eq 77 ] && { printf '%s\n' "$output" | grep skipped; exit 77; }
  # The tool's last line, whatever its exit code.
  [ $code -eq 0 ] && ! printf '%s\n' "$output" | tail -n 1 | grep -q 'SUMMARY: 0 \(errors\|hazards\)' && code=9
  if [ $code -ne 0 ]; then
    failed=1
    printf '%s\n' "$output" | grep -v 'Host Frame' | tail -n 40
  fi
  echo "$name $*: $([ $code -eq 0 ] && echo clean || echo "exit code $code"), $((SECONDS - begun)) s"
done
exit $failed
