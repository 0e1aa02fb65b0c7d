"""Why a trace cannot be run, or cannot finish: one line that names ranks and nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from moxtrace.chakra.trace import COLL, COMP, NODE_TYPE_NAMES, RECV, SEND, Trace
from moxtrace.engine.traces.kernels import FINISHED, POSTED, RUNNING

__all__ = ["Names", "explain_node", "explain_stuck", "explain_unmatched"]

MAX_TAG = 500_000_000
WAYS = 8  # steps of a chain of waiting nodes that are told


class Names:
    """Where a node of the run comes from.

    Parameters
    ----------
    workload : Trace
    collectives : list of (int, Trace)
        COLL node's id and what it runs, in the order of the units.
    """

    def __init__(self, workload: Trace, collectives: list[tuple[int, Trace]]) -> None:
        self.parts = [("workload", workload)]
        self.parts += [(f"collective of node {node_id}", trace) for node_id, trace in collectives]
        self.base = np.cumsum([0] + [trace.num_nodes for _, trace in self.parts])

    def locate(self, node: int) -> tuple[int, Trace, int, int]:
        """Part, its trace, rank, and index in the trace."""
        part = int(np.searchsorted(self.base, node, side="right")) - 1
        trace = self.parts[part][1]
        index = node - int(self.base[part])
        return part, trace, trace.rank_of(index), index

    def node(self, node: int) -> str:
        """``workload: rank 3: node 17``."""
        part, trace, rank, index = self.locate(node)
        return f"{self.parts[part][0]}: rank {rank}: node {trace.node_id[index]}"

    def message(self, node: int) -> str:
        """What a SEND or RECV moves: ``COMM_SEND of 14336 bytes to rank 2, tag 5``."""
        _, trace, _, index = self.locate(node)
        kind = int(trace.kind[index])
        if kind not in (SEND, RECV):
            return NODE_TYPE_NAMES[kind]
        way = "to" if kind == SEND else "from"
        return (
            f"{NODE_TYPE_NAMES[kind]} of {trace.amount[index]} bytes {way} rank {trace.peer[index]}, "
            f"tag {trace.tag[index]}"
        )

    def work(self, node: int) -> str:
        """A node and how much it is: ``workload: rank 3: node 17 (COMP of duration_micros 9)``."""
        _, trace, _, index = self.locate(node)
        is_comp = trace.kind[index] == COMP
        what = f"COMP of duration_micros {trace.amount[index]}" if is_comp else self.message(node)
        return f"{self.node(node)} ({what})"


def explain_node(names: Names, node: int, reason: int) -> str:
    """Why :func:`~moxtrace.engine.prepare.kernels.check_nodes` refuses a node."""
    _, trace, rank, index = names.locate(node)
    peer, ranks = trace.peer[index], trace.num_ranks
    why = {
        1: f"names rank {peer}; there are ranks 0 to {ranks - 1}",
        2: "is a message of a rank to itself; leave it out",
        3: "has no positive size",
        4: f"needs a link {rank} -> {peer}, which the network does not have; route over links that exist",
        5: f"has a duration of {trace.amount[index]}; expected >= 0",
    }[reason]
    return f"{names.node(node)} ({names.message(node)}) {why}"


def _pair_nodes(names: Names, kind: int, rank: int, peer: int) -> list[int]:
    """All SEND or RECV nodes of ``rank`` with ``peer``."""
    found: list[int] = []
    for (_, trace), base in zip(names.parts, names.base, strict=False):
        start, stop = trace.rank_ptr[rank], trace.rank_ptr[rank + 1]
        here = (trace.kind[start:stop] == kind) & (trace.peer[start:stop] == peer)
        found += (np.flatnonzero(here) + start + base).tolist()
    return found


def explain_unmatched(names: Names, node: int) -> str:
    """Why a SEND or RECV has no counterpart."""
    _, trace, rank, index = names.locate(node)
    kind, peer, tag = int(trace.kind[index]), int(trace.peer[index]), int(trace.tag[index])
    size = int(trace.amount[index])
    others = _pair_nodes(names, RECV if kind == SEND else SEND, peer, rank)
    where = f"{names.node(node)} ({names.message(node)})"
    silent = "; ASTRA-sim would exit with status 0 all the same"
    same_tag = []
    for other in others:
        _, theirs, _, at = names.locate(other)
        if int(theirs.tag[at]) % MAX_TAG == tag % MAX_TAG:
            same_tag.append((other, int(theirs.amount[at])))
    wrong = next((other for other, amount in same_tag if amount != size), None)
    if wrong is not None and all(amount != size for _, amount in same_tag):
        return f"{where} does not match {names.node(wrong)} ({names.message(wrong)}): sizes differ{silent}"
    verb = "receives" if kind == SEND else "sends"
    if same_tag:
        return f"{where}: rank {peer} {verb} fewer messages of this tag and size than there are{silent}"
    return f"{where}: rank {peer} never {verb} it{silent}"


def explain_stuck(names: Names, state: Any, traces: list[Trace]) -> str:
    """Why nodes are left when nothing happens any more: a chain of waiting nodes that bites its tail."""
    left = np.flatnonzero(state.wait != FINISHED)
    rank_count = traces[0].num_ranks
    stuck = sorted({names.locate(int(i))[2] for i in left[:: max(1, len(left) // 4096)]})
    some = ", ".join(map(str, stuck[:5])) + (", ..." if len(stuck) > 5 else "")
    chain = [int(left[0])]
    while True:
        following = _waits_for(names, state, chain[-1])
        if following in chain or following < 0:
            break
        chain.append(following)
    if following >= 0:
        chain = chain[chain.index(following) :]
    same_rank = len({names.locate(i)[:1] + (names.locate(i)[2],) for i in chain}) == 1
    what = "a cycle of dependencies" if same_rank else "ranks wait for each other"
    told = [f"{names.node(i)} ({names.message(i)})" for i in chain[:WAYS]]
    dots = ", ..." if len(chain) > WAYS else ""
    back = f", which waits for {names.node(chain[0])}" if following >= 0 and not dots else dots
    return (
        f"cannot finish: {len(left)} nodes are left (ranks {some} of {rank_count}): {what}: "
        + ", which waits for ".join(told)
        + back
    )


def _waits_for(names: Names, state: Any, node: int) -> int:
    """An unfinished node that ``node`` waits for, or -1."""
    part, trace, rank, index = names.locate(node)
    base, start = int(names.base[part]), int(trace.rank_ptr[rank])
    if state.wait[node] == POSTED:  # its message has not been sent
        tag, size = int(trace.tag[index]) % MAX_TAG, int(trace.amount[index])
        for other in _pair_nodes(names, SEND, int(trace.peer[index]), rank):
            _, theirs, _, at = names.locate(other)
            same = (int(theirs.tag[at]) % MAX_TAG, int(theirs.amount[at])) == (tag, size)
            if same and state.wait[other] != FINISHED:
                return other
        return -1
    for d in trace.dep[trace.dep_ptr[index] : trace.dep_ptr[index + 1]]:
        other = base + start + int(d)
        if state.wait[other] != FINISHED:
            return other
    if part > 0:  # its collective has not been issued
        work = names.parts[0][1]
        for i in range(int(work.rank_ptr[rank]), int(work.rank_ptr[rank + 1])):
            if work.kind[i] == COLL and state.slot[i] == part and state.wait[i] != FINISHED:
                return i
        return -1
    if trace.kind[index] == COLL and state.slot[node] > 0:
        part = int(state.slot[node])
        inner = names.parts[part][1]
        first = int(names.base[part])
        unit = np.arange(first + int(inner.rank_ptr[rank]), first + int(inner.rank_ptr[rank + 1]))
        running = unit[state.wait[unit] != FINISHED]
        if len(running) and state.parent[part * trace.num_ranks + rank] == node:
            return int(running[0])
    blocker = range(start, int(trace.rank_ptr[rank + 1]))  # free, but the rank's resource is taken
    comp = trace.kind[index] == COMP
    return next(
        (i for i in blocker if i != node and state.wait[i] == RUNNING and (trace.kind[i] == COMP) == comp), -1
    )
