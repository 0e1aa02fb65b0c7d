"""Verify a run directory from its files alone.

Three rings of checks: the files (every one there, whole and unchanged, and of one mind), the traces as
traces (readable, every SEND with its RECV, unique tags, no cycle), and the traces as an MoE layer (only
physical links, every destination of every token reached exactly once, every expert output reduced exactly
once, compute and sums in their places and as long as they should be, bytes as ``links.csv`` says).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moxtrace import topology
from moxtrace.chakra import check, reader
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.trace import RECV, SEND, Trace
from moxtrace.demand import read_demand
from moxtrace.errors import MoxtraceError, TraceError
from moxtrace.rundir import Run
from moxtrace.verify.files import (
    count_problems,
    layout_problems,
    misfits,
    summary_problems,
    table_problems,
)
from moxtrace.verify.layer import Layer
from moxtrace.verify.workload import chain_problems, expected_sets

__all__ = ["Verification", "trace_problems", "verify_run"]


@dataclass(frozen=True)
class Verification:
    """What was checked and what is wrong; ``ok`` when nothing is."""

    problems: list[str]
    checked: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def trace_problems(layer: Layer, name: str, trace: Trace) -> list[str]:
    """Problems of one file set, as a trace and as part of an MoE layer.

    Parameters
    ----------
    layer : Layer
        Gets to know what the links carry.
    name : str
        One of :func:`~moxtrace.verify.workload.expected_sets`.
    trace : Trace
    """
    found = [f"{name}: {problem}" for problem in check.problems(trace)]
    manifest = layer.manifest
    if _has_strangers(trace):  # nothing else can be followed then
        return found
    phases = expected_sets(manifest["form"], manifest["barrier"])[name].phases
    return found + (layer.problems(phases, trace) if phases else chain_problems(manifest, trace))


def _has_strangers(trace: Trace) -> bool:
    """Whether a message names a rank that is not there, or a dependency a node: the reader lets none pass."""
    peer = trace.peer[(trace.kind == SEND) | (trace.kind == RECV)]
    size = np.repeat(np.diff(trace.rank_ptr), np.diff(trace.dep_ptr[trace.rank_ptr]))
    return bool(
        (peer.min(initial=0) < 0)
        or (peer.max(initial=0) >= trace.num_ranks)
        or (trace.dep < 0).any()
        or (trace.dep >= size).any()
    )


def verify_run(run: Run, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Check a run directory.

    Parameters
    ----------
    run : Run
    progress : callable, optional
        Called with (done, total) steps.

    Returns
    -------
    Verification
        Every problem found, in the order of the three rings; at most a few of each kind are spelled out.
        Where demand, topology and manifest do not belong together, nothing behind that is checked.

    Notes
    -----
    Time is linear in nodes and dependencies, memory about 60 bytes per node of the largest file set.
    """
    manifest = run.manifest
    sets = expected_sets(manifest["form"], manifest["barrier"])
    steps = 1 + 2 * len(sets)
    tell = progress or (lambda done, total: None)
    problems = run.problems() + layout_problems(run)
    tell(1, steps)
    checked = {"files": len(manifest["files"]), "nodes": 0, "messages": 0}
    try:
        demand = read_demand(run.path / "demand.npz")
        demand = demand.unicast() if manifest["rows"] == "copies" else demand
        network = topology.read(run.path / "topology.json")
    except MoxtraceError as error:
        return Verification([*problems, str(error)], checked)
    unfit = misfits(run, demand, network)
    if unfit:
        return Verification([*problems, *unfit], checked)
    layer = Layer(manifest, demand, network)
    for number, name in enumerate(sets):
        try:
            trace = reader.read(run.path / TRACES / name, network.num_npus)
        except TraceError as error:
            problems.append(str(error))
            continue
        tell(2 + 2 * number, steps)
        checked["nodes"] += trace.num_nodes
        checked["messages"] += int((trace.kind == SEND).sum())
        problems += count_problems(run, name, trace)
        problems += trace_problems(layer, name, trace)
        del trace  # before the next one is read
        tell(3 + 2 * number, steps)
    problems += table_problems(run, network, layer.messages, layer.size_bytes)
    problems += summary_problems(run, demand, layer.messages)
    return Verification(problems, checked)
