"""The rule of ``mox``, and how its kernels are called.

A source keeps a counter per directed link, which starts at 0 in every collective, and knows its own tokens;
of the others it knows nothing.  It compares what it has sent over a link with the share that
:class:`MoxTables` gives it there: if every source is as far over its share as this one, the total is as far
over the mean.

**At the start** of a collective of ``T`` tokens, of which ``n_d`` go to NPU ``d``:

- popularity ``p_d = (n_d + 8 q_d) / ((T + 8) q_d)``, where ``q_d`` is the prior;
- the load that binds ``M = max(1, max_d n_d / T * ingress_d)``, in units of the greatest load of a link
  under uniform traffic;
- the price of a hop ``h = exp(10 (m / M' - 1))``, where ``m`` is the mean level, by capacity, and ``M'`` is
  ``M`` with ``n_d`` less a standard deviation: near 1 where the mean of all links binds, and near 0 where an
  NPU's ingress or a bottleneck does; and likewise ``c = exp(10 (1 / M' - 1))``.

**Costs** are computed before the first token, and again each time that an eighth more tokens have been sent,
1 to 32 (at least one for every 512 links); in between they are frozen, so those tokens do not depend on each
other.  With ``x_e`` copies sent over ``e``, which leads to ``d``, in ``t`` tokens::

    ratio_e  = p_d + (x_e - t share_e p_d) / (t share_e + 4)
    toll_e   = min(price_e, 0.4) c
    excess_e = min(ratio_e level_e / M - 1 + toll_e, 0.1 + 0.3 (1 - c) + max(toll_e, 0))
    cost_e   = 0.05 + h + exp(10 excess_e)

The ratio is ``x_e / (t share_e)`` where that is well known, and nearer the popularity where it is not.  How
far it counts is limited, so that a source whose tokens differ from the others' does not flee its own links;
a discount (a price below 0) does not hide that a link is hot.

**A tree** starts from the source, its first holder.  While destinations are left:

1. If a holder has a link to some of them, take the cheapest such link.  But where it costs more than
   ``0.2 + 2 h``, look for a relay ``x`` that saves more: over all destinations next to ``x``, add up how much
   cheaper the link from ``x`` is than the cheapest link from a holder or another destination; less the
   cheapest link into ``x``, this must exceed ``4 h``.  The relay that saves most becomes a holder instead.
2. Else, if some nodes lie between a holder and a destination, take the one with the lowest score as a relay:
   the cheapest link into it, plus its cheapest link to a destination, less ``w = 0.5 + 4 h`` for each
   destination that it leads to, at once or over others.  Where some remain, ``w`` for one more relay, less
   ``w`` for each destination that the best such leads to.
3. Else approach the nearest destination, where a link is ``1 + stretch price_e`` long, by the link that
   leads nearer with the least sum of cost and remaining length; this sum also decides between equally near
   ones.

At last, relays that serve nobody are dropped.  Ties go to the lowest link or relay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError
from moxtrace.routing.mox import kernels
from moxtrace.routing.mox.lists.kernels import grow_lists
from moxtrace.routing.mox.masks.kernels import MASK_NODES, grow_masks
from moxtrace.routing.mox.tables import MOST_PRICE, MoxTables
from moxtrace.topology.graph import Topology

__all__ = ["exponential", "kernel_for", "length_of", "mean_level"]


def exponential() -> NDArray[np.int64]:
    """``exp(ALPHA x)`` for ``x`` from -1 to 1 in steps of ``1 / UNIT``, in units of ``1 / UNIT``."""
    x = np.arange(2 * kernels.UNIT) / kernels.UNIT - 1.0
    return np.rint(kernels.UNIT * np.exp(kernels.ALPHA * x)).astype(np.int64)


def mean_level(topology: Topology, tables: MoxTables) -> np.int64:
    """Load of all links under uniform traffic over their capacity, in the unit of the levels."""
    capacity = topology.capacity_gbps
    return np.int64(tables.level @ capacity // capacity.sum())


def length_of(tables: MoxTables) -> NDArray[np.int64]:
    """What a link adds to the length of a way: a hop and its price, stretched; shape (links,).

    Not an exponential of the price, as in the costs: it would send all far traffic another way at every step
    of the training.
    """
    return kernels.UNIT + tables.stretch * tables.price


def kernel_for(topology: Topology, tables: MoxTables) -> Callable[..., Any]:
    """The kernel that routes a run of rows.

    Raises
    ------
    RoutingError
        If the tables are of another size than the topology.
    """
    npus, links = topology.num_npus, topology.num_links
    if tables.share.shape != (npus, links):
        raise RoutingError(
            f"routing: mox tables for {tables.share.shape[0]} NPUs and {tables.share.shape[1]} links; "
            f"topology {topology.kind} has {npus} and {links}: compute its own (moxtrace weights)"
        )
    ends = (topology.src, topology.dst, topology.out_ptr, topology.in_ptr, topology.in_link)
    way = kernels.way_costs(topology.src, topology.in_ptr, topology.in_link, length_of(tables), npus)
    mean = mean_level(topology, tables)
    price = np.minimum(tables.price, MOST_PRICE)
    packed = (tables.share, tables.level, price, tables.ingress, tables.prior, exponential(), mean)
    if topology.num_nodes > MASK_NODES:
        # the memory that ways take is what large networks wait for
        narrow = np.uint16 if way.max() < 1 << 16 else np.int64
        return partial(grow_lists, (*ends, way.astype(narrow)), packed)
    return partial(grow_masks, (*ends, way), _masks(topology), packed)


def _masks(topology: Topology) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Out-neighbours and in-neighbours of each node as bits."""
    nodes, src, dst = topology.num_nodes, topology.src, topology.dst
    bit = np.uint64(1) << np.arange(nodes, dtype=np.uint64)
    out_mask, in_mask = np.zeros(nodes, np.uint64), np.zeros(nodes, np.uint64)
    np.bitwise_or.at(out_mask, src, bit[dst])
    np.bitwise_or.at(in_mask, dst, bit[src])
    return out_mask, in_mask
