"""Networks: the graph type, its builders, readers, writers and measures."""

from moxtrace.topology.builders import KINDS, SELECT_RULES, build, ideal_switch_of
from moxtrace.topology.graph import MAX_NPUS, Topology
from moxtrace.topology.metrics import describe
from moxtrace.topology.readers import read
from moxtrace.topology.writers import write

__all__ = [
    "KINDS",
    "MAX_NPUS",
    "SELECT_RULES",
    "Topology",
    "build",
    "describe",
    "ideal_switch_of",
    "read",
    "write",
]
