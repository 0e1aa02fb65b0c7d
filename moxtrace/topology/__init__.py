"""Networks: the graph type, its builders, readers, writers and measures."""

from moxtrace.topology.builders import build, ideal_switch_of
from moxtrace.topology.failed import Failed, PartedError, without
from moxtrace.topology.graph import MAX_NPUS, Topology
from moxtrace.topology.metrics import describe
from moxtrace.topology.readers import read
from moxtrace.topology.writers import write

__all__ = [
    "MAX_NPUS",
    "Failed",
    "PartedError",
    "Topology",
    "build",
    "describe",
    "ideal_switch_of",
    "read",
    "without",
    "write",
]
