"""Networks from files: edge CSV, GraphML, node-link JSON.

Goes in: a file and what to assume where it does not say.  Comes out: :class:`Topology`, or one line that
says where the file is wrong.

A cable has two ends, a rate in Gbit/s per lane (``gbps``, or ``bandwidth_gbps``), ``latency_ns`` and
``lanes``.  An edge of a CSV and a directed edge is a link, an undirected one is two.  The same
ordered pair again adds its lanes, provided that rate and latency agree.

Nodes called 0 to n - 1 are NPUs by number.  Otherwise their names are kept, and NPUs are numbered in the
order of the file's list of nodes; a CSV without one numbers them as they first appear.

Text becomes a :class:`~moxtrace.topology.draft.Draft` in one module for each format, and a draft becomes a
topology in :func:`~moxtrace.topology.draft.assemble`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moxtrace.errors import TopologyError
from moxtrace.topology.draft import Draft, assemble
from moxtrace.topology.graph import Topology
from moxtrace.topology.read_csv import read_csv

__all__ = ["FORMATS", "read"]

FORMATS = (".csv", ".graphml", ".json")


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
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise TopologyError(f"{path}: unknown format {path.suffix!r}; expected {', '.join(FORMATS)}")
    draft = Draft(path)
    _reader(ending)(draft, _text(path))
    if not draft.rows:
        draft.refuse("has no links; expected at least one")
    if npus is not None and draft.npus not in (None, npus):
        draft.refuse(f"is for {draft.npus} NPUs, but npus is {npus}; change npus or the file")
    draft.npus = draft.npus if npus is None else npus
    return assemble(draft, {"gbps": link_gbps, "latency_ns": latency_ns, "lanes": lanes})


def _reader(ending: str) -> Callable[[Draft, str], None]:
    """Import the reader of a format only when it is asked for: networkx is slow to start."""
    if ending == ".graphml":
        from moxtrace.topology.read_graphml import read_graphml

        return read_graphml
    if ending == ".json":
        from moxtrace.topology.read_node_link import read_node_link

        return read_node_link
    return read_csv


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
