"""From a file's rows to a topology: what every reader hands over, and the checks that all formats share.

Goes in: :class:`Draft`, nodes and edges as a file gives them.  Comes out: :class:`Topology`, or one line that
says where the file is wrong.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from moxtrace.errors import TopologyError
from moxtrace.topology.graph import MAX_NPUS, Topology

__all__ = ["ATTRIBUTES", "Draft", "Row", "assemble"]

ATTRIBUTES = ("gbps", "bandwidth_gbps", "latency_ns", "lanes", "switch")  # all that is read of an element
MAX_LANES = 1_000_000


class Row(NamedTuple):
    """One link as the file gives it; an attribute is None where the file does not say."""

    src: str
    dst: str
    gbps: Any
    latency_ns: Any
    lanes: Any
    line: int = 0  # 0 in formats that have no lines


@dataclass
class Draft:
    """What a file holds, before anything is checked across its rows."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    nodes: list[str] | None = None
    npus: int | None = None
    switch: str | None = None

    def refuse(self, problem: str, row: Row | None = None) -> NoReturn:
        """Raise TopologyError about the file, or about one row of it."""
        where = ""
        if row is not None:
            where = f"line {row.line}: " if row.line else f"link {row.src} -> {row.dst}: "
        raise TopologyError(f"{self.path}: {where}{problem}")

    def take(self, network: Any, nodes: list[str]) -> None:
        """Take over a directed networkx graph; ``nodes`` are those that the file lists, in its order.

        networkx makes a node of every end of an edge, so only the file's list tells a wrong name.
        """
        self.nodes = nodes
        for node, values in network.nodes(data=True):
            if str(values.get("switch")).strip().lower() not in ("true", "1"):
                continue
            if self.switch is not None:
                self.refuse(f"nodes {self.switch} and {node} are both switches; expected at most one")
            self.switch = str(node)
        for src, dst, values in network.edges(data=True):
            gbps = values.get("gbps", values.get("bandwidth_gbps"))
            self.rows.append(Row(str(src), str(dst), gbps, values.get("latency_ns"), values.get("lanes")))


def assemble(draft: Draft, defaults: dict[str, float]) -> Topology:
    """Number the nodes, check every row and add up parallel cables.

    Parameters
    ----------
    draft : Draft
    defaults : dict
        ``gbps``, ``latency_ns`` and ``lanes`` of rows that do not say.

    Raises
    ------
    TopologyError
        For whatever :func:`moxtrace.topology.readers.read` refuses beyond the syntax of a format.
    """
    number, names = _numbering(draft)
    num_npus = len(number) - (draft.switch is not None)
    links: dict[tuple[int, int], list[Any]] = {}
    for row in draft.rows:
        u, v = number.get(row.src), number.get(row.dst)
        if u is None or v is None:
            _refuse_unknown(draft, row, row.src if u is None else row.dst, list(number))
        if u == v:
            draft.refuse(f"{row.src} -> {row.dst} is a self-loop; an NPU reaches itself without a link", row)
        if num_npus not in (u, v) and draft.switch is not None:
            draft.refuse(f"does not touch the switch {draft.switch}; with a switch, every link must", row)
        rate = _number(draft, row, "gbps", defaults["gbps"], "a rate > 0, Gbit/s")
        latency = _number(draft, row, "latency_ns", defaults["latency_ns"], "a latency >= 0, ns", zero=True)
        lanes = _lanes(draft, row, defaults["lanes"])
        first = links.setdefault((u, v), [rate, latency, 0, row])
        if (rate, latency) != (first[0], first[1]):
            earlier = f"on line {first[3].line}" if first[3].line else "before"
            draft.refuse(
                f"{row.src} -> {row.dst} again, with {rate:g} Gbit/s and {latency:g} ns; {earlier} it has "
                f"{first[0]:g} and {first[1]:g}; parallel cables of one pair must be equal",
                row,
            )
        first[2] += lanes
        if first[2] > MAX_LANES:
            draft.refuse(f"{row.src} -> {row.dst} has {first[2]} lanes; expected at most {MAX_LANES}", row)
    return _topology(draft, links, names, num_npus)


