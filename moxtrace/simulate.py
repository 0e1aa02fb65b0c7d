"""Simulate: a run directory or a configuration becomes times.

Goes in: the traces of a run directory, or a configuration that is too large to write traces of.  Comes out:
:class:`Simulation`, in ns.  Somebody else's ASTRA-sim inputs, whose scale nobody knows, go straight to
``engine.inputs`` and stay in cycles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import routing, topology
from moxtrace.baseline import network_of, switch_completion_ns
from moxtrace.chakra import reader
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.trace import Trace
from moxtrace.config import RunConfig
from moxtrace.demand import read_demand
from moxtrace.engine.astra_sim import check_fits, check_starts, estimate_of, execute, find_binary
from moxtrace.engine.astra_sim.before import check_inputs, check_traces
from moxtrace.engine.blocks import ReadyBlock, ready_block
from moxtrace.engine.network import Network
from moxtrace.engine.result import Agreement, ComputeModel, LinkUse, TraceResult
from moxtrace.engine.traces import simulate
from moxtrace.errors import ConfigError, SimulationError, TraceError
from moxtrace.lowering import Block
from moxtrace.machine import available_memory
from moxtrace.routing import loads
from moxtrace.rundir import Run
from moxtrace.scenario import Scenario, block_of, prepare
from moxtrace.topology import Topology
from moxtrace.units import cycles_per_ns

__all__ = ["Simulation", "simulate_block_of", "simulate_config", "simulate_run"]

Progress = Callable[[str, int, int], None]
Step = Callable[[int, int], None]

# bytes for each transfer of dispatch, row, and copy on the ideal switch (two transfers and a row)
_READY = (52, 40, 0)  # while a block is made ready: two phases, and the engine's records of both
_RUN = (32, 16, 165)  # while it runs, with the switch beside it that is made ready meanwhile
_SAMPLE = 4  # rows of each source


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
        Per phase the ns at which the first NPU starts it, at which the last one ends it, and every NPU's end.
        ASTRA-sim only reports completion: with it, the built-in engine's where both agree, else empty.
    links : dict
        Busiest and mean utilisation over the whole run; likewise.
    loads : dict
        Link loads of dispatch, as in ``summary.json``; empty where they are not known.
    agreement : Agreement or None
        Of ASTRA-sim, where it ran, with the built-in engine.
    logs : str
        Folder with what ASTRA-sim wrote; empty without it.
    """

    engine: str
    finished_ns: NDArray[np.float64]
    exposed_ns: NDArray[np.float64]
    switch_completion_ns: float
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    agreement: Agreement | None = None
    logs: str = ""

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
            "loads": self.loads,
            "engine": self.engine,
            **({**self.agreement.to_json(), "logs": self.logs} if self.agreement else {}),
        }


def _topology(run: Run) -> Topology:
    """The network of the run directory."""
    network = topology.read(run.path / "topology.json")
    if network.num_npus != run.manifest["npus"]:
        raise TraceError(
            f"{run.path / 'topology.json'}: {network.num_npus} NPUs; the manifest says "
            f"{run.manifest['npus']}: generate the run again"
        )
    return network


def _phases(run: Run, workload: Trace, result: TraceResult) -> dict[str, dict[str, Any]]:
    """Times of the workload's nodes: dispatch, compute, combine."""
    scale = cycles_per_ns(run.manifest["time_scale"])
    names = (
        {0: "dispatch", 1: "compute", 2: "combine"} if run.manifest["barrier"] == "phase" else {0: "block"}
    )
    if run.manifest["form"] == "flat":
        return {}
    if workload.num_nodes != len(names) * workload.num_ranks:
        raise TraceError(
            f"{run.path / TRACES / 'workload'}: {workload.num_nodes} nodes; expected {len(names)} at each of "
            f"{workload.num_ranks} ranks; 'moxtrace verify' says more"
        )
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
        read_demand(run.path / "demand.npz"), _topology(run),
        np.array(facts["compute_ns"], np.int64), sizes, facts["time_scale"], facts["barrier"],
    )  # fmt: skip


