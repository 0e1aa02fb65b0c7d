"""Faults that kernels note, and how they read: one line each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import SEND, Trace
from moxtrace.demand import Demand
from moxtrace.topology import Topology
from moxtrace.verify import kernels

__all__ = ["SHOWN", "Faults", "first_of", "node_name", "wording"]

SHOWN = 5  # faults of one kind that are spelled out

_WORDS = {
    kernels.SIZE: "SEND {node} has {amount} bytes; expected {expected}",
    kernels.NO_LINK: "SEND {node} goes to NPU {npu} over no link of the topology",
    kernels.TWICE: "NPU {npu} is reached twice, again by SEND {node}",
    kernels.NEVER: "destination NPU {npu} is never reached",
    kernels.NOT_HELD: "SEND {node} leaves NPU {npu}, which never holds the token",
    kernels.UNCAUSED: "SEND {node} of relay NPU {npu} does not wait for the RECV of the token",
    kernels.USELESS: "SEND {node} goes to NPU {npu}, which neither needs nor forwards the token",
    kernels.EARLY: "expert compute of NPU {npu} does not wait for {kind} {node}",
    kernels.SENT_TWICE: "the partial sum of NPU {npu} is reduced twice, again by SEND {node}",
    kernels.SILENT: "the expert output of NPU {npu} is never reduced: it sends nothing",
    kernels.LOST: "SEND {node} ends at NPU {npu}, which does not pass the partial sum on",
    kernels.EMPTY: "SEND {node} of NPU {npu} carries no expert output",
    kernels.UNREDUCED: "SEND {node} of NPU {npu} does not wait for every partial sum it must add",
    kernels.NO_SUM: "SEND {node} of NPU {npu} waits for no COMP that adds what it sends",
    kernels.SUM_TIME: "the sum of NPU {npu}, {node}, has duration {amount}; "
    "expected (inputs - 1) x message_bytes x reduce_ns_per_byte",
    kernels.UNGATED: "SEND {node} of NPU {npu} does not wait for its expert compute",
    kernels.NO_TOTAL: "source NPU {npu} has no COMP that adds what it receives",
    kernels.UNTOTALLED: "the last sum, {node} of NPU {npu}, does not wait for every partial sum it must add",
    kernels.TOTAL_TIME: "the last sum, {node} of NPU {npu}, has duration {amount}; "
    "expected (inputs - 1) x message_bytes x reduce_ns_per_byte",
}


class Faults(NamedTuple):
    """Faults by code.

    Parameters
    ----------
    total : array of int64, shape (codes,)
    about : array of int64, shape (codes, shown, 3)
        Row, NPU and node (global index) of the first of each; -1 where there is none.
    """

    total: NDArray[np.int64]
    about: NDArray[np.int64]

    @classmethod
    def empty(cls, shown: int) -> Faults:
        """No fault yet, and room to keep ``shown`` of each code."""
        return cls(np.zeros(kernels.CODES, np.int64), np.full((kernels.CODES, shown, 3), -1, np.int64))


def node_name(trace: Trace, node: int | np.integer[Any]) -> str:
    """A node's id and rank."""
    return f"node {trace.node_id[node]} of rank {trace.rank_of(int(node))}"


def first_of(lines: Iterable[str], count: int, shown: int = SHOWN) -> list[str]:
    """The first few of ``count`` lines, and how many more there are."""
    return [*islice(lines, shown), *([f"... and {count - shown} more of these"] if count > shown else [])]


def wording(
    phase: str, faults: Faults, trace: Trace, demand: Demand, network: Topology, size_bytes: int, base: int
) -> list[str]:
    """Faults of one phase in words.

    Parameters
    ----------
    phase : {"dispatch", "combine"}
    faults : Faults
    trace : Trace
    demand : Demand
    network : Topology
    size_bytes : int
        Expected size of a message.
    base : int
        Tag of row 0.
    """
    lines: list[str] = []
    for code in np.flatnonzero(faults.total):
        count, shown = int(faults.total[code]), faults.about.shape[1]
        some = faults.about[code, : min(count, shown)].tolist()
        said = []
        for row, npu, node in some:
            at = {"node": "", "amount": "", "kind": ""}
            if node >= 0:
                kind = "SEND" if trace.kind[node] == SEND else "RECV"
                at = {"node": node_name(trace, node), "amount": str(trace.amount[node]), "kind": kind}
            what = _WORDS[int(code)].format(npu=network.npu_name(npu), expected=size_bytes, **at)
            token, source = demand.token[row], network.npu_name(demand.source[row])
            said.append(f"{phase}: token {token} of NPU {source} (tag {base + row}): {what}")
        lines += first_of(said, count, shown)
    return lines
