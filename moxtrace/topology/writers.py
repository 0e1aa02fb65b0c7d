"""Networks to files: edge CSV, GraphML, node-link JSON.

Goes in: :class:`Topology`.  Comes out: a file that :func:`moxtrace.topology.readers.read` turns back into the
same links, rates, latencies, lanes and names; the same bytes each time.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moxtrace.errors import OutputError, TopologyError
from moxtrace.outputs import written_aside
from moxtrace.topology.graph import Topology
from moxtrace.topology.readers import FORMATS

__all__ = ["write"]


def write(topology: Topology, path: str | Path) -> None:
    """Write a network in the format that the name's ending says; an existing file is replaced.

    Parameters
    ----------
    topology : Topology
    path : path
        ``.csv``, ``.graphml`` or ``.json``.

    Raises
    ------
    OutputError
        If the ending is another one, or the file cannot be written; nothing half-written is left.
    TopologyError
        If a name cannot stand in that format.
    """
    path = Path(path)
    form = {".csv": _csv, ".graphml": _graphml, ".json": _json}.get(path.suffix.lower())
    if form is None:
        raise OutputError(f"{path}: unknown format {path.suffix!r}; expected {', '.join(FORMATS)}")
    text = form(topology)
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def _labels(topology: Topology, allowed: Callable[[str], bool]) -> list[str]:
    """What the file calls each node: names, or numbers; the switch is ``switch`` beside names."""
    if not topology.names:
        return [str(i) for i in range(topology.num_nodes)]
    labels = list(topology.names)
    for name in labels:
        if not name or not allowed(name):
            raise TopologyError(f"topology {topology.kind}: this format cannot hold the name {name!r}")
    if topology.has_switch:
        hub = "switch"
        while hub in labels:
            hub += "_"
        labels.append(hub)
    return labels


def _links(topology: Topology) -> Iterator[tuple[int, int, float, float, int]]:
    columns = (topology.src, topology.dst, topology.bandwidth_gbps, topology.latency_ns, topology.lanes)
    return zip(*(column.tolist() for column in columns), strict=True)


def _plain(value: float) -> int | float:
    """A whole number without its ``.0``; any other as it is, which ``repr`` writes exactly."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _quoted(cell: str) -> str:
    plain = cell.strip() == cell and not cell.startswith("#") and "," not in cell and '"' not in cell
    return cell if plain else '"' + cell.replace('"', '""') + '"'


def _line_can_hold(name: str) -> bool:
    return name.splitlines() == [name] and not any(0xD800 <= ord(c) <= 0xDFFF for c in name)


def _csv(topology: Topology) -> str:
    labels = [_quoted(label) for label in _labels(topology, _line_can_hold)]
    lines = ["# moxtrace topology", f"# npus: {topology.num_npus}"]
    if topology.names:
        lines.append("# nodes: " + ",".join(labels[: topology.num_npus]))
    if topology.has_switch:
        lines.append(f"# switch: {labels[-1]}")
    lines += [f"# links: {topology.num_links}", "src,dst,gbps,latency_ns,lanes"]
    for src, dst, rate, latency, lanes in _links(topology):
        lines.append(f"{labels[src]},{labels[dst]},{_plain(rate)},{_plain(latency)},{lanes}")
    return "\n".join(lines) + "\n"


def _networkx(topology: Topology, labels: Sequence[int | str]) -> Any:
    """The network as a directed networkx graph, nodes and links in order."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(labels[: topology.num_npus])
    if topology.has_switch:
        graph.add_node(labels[-1], switch=True)
    for src, dst, rate, latency, lanes in _links(topology):
        graph.add_edge(labels[src], labels[dst], gbps=rate, latency_ns=latency, lanes=lanes)
    return graph


def _json(topology: Topology) -> str:
    import networkx as nx

    labels = _labels(topology, lambda name: True)
    graph = _networkx(topology, labels if topology.names else range(topology.num_nodes))
    with warnings.catch_warnings():  # 3.4 and 3.5 announce that the links' key will change its name
        warnings.simplefilter("ignore", FutureWarning)
        data = nx.node_link_data(graph)
    if "links" in data:  # before 3.6
        data["edges"] = data.pop("links")
    return json.dumps(data, indent=1) + "\n"


def _graphml(topology: Topology) -> str:
    import networkx as nx

    graph = _networkx(topology, _labels(topology, _xml_can_hold))
    return "\n".join(nx.generate_graphml(graph, named_key_ids=True)) + "\n"


def _xml_can_hold(name: str) -> bool:
    """XML 1.0 has no control characters, and attributes lose the difference between kinds of blanks."""
    return all(c >= " " and not 0xD800 <= ord(c) <= 0xDFFF and ord(c) not in (0xFFFE, 0xFFFF) for c in name)