def simulate_run(
    run: Run,
    engine: str = "builtin",
    *,
    astra_sim: str | None = None,
    timeout_s: float | None = None,
    anyway: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Simulate a run directory.

    Before ASTRA-sim starts, files and traces are checked by ``verify`` and run by the built-in engine, which
    names what ASTRA-sim would pass over in silence.  Its answer counts when it ends with status 0, with a
    line of every NPU and the run directory as it was.

    Parameters
    ----------
    run : Run
    engine : {"builtin", "astra-sim"}
    astra_sim : str, optional
        The binary, for the engine ``astra-sim``.
    timeout_s : float, optional
        After so long ASTRA-sim is ended.
    anyway : bool
        Start ASTRA-sim although it may not fit into memory.
    progress : callable, optional
        Called with (step, done, total).

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
    if engine != "astra-sim":
        return _by_builtin(run, progress)
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"--timeout: {timeout_s:g} s; expected a time above 0")
    binary = find_binary(astra_sim)
    check_starts(binary)
    check_inputs(run)
    estimate = estimate_of(run)
    check_fits(estimate, anyway=anyway)
    check_traces(run, None if progress is None else partial(progress, "verify"))
    ours = _by_builtin(run, progress)
    outcome = execute(run, binary, timeout_s, progress)
    scale = cycles_per_ns(run.manifest["time_scale"])
    theirs = Simulation(engine, outcome.finished / scale, outcome.exposed / scale, ours.switch_completion_ns)
    agreement = Agreement.of({engine: theirs.finished_ns, ours.engine: ours.finished_ns})
    more = (ours.phases, ours.links) if agreement.agrees else ({}, {})
    return replace(theirs, phases=more[0], links=more[1], agreement=agreement, logs=str(outcome.logs))


def _by_builtin(run: Run, progress: Progress | None) -> Simulation:
    scale = cycles_per_ns(run.manifest["time_scale"])
    problems = run.problems(hashes=False)
    if problems:
        raise SimulationError(f"{run.path}: {problems[0]}; 'moxtrace verify' says more")
    network = network_of(_topology(run), run.manifest["time_scale"])
    npus = run.manifest["npus"]
    workload = reader.read(run.path / TRACES / "workload", npus)
    collectives = {node: reader.read(run.path / prefix, npus) for node, prefix in run.collectives().items()}
    step = None if progress is None else partial(progress, "simulate")
    result = simulate(workload, collectives, network, ComputeModel(), step)
    return Simulation(
        "builtin",
        result.finished / scale,
        result.exposed / scale,
        _switch_ns(run),
        _phases(run, workload, result),
        _utilisation(network, result.links, result.completion),
    )


def _utilisation(network: Network, links: LinkUse, completion: int) -> dict[str, float]:
    """Share of the whole time for which links are busy."""
    share = links.busy / (network.lanes.astype(np.float64) * max(completion, 1))
    return {"busiest_utilisation": float(share.max()), "mean_utilisation": float(share.mean())}


def _switch_ns_of(scenario: Scenario, sizes: tuple[int, int], progress: Step | None = None) -> float:
    """Completion of the demand on the ideal switch, or what is kept of it: no policy changes it."""
    demand, options = scenario.demand, scenario.config.trace
    on = scenario.topology
    switch = on if on.has_switch else topology.ideal_switch_of(on)
    links = (switch.src, switch.dst, switch.bandwidth_gbps, switch.latency_ns, switch.lanes)
    rows = (demand.source, demand.dest_ptr, demand.dest)
    return scenario.shelf.take(
        "switch",
        (links, rows, scenario.compute_ns, sizes, options.time_scale, options.barrier),
        lambda: switch_completion_ns(
            demand, switch, scenario.compute_ns, sizes, options.time_scale, options.barrier, progress
        ),
    )


def simulate_config(config: RunConfig, progress: Progress | None = None) -> Simulation:
    """Simulate a configuration transfer by transfer: no traces are made, so it may be large.

    Links serve transfers in the order in which they become ready; a trace's windows and ASTRA-sim's order of
    nodes that become free together are not modelled, and change the completion by less than 1 %.

    Parameters
    ----------
    config : RunConfig
    progress : callable, optional
        Called with (step, done, total).

    Returns
    -------
    Simulation

    Raises
    ------
    MoxtraceError
        When the configuration cannot be carried out.
    """
    tell = progress or (lambda step, done, total: None)
    scenario = prepare(config, progress=partial(tell, "tokens"))
    _refuse_too_large(scenario)
    ready = _ready(scenario, block_of(scenario, partial(tell, "routes"), partial(tell, "weights")), tell)
    return _simulated(scenario, ready, tell)


