"""Node-link JSON, by networkx.

Goes in: text.  Comes out: the file's nodes and its links, an undirected edge as two.

The list of edges is called ``edges`` by networkx since 3.6 and ``links`` before, and by d3; both are read.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import networkx as nx

from moxtrace.topology.draft import ATTRIBUTES, Draft

__all__ = ["read_node_link"]


def read_node_link(draft: Draft, text: str) -> None:
    """Take in a node-link file."""
    try:
        data = json.loads(text)
    except ValueError as error:
        draft.refuse(f"is no JSON: {error}; is the file cut?")
    except RecursionError:
        draft.refuse("is no node-link JSON: nested too deeply")
    edges = data.get("edges", data.get("links")) if isinstance(data, dict) else None
    if not isinstance(edges, list) or not isinstance(data.get("nodes"), list):
        draft.refuse('is no node-link JSON; expected {"directed": ..., "nodes": [...], "edges": [...]}')
    nodes = _elements(draft, "nodes", data["nodes"], {"id": "a number or a name"})
    edges = _elements(draft, "edges", edges, {"source": "...", "target": "..."})
    directed = data.get("directed") is True
    # always a multigraph, and no edge has a key, or networkx would make one of two parallel edges
    graph = {"directed": directed, "multigraph": True, "nodes": nodes, "edges": edges, "links": edges}
    with warnings.catch_warnings():  # 3.4 and 3.5 announce that `links` will become `edges`
        warnings.simplefilter("ignore", FutureWarning)
        network = nx.node_link_graph(graph)
    draft.take(nx.MultiDiGraph(network), [str(node["id"]) for node in nodes])


def _elements(draft: Draft, kind: str, elements: list[Any], ends: dict[str, str]) -> list[dict[str, Any]]:
    """Nodes or edges with what is read of them; networkx would number a node that has no id."""
    for number, element in enumerate(elements):
        if not isinstance(element, dict) or not all(_is_label(element.get(end)) for end in ends):
            expected = ", ".join(f'"{end}": {what}' for end, what in ends.items())
            draft.refuse(f"{kind}[{number}] is {_short(element)}; expected {{{expected}}}")
    return [{name: element[name] for name in (*ends, *ATTRIBUTES) if name in element} for element in elements]


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
