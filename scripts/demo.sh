#!/usr/bin/env bash
# The main job on the recording that the project ships: bash scripts/demo.sh [OUTPUT_DIRECTORY]
# Makes a virtual environment, installs moxtrace, routes one MoE layer on a 16-NPU expander under three policies,
# and compares them with the ideal switch.
set -euo pipefail
output=$(realpath -m "${1:-runs/demo}")
cd "$(dirname "$0")/.."
source scripts/environment.sh .
exec "$python" scripts/demo.py "$output"
