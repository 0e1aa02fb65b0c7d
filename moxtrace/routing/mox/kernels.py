"""Kernels of the policy ``mox``: :mod:`moxtrace.routing.mox.policy` states the rule.

All numbers are integers, so every machine makes the same choices.  Ratios, levels, prices and costs count
in ``1 / UNIT``, copies per token in ``1 / FINE``.  Two kernels grow the same trees: :func:`grow_masks` holds
sets of at most 64 nodes as bits of a word, :func:`grow_lists` walks the adjacency of larger networks.  Their
slow twin is ``tests/reference/mox.py``.

Arguments that belong together travel as plain tuples:

- ``graph``: ``src, dst, out_ptr, in_ptr, in_link`` of the topology, and ``way`` of :func:`way_costs`;
- ``tables``: ``share, level, price, ingress, prior`` of the tables, and ``exponential``;
- ``rows``: ``source, dest_ptr`` of the run, and the whole demand's ``dest``, which ``dest_ptr`` points into;
- result: ``link, parent, delivers`` of each transfer, and ``end``, one past the last transfer of each row.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moxtrace.jit import allocating, kernel

__all__ = ["ALPHA", "FINE", "MASK_NODES", "UNIT", "grow_lists", "grow_masks", "way_costs"]

UNIT = 1 << 10
FINE = 1 << 20
MASK_NODES = 64
ALPHA = 10  # steepness of the cost
FLOOR = 51  # a link costs this at least: 0.05
PRIOR_TOKENS = 8  # weight of the uniform prior in a destination's popularity, in tokens
PRIOR_COPIES = 4  # weight of the popularity in a link's ratio, in copies
STIFFNESS = 4  # copies per NPU from which on a link's ratio follows the count, not the quotient
NEAR, FAR = 102, 410  # greatest excess of a link that still counts: 0.1 where the mean binds, else up to 0.4
TOLL = 4  # what an extra relay must save, and what coverage is worth, in hops
HALF = 512
EXTRA_ABOVE = 205  # a link that costs at most 0.2, and twice the price of a hop, is never avoided
SLOWEST = 32  # tokens between two refreshes, at most
NONE = np.int64(1) << 60
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


# ---- what a source knows


@kernel
def _square_root(x):
    """The whole square root of an integer."""
    root = np.int64(np.sqrt(np.float64(x)))
    while root * root > x:
        root -= 1
    while (root + 1) * (root + 1) <= x:
        root += 1
    return root


@kernel
def _read_own(tables, source, first, stop, dest_ptr, dest, popularity, own):
    """Count where a source's tokens go: the popularity of each NPU, and the load that binds.

    ``own`` gets the busiest ingress that it foresees, the price of a hop, and the greatest excess.
    """
    _, _, _, ingress, prior, exponential = tables
    npus = len(prior)
    tokens = stop - first
    popularity[:] = 0
    for i in range(dest_ptr[first], dest_ptr[stop]):
        popularity[dest[i]] += 1
    busiest, sure = np.int64(UNIT), np.int64(UNIT)
    for d in range(npus):
        copies = popularity[d]
        busiest = max(busiest, copies * ingress[d] // tokens)
        sure = max(sure, (copies - _square_root(copies)) * ingress[d] // tokens)  # a deviation below
        if prior[d] > 0 and d != source:
            expected = (tokens + PRIOR_TOKENS) * prior[d]
            popularity[d] = ((copies << 20) + PRIOR_TOKENS * prior[d]) * UNIT // expected
        else:
            popularity[d] = UNIT
    hop = exponential[max(0, UNIT * UNIT // sure)]
    own[0], own[1], own[2] = busiest, hop, NEAR + ((FAR - NEAR) * (UNIT - hop) >> 10)


@kernel
def _price_links(dst, tables, source, seen, used, popularity, own, cost):
    """Costs of all links, from the counters as they stand after ``seen`` tokens."""
    share, level, price, _, _, exponential = tables
    inverse = (np.int64(1) << 30) // own[0]
    hop, most = own[1], own[2]
    memory = STIFFNESS * len(popularity) * FINE
    for e in range(len(dst)):
        d = dst[e]
        p = popularity[d] if d < len(popularity) else np.int64(UNIT)
        sent = seen * share[source, e]
        ahead = (used[e] << 20) - (sent * p >> 10)
        ratio = p + ahead * UNIT // (min(sent, memory) + PRIOR_COPIES * FINE)
        excess = min((ratio * level[e] * inverse >> 30) - UNIT, most) + (price[e] * hop >> 10)
        at = min(max(excess + UNIT, 0), len(exponential) - 1)
        cost[e] = FLOOR + hop + exponential[at]


@kernel
def _next_refresh(seen):
    return seen + min(SLOWEST, max(1, seen >> 3))


# ---- the tree of a token

# A record per node; the fields in the second half are lists that share the array.
TREE = np.dtype(
    [
        ("state", np.int64),  # 2 * stamp: a destination not reached yet; 2 * stamp + 1: a holder
        ("arrival", np.int64),  # transfer that brought the token to a holder
        ("seen", np.int64),  # stamp: some holder has a link to the node
        ("reach", np.int64),  # the cheapest such link
        ("mark", np.int64),  # search that has met the node
        ("other", np.int64),  # search, where two run at a time
        ("gain", np.int64),  # what the node saves as an extra relay
        ("tried", np.int64),  # search that has tried the node
        ("saved", np.int64),  # cheapest way to a destination, of its own
        ("pending", np.int32),  # list: destinations not reached yet
        ("held", np.int32),  # list: holders
        ("queue", np.int32),  # list: nodes of the present search
        ("candidate", np.int32),  # list: possible relays
        ("link", np.int64),  # list: link of each transfer
        ("parent", np.int64),  # list: transfer before it, -1 at the root
        ("needed", np.int64),  # list: whether it delivers, or leads to one that does
        ("delivers", np.int64),  # list: whether it delivers
        ("place", np.int64),  # list: where it goes in the result
    ]
)


@kernel
def _emit(tree, size, used, filled, link, parent, delivers):
    """Write a finished tree without the relays that serve nobody; returns the new length of the result."""
    for i in range(size - 1, -1, -1):
        if tree[i].needed and tree[i].parent >= 0:
            tree[tree[i].parent].needed = 1
    for i in range(size):
        if tree[i].needed:
            before = tree[i].parent
            link[filled] = tree[i].link
            parent[filled] = tree[before].place if before >= 0 else -1
            delivers[filled] = tree[i].delivers == 1
            tree[i].place = filled
            used[tree[i].link] += 1
            filled += 1
    return filled


@kernel
def _add(tree, size, e, src, dst, delivering):
    """Record the transfer over link ``e``."""
    tree[size].link = e
    tree[size].parent = tree[src[e]].arrival
    tree[size].needed = tree[size].delivers = delivering
    tree[dst[e]].arrival = size
    return size + 1


@allocating
def _roomier(filled, least, link, parent, delivers):
    """The result's arrays with room for ``least`` more transfers."""
    if filled + least <= len(link):
        return link, parent, delivers
    room = filled + least + filled // 2
    more_link, more_parent = np.empty(room, np.int32), np.empty(room, np.int32)
    more_delivers = np.empty(room, np.bool_)
    more_link[:filled] = link[:filled]
    more_parent[:filled] = parent[:filled]
    more_delivers[:filled] = delivers[:filled]
    return more_link, more_parent, more_delivers


