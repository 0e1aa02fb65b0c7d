"""Simulation of execution traces, with the results of ASTRA-sim's congestion-aware analytical network.

Goes in: the workload's trace, the traces of its custom collectives, a network.  Comes out:
:class:`~moxtrace.engine.result.TraceResult`, equal to the cycle to what ASTRA-sim reports; or an error that
names ranks and nodes, where ASTRA-sim would exit with status 0.

References
----------
``Workload.cc``, ``HardwareResource.cc``, ``CustomAlgorithm.cc`` and ``Sys.cc`` of astra-sim 518bd51.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COLL, NODE_TYPE_NAMES, Trace
from moxtrace.engine.kernels import CLOCK_ENTRIES, CURRENT, EVENTS, new_links, new_timers, wires_of
from moxtrace.engine.limits import MOST, too_much
from moxtrace.engine.network import KINDS, Network
from moxtrace.engine.order.kernels import children_order, insertion_order
from moxtrace.engine.prepare.kernels import (
    check_nodes,
    encode,
    ids_are_positions,
    match,
    parents_come_first,
    successors,
)
from moxtrace.engine.result import ComputeModel, LinkUse, TraceResult
from moxtrace.engine.traces.diagnose import Names, explain_node, explain_stuck, explain_unmatched
from moxtrace.engine.traces.kernels import Program, Run, run
from moxtrace.errors import SimulationError

__all__ = ["simulate"]

CUSTOM_TYPES = {0: "ALL_REDUCE", 2: "ALL_GATHER", 6: "ALL_TO_ALL", 7: "REDUCE_SCATTER"}
SLICE = 1_000_000  # events between two calls of ``progress``

Progress = Callable[[int, int], None]


def simulate(
    workload: Trace,
    collectives: Mapping[int, Trace],
    network: Network,
    compute: ComputeModel | None = None,
    progress: Progress | None = None,
    *,
    order: str = "astra-sim",
) -> TraceResult:
    """Run a workload to its end.

    A rank has one SEND or COLL and one COMP node of its workload in flight, RECVs without limit, and issues
    free nodes in ascending id order; a collective's nodes know no limit.  A SEND is done when its message
    arrives, a RECV when it is posted and its message has arrived; messages match by (tag, source,
    destination, size), first in, first out.

    Parameters
    ----------
    workload : Trace
    collectives : mapping of int to Trace
        What each COLL node of the workload, by its id, runs at every rank.
    network : Network
    compute : ComputeModel, optional
        Durations alone when left out.
    progress : callable, optional
        Called now and then with the nodes done and their number.
    order : {"astra-sim", "id"}
        How a collective issues nodes that became free together: as ASTRA-sim's hash set yields them, or by
        ascending id.

    Returns
    -------
    TraceResult

    Raises
    ------
    SimulationError
        If the trace cannot finish or cannot be carried out on the network: a send without receive or the
        other way round, sizes that differ, a cycle of dependencies, ranks that wait for each other, a pair
        without a link, a collective without a custom implementation, times too large to count.
    """
    traces = [workload, *(collectives[i] for i in sorted(collectives))]
    names = Names(workload, [(i, collectives[i]) for i in sorted(collectives)])
    _check_ranks(names, network)
    code, peer, amount = _columns(names, traces)
    wires = wires_of(network, KINDS)
    bad, reason, largest, total = check_nodes(wires, network.num_npus, code, peer, amount)
    if bad >= 0:
        raise SimulationError(explain_node(names, int(bad), int(reason)))
    if not total < MOST:
        raise SimulationError(too_much(names.work(int(largest)), total))
    slot, slots, repeated = _match(names, traces, code, peer, amount)
    _assign_collectives(names, collectives, slot)
    roof = _roofline(names, compute, slot)
    program, missing = _program(traces, code, peer, amount, roof, order)
    state = _run_state(program, slot, slots, repeated, missing)
    links = new_links(network)
    heap = np.empty((len(code) + len(links.armed) + 1, 3), np.int64)  # untouched pages cost nothing
    clock = np.zeros(CLOCK_ENTRIES, np.int64)
    clock[CURRENT] = -1
    while run(program, state, wires, links, heap, clock, SLICE):
        if progress is not None:
            progress(len(code) - int(state.left.sum()), len(code))
    if state.left.any():
        raise SimulationError(explain_stuck(names, state, traces))
    if progress is not None:
        progress(len(code), len(code))
    return TraceResult(
        state.finished,
        state.finished - state.computed,
        state.node_start,
        state.node_finish,
        LinkUse(links.busy, links.size_bytes, links.messages),
        int(clock[EVENTS]),
    )


def _check_ranks(names: Names, network: Network) -> None:
    for name, trace in names.parts:
        if trace.num_ranks != network.num_npus:
            raise SimulationError(
                f"{name}: {trace.num_ranks} ranks on a network of {network.num_npus} NPUs; they must be equal"
            )
        empty = np.flatnonzero(np.diff(trace.rank_ptr) == 0)
        if len(empty):
            raise SimulationError(f"{name}: rank {empty[0]} has no nodes; an idle rank needs one COMP node")


def _columns(
    names: Names, traces: list[Trace]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """``code``, ``peer`` and ``amount`` of all nodes."""
    code = np.empty(sum(t.num_nodes for t in traces), np.int32)
    base, unit = 0, 0
    for trace in traces:
        bad = encode(trace.kind, trace.rank_ptr, unit, base, code)
        if bad < 0 and base and (trace.kind == COLL).any():
            bad = int(np.argmax(trace.kind == COLL))
        if bad >= 0:
            kind = NODE_TYPE_NAMES.get(int(trace.kind[bad]), str(trace.kind[bad]))
            raise SimulationError(
                f"{names.node(base + int(bad))} is a {kind} node; the engine runs COMP, COMM_SEND and "
                "COMM_RECV nodes, and COMM_COLL nodes of the workload"
            )
        base += trace.num_nodes
        unit += trace.num_ranks
    if len(traces) == 1:
        return code, traces[0].peer, traces[0].amount
    return code, np.concatenate([t.peer for t in traces]), np.concatenate([t.amount for t in traces])


def _match(
    names: Names,
    traces: list[Trace],
    code: NDArray[np.int32],
    peer: NDArray[np.int32],
    amount: NDArray[np.int64],
) -> tuple[NDArray[np.int32], int, bool]:
    """First slot of the messages of every SEND and RECV; -1 at other nodes."""
    slot = np.full(len(code), -1, np.int32)
    tag = traces[0].tag if len(traces) == 1 else np.concatenate([t.tag for t in traces])
    unmatched, slots, repeated = match(code, peer, tag, amount, traces[0].num_ranks, slot)
    if unmatched >= 0:
        raise SimulationError(explain_unmatched(names, int(unmatched)))
    return slot, int(slots), bool(repeated)


def _assign_collectives(names: Names, collectives: Mapping[int, Trace], slot: NDArray[np.int32]) -> None:
    """Put the number of the trace that implements each COLL node into its slot."""
    workload = names.parts[0][1]
    number = {node_id: i + 1 for i, node_id in enumerate(sorted(collectives))}
    for node in np.flatnonzero(workload.kind == COLL):
        node_id, kind = int(workload.node_id[node]), int(workload.peer[node])
        if node_id not in number:
            raise SimulationError(
                f"{names.node(int(node))} has no custom implementation, and native collectives are not "
                f'simulated; name one for node {node_id} in the map of "per-node-custom-implementation"'
            )
        if kind not in CUSTOM_TYPES:
            raise SimulationError(
                f"{names.node(int(node))} has comm_type {kind}; ASTRA-sim runs custom implementations of "
                f"{', '.join(f'{v} ({k})' for k, v in CUSTOM_TYPES.items())}"
            )
        slot[node] = number[node_id]


def _roofline(names: Names, compute: ComputeModel | None, slot: NDArray[np.int32]) -> NDArray[np.int64]:
    """Cycles of the workload's COMP nodes that carry ``num_ops``; their slot becomes the index."""
    workload = names.parts[0][1]
    if compute is None or not compute.roofline_enabled or not len(workload.ops_node):
        return np.zeros(1, np.int64)
    for what, value in (("local-mem-bw", compute.local_mem_bw), ("peak-perf", compute.peak_perf)):
        if not value > 0:
            raise SimulationError(f"roofline: {what} is {value:g}; expected > 0")
    bad = (workload.tensor_size <= 0) | (workload.num_ops < 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise SimulationError(
            f"{names.node(int(workload.ops_node[i]))}: num_ops {workload.num_ops[i]}, tensor_size "
            f"{workload.tensor_size[i]}; the roofline needs num_ops >= 0 and tensor_size > 0"
        )
    ops = workload.num_ops.astype(np.float64)
    intensity = ops / workload.tensor_size.astype(np.float64)
    rate = np.minimum(compute.local_mem_bw * 1e9 * intensity, compute.peak_perf * 1e12)
    seconds = np.divide(ops, rate, out=np.zeros_like(ops), where=ops > 0)
    slot[workload.ops_node] = np.arange(len(ops), dtype=np.int32)
    if not seconds.sum() * 1e9 < MOST:
        what = f"roofline with local-mem-bw {compute.local_mem_bw:g}, peak-perf {compute.peak_perf:g}"
        raise SimulationError(too_much(what, seconds.sum() * 1e9))
    return (seconds * 1e9).astype(np.int64)


def _program(
    traces: list[Trace],
    code: NDArray[np.int32],
    peer: NDArray[np.int32],
    amount: NDArray[np.int64],
    roof: NDArray[np.int64],
    order: str,
) -> tuple[Program, NDArray[np.int32]]:
    """Successors and orders of all nodes, and how many dependencies each misses."""
    if order not in ("astra-sim", "id"):
        raise SimulationError(f"order {order!r}: expected astra-sim or id")
    nodes = len(code)
    base = np.cumsum([0] + [t.num_nodes for t in traces])
    key = np.zeros(1, np.int64)
    if not all(ids_are_positions(t.node_id, t.rank_ptr) for t in traces[1:]):
        key = np.concatenate([t.node_id for t in traces])
    entry = np.zeros(1, np.int32)
    if not all(parents_come_first(t.rank_ptr, t.dep_ptr, t.dep) for t in traces[1:]):
        entry = _entries(traces, base)
    missing = np.zeros(nodes, np.int32)
    child_ptr = np.zeros(nodes + 1, np.int32)
    child = np.empty(sum(len(t.dep) for t in traces), np.int32)
    for trace, first in zip(traces, base, strict=False):
        successors(trace.rank_ptr, trace.dep_ptr, trace.dep, int(first), missing, child_ptr, child)
    if order == "astra-sim":
        children_order(child_ptr, child, key, traces[0].num_nodes, nodes)
    unit_ptr = np.concatenate([[0]] + [t.rank_ptr[1:] + b for t, b in zip(traces, base, strict=False)])
    program = Program(
        traces[0].num_ranks, unit_ptr.astype(np.int64), code, peer, amount, child_ptr, child, key, entry,
        order == "id", traces[0].node_id, roof,
    )  # fmt: skip
    return program, missing


def _entries(traces: list[Trace], base: NDArray[np.int64]) -> NDArray[np.int32]:
    """In which order the nodes of every rank of a collective enter ASTRA-sim's map."""
    entry = np.zeros(int(base[-1]), np.int32)
    for trace, first in zip(traces[1:], base[1:], strict=False):
        for rank in range(trace.num_ranks):
            start, stop = trace.rank_ptr[rank], trace.rank_ptr[rank + 1]
            own = entry[first + start : first + stop]
            insertion_order(trace.node_id[start:stop], trace.dep_ptr[start : stop + 1], trace.dep, own)
    return entry


def _run_state(
    program: Program, slot: NDArray[np.int32], slots: int, repeated: bool, missing: NDArray[np.int32]
) -> Run:
    """The state before time 0."""
    n, units = program.num_ranks, len(program.unit_ptr) - 1
    work = int(program.unit_ptr[n])
    left = np.diff(program.unit_ptr).astype(np.int32)
    comps = int((program.code & 3 == 0).sum())
    scratch = max(int(left[:n].max()), int(np.diff(program.child_ptr).max(initial=0)), 1)
    rank_state = np.zeros((n, 5), np.int64)
    rank_state[:, 4] = -1
    return Run(
        missing,
        slot,
        np.full(max(slots, 1), -1, np.int32),
        np.zeros((max(slots, 2) if repeated else 1, 2), np.int32),
        left,
        np.ones(units, np.int64),
        np.full(units, -1, np.int32),
        np.empty(work, np.int32),
        rank_state,
        np.full(work, -1, np.int64),
        np.full(work, -1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        new_timers(comps, n),
        np.empty(scratch, np.int32),
        np.empty(scratch, np.int32),
        np.empty(int(left[n:].max(initial=1)), np.int32),
    )
