#!/usr/bin/env bash
# Install the test extra into a virtual environment and run every check: bash scripts/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh ".[test]"
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$python" -m pytest -n auto "$@"
[ $# -eq 0 ] || exit 0
# The kernels once more with every index checked: numba reads beyond an array's end in silence otherwise.
# Its cache does not tell the two apart, so these are compiled into a folder of their own.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$cache "$python" -m pytest -n auto --dist loadfile --hypothesis-profile few \
  tests/test_{engine_*,routing*,lowering,verify,chakra_*,sampling,topology}.py