@allocating
def way_costs(src, in_ptr, in_link, cost, num_npus):
    """Cost of the cheapest way from every node to every NPU, int64, shape [NPU, node]; Dijkstra's."""
    nodes = len(in_ptr) - 1
    way = np.full((num_npus, nodes), NONE)
    heap_key, heap_node = np.empty(len(src) + 1, np.int64), np.empty(len(src) + 1, np.int64)
    for d in range(num_npus):
        row = way[d]
        row[d] = 0
        heap_key[0], heap_node[0] = 0, d
        size = 1
        while size > 0:
            key, v = heap_key[0], heap_node[0]
            size -= 1
            last_key, last_node = heap_key[size], heap_node[size]
            at = 0
            while 2 * at + 1 < size:
                child = 2 * at + 1
                if child + 1 < size and heap_key[child + 1] < heap_key[child]:
                    child += 1
                if heap_key[child] >= last_key:
                    break
                heap_key[at], heap_node[at] = heap_key[child], heap_node[child]
                at = child
            heap_key[at], heap_node[at] = last_key, last_node
            if key > row[v]:
                continue
            for i in range(in_ptr[v], in_ptr[v + 1]):
                e = in_link[i]
                u = np.int64(src[e])
                total = key + cost[e]
                if total < row[u]:
                    row[u] = total
                    at = size
                    size += 1
                    while at > 0 and heap_key[(at - 1) >> 1] > total:
                        heap_key[at], heap_node[at] = heap_key[(at - 1) >> 1], heap_node[(at - 1) >> 1]
                        at = (at - 1) >> 1
                    heap_key[at], heap_node[at] = total, u
    return way


