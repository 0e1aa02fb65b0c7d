"""A network without what failed.

Goes in: :class:`Topology` and :class:`Failed`.  Comes out: the network that is left, or one line that names
the parts into which it fell.

A failed NPU is gone with its links: it hosts nothing, sends nothing and forwards nothing.  The others are
numbered anew, in their order, and keep their old numbers as names, so that files and messages still say which
is which.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import TopologyError
from moxtrace.topology.graph import Topology

__all__ = ["Failed", "PartedError", "parts", "without"]

Npu = int | str


class PartedError(TopologyError):
    """What is left is no longer one network; ``parts`` holds the names of each part."""

    def __init__(self, message: str, parts: list[list[str]]) -> None:
        super().__init__(message)
        self.parts = parts


@dataclass(frozen=True)
class Failed:
    """What failed; NPUs by number or by name.

    Parameters
    ----------
    links : sequence of (a, b)
        Cables: the links from a to b and from b to a, or the one that there is, with all their lanes.
    one_way : sequence of (a, b)
        Links from a to b alone.
    npus : sequence
        NPUs.
    lanes : sequence of (a, b, count)
        So many lanes of a cable, each way; a link that loses all its lanes is gone.
    """

    links: Sequence[Sequence[Npu]] = ()
    one_way: Sequence[Sequence[Npu]] = ()
    npus: Sequence[Npu] = ()
    lanes: Sequence[Sequence[Npu]] = ()

    def __bool__(self) -> bool:
        return bool(self.links or self.one_way or self.npus or self.lanes)


def _refuse(key: str, problem: str) -> TopologyError:
    return TopologyError(f"topology.failed.{key}: {problem}")


def _number(topology: Topology, key: str, npu: Npu) -> int:
    """The number of an NPU that is named or numbered."""
    if str(npu) in topology.names:
        return topology.names.index(str(npu))
    if not topology.names and str(npu).isdecimal():
        npu = int(npu)
    numbered = not any(name.isdecimal() for name in topology.names)  # an earlier failure leaves such names
    if numbered and isinstance(npu, int) and not isinstance(npu, bool) and 0 <= npu < topology.num_npus:
        return npu
    known = topology.names or [str(i) for i in range(topology.num_npus)]
    close = difflib.get_close_matches(str(npu), known, 1)
    hint = f"; did you mean {close[0]}?" if close and isinstance(npu, str) else ""
    some = [f"0 to {topology.num_npus - 1}"] if numbered else []
    some += [f"a name such as {topology.names[0]}"] if topology.names else []
    raise _refuse(key, f"no NPU {npu!r}{hint}; expected {' or '.join(some)}")


def _links(topology: Topology, key: str, ends: Sequence[Npu], both: bool) -> NDArray[np.int64]:
    """Links between two NPUs; at least one."""
    a, b = (_number(topology, key, npu) for npu in ends)
    found = topology.link_id([a, b], [b, a])[: 2 if both else 1]
    if (found < 0).all():
        beside = topology.dst[topology.src == a][:8].tolist()
        more = ", ..." if (topology.src == a).sum() > 8 else ""
        near = ", ".join(map(topology.npu_name, beside)) + more
        name = topology.npu_name
        raise _refuse(key, f"no link {name(a)} -> {name(b)}; the links of {name(a)} lead to {near}")
    return found[found >= 0]


def _lanes_left(topology: Topology, failed: Failed) -> NDArray[np.int64]:
    """Lanes of each link that still work."""
    left = topology.lanes.astype(np.int64)
    for row in failed.lanes:
        ends, count = row[:-1], row[-1]
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise _refuse("lanes", f"{list(row)}; expected [a, b, how many lanes, at least 1]")
        for link in _links(topology, "lanes", ends, both=True):
            if left[link] < count:
                a, b = (topology.npu_name(end[link]) for end in (topology.src, topology.dst))
                raise _refuse(
                    "lanes",
                    f"{count} lanes of {a} -> {b}, which has {left[link]} of {topology.lanes[link]} left",
                )
            left[link] -= count
    for key, cables, both in (("links", failed.links, True), ("one_way", failed.one_way, False)):
        for ends in cables:
            left[_links(topology, key, ends, both)] = 0
    return left


def parts(num_nodes: int, src: NDArray[np.integer[Any]], dst: NDArray[np.integer[Any]]) -> list[list[int]]:
    """Nodes that reach each other, part by part: the largest first, among equals that of the lowest node."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(zip(src.tolist(), dst.tolist(), strict=True))
    found = [sorted(part) for part in nx.strongly_connected_components(graph)]
    return sorted(found, key=lambda part: (-len(part), part[0]))


def _span(names: Sequence[str], part: Sequence[int]) -> str:
    """Members of a part, runs of numbers as ``0-5``; a long list is cut."""
    runs: list[list[int]] = []
    for i in part:
        follows = bool(runs) and all(names[k].isdecimal() for k in (i, i - 1))
        if follows and runs[-1][-1] == i - 1 and int(names[i]) == int(names[i - 1]) + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    text = [names[run[0]] if len(run) == 1 else f"{names[run[0]]}-{names[run[-1]]}" for run in runs]
    return "{" + ", ".join(text[:8]) + (", ..." if len(text) > 8 else "") + "}"


def _check_whole(
    topology: Topology, names: Sequence[str], src: NDArray[np.int64], dst: NDArray[np.int64]
) -> None:
    found = parts(len(names), src, dst)
    if len(found) == 1:
        return
    some = ", ".join(_span(names, part) for part in found[:6]) + (", ..." if len(found) > 6 else "")
    raise PartedError(
        f"topology {topology.kind}: what failed parts the network in {len(found)}: {some}; every NPU must "
        "reach every other, so let fewer fail, or name the cut-off NPUs in failed.npus",
        [[names[i] for i in part] for part in found],
    )


def without(topology: Topology, failed: Failed) -> Topology:
    """The network that is left.

    Parameters
    ----------
    topology : Topology
    failed : Failed

    Returns
    -------
    Topology
        The same one if nothing failed.  NPUs are named where some failed; ``parameters`` says what failed.

    Raises
    ------
    TopologyError
        For an NPU or a link that does not exist, more lanes than there are, or fewer than 2 NPUs left.
    PartedError
        For a network that falls apart; names the parts.
    """
    if not failed:
        return topology
    lanes = _lanes_left(topology, failed)
    there = np.ones(topology.num_nodes, dtype=bool)
    there[[_number(topology, "npus", npu) for npu in failed.npus]] = False
    kept = (lanes > 0) & there[topology.src] & there[topology.dst]
    new = np.cumsum(there) - 1
    npus = int(there[: topology.num_npus].sum())
    if npus < 2:
        raise _refuse("npus", f"{npus} of {topology.num_npus} NPUs are left; expected at least 2")
    names = tuple(topology.npu_name(i) for i in np.flatnonzero(there[: topology.num_npus]))
    nodes = (*names, *["switch"] * (topology.num_nodes - topology.num_npus))
    src, dst = new[topology.src[kept]], new[topology.dst[kept]]
    _check_whole(topology, nodes, src, dst)
    return Topology(
        topology.kind,
        npus,
        src.astype(np.int32),
        dst.astype(np.int32),
        topology.bandwidth_gbps[kept],
        topology.latency_ns[kept],
        lanes[kept].astype(np.int32),
        names if failed.npus or topology.names else (),
        {**topology.parameters, "failed": {k: list(v) for k, v in asdict(failed).items() if v}},
        len(nodes),
    )
