"""Simulate: a run directory, or somebody else's ASTRA-sim inputs, becomes times.

Goes in: files.  Comes out: :class:`Simulation`, in ns for our own runs, whose scale is known, and the plain
per-rank cycles for anybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import topology
from moxtrace.baseline import network_of, switch_completion_ns
from moxtrace.chakra import reader
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.trace import Trace
from moxtrace.demand import read_demand
from moxtrace.engine.astra_sim import find_binary, run_astra_sim
from moxtrace.engine.result import ComputeModel, TraceResult
from moxtrace.engine.traces import simulate
from moxtrace.errors import SimulationError
from moxtrace.rundir import Run
from moxtrace.units import cycles_per_ns

__all__ = ["Simulation", "simulate_run"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Simulation:
    """A run's times.

    Parameters
    ----------
    engine : str
    finished_ns, exposed_ns : array of float64, shape (npus,)
        Completion of each NPU, and the part of it not covered by expert compute.
    switch_completion_ns : float
        Completion of the same demand on the ideal switch, from the built-in engine.
    phases : dict
        Per phase the ns at which the first NPU starts it, at which the last one ends it, and every NPU's end;
        empty from an engine that only reports completion.
    links : dict
        Busiest and mean utilisation over the whole run; empty likewise.
    """

    engine: str
    finished_ns: NDArray[np.float64]
    exposed_ns: NDArray[np.float64]
    switch_completion_ns: float
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)

    @property
    def completion_ns(self) -> float:
        """Completion of the last NPU."""
        return float(self.finished_ns.max())

    @property
    def slowdown(self) -> float:
        """Completion over the ideal switch's; 1.0 is the switch."""
        return self.completion_ns / self.switch_completion_ns

    def to_json(self) -> dict[str, Any]:
        """What ``simulate --json`` prints."""
        return {
            "completion_ns": self.completion_ns,
            "switch_completion_ns": self.switch_completion_ns,
            "slowdown": self.slowdown,
            "finished_ns": self.finished_ns.tolist(),
            "exposed_ns": self.exposed_ns.tolist(),
            "phases": self.phases,
            "links": self.links,
            "engine": self.engine,
        }


def _collectives(run: Run) -> dict[int, str]:
    """Workload node to collective, as ``collectives.yml`` says."""
    import yaml

    path = run.path / "collectives.yml"
    if not path.is_file():
        return {}
    return {int(k): Path(v).name for k, v in yaml.safe_load(path.read_text(encoding="utf-8")).items()}


def _phases(run: Run, workload: Trace, result: TraceResult) -> dict[str, dict[str, Any]]:
    """Times of the workload's nodes: dispatch, compute, combine."""
    scale = cycles_per_ns(run.manifest["time_scale"])
    names = (
        {0: "dispatch", 1: "compute", 2: "combine"} if run.manifest["barrier"] == "phase" else {0: "block"}
    )
    if run.manifest["form"] == "flat":
        return {}
    position = np.arange(workload.num_nodes) - np.repeat(workload.rank_ptr[:-1], np.diff(workload.rank_ptr))
    phases = {}
    for at, name in names.items():
        mine = position == at
        ends = result.node_finish[mine] / scale
        phases[name] = {
            "start_ns": float(result.node_start[mine].min() / scale),
            "end_ns": float(ends.max()),
            "npu_end_ns": ends.tolist(),
        }
    return phases


def _switch_ns(run: Run) -> float:
    """Completion on the ideal switch: from the summary, or simulated now."""
    known = run.json("summary.json").get("switch_completion_ns")
    if known is not None:
        return float(known)
    facts = run.manifest
    sizes = (facts["phases"]["dispatch"]["message_bytes"], facts["phases"]["combine"]["message_bytes"])
    return switch_completion_ns(
        read_demand(run.path / "demand.npz"), topology.read(run.path / "topology.json"),
        np.array(facts["compute_ns"], np.int64), sizes, facts["time_scale"], facts["barrier"],
    )  # fmt: skip


def simulate_run(
    run: Run,
    engine: str = "builtin",
    *,
    astra_sim: str | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Simulate a run directory.

    Parameters
    ----------
    run : Run
    engine : {"builtin", "astra-sim"}
    astra_sim : str, optional
        The binary, for the engine ``astra-sim``.
    timeout_s : float, optional
        Likewise.
    progress : callable, optional

    Returns
    -------
    Simulation

    Raises
    ------
    SimulationError
        When the traces cannot finish.
    ExternalToolError
        When ASTRA-sim is missing or failed.
    TraceError
        When the run directory is not whole.
    """
    scale = cycles_per_ns(run.manifest["time_scale"])
    if engine == "astra-sim":
        finished, exposed = run_astra_sim(run, find_binary(astra_sim), timeout_s)
        return Simulation(engine, finished / scale, exposed / scale, _switch_ns(run))
    problems = run.problems(hashes=False)
    if problems:
        raise SimulationError(f"{run.path}: {problems[0]}; 'moxtrace verify' says more")
    network = network_of(topology.read(run.path / "topology.json"), run.manifest["time_scale"])
    npus = run.manifest["npus"]
    workload = reader.read(run.path / TRACES / "workload", npus)
    collectives = {
        node: reader.read(run.path / TRACES / name, npus) for node, name in _collectives(run).items()
    }
    result = simulate(workload, collectives, network, ComputeModel(), progress)
    done = max(result.completion, 1)
    share = result.links.busy / (network.lanes.astype(np.float64) * done)
    return Simulation(
        engine,
        result.finished / scale,
        result.exposed / scale,
        _switch_ns(run),
        _phases(run, workload, result),
        {"busiest_utilisation": float(share.max()), "mean_utilisation": float(share.mean())},
    )
