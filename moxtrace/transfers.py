"""The one intermediate representation: a phase is a forest of transfers.

Goes in: the links and parents that routing chose.  Comes out: :class:`Phase` for dispatch and for combine.
Link loads, the trace writer, the built-in engine and ``verify`` read this and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError
from moxtrace.jit import allocating, kernel
from moxtrace.topology.graph import Topology

__all__ = ["Phase", "combine_of"]


@dataclass(frozen=True, eq=False)
class Phase:
    """Transfers of one phase: tree after tree, one tree per row of the demand.

    In *dispatch* data flows away from the sources: a transfer may start when its parent has arrived, at once
    where it has none.  In *combine* it flows towards them: a transfer may start when every transfer whose
    parent it is has arrived and their partial sums, with the node's own where it is a destination, are
    reduced into one.

    Parameters
    ----------
    name : {"dispatch", "combine"}
    topology : Topology
    link : array of int32, shape (transfers,)
        Directed link that carries each transfer.
    parent : array of int32, shape (transfers,)
        The next transfer on the way to the tree's source, in either phase; -1 for one that touches it.
        In a tree, a parent stands before its children.
    tree_ptr : array of int64, shape (rows + 1,)
        Transfers of tree ``t`` are ``tree_ptr[t] : tree_ptr[t + 1]``.
    delivers : array of bool, shape (transfers,)
        Whether the end far from the source is a destination of the row; elsewhere it is only a relay.
    size_bytes : int
        Size of every message, bytes.
    """

    name: str
    topology: Topology
    link: NDArray[np.int32]
    parent: NDArray[np.int32]
    tree_ptr: NDArray[np.int64]
    delivers: NDArray[np.bool_]
    size_bytes: int

    def __post_init__(self) -> None:
        if self.name not in ("dispatch", "combine"):
            raise RoutingError(f"phase {self.name!r}: expected dispatch or combine")
        if not len(self.link) == len(self.parent) == len(self.delivers) == self.tree_ptr[-1]:
            raise RoutingError(f"phase {self.name}: link, parent, delivers and tree_ptr disagree in length")
        if self.size_bytes <= 0:
            raise RoutingError(f"phase {self.name}: messages of {self.size_bytes} bytes; expected > 0")
        for array in (self.link, self.parent, self.tree_ptr, self.delivers):
            array.setflags(write=False)

    @property
    def toward_source(self) -> bool:
        """Whether data flows from the leaves to the source (combine)."""
        return self.name == "combine"

    @property
    def num_transfers(self) -> int:
        """Messages over single links."""
        return len(self.link)

    @property
    def num_trees(self) -> int:
        """Rows of the demand."""
        return len(self.tree_ptr) - 1

    @property
    def src(self) -> NDArray[np.int32]:
        """Node that sends each transfer."""
        return self.topology.src[self.link]

    @property
    def dst(self) -> NDArray[np.int32]:
        """Node that receives each transfer."""
        return self.topology.dst[self.link]

    def tree(self) -> NDArray[np.int32]:
        """Row of the demand that each transfer belongs to."""
        return np.repeat(np.arange(self.num_trees, dtype=np.int32), np.diff(self.tree_ptr))

    def children_count(self) -> NDArray[np.int32]:
        """Transfers that have each transfer as their parent."""
        return _children_count(self.parent)

    @property
    def forest(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]:
        """The transfers alone: ``link``, ``parent``, ``tree_ptr``, ``delivers``."""
        return self.link, self.parent, self.tree_ptr, self.delivers

    def link_messages(self) -> NDArray[np.int64]:
        """Messages that each link carries, shape (links,)."""
        count = np.zeros(self.topology.num_links, np.int64)
        _count(self.link, count)
        return count

    def link_bytes(self) -> NDArray[np.int64]:
        """Bytes that each link carries, shape (links,)."""
        return self.link_messages() * self.size_bytes


@allocating
def _children_count(parent):  # type: ignore[no-untyped-def]
    count = np.zeros(len(parent), np.int32)
    for p in parent:
        if p >= 0:
            count[p] += 1
    return count


@kernel
def _count(link, count):  # type: ignore[no-untyped-def]
    """Add 1 to the count of each link named; ``bincount`` would copy the links into twice the room."""
    for e in link:
        count[e] += 1


@kernel
def _turned(back, link, turned):  # type: ignore[no-untyped-def]
    """Fill in the reverse of each link; returns the first that has none, or -1."""
    for i in range(len(link)):
        turned[i] = back[link[i]]
        if turned[i] < 0:
            return i
    return -1


def combine_of(dispatch: Phase, topology: Topology, size_bytes: int) -> Phase:
    """The combine that undoes ``dispatch``: every tree turned round on the links of ``topology``.

    Parameters
    ----------
    dispatch : Phase
        Routed on ``topology`` itself where each link has a reverse, else on ``topology.reversed()``.
    topology : Topology
        The network that combine runs on.
    size_bytes : int
        Size of a partial sum, bytes.

    Raises
    ------
    RoutingError
        If some transfer's link has no reverse in ``topology``.
    """
    back = topology.link_id(dispatch.topology.dst, dispatch.topology.src)
    link = np.empty(dispatch.num_transfers, np.int32)
    i = _turned(back, dispatch.link, link)
    if i >= 0:
        e, graph = dispatch.link[i], dispatch.topology
        raise RoutingError(
            f"combine: link {graph.src[e]} -> {graph.dst[e]} of dispatch has no reverse; "
            "route combine on the reversed topology"
        )
    return Phase("combine", topology, link, dispatch.parent, dispatch.tree_ptr, dispatch.delivers, size_bytes)
