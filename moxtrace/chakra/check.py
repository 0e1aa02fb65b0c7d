"""Check a trace, whoever made it: every send meets its receive, and no nodes wait for each other for ever.

ASTRA-sim ends with status 0 on most of these faults, and prints a time.
"""

from __future__ import annotations

import numpy as np

from moxtrace.chakra import matching
from moxtrace.chakra.matching import SHOWN, Found, find_bad_nodes, find_cycles, match
from moxtrace.chakra.trace import NODE_TYPE_NAMES, Trace
from moxtrace.chakra.wire.resolve import UNORDERED, order_of

__all__ = ["problems"]

_TITLES = {
    matching.BAD_PEER: "impossible peers",
    matching.BAD_DEP: "impossible dependencies",
    matching.NO_RECV: "sends without a recv",
    matching.NO_SEND: "recvs without a send",
    matching.MISMATCH: "size mismatches",
    matching.AMBIGUOUS: "tags used again",
    matching.CYCLE: "dependency cycles",
}


class _Words:
    """A trace's nodes in words."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def node(self, i: int) -> str:
        """Rank and id."""
        return f"rank {self.trace.rank_of(i)} node {self.trace.node_id[i]}"

    def problem(self, kind: int, about: list[int]) -> str:
        """One problem, in one line."""
        trace, (i, j) = self.trace, about[:2]
        if kind == matching.CYCLE:
            return self._cycle(about)
        if kind == matching.BAD_DEP:
            return f"{self.node(i)}: it depends on position {j}, which its rank's file does not have"
        if kind == matching.BAD_PEER:
            return (
                f"{self.node(i)}: {NODE_TYPE_NAMES[int(trace.kind[i])]} with rank {j}; "
                f"expected another of the ranks 0 to {trace.num_ranks - 1}"
            )
        peer, tag, size = trace.peer[i], trace.tag[i], trace.amount[i]
        what = f"tag {tag}, {size} bytes"
        return {
            matching.NO_RECV: f"{self.node(i)}: send to rank {peer}, {what}, has no recv",
            matching.NO_SEND: f"{self.node(i)}: recv from rank {peer}, {what}, has no send",
            matching.MISMATCH: f"{self.node(i)}: send to rank {peer}, {what}, but its recv, {self.node(j)}, "
            f"expects {trace.amount[j]} bytes",
            matching.AMBIGUOUS: f"{self.node(i)}: send to rank {peer}, {what}, and so is {self.node(j)}: "
            "which recv each meets is left to chance",
        }[kind]

    def _cycle(self, about: list[int]) -> str:
        length = about[SHOWN]
        chain = [self.node(i) for i in about[: min(length, SHOWN)]]
        chain.append(self.node(about[0]) if length <= SHOWN else "...")
        return f"dependency cycle of {length} nodes: {' waits for '.join(chain)}"


def _ids(trace: Trace) -> list[str]:
    """Ranks without nodes, and ids used twice."""
    out = []
    for rank in range(trace.num_ranks):
        ids = trace.node_id[trace.rank_ptr[rank] : trace.rank_ptr[rank + 1]]
        if not len(ids):
            out.append(f"rank {rank}: no node; ASTRA-sim needs at least one")
        elif order_of(ids) == UNORDERED:
            ordered = np.sort(ids)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                out.append(f"rank {rank} node {twice[0]}: id used more than once")
    return out


def problems(trace: Trace, limit: int = 10) -> list[str]:
    """Everything that keeps a trace from running as it reads, one line each; empty if nothing does.

    Parameters
    ----------
    trace : Trace
    limit : int
        Lines per kind of problem; one more says how many there are.

    Returns
    -------
    list of str
        Ranks without nodes and ids used twice; peers and dependencies that do not exist, and then nothing
        else; sends without a recv and recvs without a send; a send and a recv of one tag whose sizes differ;
        a tag used again on one (src, dst) pair with the same size; cycles, where a recv waits for its send.

    Notes
    -----
    A send meets the recv of its (src, dst, tag, size), first in, first out, as in ASTRA-sim.  Time is linear
    in nodes and dependencies where tags ascend along each link, else n log n per link; memory about 35 bytes
    per node.
    """
    found = Found(np.zeros(len(_TITLES), np.int64), np.full((len(_TITLES), limit, SHOWN + 1), -1, np.int64))
    find_bad_nodes(trace.rank_ptr, trace.kind, trace.peer, trace.dep_ptr, trace.dep, found)
    if not found.total.any():
        partner = match(trace.rank_ptr, trace.kind, trace.peer, trace.tag, trace.amount, found)
        find_cycles(trace.rank_ptr, trace.peer, trace.dep_ptr, trace.dep, partner, found)
    words = _Words(trace)
    out = _ids(trace)
    for kind, title in _TITLES.items():
        count = int(found.total[kind])
        out += [words.problem(kind, about.tolist()) for about in found.about[kind, : min(count, limit)]]
        if count > limit:
            out.append(f"... and {count - limit} more {title}")
    return out
