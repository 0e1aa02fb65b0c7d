"""The network as the event loop sees it: links in simulator cycles, and how a message is routed.

Goes in: a topology, or ASTRA-sim's network file.  Comes out: :class:`Network`.  One cycle is 1 ns, or 1 ps
on the picosecond scale (``cycles_per_ns`` 1000).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError, TopologyError
from moxtrace.topology.graph import Topology
from moxtrace.units import bytes_per_ns, gibps_to_bytes_per_ns

__all__ = ["Network", "read_yaml"]

KINDS = ("graph", "fully-connected", "switch", "ring")  # the position is what kernels see
ASTRA_KINDS = {"FullyConnected": "fully-connected", "Switch": "switch", "Ring": "ring"}


@dataclass(frozen=True, eq=False)
class Network:
    """Links and routing of a network, in cycles.

    Every lane of a link is one first-in first-out server: it holds a message for
    ``floor(size / bytes_per_cycle)`` cycles, and the message arrives ``floor(latency + size /
    bytes_per_cycle)`` cycles after its start.  A message takes the lane that frees first.  Messages are
    stored whole and forwarded; buffers are unbounded.

    ========================  =================================================================
    kind                      how a message goes from ``src`` to ``dst``
    ========================  =================================================================
    ``graph``                 over the link ``src -> dst``, which must exist
    ``fully-connected``       the same; every ordered pair has a link
    ``switch``                up over link ``src``, down over link ``num_npus + dst``
    ``ring``                  hop by hop on the shorter side, clockwise (ascending) on a tie;
                              link ``i`` goes ``i -> i + 1``, link ``num_npus + i`` goes ``i -> i - 1``
    ========================  =================================================================

    Parameters
    ----------
    kind : {"graph", "fully-connected", "switch", "ring"}
    num_npus : int
    src, dst : array of int32, shape (links,)
        End points; sorted by ``(src, dst)`` except in a ring.  Node ``num_npus`` is the switch.
    bytes_per_cycle : array of float64, shape (links,)
        Rate of one lane.
    latency : array of float64, shape (links,)
        Propagation delay, cycles.
    lanes : array of int32, shape (links,)
    cycles_per_ns : int
        1, or 1000 where a cycle is a picosecond.
    """

    kind: str
    num_npus: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes_per_cycle: NDArray[np.float64]
    latency: NDArray[np.float64]
    lanes: NDArray[np.int32]
    cycles_per_ns: int = 1

    def __post_init__(self) -> None:
        for array in (self.src, self.dst, self.bytes_per_cycle, self.latency, self.lanes):
            array.setflags(write=False)

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.src)

    @property
    def time_scale(self) -> str:
        """``ps`` or ``ns``, what one cycle is."""
        return "ps" if self.cycles_per_ns == 1000 else "ns"

    def out_ptr(self) -> NDArray[np.int64]:
        """Links that leave node ``u`` are ``out_ptr[u] : out_ptr[u + 1]``; of no use in a ring."""
        return np.searchsorted(self.src, np.arange(self.num_npus + 2)).astype(np.int64)

    @classmethod
    def from_topology(
        cls, topology: Topology, cycles_per_ns: int = 1, bytes_per_cycle: float | None = None
    ) -> Network:
        """The network of a topology, its links numbered as there.

        Parameters
        ----------
        topology : Topology
            A topology with a switching node becomes a ``switch``, any other a ``graph``.
        cycles_per_ns : int
        bytes_per_cycle : float, optional
            The rate of every link, where it is known more exactly than ``bandwidth_gbps`` says it: the
            double that ASTRA-sim computes from its network file.

        Raises
        ------
        TopologyError
            If a rate is overridden although links differ, or a switch is anything but a star of NPUs.
        """
        if bytes_per_cycle is None:
            rate = bytes_per_ns(1.0) * topology.bandwidth_gbps / cycles_per_ns
        elif topology.is_uniform:
            rate = np.full(topology.num_links, bytes_per_cycle)
        else:
            raise TopologyError(
                f"topology {topology.kind}: one rate for all links was given, but its links differ"
            )
        if topology.has_switch:
            n = topology.num_npus
            star = (
                topology.num_nodes == n + 1 and topology.num_links == 2 * n and (topology.src[n:] == n).all()
            )
            if not star:
                raise TopologyError(
                    f"topology {topology.kind}: has switching nodes; only one switch that is linked with "
                    "every NPU can be simulated"
                )
        return cls(
            "switch" if topology.has_switch else "graph",
            topology.num_npus,
            topology.src,
            topology.dst,
            np.ascontiguousarray(rate, np.float64),
            topology.latency_ns * cycles_per_ns,
            topology.lanes,
            cycles_per_ns,
        )

    @classmethod
    def uniform(cls, kind: str, num_npus: int, bytes_per_cycle: float, latency: float) -> Network:
        """One of ASTRA-sim's building blocks with equal links of one lane.

        Parameters
        ----------
        kind : {"fully-connected", "switch", "ring"}
        num_npus : int
        bytes_per_cycle, latency : float
        """
        n = num_npus
        npu = np.arange(n, dtype=np.int32)
        if kind == "switch":
            hub = np.full(n, n, np.int32)
            src, dst = np.concatenate((npu, hub)), np.concatenate((hub, npu))
        elif kind == "ring":
            src, dst = np.tile(npu, 2), np.concatenate(((npu + 1) % n, (npu - 1) % n))
        else:
            src = np.repeat(npu, n - 1)
            step = np.tile(np.arange(n - 1, dtype=np.int32), n)
            dst = step + (step >= src)
        links = len(src)
        return cls(
            kind, n, src, dst.astype(np.int32),
            np.full(links, float(bytes_per_cycle)), np.full(links, float(latency)), np.ones(links, np.int32),
        )  # fmt: skip

    @classmethod
    def from_astra(cls, path: str | Path) -> Network:
        """Read ASTRA-sim's network file: one dimension of ``FullyConnected``, ``Switch`` or ``Ring``.

        Parameters
        ----------
        path : path
            YAML with ``topology``, ``npus_count``, ``bandwidth`` (GiB/s) and ``latency`` (cycles), each a
            list of one.

        Raises
        ------
        ConfigError
            If the file cannot be read, lacks a key, has more than one dimension or a value that is no use.

        References
        ----------
        ``NetworkParser.cpp`` and ``basic-topology`` of astra-network-analytical, ``congestion_aware``.
        """
        read = read_yaml(path, "keys topology, npus_count, bandwidth and latency")
        name = _single(read, "topology", path)
        if name not in ASTRA_KINDS:
            raise ConfigError(
                f"{path}: topology {name!r}; congestion-aware ASTRA-sim knows {', '.join(ASTRA_KINDS)}"
            )
        count = _number(read, "npus_count", path)
        if count != int(count) or count < 2:
            raise ConfigError(f"{path}: npus_count: {count:g}; expected a whole number above 1")
        bandwidth, latency = _number(read, "bandwidth", path), _number(read, "latency", path)
        if bandwidth <= 0:
            raise ConfigError(f"{path}: bandwidth: {bandwidth:g} GiB/s; expected > 0")
        if latency < 0:
            raise ConfigError(f"{path}: latency: {latency:g}; expected >= 0")
        return cls.uniform(ASTRA_KINDS[name], int(count), gibps_to_bytes_per_ns(bandwidth), latency)


def read_yaml(path: str | Path, expected: str) -> dict[Any, Any]:
    """Read a YAML file that must hold a mapping; ``expected`` says of what.

    Raises
    ------
    ConfigError
        If it cannot be read, is no YAML or no mapping.
    """
    import yaml

    try:
        read = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: expected {expected}")
    return read


def _single(read: dict[Any, Any], key: str, path: str | Path) -> Any:
    """The only entry of the list under ``key``."""
    if key not in read:
        raise ConfigError(f"{path}: {key} is missing; expected '{key}: [ VALUE ]'")
    value = read[key]
    if not isinstance(value, list) or len(value) != 1:
        raise ConfigError(
            f"{path}: {key}: {value}; expected a list of one: the congestion-aware network has one dimension"
        )
    return value[0]


def _number(read: dict[Any, Any], key: str, path: str | Path) -> float:
    value = _single(read, key, path)
    try:
        number = float(value)  # also of a string: YAML 1.1 takes 1e-3 for one
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: {key}: {value!r} is no number") from None
    if isinstance(value, bool) or not np.isfinite(number):
        raise ConfigError(f"{path}: {key}: {value!r} is no finite number")
    return number
