#!/usr/bin/env bash
# Run ASTRA-sim on this directory: bash run_astra_sim.sh [BINARY]
# Success is exit status 0 and a line "sys[i] finished" for each of the $npus NPUs; one cycle is 1 $time_scale.
set -euo pipefail
cd "$$(dirname "$$0")"
binary=$${1:-$${ASTRA_SIM:-AstraSim_Analytical_Congestion_Aware}}
ulimit -n "$$(ulimit -H -n)"  # a descriptor for each rank and file set stays open
exec "$$binary" \
  --workload-configuration=traces/workload \
  --system-configuration=system.json \
  --remote-memory-configuration=memory.json \
  --network-configuration=network.yml
