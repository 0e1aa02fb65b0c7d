"""The graph of a given degree that carries most of a known traffic matrix directly.

Goes in: :class:`Request`, whose ``path`` names the matrix: bytes, tokens or any other weights, indexed
[src, dst], as ``.npy`` or as ``.csv`` without a header.  Comes out: :class:`Wiring`.

Cables carry both ways, so a pair weighs what goes between it in both directions.  Degree after degree, a
matching of the most weight among the most pairs is added; then cables are exchanged in twos for as long as
that gains; at last, parts that are not connected are joined at the least loss.

References
----------
Liao et al., MixNet: a runtime reconfigurable optical-electrical fabric for distributed mixture-of-experts
training, SIGCOMM 2025: circuits follow the demand of experts.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology.request import Ends, Request, Wiring

__all__ = ["demand_tuned"]

Matrix = NDArray[np.float64]
Pair = tuple[int, int]
Step = tuple[tuple[Pair, ...], tuple[Pair, ...]]  # cables taken out, cables put in
SCALE = 1 << 30  # weights become whole numbers up to twice this, with which matching is exact


def _read(request: Request) -> Matrix:
    """The traffic matrix, checked."""
    path = Path(request.own["path"] or "")
    if request.own["path"] is None:
        raise request.refuse("path is missing; name a traffic matrix, .npy or .csv")
    if path.suffix.lower() not in (".npy", ".csv"):
        raise request.refuse(f"{path}: unknown format {path.suffix!r}; expected a matrix, .npy or .csv")
    try:
        if path.suffix.lower() == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8")
        traffic = np.array(found, dtype=np.float64)
    except OSError as error:
        raise request.refuse(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError) as error:
        detail = " ".join(str(error).split())
        raise request.refuse(f"{path}: is no matrix of numbers: {detail}") from error
    if traffic.ndim != 2 or traffic.shape[0] != traffic.shape[1] or len(traffic) < 2:
        raise request.refuse(f"{path}: has shape {traffic.shape}; expected (npus, npus), src by dst")
    if not (np.isfinite(traffic) & (traffic >= 0)).all():
        src, dst = np.argwhere(~(np.isfinite(traffic) & (traffic >= 0)))[0]
        raise request.refuse(f"{path}: {traffic[src, dst]} from {src} to {dst}; expected numbers >= 0")
    return traffic


def _matchings(weight: NDArray[np.int64], degree: int) -> NDArray[np.bool_]:
    """The union of ``degree`` matchings, one after the other, as an adjacency matrix."""
    import networkx as nx

    npus = len(weight)
    linked = np.zeros((npus, npus), dtype=bool)
    for _ in range(degree):
        graph = nx.Graph()
        graph.add_nodes_from(range(npus))
        low, high = np.nonzero(np.triu(~linked, 1))
        graph.add_weighted_edges_from(
            zip(low.tolist(), high.tolist(), weight[low, high].tolist(), strict=True)
        )
        for a, b in sorted(nx.max_weight_matching(graph, maxcardinality=True)):
            linked[a, b] = linked[b, a] = True
    return linked


def _cables(linked: NDArray[np.bool_]) -> Ends:
    return np.argwhere(np.triu(linked, 1))


def _swap(linked: NDArray[np.bool_], gone: Ends, new: Ends) -> None:
    for ends, value in ((gone, False), (new, True)):
        for a, b in ends:
            linked[a, b] = linked[b, a] = value


def _improve(linked: NDArray[np.bool_], weight: NDArray[np.int64]) -> None:
    """Take cables a-b, c-d to a-c, b-d while that gains; of the swaps of a cable, the best first."""
    gained = True
    while gained:
        gained = False
        for a, b in _cables(linked):
            for u, v in ((a, b), (b, a)):
                if not linked[u, v]:
                    break
                cables = _cables(linked)
                c, d = np.concatenate((cables, cables[:, ::-1])).T
                gain = weight[u, c] + weight[v, d] - weight[u, v] - weight[c, d]
                gain[linked[u, c] | linked[v, d] | (u == c) | (v == d) | (u == d) | (v == c)] = 0
                best = int(gain.argmax())
                if gain[best] > 0:
                    x, y = c[best], d[best]
                    _swap(linked, np.array([(u, v), (x, y)]), np.array([(u, x), (v, y)]))
                    gained = True


def _parts(linked: NDArray[np.bool_]) -> list[list[int]]:
    """NPUs that are connected, by part."""
    import networkx as nx

    return [sorted(part) for part in nx.connected_components(nx.from_numpy_array(linked))]


def _join(linked: NDArray[np.bool_], weight: NDArray[np.int64], degree: int) -> bool:
    """Join two parts at the least loss; False where no cable is left to do so.

    A cable between two free ports, or two cables, one of either part, crossed over; or a cable opened for
    an NPU with two free ports.  Of these the best that leaves fewer parts.
    """
    parts = _parts(linked)
    part_of = np.zeros(len(linked), int)
    for i, part in enumerate(parts):
        part_of[part] = i
    free = np.flatnonzero(linked.sum(axis=1) < degree).tolist()
    steps: list[Step] = [((), ((a, b),)) for a, b in combinations(free, 2) if part_of[a] != part_of[b]]
    cables = [(a, b) for a, b in _cables(linked).tolist()]
    for (a, b), (c, d) in combinations(cables, 2):
        if part_of[a] != part_of[c]:
            steps += [(((a, b), (c, d)), ((a, c), (b, d))), (((a, b), (c, d)), ((a, d), (b, c)))]
    for x in np.flatnonzero(linked.sum(axis=1) + 2 <= degree).tolist():
        steps += [(((a, b),), ((a, x), (x, b))) for a, b in cables if part_of[a] != part_of[x]]
    steps.sort(key=lambda step: sum(int(weight[e]) * sign for sign, s in ((1, 0), (-1, 1)) for e in step[s]))
    for gone, new in steps:
        trial = linked.copy()
        _swap(trial, np.array(gone, int).reshape(-1, 2), np.array(new, int))
        if len(_parts(trial)) < len(parts):
            linked[:] = trial
            return True
    return False


def demand_tuned(request: Request) -> Wiring:
    """At most ``degree`` cables at every NPU, one to a pair, chosen for the traffic that they carry."""
    traffic = _read(request)
    npus = request.sized(len(traffic), f"{request.own['path']} is for")
    degree = request.need_degree()
    if not min(2, npus - 1) <= degree < npus:
        raise request.refuse(
            f"degree {degree} cannot connect {npus} NPUs with one cable to a pair; the nearest: degree "
            f"{min(max(degree, 2), npus - 1)}"
        )
    np.fill_diagonal(traffic, 0)
    share = traffic / (traffic.max() or 1.0)
    between = share + share.T
    whole = np.rint(between * SCALE).astype(np.int64)
    linked = _matchings(whole, degree)
    _improve(linked, whole)
    while len(_parts(linked)) > 1:
        if not _join(linked, whole, degree):
            raise request.refuse(f"degree {degree} leaves separate parts; the nearest: degree {degree + 1}")
    total = float(between.sum()) / 2
    direct = float(between[linked].sum()) / 2
    return Wiring(npus, _cables(linked), settled={"direct_traffic": direct / total if total else 1.0})