def _refuse_too_large(scenario: Scenario) -> None:
    """Refuse what does not fit into memory before it is routed: a few tokens of each source tell."""
    demand, network = scenario.demand, scenario.topology
    few, copies = demand.first_rows(_SAMPLE), len(demand.dest)
    if scenario.sends_copies or network.has_switch:
        rows, phase = copies, routing.route(network, few, "min-hop", None, 1)
    else:
        rows, phase = demand.num_rows, routing.route(network, few, "tree", None, 1)
    transfers = phase.num_transfers * demand.num_rows // max(few.num_rows, 1)
    needed = max(a * transfers + b * rows + c * copies for a, b, c in (_READY, _RUN))
    there = available_memory()
    if there is not None and needed > there:
        raise ConfigError(
            f"traffic.tokens_per_npu: {scenario.config.traffic.tokens_per_npu:,} tokens on each of "
            f"{network.num_npus} NPUs make about {2 * transfers:,} transfers under policy "
            f"{scenario.config.routing.policy}, and simulating them needs about {needed / 1e9:.1f} GB; "
            f"{there / 1e9:.1f} GB are free: use fewer tokens or NPUs"
        )


@dataclass(frozen=True, eq=False)
class _Ready:
    """A block that is ready to run, and what is to be said of the phases that it was made of."""

    block: ReadyBlock
    network: Network
    sizes: tuple[int, int]
    loads: dict[str, Any]


def _ready(scenario: Scenario, block: Block, tell: Progress) -> _Ready:
    """Make a block ready; its phases are not needed any longer, and they are large."""
    network = network_of(scenario.topology, scenario.config.trace.time_scale)
    made = ready_block(
        block.dispatch, block.combine, block.compute_ns, network, barrier=scenario.config.trace.barrier,
        reduce_ns_per_byte=block.reduce_ns_per_byte, progress=partial(tell, "transfers"), order=False,
    )  # fmt: skip
    sizes = (block.dispatch.size_bytes, block.combine.size_bytes)
    return _Ready(made, network, sizes, loads.summary(block.dispatch, scenario.demand))


class _Together:
    """Progress of two things that are done side by side, as one."""

    def __init__(self, tell: Step, totals: tuple[int, int]) -> None:
        self._tell, self._totals, self._done = tell, totals, [0, 0]

    def part(self, at: int) -> Step:
        """What the one or the other calls."""

        def step(done: int, total: int) -> None:
            self._done[at] = done * self._totals[at] // max(total, 1)
            self._tell(sum(self._done), sum(self._totals))

        return step


def simulate_block_of(scenario: Scenario, block: Block, progress: Progress | None = None) -> Simulation:
    """Simulate a scenario's block, transfer by transfer, as :func:`simulate_config` does.

    Parameters
    ----------
    scenario : Scenario
    block : Block
        Of :func:`~moxtrace.scenario.block_of`.
    progress : callable, optional

    Returns
    -------
    Simulation
    """
    tell = progress or (lambda step, done, total: None)
    return _simulated(scenario, _ready(scenario, block, tell), tell)


def _simulated(scenario: Scenario, ready: _Ready, tell: Progress) -> Simulation:
    """Run a block, and the ideal switch beside it."""
    network, scale = ready.network, ready.network.cycles_per_ns
    transfers = (int(ready.block.carries.sum()), 4 * len(scenario.demand.dest))  # a copy takes 2 each way
    both = _Together(partial(tell, "simulate"), transfers)
    with ThreadPoolExecutor(1) as pool:  # the kernels let go of the interpreter
        switch = pool.submit(_switch_ns_of, scenario, ready.sizes, both.part(1))
        result = ready.block.run(both.part(0))
        switch_ns = switch.result()
    compute = result.compute_done - result.dispatch_done
    ends = {"dispatch": result.dispatch_done, "compute": result.compute_done, "combine": result.finished}
    starts = {"dispatch": 0, "compute": result.dispatch_done.min(), "combine": result.compute_done.min()}
    phases = {
        name: {
            "start_ns": float(starts[name] / scale),
            "end_ns": float(end.max() / scale),
            "npu_end_ns": (end / scale).tolist(),
        }
        for name, end in ends.items()
    }
    return Simulation(
        "builtin, by transfers",
        result.finished / scale,
        (result.finished - compute) / scale,
        switch_ns,
        phases,
        _utilisation(network, result.links, result.completion),
        ready.loads,
    )
