"""The network: a directed graph of NPUs and links, held as arrays.

Goes in: the end points, rate, latency and lane count of every link.  Comes out: :class:`Topology`, checked
once, with its adjacency in CSR form.  Builders and readers make one; routing, the engines and the trace
writer read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moxtrace.errors import TopologyError

__all__ = ["MAX_NPUS", "Topology"]

MAX_NPUS = 4096


def _frozen(values: ArrayLike, dtype: Any) -> NDArray[Any]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def _reached_from_0(ptr: NDArray[np.int64], ends: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Nodes that a breadth-first search from node 0 finds, shape (nodes,); one level at a time."""
    seen = np.zeros(len(ptr) - 1, dtype=bool)
    seen[0] = True
    level = np.zeros(1, np.int64)
    while len(level):
        found = np.zeros_like(seen)
        for u in level:
            found[ends[ptr[u] : ptr[u + 1]]] = True
        level = np.flatnonzero(found & ~seen)
        seen |= found
    return seen


@dataclass(frozen=True, eq=False)
class Topology:
    """A network of ``num_npus`` NPUs and, in an ideal switch, one switching node after them.

    Nodes ``0 .. num_npus - 1`` are NPUs; a node from ``num_npus`` on only forwards.  There is one link for
    each ordered pair of adjacent nodes; parallel cables of one pair are its lanes.  Links are sorted by
    ``(src, dst)``, so the links that leave node ``u`` are ``out_ptr[u] : out_ptr[u + 1]``.

    Parameters
    ----------
    kind : str
        What built it: ``expander``, ``ring``, ``graph``, ``switch``, ...
    num_npus : int
        2 to 4,096.
    src, dst : array of int32, shape (links,)
        End points of each link.
    bandwidth_gbps : array of float64, shape (links,)
        Rate of one lane, Gbit/s.
    latency_ns : array of float64, shape (links,)
        Propagation delay, ns.
    lanes : array of int32, shape (links,)
        Parallel cables; a message travels on one of them.
    names : tuple of str
        The user's name of each NPU; empty when NPUs have only numbers.
    parameters : dict
        How to build it again (the configuration block); goes into provenance.

    Raises
    ------
    TopologyError
        For a self-loop, a link named twice, a rate that is not positive and finite, a negative latency, a
        lane count below 1, an end point out of range, or an NPU that some other NPU cannot reach.
    """

    kind: str
    num_npus: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bandwidth_gbps: NDArray[np.float64]
    latency_ns: NDArray[np.float64]
    lanes: NDArray[np.int32]
    names: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    num_nodes: int = 0
    out_ptr: NDArray[np.int64] = field(init=False, repr=False)
    in_ptr: NDArray[np.int64] = field(init=False, repr=False)
    in_link: NDArray[np.int32] = field(init=False, repr=False)
    reverse_link: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        n = int(self.num_npus)
        if not 2 <= n <= MAX_NPUS:
            raise TopologyError(f"topology {self.kind}: {n} NPUs; expected 2 to {MAX_NPUS}")
        nodes = max(n, int(self.num_nodes))
        put("num_nodes", nodes)
        src, dst = np.asarray(self.src, dtype=np.int64), np.asarray(self.dst, dtype=np.int64)
        order = np.lexsort((dst, src))
        put("src", _frozen(src[order], np.int32))
        put("dst", _frozen(dst[order], np.int32))
        for name, dtype in (("bandwidth_gbps", np.float64), ("latency_ns", np.float64), ("lanes", np.int32)):
            values = np.broadcast_to(np.asarray(getattr(self, name), dtype=dtype), src.shape)
            put(name, _frozen(values[order], dtype))
        self._check_links(nodes)
        src, dst = self.src.astype(np.int64), self.dst.astype(np.int64)
        put("out_ptr", _frozen(np.searchsorted(src, np.arange(nodes + 1)), np.int64))
        by_dst = np.lexsort((src, dst))
        put("in_link", _frozen(by_dst, np.int32))
        put("in_ptr", _frozen(np.searchsorted(dst[by_dst], np.arange(nodes + 1)), np.int64))
        put("reverse_link", _frozen(self.link_id(dst, src), np.int32))
        if self.names and len(self.names) != n:
            raise TopologyError(f"topology {self.kind}: {len(self.names)} names for {n} NPUs")
        self._check_connected()

    def _check_links(self, nodes: int) -> None:
        def refuse(bad: NDArray[np.bool_], what: str, values: NDArray[Any] | None = None) -> None:
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                found = "" if values is None else f" {values[i]}"
                link = f"{self.npu_name(self.src[i])} -> {self.npu_name(self.dst[i])}"
                raise TopologyError(f"topology {self.kind}: link {link}: {what}{found}")

        src, dst = self.src, self.dst
        outside = (src < 0) | (src >= nodes) | (dst < 0) | (dst >= nodes)
        refuse(outside, f"names a node outside 0..{nodes - 1}")
        refuse(src == dst, "is a self-loop; an NPU reaches itself without a link: remove it")
        twice = np.zeros(len(src), dtype=bool)
        twice[1:] = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
        refuse(twice, "stands twice; give parallel cables as lanes of one link")
        rate, latency = self.bandwidth_gbps, self.latency_ns
        refuse(~(np.isfinite(rate) & (rate > 0)), "rate must be positive and finite, Gbit/s; found", rate)
        refuse(~(np.isfinite(latency) & (latency >= 0)), "latency must be finite and >= 0 ns; found", latency)
        refuse(self.lanes < 1, "needs at least 1 lane; found", self.lanes)

    def _check_connected(self) -> None:
        for ptr, ends, way in (
            (self.out_ptr, self.dst, "cannot be reached from"),
            (self.in_ptr, self.src[self.in_link], "cannot reach"),
        ):
            lost = np.flatnonzero(~_reached_from_0(ptr, ends))
            if len(lost):
                some = ", ".join(self.npu_name(v) for v in lost[:5]) + (", ..." if len(lost) > 5 else "")
                raise TopologyError(
                    f"topology {self.kind}: disconnected: {len(lost)} of {self.num_nodes} nodes ({some}) "
                    f"{way} NPU {self.npu_name(0)}; every NPU must reach every other"
                )

    def npu_name(self, npu: int | np.integer[Any]) -> str:
        """The user's name of a node, or its number."""
        return self.names[npu] if self.names and 0 <= npu < len(self.names) else str(int(npu))

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.src)

    @property
    def has_switch(self) -> bool:
        """Whether there is a node that is no NPU."""
        return self.num_nodes > self.num_npus

    @property
    def capacity_gbps(self) -> NDArray[np.float64]:
        """Rate of all lanes of each link together, Gbit/s, shape (links,)."""
        return self.bandwidth_gbps * self.lanes

    @property
    def is_symmetric(self) -> bool:
        """Whether every link has a reverse link of the same rate, latency and lanes."""
        back = self.reverse_link
        return bool(
            (back >= 0).all()
            and (self.bandwidth_gbps[back] == self.bandwidth_gbps).all()
            and (self.latency_ns[back] == self.latency_ns).all()
            and (self.lanes[back] == self.lanes).all()
        )

    @property
    def is_uniform(self) -> bool:
        """Whether all links have one rate, one latency and a single lane, as ASTRA-sim requires."""
        return bool(
            (self.bandwidth_gbps == self.bandwidth_gbps[0]).all()
            and (self.latency_ns == self.latency_ns[0]).all()
            and (self.lanes == 1).all()
        )

    def link_id(self, src: ArrayLike, dst: ArrayLike) -> NDArray[np.int64]:
        """Link of each ordered pair, -1 where the pair is not adjacent; shape of the arguments."""
        key = self.src.astype(np.int64) * self.num_nodes + self.dst
        want = np.asarray(src, dtype=np.int64) * self.num_nodes + np.asarray(dst, dtype=np.int64)
        at = np.searchsorted(key, want)
        found = key[np.minimum(at, len(key) - 1)] == want
        return np.where(found, at, -1)

    def out_capacity_gbps(self) -> NDArray[np.float64]:
        """Gbit/s that leave each node, shape (nodes,)."""
        return np.bincount(self.src, self.capacity_gbps, self.num_nodes).astype(np.float64)

    def in_capacity_gbps(self) -> NDArray[np.float64]:
        """Gbit/s that enter each node, shape (nodes,)."""
        return np.bincount(self.dst, self.capacity_gbps, self.num_nodes).astype(np.float64)

    def reversed(self) -> Topology:
        """The graph with every link turned round; combine is routed on it where links are one-way."""
        return Topology(
            self.kind, self.num_npus, self.dst, self.src, self.bandwidth_gbps, self.latency_ns, self.lanes,
            self.names, dict(self.parameters), self.num_nodes,
        )  # fmt: skip

    def relabelled(self, new_of_old: ArrayLike) -> Topology:
        """The same network with NPU ``i`` renamed ``new_of_old[i]`` (a permutation of the NPUs)."""
        to = np.arange(self.num_nodes)
        to[: self.num_npus] = np.asarray(new_of_old)
        if not np.array_equal(np.sort(to), np.arange(self.num_nodes)):
            raise TopologyError(f"topology {self.kind}: relabelling is not a permutation of its NPUs")
        names = tuple(self.names[i] for i in np.argsort(to[: self.num_npus])) if self.names else ()
        return Topology(
            self.kind, self.num_npus, to[self.src].astype(np.int32), to[self.dst].astype(np.int32),
            self.bandwidth_gbps, self.latency_ns, self.lanes, names, dict(self.parameters), self.num_nodes,
        )  # fmt: skip
