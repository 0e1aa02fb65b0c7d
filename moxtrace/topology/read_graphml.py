"""GraphML, by networkx.

Goes in: text.  Comes out: the file's nodes and its links, an undirected edge as two.

networkx drops or mends some things in silence that would be another network here, so its reader is narrowed:
parallel edges all stay, attributes stay text until they are checked with their link's name, defaults reach
each node and edge, edges may go one way or both in one file, and a graph inside a node is refused.
"""

from __future__ import annotations

import warnings
from itertools import count
from typing import Any
from xml.etree import ElementTree

import networkx as nx

from moxtrace.topology.draft import ATTRIBUTES, Draft

__all__ = ["read_graphml"]

NAMESPACE = nx.GraphMLReader.NS_GRAPHML


def read_graphml(draft: Draft, text: str) -> None:
    """Take in a GraphML file."""
    if "<!DOCTYPE" in text:  # the only place where entities are declared, which can expand to gigabytes
        draft.refuse("has a DOCTYPE, which could declare entities; remove it, GraphML needs none")
    text = text.replace("<graphml>", f'<graphml xmlns="{NAMESPACE}">', 1)  # as networkx forgives
    reader = _Reader(draft)
    try:
        with warnings.catch_warnings():  # of ports, which say nothing about a link
            warnings.simplefilter("ignore")
            graphs = list(reader(string=text))
    except ElementTree.ParseError as error:
        draft.refuse(f"is no XML: {error}; is the file cut?")
    except nx.NetworkXError as error:
        draft.refuse(f"networkx cannot read it as GraphML: {error}")
    if not graphs:
        draft.refuse("is no GraphML; expected <graphml> with a <graph> in it")
    if len(graphs) > 1:
        draft.refuse(f"holds {len(graphs)} graphs; expected one")
    draft.take(graphs[0], reader.listed)


class _Reader(nx.GraphMLReader):  # type: ignore[misc]
    """networkx's reader, which calls these methods for each graph, node, edge and key."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(force_multigraph=True)
        self.draft = draft
        self.listed: list[str] = []
        self.undirected = False
        self.defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}
        self.ids = count()

    def find_graphml_keys(self, root: ElementTree.Element) -> Any:
        for key in root.findall(f"{{{NAMESPACE}}}key"):
            key.set("attr.type", "string")
            key.attrib.setdefault("attr.name", key.get("id", ""))
        keys, defaults = super().find_graphml_keys(root)
        for identity, value in defaults.items():
            holder, name = keys[identity]["for"] or "all", keys[identity]["name"]
            for kind in self.defaults:
                if holder in (kind, "all"):
                    self.defaults[kind][name] = value
        return keys, defaults

    def make_graph(self, graph: ElementTree.Element, *keys: Any) -> Any:
        self.undirected = graph.get("edgedefault") != "directed"
        graph.set("edgedefault", "directed")  # add_edge turns an undirected edge into two
        return super().make_graph(graph, *keys)

    def add_node(self, network: Any, node: ElementTree.Element, *keys: Any) -> None:
        label = node.get("id")
        if not label:
            self.draft.refuse("a node has no id")
        if node.find(f"{{{NAMESPACE}}}graph") is not None:
            self.draft.refuse(f"node {label} holds a graph of its own; expected all nodes in one graph")
        self.listed.append(label)
        super().add_node(network, node, *keys)

    def add_edge(self, network: Any, edge: ElementTree.Element, keys: Any) -> None:
        src, dst = edge.get("source"), edge.get("target")
        if not src or not dst:
            self.draft.refuse("an edge has no source or no target")
        both_ways = {"true": False, "false": True}.get(edge.attrib.pop("directed", ""), self.undirected)
        edge.set("id", str(next(self.ids)))  # two edges with the same id would become one
        super().add_edge(network, edge, keys)
        if both_ways:
            edge.set("source", dst)
            edge.set("target", src)
            super().add_edge(network, edge, keys)

    def decode_data_elements(self, keys: Any, element: ElementTree.Element) -> dict[str, str]:
        found = super().decode_data_elements(keys, element)
        values = self.defaults[element.tag.rpartition("}")[2]] | found
        return {name: values[name] for name in ATTRIBUTES if values.get(name)}
