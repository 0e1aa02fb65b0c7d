"""Trees of ``mox`` on at most 64 nodes: a set of nodes is a word of bits.

``masks`` are the out-neighbours and the in-neighbours of each node as bits, and the link of each pair of
nodes; :mod:`moxtrace.routing.mox.kernels` describes the other arguments.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moxtrace.jit import allocating, kernel
from moxtrace.routing.mox.kernels import (
    EXTRA_ABOVE,
    HALF,
    NONE,
    TOLL,
    TREE,
    add,
    emit,
    first_hop,
    next_refresh,
    price_links,
    read_own,
    roomier,
)

__all__ = ["MASK_NODES", "grow_masks"]

MASK_NODES = 64
ONE = np.uint64(1)


def _lowest_code(typingctx, word):
    """Index of the lowest set bit."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), codegen


def _count_code(typingctx, word):
    """Number of set bits."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


_lowest: Any = intrinsic(_lowest_code)
_count: Any = intrinsic(_count_code)


@kernel
def _bit(node):
    return ONE << np.uint64(node)


@kernel
def _neighbours(members, mask):
    """Union of the masks of the members of a set."""
    union = np.uint64(0)
    while members:
        union |= mask[_lowest(members)]
        members &= members - ONE
    return union


@kernel
def _closure(start, inside, out_mask):
    """Nodes of ``inside`` that ``start``, a part of it, leads to within it."""
    met = front = start
    while front:
        fresh = out_mask[_lowest(front)] & inside & ~met
        front &= front - ONE
        met |= fresh
        front |= fresh
    return met


@kernel
def _cheapest_in(v, sources, in_mask, link_of, cost):
    """Cheapest link into ``v`` from a set, the first of equals, or -1."""
    best, least = np.int64(-1), NONE
    members = sources & in_mask[v]
    while members:
        e = np.int64(link_of[_lowest(members), v])
        members &= members - ONE
        if cost[e] < least:
            best, least = e, cost[e]
    return best


@kernel
def _offer(node, pending, out_mask, link_of, cost, tree):
    """Offer the links of a new holder to the destinations not reached yet."""
    members = out_mask[node] & pending
    while members:
        d = _lowest(members)
        members &= members - ONE
        e, old = np.int64(link_of[node, d]), tree[d].reach
        if old < 0 or cost[e] < cost[old] or (cost[e] == cost[old] and e < old):
            tree[d].reach = e


@kernel
def _deliverable(pending, cost, tree):
    """Cheapest link from a holder to a destination, or -1."""
    best, least = np.int64(-1), NONE
    members = pending
    while members:
        e = tree[_lowest(members)].reach
        members &= members - ONE
        if e >= 0 and (cost[e] < least or (cost[e] == least and e < best)):
            best, least = e, cost[e]
    return best


@kernel
def _extra_relay(held, pending, masks, cost, tree, least):
    """Link to the relay that saves most, more than ``least``, or -1."""
    out_mask, in_mask, link_of = masks
    members = pending
    while members:
        d = _lowest(members)
        members &= members - ONE
        e = _cheapest_in(d, held | pending, in_mask, link_of, cost)
        tree[d].saved = cost[e] if e >= 0 else 0
    best = np.int64(-1)
    nodes = _neighbours(held, out_mask) & _neighbours(pending, in_mask) & ~(held | pending)
    while nodes:
        x = _lowest(nodes)
        nodes &= nodes - ONE
        gain = np.int64(0)
        members = out_mask[x] & pending
        while members:
            d = _lowest(members)
            members &= members - ONE
            gain += max(0, tree[d].saved - cost[link_of[x, d]])
        if gain > least:
            e = _cheapest_in(x, held, in_mask, link_of, cost)
            if gain - cost[e] > least:
                best, least = e, gain - cost[e]
    return best


@kernel
def _second_cover(held, rest, masks):
    """Most destinations of ``rest`` that one more relay, next to ``held``, leads to."""
    out_mask, in_mask, _ = masks
    most = np.int64(0)
    nodes = _neighbours(rest, in_mask) & _neighbours(held, out_mask) & ~held
    while nodes:
        y = _lowest(nodes)
        nodes &= nodes - ONE
        most = max(most, _count(_closure(out_mask[y] & rest, rest, out_mask)))
    return most


@kernel
def _relay(held, pending, masks, cost, hop):
    """Link to the best relay that has a destination next to it, or -1."""
    out_mask, in_mask, link_of = masks
    worth = HALF + TOLL * hop
    best, least = np.int64(-1), NONE
    nodes = _neighbours(held, out_mask) & _neighbours(pending, in_mask) & ~held
    while nodes:
        x = _lowest(nodes)
        nodes &= nodes - ONE
        near = out_mask[x] & pending
        covered = _closure(near, pending, out_mask)
        into = _cheapest_in(x, held, in_mask, link_of, cost)
        onward = NONE
        while near:
            onward = min(onward, cost[link_of[x, _lowest(near)]])
            near &= near - ONE
        score = cost[into] + onward - worth * _count(covered)
        rest = pending & ~covered
        if rest and score + worth - worth * _count(rest) < least:  # else it cannot win
            score += worth - worth * _second_cover(held | covered | _bit(x), rest, masks)
        if score < least:
            best, least = into, score
    return best


@kernel
def _approach(held, pending, graph, cost):
    """First link of the way to the nearest destination."""
    way = graph[5]
    best, near, least = np.int64(-1), NONE, NONE
    members = pending
    while members:
        d = _lowest(members)
        members &= members - ONE
        holders = held
        while holders:
            h = _lowest(holders)
            holders &= holders - ONE
            if way[d, h] <= near:
                e, total = first_hop(h, d, graph, cost)
                if way[d, h] < near or total < least or (total == least and e < best):
                    best, near, least = e, way[d, h], total
    return best


@kernel
def _grow_mask(source, pending, graph, masks, cost, hop, tree):
    """Grow one tree; returns its transfers."""
    src, dst = graph[0], graph[1]
    held = _bit(source)
    tree[source].arrival = -1
    members = pending
    while members:
        tree[_lowest(members)].reach = -1
        members &= members - ONE
    _offer(source, pending, masks[0], masks[2], cost, tree)
    size = np.int64(0)
    while pending:
        e = _deliverable(pending, cost, tree)
        delivering = np.int64(1)
        if e < 0:
            delivering = np.int64(0)
            e = _relay(held, pending, masks, cost, hop)
            if e < 0:
                e = _approach(held, pending, graph, cost)
        elif cost[e] > EXTRA_ABOVE + 2 * hop:
            extra = _extra_relay(held, pending, masks, cost, tree, TOLL * hop)
            if extra >= 0:
                e, delivering = extra, np.int64(0)
        size = add(tree, size, e, src, dst, delivering)
        reached = _bit(dst[e])
        held |= reached
        pending &= ~reached
        _offer(dst[e], pending, masks[0], masks[2], cost, tree)
    return size


@allocating
def grow_masks(graph, masks, tables, rows):
    """Grow the tree of every row; at most 64 nodes."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    source, dest_ptr, dest = rows
    nodes = len(out_ptr) - 1
    link, parent = np.empty(2 * len(source), np.int32), np.empty(2 * len(source), np.int32)
    delivers, end = np.empty(2 * len(source), np.bool_), np.empty(len(source), np.int64)
    tree = np.zeros(nodes, TREE)
    used, cost = np.zeros(len(src), np.int64), np.zeros(len(src), np.int64)
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(4, np.int64)
    filled, first = np.int64(0), 0
    while first < len(source):
        s = np.int64(source[first])
        stop = first
        while stop < len(source) and source[stop] == s:
            stop += 1
        used[:] = 0
        read_own(tables, first, stop, dest_ptr, dest, popularity, own)
        due = np.int64(0)
        for t in range(first, stop):
            if t - first >= due:
                price_links(dst, tables, s, due, used, popularity, own, cost)
                due = next_refresh(due, len(dst))
            link, parent, delivers = roomier(filled, nodes, link, parent, delivers)
            pending = np.uint64(0)
            for i in range(dest_ptr[t], dest_ptr[t + 1]):
                pending |= _bit(dest[i])
            size = _grow_mask(s, pending, graph, masks, cost, own[1], tree)
            filled = emit(tree, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
