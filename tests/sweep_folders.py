"""Sweep folders made by hand, with made-up but consistent numbers: no routing, no simulation.

``python -m tests.sweep_folders FOLDER [NPUS ...]`` writes one to look at.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from moxtrace.sweep.rows import COLUMNS, RowStore
from moxtrace.topology import build

# busiest link over the switch's port: min-hop far above the trees, as in the paper
HOT = {"min-hop": 1.6, "tree": 1.12, "mox-paper": 1.09, "mox": 1.04, "switch": 1.0}
GRID = {"topology.npus": [8, 16], "routing.policy": ["min-hop", "tree", "mox"], "topology.seed": [1, 2]}


def network_of(npus: int, seed: int, kind: str):
    if kind == "expander":
        return build(kind, npus, degree=min(4, npus - 1), seed=seed)
    if kind == "switch":
        return build(kind, npus)
    return build(kind, npus)


def row_of(keys: Mapping[str, Any], failed: str | None) -> dict[str, Any]:
    """The row of a run."""
    identity = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]
    npus, policy = keys.get("topology.npus", 16), keys.get("routing.policy", "mox")
    kind = "switch" if policy == "switch" else keys.get("topology.kind", "expander")
    seed = keys.get("topology.seed", 1)
    config = {"topology": {"kind": kind, "npus": npus, "seed": seed}, "routing": {"policy": policy}}
    row = {
        "run": identity,
        **keys,
        "npus": npus,
        "policy": policy,
        "topology": kind,
        "repeat": 0,
        "engine": "builtin",
    }
    row |= {
        "moxtrace_version": "0.3.0",
        "astra_sim_version": "",
        "wall_s": 0.5,
        "peak_memory_bytes": 100_000_000,
    }
    if failed is not None:
        return {**row, "status": "failed", "reason": failed, "config": config}
    random = np.random.default_rng(int(identity[:8], 16))
    network = network_of(npus, seed, kind)
    load = random.uniform(0.6, 1.0, network.num_links)
    busiest = HOT.get(policy, 1.3) + 0.002 * npus + random.uniform(0, 0.02)
    load *= busiest / load.max()
    sizes = np.rint(load * 1e6 * network.capacity_gbps / network.capacity_gbps.max()).astype(int)
    switch, compute = 1_000_000.0 * keys.get("model.top_k", 8), 400_000.0
    whole = compute + (switch - compute) * busiest * random.uniform(0.99, 1.01)
    row |= {
        "status": "ok", "reason": "", "completion_ns": whole, "switch_completion_ns": switch,
        "slowdown": whole / switch, "dispatch_ns": (whole - compute) / 2, "compute_ns": compute,
        "combine_ns": (whole - compute) / 2, "exposed_communication_ns": whole - compute,
        "max_link_load": busiest,
        "mean_link_load": busiest * sizes.mean() / sizes.max(), "busiest_link_bytes": int(sizes.max()),
        "mean_link_bytes": float(sizes.mean()), "bandwidth_tax": 0.05, "bound_kind": "",
    }  # fmt: skip
    names = [*map(network.npu_name, range(network.num_npus)), "switch"]
    links = {
        "src": [names[i] for i in network.src],
        "dst": [names[i] for i in network.dst],
        "dispatch_bytes": sizes.tolist(),
        "combine_bytes": sizes.tolist(),
        "capacity_gbps": network.capacity_gbps.tolist(),
    }
    return {**row, "config": config, "links": links, "stands_on": "a recording made by hand"}


def make_sweep(
    folder: Path, grid: Mapping[str, Sequence[Any]] = GRID, *, failed: Mapping[int, str] | None = None
) -> Path:
    """Write a sweep of all combinations of ``grid``; ``failed`` gives reasons by row."""
    rows = {}
    store = RowStore(folder / "rows")
    store.folder.mkdir(parents=True, exist_ok=True)
    for i, values in enumerate(product(*grid.values())):
        row = row_of(dict(zip(grid, values, strict=True)), (failed or {}).get(i))
        rows[row["run"]] = {**dict.fromkeys(COLUMNS), **row}
        store.write(rows[row["run"]])
    sweep = {
        "format": 1, "name": "by-hand.yaml", "columns": list(grid), "runs": list(rows), "engine": ["builtin"],
        "base": {"topology": {"kind": "expander", "degree": 4}},
        "grid": {k: list(v) for k, v in grid.items()},
    }  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return folder


if __name__ == "__main__":
    npus = [int(n) for n in sys.argv[2:]] or [8, 16]
    make_sweep(Path(sys.argv[1]), {**GRID, "topology.npus": npus})
