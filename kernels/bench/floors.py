"""How fast dispatch and combine could be at best: copies of a token, bytes, and the time of the slower wire.

Three ways of sending a token, each a floor of its own: one copy per expert, one per rank that hosts any of
its experts, and one per node, whose ranks pass it on among themselves (multicast). Combine takes the same
ways back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

__all__ = ["WAYS", "Copies", "Fabric", "counted_copies", "expected_copies", "floor_us"]

WAYS = ("per expert", "per rank", "per node")


@dataclass(frozen=True)
class Fabric:
    """What connects the GPUs.

    Attributes
    ----------
    gpus_per_node : int
        Ranks that reach each other over NVLink.
    nvlink, network : float
        Bytes per second that one GPU sends within its node and beyond it.
    """

    gpus_per_node: int = 8
    nvlink: float = 450e9
    network: float = 50e9


@dataclass(frozen=True)
class Copies:
    """Copies of one token that leave a GPU, on average, within the node and beyond it."""

    nvlink: float
    network: float


def _reached(groups: float, experts: int, top_k: int, of: int) -> float:
    """Of ``groups`` equal sets of ``of`` experts, how many a token reaches with uniformly drawn experts."""
    return groups * (1 - comb(experts - of, top_k) / comb(experts, top_k))


def expected_copies(way: str, ranks: int, experts: int, top_k: int, fabric: Fabric) -> Copies:
    """Copies per token when every set of ``top_k`` experts is equally likely.

    Parameters
    ----------
    way : str
        One of ``WAYS``.
    ranks, experts, top_k : int
        ``ranks`` divides ``experts``.
    fabric : Fabric
        How many GPUs a node has.

    Returns
    -------
    Copies
        On average; a token's own rank needs none. With one copy per node, NVLink also carries what the ranks
        of a node pass on.
    """
    node = min(fabric.gpus_per_node, ranks)
    nodes = -(-ranks // node)
    if way == "per expert":
        return Copies(top_k * (node - 1) / ranks, top_k * (ranks - node) / ranks)
    near = _reached(node - 1, experts, top_k, experts // ranks)
    far = _reached(ranks - node, experts, top_k, experts // ranks)
    if way == "per rank":
        return Copies(near, far)
    arrivals = _reached(nodes - 1, experts, top_k, experts // nodes)
    return Copies(near + far - arrivals, arrivals)


def counted_copies(way: str, rank: int, hosts: list[list[int]], fabric: Fabric) -> Copies:
    """Copies per token of one rank, counted from what its tokens name.

    Parameters
    ----------
    way : str
        One of ``WAYS``.
    rank : int
        Where the tokens are.
    hosts : list of list of int
        For each token, the rank that hosts each of its experts.
    fabric : Fabric
        How many GPUs a node has.

    Returns
    -------
    Copies
        On average over the tokens; none at all without tokens.
    """

    def node(of: int) -> int:
        return of // fabric.gpus_per_node

    near = far = passed = 0
    for token in hosts:
        goes = token if way == "per expert" else sorted(set(token))
        near += sum(peer != rank and node(peer) == node(rank) for peer in goes)
        beyond = [peer for peer in goes if node(peer) != node(rank)]
        arrivals = len({node(peer) for peer in beyond}) if way == "per node" else len(beyond)
        far += arrivals
        passed += len(beyond) - arrivals
    tokens = max(len(hosts), 1)
    return Copies((near + passed) / tokens, far / tokens)


def floor_us(tokens: float, copies: Copies, size_bytes: float, fabric: Fabric) -> float:
    """Time of the slower of the two wires, in microseconds.

    Parameters
    ----------
    tokens : float
        Tokens of a rank.
    copies : Copies
        Per token.
    size_bytes : float
        Of one copy.
    fabric : Fabric
        Bytes per second.

    Returns
    -------
    float
        ``max(nvlink copies / nvlink, network copies / network) * tokens * size_bytes``; no latency, no
        overhead.
    """
    return tokens * size_bytes * 1e6 * max(copies.nvlink / fabric.nvlink, copies.network / fabric.network)
