"""The graph of a given degree that carries most of a known traffic matrix directly.

Goes in: :class:`Request`, whose ``path`` names the matrix: bytes, tokens or any other weights, indexed
[src, dst], as ``.npy`` or as ``.csv`` without a header.  Comes out: :class:`Wiring`.

Cables carry both ways, so a pair weighs what goes between it in both directions.  The graph is the best of
all connected ones, as ``proved_best`` confirms; of equal ones it is what the solver HiGHS finds, which may
differ between its versions.  Ports that no traffic asks for are filled as well.

References
----------
Liao et al., MixNet: a runtime reconfigurable optical-electrical fabric for distributed mixture-of-experts
training, SIGCOMM 2025: circuits follow the demand of experts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology.request import Ends, Request, Wiring

__all__ = ["demand_tuned"]

Matrix = NDArray[np.float64]
MOST = 512  # NPUs: half a minute
NODES = 2_000  # of the solver's search tree, after which the best so far is taken
SCALE = 1e6  # the largest entry; the solver takes differences below 1e-6 for equal
FILLING = 0.1  # worth of a cable that carries nothing, on the same scale


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


def _best_graph(request: Request, weight: Matrix, degree: int) -> tuple[Ends, bool]:
    """The cables of the connected graph that carries the most weight; an integer program.

    A cable is there or not, an NPU has at most ``degree``.  As long as the best graph falls into parts, each
    part is told to keep a cable to the others.  The flag says whether it is proved to be the best.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, vstack

    npus = len(weight)
    low, high = np.triu_indices(npus, 1)
    pairs = np.arange(len(low))
    ends = csr_array(
        (np.ones(2 * len(pairs)), (np.concatenate((low, high)), np.tile(pairs, 2))), shape=(npus, len(pairs))
    )
    cuts: list[NDArray[np.float64]] = []
    while True:
        rows = vstack([ends, *(csr_array(cut[None]) for cut in cuts)])
        floor = np.concatenate((np.zeros(npus), np.ones(len(cuts))))
        ceiling = np.concatenate((np.full(npus, float(degree)), np.full(len(cuts), np.inf)))
        found = milp(
            -(weight[low, high] + FILLING),
            constraints=LinearConstraint(rows, floor, ceiling),
            integrality=np.ones(len(pairs)),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0, "node_limit": NODES},
        )
        if found.x is None:
            raise request.refuse(
                f"degree {degree}: no connected graph found within {NODES} steps of the search; the nearest: "
                f"degree {degree + 1}"
            )
        taken = found.x > 0.5
        cables = np.stack((low[taken], high[taken]), axis=1)
        inside = _parts(npus, cables)
        if len(inside) == 1:
            return cables, found.status == 0
        cuts += [(part[low] != part[high]).astype(np.float64) for part in inside]


def _parts(npus: int, cables: Ends) -> list[NDArray[np.bool_]]:
    """Which NPUs are in each part, bool, shape (npus,)."""
    import networkx as nx

    graph = nx.empty_graph(npus)
    graph.add_edges_from(cables.tolist())
    return [np.isin(np.arange(npus), list(part)) for part in nx.connected_components(graph)]


def demand_tuned(request: Request) -> Wiring:
    """At most ``degree`` cables at every NPU, one to a pair, chosen for the traffic that they carry."""
    traffic = _read(request)
    npus = request.sized(len(traffic), f"{request.own['path']} is for")
    degree = request.need_degree()
    if npus > MOST:
        raise request.refuse(f"{npus} NPUs; expected at most {MOST}, for which the best graph can be found")
    if not min(2, npus - 1) <= degree < npus:
        raise request.refuse(
            f"degree {degree} cannot connect {npus} NPUs with one cable to a pair; the nearest: degree "
            f"{min(max(degree, 2), npus - 1)}"
        )
    np.fill_diagonal(traffic, 0)
    share = traffic / (traffic.max() or 1.0)
    cables, proved = _best_graph(request, SCALE * (share + share.T), degree)
    direct = share[cables[:, 0], cables[:, 1]].sum() + share[cables[:, 1], cables[:, 0]].sum()
    carried = float(direct / (share.sum() or 1.0))
    return Wiring(npus, cables, settled={"direct_traffic": carried, "proved_best": proved})
