"""Lowering, slowly: node by node, with names instead of positions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from moxtrace.chakra.trace import COMP, RECV, SEND, Trace
from moxtrace.transfers import Phase


@dataclass
class Node:
    kind: int
    peer: int
    tag: int
    amount: int
    deps: list[tuple] = field(default_factory=list)


class Program:
    """Nodes of every rank, by name, in the order of their emission."""

    def __init__(self, npus: int, window: int) -> None:
        self.nodes: list[dict[tuple, Node]] = [{} for _ in range(npus)]
        self.window = window
        self.npus = npus

    def message(self, name: tuple, src: int, dst: int, tag: int, size: int, chain: list, deps: list) -> None:
        send_deps, recv_deps = list(deps), []
        if self.window and len(chain) >= self.window:
            send_deps.append(("send", *chain[-self.window]))
            recv_deps.append(("recv", *chain[-self.window]))
        self.nodes[src][("send", *name)] = Node(SEND, dst, tag, size, send_deps)
        self.nodes[dst][("recv", *name)] = Node(RECV, src, tag, size, recv_deps)
        chain.append(name)

    def dispatch(self, phase: Phase, order: list[int]) -> None:
        chains: dict[int, list] = defaultdict(list)
        tree = phase.tree()
        for i in order:
            deps = [("recv", "d", int(phase.parent[i]))] if phase.parent[i] >= 0 else []
            self.message(("d", i), int(phase.src[i]), int(phase.dst[i]), int(tree[i]), phase.size_bytes,
                         chains[int(phase.link[i])], deps)  # fmt: skip

    def compute(self, phase: Phase, duration: np.ndarray, barrier: str) -> None:
        for rank in range(self.npus):
            if barrier == "phase":
                waited = {d for node in self.nodes[rank].values() for d in node.deps}
                deps = [name for name in self.nodes[rank] if name not in waited]
            else:
                deps = [("recv", "d", i) for i in range(phase.num_transfers)
                        if phase.dst[i] == rank and phase.delivers[i]]  # fmt: skip
                deps.sort(key=list(self.nodes[rank]).index)
            self.nodes[rank][("compute",)] = Node(COMP, -1, 0, int(duration[rank]), deps)

    def combine(self, phase: Phase, order: list[int], tag: int, reduce_ns_per_byte: float, gate: str) -> None:
        chains: dict[int, list] = defaultdict(list)
        tree = phase.tree()
        children = defaultdict(list)
        roots = defaultdict(list)
        for i, p in enumerate(phase.parent.tolist()):
            (roots[int(tree[i])] if p < 0 else children[p]).append(i)
        arrived: dict[int, int] = defaultdict(int)

        def total(inputs: int) -> int:
            return round((inputs - 1) * phase.size_bytes * reduce_ns_per_byte)

        for i in order:
            src = int(phase.src[i])
            deps = [("recv", "c", c) for c in children[i]]
            inputs = len(deps) + int(phase.delivers[i])
            if gate == "phase" or (gate == "tokens" and phase.delivers[i]):
                deps.append(("compute",))
            if inputs >= 2:
                self.nodes[src][("sum", i)] = Node(COMP, -1, 0, total(inputs), deps)
                deps = [("sum", i)]
            self.message(("c", i), src, int(phase.dst[i]), tag + int(tree[i]), phase.size_bytes,
                         chains[int(phase.link[i])], deps)  # fmt: skip
            if phase.parent[i] < 0:
                t = int(tree[i])
                arrived[t] += 1
                if arrived[t] == len(roots[t]) >= 2:
                    deps = [("recv", "c", c) for c in roots[t]]
                    self.nodes[int(phase.dst[i])][("total", t)] = Node(COMP, -1, 0, total(len(deps)), deps)

    def rows(self) -> list[list[tuple]]:
        """Per rank: (kind, peer, tag, amount, dependencies as positions)."""
        result = []
        for nodes in self.nodes:
            at = {name: i for i, name in enumerate(nodes)}
            rows = [(n.kind, n.peer, n.tag, n.amount, [at[d] for d in n.deps]) for n in nodes.values()]
            result.append(rows or [(COMP, -1, 0, 0, [])])
        return result


def rows_of(trace: Trace) -> list[list[tuple]]:
    """The same of a trace."""
    result = []
    for r in range(trace.num_ranks):
        rows = []
        for i in range(trace.rank_ptr[r], trace.rank_ptr[r + 1]):
            deps = trace.dep[trace.dep_ptr[i] : trace.dep_ptr[i + 1]].tolist()
            rows.append(
                (int(trace.kind[i]), int(trace.peer[i]), int(trace.tag[i]), int(trace.amount[i]), deps)
            )
        result.append(rows)
    return result