def _topology(
    draft: Draft, links: dict[tuple[int, int], list[Any]], names: tuple[str, ...], num_npus: int
) -> Topology:
    src, dst = np.array(list(links), np.int32).T
    rate, latency, lanes = (np.array([link[i] for link in links.values()], np.float64) for i in range(3))
    kind = "graph" if draft.switch is None else "switch"
    parameters = {"kind": "graph", "path": str(draft.path), "npus": num_npus}
    nodes = num_npus + (draft.switch is not None)
    try:
        return Topology(
            kind, num_npus, src, dst, rate, latency, lanes.astype(np.int32), names, parameters, nodes
        )
    except TopologyError as error:  # what only shows in the whole graph, such as an NPU out of reach
        raise TopologyError(f"{draft.path}: {error}") from error


def _numbering(draft: Draft) -> tuple[dict[str, int], tuple[str, ...]]:
    """Number of each node, the switch last, and the names of NPUs that have any."""
    npus, switch = draft.npus, draft.switch
    listed = draft.nodes if draft.nodes is not None else _appearing(draft)
    labels = [label for label in listed if label != switch]
    if len(set(labels)) != len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        draft.refuse(f"node {twice} is listed twice")
    if draft.nodes is None and all(label.isdecimal() and str(int(label)) == label for label in labels):
        labels = _counted(draft, labels)
    if npus is not None and len(labels) > npus and draft.nodes is None:
        row = next(row for row in draft.rows if labels[npus] in (row.src, row.dst))
        draft.refuse(f"unknown node {labels[npus]!r}: npus is {npus}, and {npus} others came before it", row)
    if npus is not None and len(labels) != npus:
        draft.refuse(f"has {len(labels)} NPUs, but npus is {npus}; change npus or the file")
    if not 2 <= len(labels) <= MAX_NPUS:
        draft.refuse(f"has {len(labels)} NPUs; expected 2 to {MAX_NPUS}")
    plain = {str(i) for i in range(len(labels))}
    by_number = set(labels) == plain
    number = {label: int(label) if by_number else i for i, label in enumerate(labels)}
    if switch is not None:
        number[switch] = len(labels)
    return number, () if by_number else tuple(labels)


def _appearing(draft: Draft) -> list[str]:
    """Nodes of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(end for row in draft.rows for end in (row.src, row.dst)))


def _counted(draft: Draft, labels: list[str]) -> list[str]:
    """Nodes 0 .. npus - 1, where rows name nodes by number only; an NPU without a row is still one."""
    numbers = sorted(map(int, labels))
    npus = draft.npus if draft.npus is not None else len(numbers)
    if numbers[-1] >= npus:
        odd = str(next(n for n in numbers if n >= npus))
        row = next(row for row in draft.rows if odd in (row.src, row.dst))
        why = f"npus is {npus}"
        if draft.npus is None:
            missing = min(set(range(npus)) - set(numbers))
            why = f"{npus} nodes are named, but {missing} is not"
        draft.refuse(
            f"unknown node {odd}: {why}; expected 0 to {npus - 1}, or names that are not numbers", row
        )
    return [str(i) for i in range(npus)]


def _refuse_unknown(draft: Draft, row: Row, label: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(label, known, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    some = ", ".join(known[:5]) + (f", ... ({len(known)})" if len(known) > 5 else "")
    draft.refuse(f"unknown node {label!r}{hint}; the nodes are {some}", row)


def _number(draft: Draft, row: Row, name: str, default: float, expected: str, zero: bool = False) -> float:
    """Attribute ``name`` of a row: positive and finite, or 0 where ``zero`` allows it."""
    given = getattr(row, name)
    if given is None:
        return default
    try:
        value = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (0 < value < math.inf or (zero and value == 0)):
        draft.refuse(f"{name} {given}; expected {expected}", row)
    return value


def _lanes(draft: Draft, row: Row, default: float) -> int:
    expected = "a whole number of lanes, at least 1"
    value = _number(draft, row, "lanes", default, expected)
    if value != int(value):
        draft.refuse(f"lanes {row.lanes}; expected {expected}", row)
    return int(value)
