"""What is wrong with the phases of a file set, slowly: node by node, with dictionaries.

Faults are ``(phase, code, row, npu, node)`` with the kernels' codes; a node is its global index, -1 for none.
"""

from __future__ import annotations

from collections import defaultdict

from moxtrace.chakra.trace import COMP, RECV, SEND
from moxtrace.verify import kernels as k
from tests.editing import Node

Fault = tuple[str, int, int, int, int]


class Slow:
    """The nodes of a file set, followed by name."""

    def __init__(self, ranks: list[list[Node]], rows: list[tuple[int, list[int]]], manifest: dict) -> None:
        self.ranks, self.rows, self.manifest = ranks, rows, manifest
        self.index, self.rank_of, count = {}, {}, 0
        for r, rank in enumerate(ranks):
            for node in rank:
                self.index[id(node)], self.rank_of[id(node)] = count, r
                count += 1
        self.by_id = [{node.id: node for node in rank} for rank in ranks]
        self.faults: list[Fault] = []

    def note(self, phase: str, code: int, row: int, npu: int, node: Node | None = None) -> None:
        self.faults.append((phase, code, row, npu, -1 if node is None else self.index[id(node)]))

    def deps(self, node: Node) -> list[Node]:
        known = self.by_id[self.rank_of[id(node)]]
        return [known[d] for d in dict.fromkeys(node.deps) if d in known]

    def row(self, phase: str, node: Node) -> int | None:
        """Row that a message of the phase carries."""
        row = node.tag - (len(self.rows) if phase == "combine" else 0)
        return row if node.kind in (SEND, RECV) and 0 <= row < len(self.rows) else None

    def recvs(self, phase: str, row: int, node: Node) -> list[Node]:
        return [d for d in self.deps(node) if d.kind == RECV and self.row(phase, d) == row]

    def sends(self, phase: str) -> dict[int, list[tuple[int, Node]]]:
        found = defaultdict(list)
        for r, rank in enumerate(self.ranks):
            for node in rank:
                if node.kind == SEND and self.row(phase, node) is not None:
                    found[self.row(phase, node)].append((r, node))
        return found

    def messages(self, phase: str, has_path) -> None:
        size = self.manifest["phases"][phase]["message_bytes"]
        for row, sends in self.sends(phase).items():
            for src, node in sends:
                if node.amount != size:
                    self.note(phase, k.SIZE, row, src, node)
                if not has_path(src, node.peer):
                    self.note(phase, k.NO_LINK, row, node.peer, node)

    def dispatch(self) -> None:
        sends = self.sends("dispatch")
        for row, (source, dests) in enumerate(self.rows):
            holders = {source}
            forwarders = {src for src, _ in sends[row]}
            for _, node in sends[row]:
                if node.peer in holders:
                    self.note("dispatch", k.TWICE, row, node.peer, node)
                holders.add(node.peer)
            for npu in set(dests) - holders:
                self.note("dispatch", k.NEVER, row, npu)
            for src, node in sends[row]:
                if src not in holders:
                    self.note("dispatch", k.NOT_HELD, row, src, node)
                elif src != source and not self.recvs("dispatch", row, node):
                    self.note("dispatch", k.UNCAUSED, row, src, node)
                if node.peer not in dests and node.peer not in forwarders:
                    self.note("dispatch", k.USELESS, row, node.peer, node)

    def compute_of(self, rank: int) -> Node | None:
        """The first COMP that adds nothing of combine."""
        for node in self.ranks[rank]:
            adds = any(d.kind == RECV and self.row("combine", d) is not None for d in self.deps(node))
            if node.kind == COMP and not adds:
                return node
        return None

    def compute(self) -> None:
        whole = self.manifest["barrier"] == "phase"
        for rank, nodes in enumerate(self.ranks):
            compute = self.compute_of(rank)
            if compute is None:
                continue
            awaited, ahead = set(), [compute]
            while ahead:
                for d in self.deps(ahead.pop()):
                    if id(d) not in awaited:
                        awaited.add(id(d))
                        ahead += [d] if whole else []
            for node in nodes:
                row = self.row("dispatch", node)
                if row is None or id(node) in awaited:
                    continue
                if whole or (node.kind == RECV and rank in self.rows[row][1]):
                    self.note("dispatch", k.EARLY, row, rank, node)

    def total_of(self, row: int, source: int) -> Node | None:
        """The source's first COMP that adds messages of the row before any other's."""
        for node in self.ranks[source]:
            rows = [self.row("combine", d) for d in self.deps(node) if d.kind == RECV]
            rows = [r for r in rows if r is not None]
            if node.kind == COMP and rows and rows[0] == row:
                return node
        return None

    def combine(self, gate: str | None, reduce) -> None:
        """``gate`` is what waits for expert compute; ``reduce(inputs)`` the duration of a sum."""
        every = self.sends("combine")
        for row, (source, dests) in enumerate(self.rows):
            sends = every[row]
            senders = [src for src, _ in sends]
            inputs = defaultdict(int)
            for i, (src, node) in enumerate(sends):
                inputs[node.peer] += 1
                if src in senders[:i]:
                    self.note("combine", k.SENT_TWICE, row, src, node)
            for npu in set(dests) - set(senders):
                self.note("combine", k.SILENT, row, npu)
            for src, node in sends:
                if node.peer != source and node.peer not in senders:
                    self.note("combine", k.LOST, row, node.peer, node)
                if src == source:
                    self.note("combine", k.SENT_TWICE, row, src, node)
                elif src not in dests and inputs[src] == 0:
                    self.note("combine", k.EMPTY, row, src, node)
                else:
                    self.sent(row, src, node, inputs[src], src in dests, gate, reduce)
            if inputs[source] >= 2:
                total = self.total_of(row, source)
                if total is None:
                    self.note("combine", k.NO_TOTAL, row, source)
                elif len(self.recvs("combine", row, total)) != inputs[source]:
                    self.note("combine", k.UNTOTALLED, row, source, total)
                elif total.amount != reduce(inputs[source]):
                    self.note("combine", k.TOTAL_TIME, row, source, total)

    def sent(self, row, src, node, inputs, own, gate, reduce) -> None:
        compute = self.compute_of(src) if gate else None
        joint = node
        if inputs + own >= 2:
            comps = [d for d in self.deps(node) if d.kind == COMP and d is not compute]
            right = [c for c in comps if len(self.recvs("combine", row, c)) == inputs]
            if not comps:
                self.note("combine", k.NO_SUM, row, src, node)
                return
            joint = right[0] if right else comps[-1]
            if not right:
                self.note("combine", k.UNREDUCED, row, src, node)
            elif joint.amount != reduce(inputs + own):
                self.note("combine", k.SUM_TIME, row, src, joint)
        elif len(self.recvs("combine", row, node)) != inputs:
            self.note("combine", k.UNREDUCED, row, src, node)
        gated = gate == "phase" or (gate == "tokens" and own)
        if gated and compute is not None and compute not in self.deps(joint):
            self.note("combine", k.UNGATED, row, src, node)


def faults_of(phases: list[str], ranks, rows, manifest, has_path) -> list[Fault]:
    """Every fault of a file set that the kernels name.

    ``has_path(src, dst)`` says whether there is a link, or two through the switch.
    """
    slow = Slow(ranks, rows, manifest)
    for phase in phases:
        slow.messages(phase, has_path)
    if "dispatch" in phases:
        slow.dispatch()
    both = len(phases) == 2
    if both:
        slow.compute()
    if "combine" in phases:
        cycles = {"ps": 1, "ns": 1000}[manifest["time_scale"]]
        size = manifest["phases"]["combine"]["message_bytes"]
        rate = manifest["reduce_ns_per_byte"]
        slow.combine(
            manifest["barrier"] if both else None, lambda inputs: round((inputs - 1) * size * rate / cycles)
        )
    return slow.faults
