#!/usr/bin/env bash
# Build the kernels for this machine's GPU, test them on it and time them, within 8 minutes: bash scripts/gpu_check.sh
# Exit status 77 without a GPU, 1 when something is wrong. PYTHON names an interpreter that has torch with CUDA.
# Offline, scikit-build-core, ninja and nvidia-nvshmem-cu13 have to be installed beside torch.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PYTHON:=python3}"
limit=480
if ! gpus=$(nvidia-smi -L 2>/dev/null) || [ -z "$gpus" ]; then
  echo "gpu_check: no GPU (nvidia-smi lists none)" >&2
  exit 77
fi
if ! arch=$("$PYTHON" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability(0))' 2>/dev/null); then
  echo "gpu_check: $PYTHON has no torch that sees a GPU; name another: PYTHON=python3.12 bash $0" >&2
  exit 1
fi
if [ "$arch" -lt 90 ]; then
  echo "gpu_check: the GPU is sm_$arch; expected sm_90 or newer" >&2
  exit 77
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
within() {
  local left=$((limit - SECONDS)) status=124
  if [ "$left" -gt 0 ]; then timeout "$left" "$@" && return || status=$?; fi
  [ "$status" -ne 124 ] || echo "gpu_check: not done within $limit s, stopped in: $*" >&2
  exit 1
}
isolation=()
if "$PYTHON" -c 'import scikit_build_core, nvidia.nvshmem' 2>/dev/null; then
  isolation=(--no-build-isolation)
elif ! "$PYTHON" -c 'import nvidia.nvshmem' 2>/dev/null; then
  within "$PYTHON" -m pip install --quiet --no-deps --target "$site" nvidia-nvshmem-cu13==3.4.5
fi
within "$PYTHON" -m pip install --quiet --no-deps "${isolation[@]}" --target "$site" \
  -C cmake.define.CMAKE_CUDA_ARCHITECTURES="$arch-real" ./kernels
echo "gpu_check: built for sm_$arch in $SECONDS s"
export PYTHONPATH=$site PYTHONUNBUFFERED=1
(within "$PYTHON" -m moxtrace_kernels.doctor) || true  # its advice is to be read; what is wrong shows below
within "$PYTHON" kernels/bench/one_gpu.py
within "$PYTHON" kernels/bench/alltoall.py --tokens 64 128 --experts 32 --repeat 50
echo "gpu_check: done in $SECONDS s"
