"""Networks from files: edge CSV, GraphML, node-link JSON.

Goes in: a file and what to assume where it does not say.  Comes out: :class:`Topology`, or one line that
says where the file is wrong.

A cable has two ends, a rate in Gbit/s per lane (``gbps``, or ``bandwidth_gbps``), ``latency_ns`` and
``lanes``.  Edges of a CSV and of a directed graph are links; an undirected edge is two links.  The same
ordered pair again adds its lanes, provided that rate and latency agree.

Nodes called 0 to n - 1 are NPUs by number.  Otherwise their names are kept, and NPUs are numbered in the
order of the file's list of nodes; a CSV without one numbers them as they first appear.

A CSV starts with the header ``src,dst,gbps[,latency_ns][,lanes]`` (any order).  Lines that start with ``#``
are comments, but for these, which :mod:`moxtrace.topology.writers` writes:

========================= =============================================================
``# npus: 16``            how many NPUs there are
``# nodes: a,b,c``        their names, in order
``# switch: hub``         this node is an ideal switch, no NPU; every link starts or ends there
``# links: 128``          how many rows follow, so that a cut file is noticed
========================= =============================================================
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xml.etree import ElementTree

import numpy as np

from moxtrace.errors import TopologyError
from moxtrace.topology.graph import MAX_NPUS, Topology

__all__ = ["FORMATS", "read"]

FORMATS = (".csv", ".graphml", ".json")
MAX_LANES = 1_000_000
COLUMNS = ("src", "dst", "gbps", "latency_ns", "lanes")


class _Row(NamedTuple):
    """One edge as the file gives it; an attribute is None where the file does not say."""

    src: str
    dst: str
    gbps: Any
    latency_ns: Any
    lanes: Any
    line: int = 0  # 0 in formats that have no lines
    both_ways: bool = False


@dataclass
class _Graph:
    """What a file holds, before anything is checked across its rows."""

    path: Path
    rows: list[_Row] = field(default_factory=list)
    nodes: list[str] | None = None
    npus: int | None = None
    switch: str | None = None

    def refuse(self, problem: str, row: _Row | None = None) -> NoReturn:
        where = ""
        if row is not None:
            where = f"line {row.line}: " if row.line else f"link {row.src} -> {row.dst}: "
        raise TopologyError(f"{self.path}: {where}{problem}")


def read(
    path: str | Path,
    *,
    npus: int | None = None,
    link_gbps: float = 100,
    latency_ns: float = 500,
    lanes: int = 1,
) -> Topology:
    """Read a network.

    Parameters
    ----------
    path : path
        ``.csv``, ``.graphml`` or ``.json`` (node-link).
    npus : int, optional
        How many NPUs the file must have; by default as many as it names.
    link_gbps, latency_ns, lanes : float, float, int
        Of links for which the file gives no such attribute.

    Returns
    -------
    Topology
        Kind ``graph``, or ``switch`` where the file marks a switch node.

    Raises
    ------
    TopologyError
        For a file that is missing, empty, cut or of another format; an unknown node; a self-loop; a rate,
        latency or lane count out of range; a pair given twice with different rates; an NPU that cannot be
        reached; another number of NPUs than ``npus``.
    """
    path = Path(path)
    parse = {".csv": _parse_csv, ".graphml": _parse_graphml, ".json": _parse_json}.get(path.suffix.lower())
    if parse is None:
        raise TopologyError(f"{path}: unknown format {path.suffix!r}; expected {', '.join(FORMATS)}")
    graph = _Graph(path)
    parse(graph, _text(path))
    if not graph.rows:
        graph.refuse("has no links; expected at least one")
    if npus is not None and graph.npus not in (None, npus):
        graph.refuse(f"is for {graph.npus} NPUs, but npus is {npus}; change npus or the file")
    graph.npus = graph.npus if npus is None else npus
    return _assemble(graph, {"gbps": link_gbps, "latency_ns": latency_ns, "lanes": lanes})


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TopologyError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path}: is no text file (byte {error.start} is not UTF-8)") from error
    if not text.strip():
        raise TopologyError(f"{path}: is empty; expected a topology")
    return text


# ---- from text to rows


def _parse_csv(graph: _Graph, text: str) -> None:
    header: list[str] | None = None
    declared: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        at = _Row("", "", None, None, None, number)
        if line.startswith("#"):
            links = _csv_comment(graph, line[1:], at)
            declared = declared if links is None else links
            continue
        if not line:
            continue
        cells = _cells(graph, line, at)
        if header is None:
            header = _csv_header(graph, cells, at)
            continue
        if len(cells) != len(header):
            found = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            graph.refuse(f"{found}, the header has {len(header)}; is the file cut?", at)
        values = dict(zip(header, cells, strict=True))
        gbps, latency, lanes = (values.get(name) or None for name in COLUMNS[2:])
        row = _Row(values["src"], values["dst"], gbps, latency, lanes, number)
        if not row.src or not row.dst:
            graph.refuse("src or dst is empty; expected two nodes", row)
        graph.rows.append(row)
    if header is None:
        graph.refuse("has no header; expected src,dst,gbps[,latency_ns][,lanes]")
    if declared not in (None, len(graph.rows)):
        graph.refuse(f"has {len(graph.rows)} links, its comment says {declared}; is the file cut?")


def _cells(graph: _Graph, line: str, at: _Row) -> list[str]:
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        return next(csv.reader([line], strict=True, skipinitialspace=True))
    except csv.Error as error:
        graph.refuse(f"is no CSV: {error}", at)


def _csv_header(graph: _Graph, cells: list[str], at: _Row) -> list[str]:
    header = ["gbps" if name == "bandwidth_gbps" else name for name in map(str.lower, cells)]
    missing = [name for name in COLUMNS[:3] if name not in header]
    if missing:
        graph.refuse(f"no column {', '.join(missing)}; expected src,dst,gbps[,latency_ns][,lanes]", at)
    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f", did you mean {near[0]}?" if near else ""
            graph.refuse(f"unknown column {name!r}{hint}; expected src,dst,gbps[,latency_ns][,lanes]", at)
        if header.count(name) > 1:
            graph.refuse(f"column {name} stands twice", at)
    return header


def _csv_comment(graph: _Graph, comment: str, at: _Row) -> int | None:
    """Take a declaration in; returns the number of links where it declares that."""
    key, colon, value = (part.strip() for part in comment.partition(":"))
    if not colon or key not in ("npus", "nodes", "switch", "links"):
        return None
    if key == "nodes":
        graph.nodes = _cells(graph, value, at)
    elif key == "switch":
        graph.switch = _cells(graph, value, at)[0]
    elif not value.isdecimal():
        graph.refuse(f"{key}: {value!r}; expected a number", at)
    elif key == "links":
        return int(value)
    else:
        graph.npus = int(value)
    return None


def _parse_json(graph: _Graph, text: str) -> None:
    try:
        data = json.loads(text)
    except ValueError as error:
        graph.refuse(f"is no JSON: {error}; is the file cut?")
    except RecursionError:
        graph.refuse("is no node-link JSON: nested too deeply")
    edges = data.get("edges", data.get("links")) if isinstance(data, dict) else None
    if not isinstance(edges, list) or not isinstance(data.get("nodes"), list):
        graph.refuse('is no node-link JSON; expected {"directed": ..., "nodes": [...], "edges": [...]}')
    graph.nodes = []
    for number, node in enumerate(data["nodes"]):
        if not isinstance(node, dict) or not _is_label(node.get("id")):
            graph.refuse(f'nodes[{number}] is {_short(node)}; expected {{"id": a number or a name}}')
        graph.nodes.append(str(node["id"]))
        if node.get("switch") is True:
            _mark_switch(graph, str(node["id"]))
    for number, edge in enumerate(edges):
        ends = [edge.get(end) for end in ("source", "target")] if isinstance(edge, dict) else [None]
        if not all(_is_label(end) for end in ends):
            graph.refuse(f'edges[{number}] is {_short(edge)}; expected {{"source": ..., "target": ...}}')
        graph.rows.append(_row(str(ends[0]), str(ends[1]), edge, both_ways=data.get("directed") is not True))


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _row(src: str, dst: str, values: dict[str, Any], both_ways: bool) -> _Row:
    gbps = values.get("gbps", values.get("bandwidth_gbps"))
    return _Row(src, dst, gbps, values.get("latency_ns"), values.get("lanes"), 0, both_ways)


def _mark_switch(graph: _Graph, node: str) -> None:
    if graph.switch is not None:
        graph.refuse(f"nodes {graph.switch} and {node} are both switches; expected at most one")
    graph.switch = node


def _parse_graphml(graph: _Graph, text: str) -> None:
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        graph.refuse(f"is no XML: {error}; is the file cut?")
    for element in root.iter():  # the namespace is the same everywhere and says nothing
        element.tag = str(element.tag).rpartition("}")[2]
    body = root.find("graph")
    if root.tag != "graphml" or body is None:
        graph.refuse("is no GraphML; expected <graphml> with a <graph> in it")
    names = {key.get("id"): key.get("attr.name") for key in root.iter("key")}
    defaults: dict[str, dict[str, Any]] = {"node": {}, "edge": {}}
    for key in root.iter("key"):
        default, holder, name = key.find("default"), key.get("for", "all"), key.get("attr.name")
        for target in defaults if holder == "all" else [holder]:
            if default is not None and name and target in defaults:
                defaults[target][name] = default.text

    def data(element: ElementTree.Element) -> dict[str, Any]:
        found = {names.get(item.get("key")): item.text for item in element.findall("data")}
        return defaults[element.tag] | {name: value for name, value in found.items() if name}

    graph.nodes = []
    for node in body.iter("node"):
        label = node.get("id")
        if not label:
            graph.refuse("a node has no id")
        graph.nodes.append(label)
        if str(data(node).get("switch")).strip().lower() in ("true", "1"):
            _mark_switch(graph, label)
    undirected = body.get("edgedefault") == "undirected"
    for edge in body.iter("edge"):
        src, dst = edge.get("source"), edge.get("target")
        if not src or not dst:
            graph.refuse("an edge has no source or no target")
        both_ways = {"true": False, "false": True}.get(edge.get("directed", ""), undirected)
        graph.rows.append(_row(src, dst, data(edge), both_ways))


# ---- from rows to a topology


def _assemble(graph: _Graph, defaults: dict[str, float]) -> Topology:
    number, names = _numbering(graph)
    num_npus = len(number) - (graph.switch is not None)
    links: dict[tuple[int, int], list[Any]] = {}
    for row, back in _directed(graph.rows):
        u, v = number.get(row.src), number.get(row.dst)
        if u is None or v is None:
            _refuse_unknown(graph, row, row.src if u is None else row.dst, list(number))
        if u == v:
            graph.refuse(f"{row.src} -> {row.dst} is a self-loop; an NPU reaches itself without a link", row)
        if num_npus not in (u, v) and graph.switch is not None:
            graph.refuse(f"does not touch the switch {graph.switch}; with a switch, every link must", row)
        rate = _number(graph, row, "gbps", defaults["gbps"], "a rate > 0, Gbit/s")
        latency = _number(graph, row, "latency_ns", defaults["latency_ns"], "a latency >= 0, ns", zero=True)
        lanes = _lanes(graph, row, defaults["lanes"])
        ends = (v, u) if back else (u, v)
        first = links.setdefault(ends, [rate, latency, 0, row])
        if (rate, latency) != (first[0], first[1]):
            earlier = f"on line {first[3].line}" if first[3].line else "before"
            graph.refuse(
                f"{row.src} -> {row.dst} again, with {rate:g} Gbit/s and {latency:g} ns; {earlier} it has "
                f"{first[0]:g} and {first[1]:g}; parallel cables of one pair must be equal",
                row,
            )
        first[2] += lanes
        if first[2] > MAX_LANES:
            graph.refuse(f"{row.src} -> {row.dst} has {first[2]} lanes; expected at most {MAX_LANES}", row)
    return _topology(graph, links, names, num_npus)


def _topology(
    graph: _Graph, links: dict[tuple[int, int], list[Any]], names: tuple[str, ...], num_npus: int
) -> Topology:
    src, dst = np.array(list(links), np.int32).T
    rate, latency, lanes = (np.array([link[i] for link in links.values()], np.float64) for i in range(3))
    kind = "graph" if graph.switch is None else "switch"
    parameters = {"kind": "graph", "path": str(graph.path), "npus": num_npus}
    nodes = num_npus + (graph.switch is not None)
    try:
        return Topology(
            kind, num_npus, src, dst, rate, latency, lanes.astype(np.int32), names, parameters, nodes
        )
    except TopologyError as error:  # what only shows in the whole graph, such as an NPU out of reach
        raise TopologyError(f"{graph.path}: {error}") from error


def _directed(rows: list[_Row]) -> Iterator[tuple[_Row, bool]]:
    for row in rows:
        yield row, False
        if row.both_ways:
            yield row, True


def _numbering(graph: _Graph) -> tuple[dict[str, int], tuple[str, ...]]:
    """Number of each node, the switch last, and the names of NPUs that have any."""
    npus, switch = graph.npus, graph.switch
    listed = graph.nodes if graph.nodes is not None else _appearing(graph)
    labels = [label for label in listed if label != switch]
    if len(set(labels)) != len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        graph.refuse(f"node {twice} is listed twice")
    if graph.nodes is None and all(label.isdecimal() and str(int(label)) == label for label in labels):
        labels = _counted(graph, labels)
    if npus is not None and len(labels) > npus and graph.nodes is None:
        row = next(row for row in graph.rows if labels[npus] in (row.src, row.dst))
        graph.refuse(f"unknown node {labels[npus]!r}: npus is {npus}, and {npus} others came before it", row)
    if npus is not None and len(labels) != npus:
        graph.refuse(f"has {len(labels)} NPUs, but npus is {npus}; change npus or the file")
    if not 2 <= len(labels) <= MAX_NPUS:
        graph.refuse(f"has {len(labels)} NPUs; expected 2 to {MAX_NPUS}")
    plain = {str(i) for i in range(len(labels))}
    by_number = set(labels) == plain
    number = {label: int(label) if by_number else i for i, label in enumerate(labels)}
    if switch is not None:
        number[switch] = len(labels)
    return number, () if by_number else tuple(labels)


def _appearing(graph: _Graph) -> list[str]:
    """Nodes of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(end for row in graph.rows for end in (row.src, row.dst)))


