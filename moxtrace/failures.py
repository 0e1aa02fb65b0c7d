"""What each single failure costs.

Goes in: a :class:`~moxtrace.scenario.Scenario`.  Comes out: for each cable, how much busier the busiest link
of dispatch becomes when one of its lanes fails in both directions: with the weights that were there, as on
the day of the failure, and with weights computed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError
from moxtrace.routing.loads import link_load, summary
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.scenario import Scenario, dispatch_on, weights_on
from moxtrace.topology import Failed, PartedError, Topology, without
from moxtrace.transfers import Phase

__all__ = ["Cost", "FailedCable", "cables", "fail_each_link"]

Progress = Callable[[int, int], None]
Tables = NDArray[np.float64] | MoxTables


@dataclass(frozen=True)
class Cost:
    """A routing after a failure, against the one before.

    Parameters
    ----------
    busiest : float
        Load of the busiest link per unit of its capacity, over that of the whole network.
    bandwidth_tax : float
        Transfers to NPUs that only relay, per delivery.
    """

    busiest: float
    bandwidth_tax: float


@dataclass(frozen=True)
class FailedCable:
    """One lane of a cable, lost both ways.

    Parameters
    ----------
    ends : (str, str)
        Names of the NPUs.
    lanes_left : int
        Lanes that the cable still has.
    kept, recomputed : Cost or None
        With the weights from before, and with new ones: the same where the policy has none.  None if the
        network fell apart.
    parts : list of list of str
        NPUs of each part, where the network fell apart.
    """

    ends: tuple[str, str]
    lanes_left: int
    kept: Cost | None = None
    recomputed: Cost | None = None
    parts: list[list[str]] = field(default_factory=list)


def cables(topology: Topology) -> NDArray[np.int64]:
    """Pairs of NPUs with a link in at least one direction, the lower first, ascending, shape (cables, 2)."""
    ends = np.sort(np.stack((topology.src, topology.dst), axis=1).astype(np.int64), axis=1)
    return np.unique(ends, axis=0)


def _cost(scenario: Scenario, phase: Phase, whole: float) -> Cost:
    tax = float(summary(phase, scenario.demand)["bandwidth_tax"])
    return Cost(float(link_load(phase).max()) / whole if whole else 1.0, tax)


def fail_each_link(
    scenario: Scenario, dispatch: Phase, weights: Tables | None, progress: Progress | None = None
) -> list[FailedCable]:
    """Fail one lane of each cable in turn.

    Parameters
    ----------
    scenario : Scenario
    dispatch : Phase
        Its dispatch on the whole network.
    weights : array of float64, shape (links,), MoxTables, or None
        With which that was routed; None under policies that need nothing.
    progress : callable, optional
        Called as ``progress(cables_done, cables)``.

    Returns
    -------
    list of FailedCable
        In the order of :func:`cables`.  Tokens and placement stay as they were.

    Raises
    ------
    RoutingError
        On an ideal switch, where a lost link leaves an NPU alone.
    """
    network = scenario.topology
    if network.has_switch:
        raise RoutingError(
            "--fail-each-link: an NPU has one link to the ideal switch and is alone without it; choose a "
            "topology without a switch and a policy other than 'switch'"
        )
    whole = float(link_load(dispatch).max())
    every = cables(network)
    found = []
    for done, (a, b) in enumerate(every.tolist()):
        found.append(_fail(scenario, weights, whole, a, b))
        if progress is not None:
            progress(done + 1, len(every))
    return found


def _kept(weights: Tables, links: NDArray[np.int64]) -> Tables:
    """What a policy knew, for the links that are left."""
    if not isinstance(weights, MoxTables):
        return weights[links]
    return replace(
        weights, share=weights.share[:, links], level=weights.level[links], price=weights.price[links]
    )


def _fail(scenario: Scenario, weights: Tables | None, whole: float, a: int, b: int) -> FailedCable:
    network = scenario.topology
    ends = network.npu_name(a), network.npu_name(b)
    there = network.link_id([a, b], [b, a])
    left = int(network.lanes[there[there >= 0]].min()) - 1
    try:
        damaged = without(network, Failed(lanes=[(*ends, 1)]))
    except PartedError as error:
        return FailedCable(ends, left, parts=error.parts)
    if weights is None:
        cost = _cost(scenario, dispatch_on(scenario, damaged, None), whole)
        return FailedCable(ends, left, cost, cost)
    old = _kept(weights, network.link_id(damaged.src, damaged.dst))
    kept, new = (dispatch_on(scenario, damaged, w) for w in (old, weights_on(scenario, damaged)))
    return FailedCable(ends, left, _cost(scenario, kept, whole), _cost(scenario, new, whole))