# ---- sets as words


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
    _, dst, out_ptr, _, _, way = graph
    at, target, least = np.int64(-1), np.int64(-1), NONE
    members = pending
    while members:
        d = _lowest(members)
        members &= members - ONE
        holders = held
        while holders:
            h = _lowest(holders)
            holders &= holders - ONE
            if way[d, h] < least:
                at, target, least = h, d, way[d, h]
    return _first_hop(at, target, dst, out_ptr, way, cost)


@kernel
def _first_hop(at, target, dst, out_ptr, way, cost):
    best, least = np.int64(-1), NONE
    for e in range(out_ptr[at], out_ptr[at + 1]):
        onward = way[target, dst[e]]
        if onward < way[target, at] and cost[e] + onward < least:
            best, least = np.int64(e), cost[e] + onward
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
        size = _add(tree, size, e, src, dst, delivering)
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
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(3, np.int64)
    filled, first = np.int64(0), 0
    while first < len(source):
        s = np.int64(source[first])
        stop = first
        while stop < len(source) and source[stop] == s:
            stop += 1
        used[:] = 0
        _read_own(tables, s, first, stop, dest_ptr, dest, popularity, own)
        due = np.int64(0)
        for t in range(first, stop):
            if t - first >= due:
                _price_links(dst, tables, s, due, used, popularity, own, cost)
                due = _next_refresh(due)
            link, parent, delivers = _roomier(filled, nodes, link, parent, delivers)
            pending = np.uint64(0)
            for i in range(dest_ptr[t], dest_ptr[t + 1]):
                pending |= _bit(dest[i])
            size = _grow_mask(s, pending, graph, masks, cost, own[1], tree)
            filled = _emit(tree, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end


# ---- sets as lists


@kernel
def _list_cheapest_in(v, in_ptr, in_link, src, cost, tree, stamp, also_pending):
    """Cheapest link into ``v`` from a holder (or a destination to come), the first of equals, or -1."""
    best, least = np.int64(-1), NONE
    for i in range(in_ptr[v], in_ptr[v + 1]):
        e = np.int64(in_link[i])
        state = tree[src[e]].state
        if (state == 2 * stamp + 1 or (also_pending and state == 2 * stamp)) and cost[e] < least:
            best, least = e, cost[e]
    return best


@kernel
def _list_hold(node, out_ptr, dst, cost, tree, stamp):
    """Make ``node`` a holder, and offer its links to its neighbours."""
    tree[node].state = 2 * stamp + 1
    for e in range(out_ptr[node], out_ptr[node + 1]):
        v = dst[e]
        if tree[v].seen != stamp:
            tree[v].seen = stamp
            tree[v].reach = e
        else:
            old = tree[v].reach
            if cost[e] < cost[old] or (cost[e] == cost[old] and e < old):
                tree[v].reach = e


@kernel
def _list_deliverable(left, cost, tree, stamp):
    """Cheapest link from a holder to a destination, or -1."""
    best, least = np.int64(-1), NONE
    for i in range(left):
        d = tree[i].pending
        if tree[d].seen == stamp:
            e = tree[d].reach
            if cost[e] < least or (cost[e] == least and e < best):
                best, least = e, cost[e]
    return best


@kernel
def _list_candidates(left, in_ptr, in_link, src, tree, stamp, search):
    """List the nodes that are no destinations, and that a holder and a destination are next to."""
    found = 0
    for i in range(left):
        d = tree[i].pending
        for k in range(in_ptr[d], in_ptr[d + 1]):
            x = src[in_link[k]]
            if tree[x].tried != search:
                tree[x].tried = search
                tree[x].gain = 0
                if tree[x].seen == stamp and tree[x].state < 2 * stamp:
                    tree[found].candidate = x
                    found += 1
    return found


@kernel
def _list_extra_relay(left, graph, cost, tree, stamp, search, least):
    """Link to the relay that saves most, more than ``least``, or -1."""
    src, _, _, in_ptr, in_link, _ = graph
    found = _list_candidates(left, in_ptr, in_link, src, tree, stamp, search)
    for i in range(left):
        d = tree[i].pending
        e = _list_cheapest_in(d, in_ptr, in_link, src, cost, tree, stamp, True)
        if e >= 0:
            for k in range(in_ptr[d], in_ptr[d + 1]):
                tree[src[in_link[k]]].gain += max(0, cost[e] - cost[in_link[k]])
    best, relay = np.int64(-1), np.int64(-1)
    for i in range(found):
        x = np.int64(tree[i].candidate)
        gain = tree[x].gain - cost[tree[x].reach]
        if gain > least or (gain == least and best >= 0 and x < relay):
            best, least, relay = tree[x].reach, gain, x
    return best


@kernel
def _list_closure(start, field_other, out_ptr, dst, tree, stamp, search, covered):
    """Count the destinations not reached yet that ``start`` leads to; marks them with ``search``.

    The marks of the search ``covered`` count as reached.
    """
    tree[0].queue = start
    size, at, met = 1, 0, np.int64(0)
    while at < size:
        v = tree[at].queue
        at += 1
        for e in range(out_ptr[v], out_ptr[v + 1]):
            u = dst[e]
            if tree[u].state != 2 * stamp:
                continue
            if field_other:
                if tree[u].mark == covered or tree[u].other == search:
                    continue
                tree[u].other = search
            else:
                if tree[u].mark == search:
                    continue
                tree[u].mark = search
            tree[size].queue = u
            size += 1
            met += 1
    return met


@kernel
def _list_second_cover(x, left, graph, tree, stamp, covered, search):
    """Most destinations that one more relay leads to, after ``x`` and what it covers; and the last search."""
    src, dst, out_ptr, in_ptr, in_link, _ = graph
    most = np.int64(0)
    first = search
    for i in range(left):
        d = tree[i].pending
        if tree[d].mark == covered:
            continue
        for k in range(in_ptr[d], in_ptr[d + 1]):
            y = src[in_link[k]]
            if tree[y].state >= 2 * stamp or y == x or tree[y].other > first:
                continue
            near = tree[y].seen == stamp
            for j in range(in_ptr[y], in_ptr[y + 1]):
                z = src[in_link[j]]
                near = near or z == x or tree[z].mark == covered
            if near:
                search += 1
                tree[y].other = search
                most = max(most, _list_closure(y, True, out_ptr, dst, tree, stamp, search, covered))
    return most, search


@kernel
def _list_relay(left, graph, cost, tree, stamp, search, hop):
    """Link to the best relay that has a destination next to it, or -1; and the last search."""
    src, dst, out_ptr, in_ptr, in_link, _ = graph
    worth = HALF + TOLL * hop
    search += 1
    found = _list_candidates(left, in_ptr, in_link, src, tree, stamp, search)
    best, least, relay = np.int64(-1), NONE, np.int64(-1)
    for i in range(found):
        x = np.int64(tree[i].candidate)
        search += 1
        covered = search
        count = _list_closure(x, False, out_ptr, dst, tree, stamp, search, np.int64(0))
        onward = NONE
        for e in range(out_ptr[x], out_ptr[x + 1]):
            if tree[dst[e]].state == 2 * stamp:
                onward = min(onward, cost[e])
        score = cost[tree[x].reach] + onward - worth * count
        if count < left:
            most, search = _list_second_cover(x, left, graph, tree, stamp, covered, search)
            score += worth - worth * most
        if score < least or (score == least and x < relay):
            best, least, relay = tree[x].reach, score, x
    return best, search


@kernel
def _list_approach(left, holders, graph, cost, tree):
    """First link of the way to the nearest destination."""
    _, dst, out_ptr, _, _, way = graph
    at, target, least = np.int64(-1), np.int64(-1), NONE
    for i in range(left):
        d = np.int64(tree[i].pending)
        for k in range(holders):
            h = np.int64(tree[k].held)
            far = way[d, h]
            if far < least or (far == least and (d < target or (d == target and h < at))):
                at, target, least = h, d, far
    return _first_hop(at, target, dst, out_ptr, way, cost)


@kernel
def _grow_list(source, left, graph, cost, hop, tree, stamp, search):
    """Grow one tree to the pending nodes; returns its transfers and the last search."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    tree[source].arrival = -1
    tree[0].held = source
    holders = 1
    _list_hold(source, out_ptr, dst, cost, tree, stamp)
    size = np.int64(0)
    while left > 0:
        e = _list_deliverable(left, cost, tree, stamp)
        delivering = np.int64(1)
        if e < 0:
            delivering = np.int64(0)
            e, search = _list_relay(left, graph, cost, tree, stamp, search, hop)
            if e < 0:
                e = _list_approach(left, holders, graph, cost, tree)
        elif cost[e] > EXTRA_ABOVE + 2 * hop:
            search += 1
            extra = _list_extra_relay(left, graph, cost, tree, stamp, search, TOLL * hop)
            if extra >= 0:
                e, delivering = extra, np.int64(0)
        size = _add(tree, size, e, src, dst, delivering)
        v = dst[e]
        if delivering:
            for i in range(left):
                if tree[i].pending == v:
                    left -= 1
                    tree[i].pending = tree[left].pending
                    break
        tree[holders].held = v
        holders += 1
        _list_hold(v, out_ptr, dst, cost, tree, stamp)
    return size, search


@allocating
def grow_lists(graph, tables, rows):
    """Grow the tree of every row; any number of nodes."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    source, dest_ptr, dest = rows
    nodes = len(out_ptr) - 1
    link, parent = np.empty(2 * len(source), np.int32), np.empty(2 * len(source), np.int32)
    delivers, end = np.empty(2 * len(source), np.bool_), np.empty(len(source), np.int64)
    tree = np.zeros(nodes + 1, TREE)
    used, cost = np.zeros(len(src), np.int64), np.zeros(len(src), np.int64)
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(3, np.int64)
    filled, first, search = np.int64(0), 0, np.int64(0)
    while first < len(source):
        s = np.int64(source[first])
        stop = first
        while stop < len(source) and source[stop] == s:
            stop += 1
        used[:] = 0
        _read_own(tables, s, first, stop, dest_ptr, dest, popularity, own)
        due = np.int64(0)
        for t in range(first, stop):
            if t - first >= due:
                _price_links(dst, tables, s, due, used, popularity, own, cost)
                due = _next_refresh(due)
            link, parent, delivers = _roomier(filled, nodes, link, parent, delivers)
            left = dest_ptr[t + 1] - dest_ptr[t]
            for i in range(left):
                d = dest[dest_ptr[t] + i]
                tree[i].pending = d
                tree[d].state = 2 * (t + 1)
            size, search = _grow_list(s, left, graph, cost, own[1], tree, np.int64(t + 1), search)
            filled = _emit(tree, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