def _counted(graph: _Graph, labels: list[str]) -> list[str]:
    """Nodes 0 .. npus - 1, where rows name nodes by number only; an NPU without a row is still one."""
    numbers = sorted(map(int, labels))
    npus = graph.npus if graph.npus is not None else len(numbers)
    if numbers[-1] >= npus:
        odd = str(next(n for n in numbers if n >= npus))
        row = next(row for row in graph.rows if odd in (row.src, row.dst))
        why = f"npus is {npus}"
        if graph.npus is None:
            missing = min(set(range(npus)) - set(numbers))
            why = f"{npus} nodes are named, but {missing} is not"
        graph.refuse(
            f"unknown node {odd}: {why}; expected 0 to {npus - 1}, or names that are not numbers", row
        )
    return [str(i) for i in range(npus)]


def _refuse_unknown(graph: _Graph, row: _Row, label: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(label, known, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    some = ", ".join(known[:5]) + (f", ... ({len(known)})" if len(known) > 5 else "")
    graph.refuse(f"unknown node {label!r}{hint}; the nodes are {some}", row)


def _number(graph: _Graph, row: _Row, name: str, default: float, expected: str, zero: bool = False) -> float:
    """Attribute ``name`` of a row: positive and finite, or 0 where ``zero`` allows it."""
    given = getattr(row, name)
    if given is None:
        return default
    try:
        value = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (0 < value < math.inf or (zero and value == 0)):
        graph.refuse(f"{name} {given}; expected {expected}", row)
    return value


def _lanes(graph: _Graph, row: _Row, default: float) -> int:
    expected = "a whole number of lanes, at least 1"
    value = _number(graph, row, "lanes", default, expected)
    if value != int(value):
        graph.refuse(f"lanes {row.lanes}; expected {expected}", row)
    return int(value)
