"""Trees of ``mox`` on at most 64 nodes: a set of nodes is a word of bits.

``masks`` are the out-neighbours and the in-neighbours of each node as bits; ``key[v, u]`` is the cost of the
link from ``u`` to ``v`` with its id in the low bits, so that the least key is the cheapest link, the first of
equals.  :mod:`moxtrace.routing.mox.kernels` describes the other arguments.
"""

import numpy as np

from moxtrace.jit import allocating, kernel
from moxtrace.routing.mox.kernels import (
    EXTRA_ABOVE,
    FLOOR,
    HALF,
    NONE,
    STEP,
    TOLL,
    add,
    count_bits,
    emit,
    first_hop,
    lowest_bit,
    next_refresh,
    popularity_at,
    price_links,
    read_own,
    roomier,
)

__all__ = ["MASK_NODES", "grow_masks"]

MASK_NODES = 64
LINK_BITS = 12  # for the 4,032 links that 64 nodes have at most
LINK_MASK = (1 << LINK_BITS) - 1
ONE = np.uint64(1)


@kernel
def _bit(node):
    return ONE << np.uint64(node)


@kernel
def _neighbours(members, mask):
    """Union of the masks of the members of a set."""
    union = np.uint64(0)
    while members:
        union |= mask[lowest_bit(members)]
        members &= members - ONE
    return union


@kernel
def _closure(start, inside, out_mask):
    """Nodes of ``inside`` that ``start``, a part of it, leads to within it."""
    met = front = start
    while front:
        fresh = out_mask[lowest_bit(front)] & inside & ~met
        front &= front - ONE
        met |= fresh
        front |= fresh
    return met


@kernel
def _hold(node, out_mask, key, reach):
    """Offer the links of a new holder to all nodes."""
    members = out_mask[node]
    while members:
        v = lowest_bit(members)
        members &= members - ONE
        reach[v] = min(reach[v], key[v, node])


@kernel
def _deliverable(members, reach):
    """Key of the cheapest link from a holder to one of some destinations, or NONE."""
    best = NONE
    while members:
        best = min(best, reach[lowest_bit(members)])
        members &= members - ONE
    return best


@kernel
def _set_saved(held, pending, in_mask, key, saved):
    """Cost of the cheapest link into each destination from a holder or another destination, or 0."""
    members = pending
    while members:
        d = lowest_bit(members)
        members &= members - ONE
        sources = (held | pending) & in_mask[d]
        least = NONE if sources else np.int64(0)
        while sources:
            least = min(least, key[d, lowest_bit(sources)])
            sources &= sources - ONE
        saved[d] = least >> LINK_BITS


@kernel
def _offer_saved(node, pending, out_mask, key, saved):
    """Keep what :func:`_set_saved` found as ``node`` becomes a holder that was no destination."""
    members = out_mask[node] & pending
    while members:
        d = lowest_bit(members)
        members &= members - ONE
        cost = key[d, node] >> LINK_BITS
        if saved[d] == 0 or cost < saved[d]:
            saved[d] = cost


@kernel
def _extra_relay(outside, pending, in_mask, key, hop, reach, saved, gain):
    """Key of the link to the relay of ``outside`` that saves most, more than the toll, or NONE."""
    cheapest = FLOOR + hop  # no link costs less
    least = TOLL * hop
    members, possible = pending, np.int64(0)
    while members:
        possible += max(0, saved[lowest_bit(members)] - cheapest)
        members &= members - ONE
    if possible <= least + cheapest:
        return NONE
    gain[:] = 0
    nodes, members = np.uint64(0), pending
    while members:
        d = lowest_bit(members)
        members &= members - ONE
        if saved[d] > cheapest:
            front = in_mask[d] & outside
            nodes |= front
            while front:
                x = lowest_bit(front)
                front &= front - ONE
                gain[x] += max(0, saved[d] - (key[d, x] >> LINK_BITS))
    best = NONE
    while nodes:
        x = lowest_bit(nodes)
        nodes &= nodes - ONE
        won = gain[x] - (reach[x] >> LINK_BITS)
        if won > least:
            best, least = reach[x], won
    return best


@kernel
def _cover(held, pending, masks, cover):
    """Find the destinations that each node outside leads to; returns these nodes.

    This serves the whole tree: a later search for a relay finds no destination next to a holder, so with each
    destination reached since, all that it leads to has been reached as well.
    """
    out_mask, in_mask = masks
    cover[:] = 0
    outside, nodes, members = ~(held | pending), np.uint64(0), pending
    while members:
        d = lowest_bit(members)
        members &= members - ONE
        reached = _closure(_bit(d), pending, out_mask)
        front = in_mask[d] & outside
        nodes |= front
        while front:
            cover[lowest_bit(front)] |= reached
            front &= front - ONE
    return nodes


@kernel
def _onward(x, pending, out_mask, key):
    """Key of the cheapest link from ``x`` to a destination."""
    least, members = NONE, out_mask[x] & pending
    while members:
        least = min(least, key[lowest_bit(members), x])
        members &= members - ONE
    return least


@kernel
def _later(x, bound, around, near, pending, out_mask, cover):
    """Most further destinations, ``bound`` at most, that one more relay leads to after relay ``x``."""
    rest, reached = pending & ~cover[x], np.int64(0)
    nodes = around & (near | _neighbours(cover[x] & pending, out_mask) | out_mask[x])
    while nodes and reached < bound:
        reached = max(reached, count_bits(cover[lowest_bit(nodes)] & rest))
        nodes &= nodes - ONE
    return reached


