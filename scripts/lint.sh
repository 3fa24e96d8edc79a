#!/bin/sh
# clang-format (check only) over our C, clang-tidy over the host sources.
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
git ls-files 'src/*.c' 'tools/*.c' ':!src/cuda' | xargs -n 1 clang-tidy -p build --quiet
