"""Verify a run directory from its files alone.

Three rings of checks: the manifest (every file there, whole and unchanged), the traces as traces (readable,
every SEND with its RECV, unique tags, no cycle), and the traces as an MoE layer (only physical links, every
destination of every token reached exactly once, every expert output reduced exactly once, bytes as
``links.csv`` says).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace import topology
from moxtrace.chakra import check, reader
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.trace import SEND, Trace
from moxtrace.demand import Demand, read_demand
from moxtrace.errors import MoxtraceError, TraceError
from moxtrace.rundir import Run
from moxtrace.topology import Topology
from moxtrace.verify import kernels

__all__ = ["Verification", "verify_run"]

SHOWN = 5  # faults of one kind that are spelled out


class _Sends(NamedTuple):
    """Messages of one phase, sorted by row; those of row ``t`` are ``ptr[t] : ptr[t + 1]``."""

    ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    node: NDArray[np.int64]  # the SEND, as a global index into the trace


@dataclass(frozen=True)
class Verification:
    """What was checked and what is wrong; ``ok`` when nothing is."""

    problems: list[str]
    checked: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def _wording(phase: str, code: int, row: str, npu: str, node: str) -> str:
    """One fault in words."""
    return (
        f"{phase}: {row}: "
        + {
            kernels.TWICE: f"NPU {npu} is reached twice, again by SEND {node}",
            kernels.NEVER: f"destination NPU {npu} is never reached"
            if phase == "dispatch"
            else f"the expert output of NPU {npu} is never reduced: it sends nothing",
            kernels.NOT_HELD: f"SEND {node} leaves NPU {npu}, which never holds the token",
            kernels.UNCAUSED: f"SEND {node} of relay NPU {npu} does not wait for the RECV of the token",
            kernels.USELESS: f"SEND {node} goes to NPU {npu}, which neither needs nor forwards the token",
            kernels.SENT_TWICE: f"the partial sum of NPU {npu} is reduced twice, again by SEND {node}",
            kernels.LOST: f"SEND {node} ends at NPU {npu}, which does not pass the partial sum on",
            kernels.EMPTY: f"SEND {node} of NPU {npu} carries no expert output",
            kernels.UNREDUCED: f"SEND {node} of NPU {npu} does not wait for every partial sum it must add",
        }[code]
    )


def _sends(trace: Trace, nodes: NDArray[np.int64], tag_base: int, rows: int) -> _Sends:
    """The SENDs among ``nodes``, grouped by the row that their tag names."""
    row = trace.tag[nodes].astype(np.int64) - tag_base
    order = np.argsort(row, kind="stable")
    nodes = nodes[order]
    rank = np.searchsorted(trace.rank_ptr, nodes, side="right") - 1
    ptr = np.searchsorted(row[order], np.arange(rows + 1))
    return _Sends(ptr.astype(np.int64), rank.astype(np.int32), trace.peer[nodes], nodes)


def _node_name(trace: Trace, node: int) -> str:
    return f"node {trace.node_id[node]} of rank {trace.rank_of(node)}"


class _Layer:
    """The MoE ring: one phase at a time against demand, topology and sizes."""

    def __init__(self, run: Run, demand: Demand, network: Topology) -> None:
        self.run, self.demand, self.network = run, demand, network
        self.problems: list[str] = []
        self.link_bytes: dict[str, NDArray[np.int64]] = {}

    def check(self, phase: str, trace: Trace) -> None:
        facts = self.run.manifest["phases"][phase]
        rows, base, n = self.demand.num_rows, facts["first_tag"], self.network.num_npus
        is_send = trace.kind == SEND
        mine = np.flatnonzero(is_send & (trace.tag >= base) & (trace.tag < base + rows))
        self._sizes(phase, trace, mine, facts["message_bytes"])
        self._links(phase, trace, mine)
        sends = _sends(trace, mine, base, rows)
        nodes = (trace.kind, trace.tag, trace.rank_ptr[:-1].copy(), trace.dep_ptr, trace.dep)
        kernel = kernels.check_dispatch if phase == "dispatch" else kernels.check_combine
        faults = np.empty((SHOWN, 4), np.int64)
        demand = (self.demand.source, self.demand.dest_ptr, self.demand.dest)
        found = kernel(demand, tuple(sends), nodes, base, n, faults)
        for code, row, npu, node in faults[:found].tolist():
            name = f"token {self.demand.token[row]} of NPU {self.demand.source[row]} (tag {base + row})"
            at = _node_name(trace, node) if node >= 0 else ""
            self.problems.append(_wording(phase, code, name, self.network.npu_name(npu), at))
        self._more(phase, found)

    def _more(self, phase: str, found: int) -> None:
        if found > SHOWN:
            self.problems.append(f"{phase}: and {found - SHOWN} more such problems")

    def _sizes(self, phase: str, trace: Trace, mine: NDArray[np.int64], expected: int) -> None:
        wrong = mine[trace.amount[mine] != expected]
        for node in wrong[:SHOWN]:
            self.problems.append(
                f"{phase}: SEND {_node_name(trace, node)} has {trace.amount[node]} bytes; expected {expected}"
            )
        self._more(phase, len(wrong))

    def _links(self, phase: str, trace: Trace, mine: NDArray[np.int64]) -> None:
        """Only physical links, and as many bytes on each as ``links.csv`` says."""
        network = self.network
        src = np.searchsorted(trace.rank_ptr, mine, side="right") - 1
        dst = trace.peer[mine]
        if network.has_switch:
            hub = np.int64(network.num_npus)
            used = [
                network.link_id(src, np.full_like(src, hub)),
                network.link_id(np.full_like(src, hub), dst),
            ]
        else:
            used = [network.link_id(src, dst)]
        missing = mine[used[0] < 0]
        for node in missing[:SHOWN]:
            self.problems.append(
                f"{phase}: SEND {_node_name(trace, node)} goes to NPU {network.npu_name(trace.peer[node])} "
                "over no link of the topology"
            )
        self._more(phase, len(missing))
        total = np.zeros(network.num_links, np.int64)
        for link in used:
            kept = link >= 0
            np.add.at(total, link[kept], trace.amount[mine[kept]])
        self.link_bytes[phase] = total

    def check_table(self) -> None:
        """``links.csv`` against the bytes in the traces."""
        path = self.run.path / "links.csv"
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if len(rows) != self.network.num_links:
            self.problems.append(
                f"links.csv: {len(rows)} rows; the topology has {self.network.num_links} links"
            )
            return
        for phase, total in self.link_bytes.items():
            said = np.array([int(row[f"{phase}_bytes"]) for row in rows])
            for link in np.flatnonzero(said != total)[:SHOWN]:
                src, dst = (
                    self.network.npu_name(ends[link]) for ends in (self.network.src, self.network.dst)
                )
                self.problems.append(
                    f"{phase}: link {src} -> {dst}: the traces carry {total[link]} bytes; "
                    f"links.csv says {said[link]}"
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
    """
    manifest = run.manifest
    steps = 2 + 2 * len(manifest["traces"])
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, steps)

    problems = run.problems()
    step()
    checked = {"files": len(manifest["files"]), "nodes": 0, "messages": 0}
    try:
        demand = read_demand(run.path / "demand.npz")
        demand = demand.unicast() if manifest["rows"] == "copies" else demand
        network = topology.read(run.path / "topology.json")
    except MoxtraceError as error:
        return Verification([*problems, str(error)], checked)
    layer = _Layer(run, demand, network)
    for name, facts in manifest["traces"].items():
        try:
            trace = reader.read(run.path / TRACES / name, network.num_npus)
        except TraceError as error:
            problems.append(str(error))
            step()
            step()
            continue
        step()
        checked["nodes"] += trace.num_nodes
        checked["messages"] += int((trace.kind == SEND).sum())
        problems += [f"{name}: {problem}" for problem in check.problems(trace)]
        for phase in facts["phases"]:
            layer.check(phase, trace)
        step()
    layer.check_table()
    step()
    return Verification(problems + layer.problems, checked)