@kernel
def _relay(around, near, pending, masks, key, hop, reach, cover, score):
    """Key of the link to the best relay that has a destination next to it, or NONE.

    ``around`` are the nodes outside that lead to a destination.
    """
    out_mask = masks[0]
    worth = HALF + TOLL * hop
    most, nodes = np.int64(0), around
    while nodes:
        most = max(most, count_bits(cover[lowest_bit(nodes)] & pending))
        nodes &= nodes - ONE
    # scores as if the second relay were the best of all; the most promising first: most others cannot win
    best, least, nodes = np.int64(-1), NONE, around & near
    while nodes:
        x = lowest_bit(nodes)
        nodes &= nodes - ONE
        covered = cover[x] & pending
        if not covered:
            score[x] = NONE
            continue
        onward = _onward(x, pending, out_mask, key)
        score[x] = (reach[x] >> LINK_BITS) + (onward >> LINK_BITS) - worth * count_bits(covered)
        rest = count_bits(pending & ~covered)
        if rest:
            score[x] += worth - worth * min(rest, most)
        if score[x] < least:
            best, least = x, score[x]
    if best < 0:
        return NONE
    x, least, nodes = best, NONE, around & near
    while True:
        total = score[x]
        if total < least or (total == least and x < best):
            bound = min(count_bits(pending & ~cover[x]), most)
            if bound > 0:
                total += worth * (bound - _later(x, bound, around, near, pending, out_mask, cover))
            if total < least or (total == least and x < best):
                best, least = x, total
        if not nodes:
            return reach[best]
        x = lowest_bit(nodes)
        nodes &= nodes - ONE


@kernel
def _approach(held, pending, graph, cost):
    """Key of the first link of the way to the nearest destination."""
    way = graph[5]
    best, near, least = np.int64(-1), NONE, NONE
    members = pending
    while members:
        d = lowest_bit(members)
        members &= members - ONE
        holders = held
        while holders:
            h = lowest_bit(holders)
            holders &= holders - ONE
            if way[d, h] <= near:
                e, total = first_hop(h, d, graph, cost)
                if way[d, h] < near or total < least or (total == least and e < best):
                    best, near, least = e, way[d, h], total
    return cost[best] << LINK_BITS | best


@kernel
def _grow_mask(source, pending, graph, masks, cost, key, hop, steps, scratch):
    """Grow one tree; returns its transfers."""
    src, dst = graph[0], graph[1]
    out_mask, in_mask = masks
    arrival, reach, saved, score, cover = scratch
    held, near = _bit(source), out_mask[source]
    arrival[source] = -1
    reach[:] = NONE
    _hold(source, out_mask, key, reach)
    size, comparing, covering, around = np.int64(0), False, False, np.uint64(0)
    while pending:
        best = _deliverable(pending & near, reach)
        delivering = np.int64(1)
        if best == NONE:
            delivering = np.int64(0)
            if not covering:
                around, covering = _cover(held, pending, masks, cover), True
            around &= ~held
            best = _relay(around, near, pending, masks, key, hop, reach, cover, score)
            if best == NONE:
                best = _approach(held, pending, graph, cost)
        elif (best >> LINK_BITS) > EXTRA_ABOVE + 2 * hop:
            if not comparing:
                _set_saved(held, pending, in_mask, key, saved)
                comparing = True
            outside = near & ~(held | pending)
            extra = _extra_relay(outside, pending, in_mask, key, hop, reach, saved, score)
            if extra < NONE:
                best, delivering = extra, np.int64(0)
        e = best & LINK_MASK
        node = np.int64(dst[e])
        size = add(steps, size, e, arrival[src[e]], delivering)
        arrival[node] = size - 1
        held |= _bit(node)
        near |= out_mask[node]
        _hold(node, out_mask, key, reach)
        if delivering:
            pending &= ~_bit(node)
        elif comparing:
            _offer_saved(node, pending, out_mask, key, saved)
    return size


@allocating
def grow_masks(graph, masks, tables, rows):
    """Grow the tree of every row; at most 64 nodes."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    source, dest_ptr, dest = rows
    nodes = len(out_ptr) - 1
    link, parent = np.empty(2 * len(source), np.int32), np.empty(2 * len(source), np.int32)
    delivers, end = np.empty(2 * len(source), np.bool_), np.empty(len(source), np.int64)
    steps = np.zeros(nodes, STEP)
    scratch = (
        np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64), np.zeros(nodes, np.uint64),
    )  # fmt: skip
    used, cost = np.zeros(len(src), np.int64), np.zeros(len(src), np.int64)
    key = np.zeros((nodes, nodes), np.int64)
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(4, np.int64)
    at_link = np.zeros(len(dst), np.int64)
    filled, first = np.int64(0), 0
    while first < len(source):
        s = np.int64(source[first])
        stop = first
        while stop < len(source) and source[stop] == s:
            stop += 1
        used[:] = 0
        read_own(tables, first, stop, dest_ptr, dest, popularity, own)
        popularity_at(dst, popularity, at_link)
        due = np.int64(0)
        for t in range(first, stop):
            if t - first >= due:
                price_links(tables, s, due, used, at_link, own, cost)
                for e in range(len(src)):
                    key[dst[e], src[e]] = cost[e] << LINK_BITS | e
                due = next_refresh(due, len(dst))
            link, parent, delivers = roomier(filled, nodes, link, parent, delivers)
            pending = np.uint64(0)
            for i in range(dest_ptr[t], dest_ptr[t + 1]):
                pending |= _bit(dest[i])
            size = _grow_mask(s, pending, graph, masks, cost, key, own[1], steps, scratch)
            filled = emit(steps, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
