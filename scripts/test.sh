#!/usr/bin/env bash
# Install the test extra into a virtual environment and run every check: bash scripts/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh ".[test]"
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
exec "$python" -m pytest -n auto "$@"
