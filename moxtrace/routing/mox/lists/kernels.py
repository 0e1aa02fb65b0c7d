"""Trees of ``mox`` on any number of nodes: sets are lists and stamps in the records of the nodes.

:mod:`moxtrace.routing.mox.kernels` describes the arguments.  ``stamp`` marks what belongs to the present
tree, ``search`` what a search has met; ``left`` is the number of destinations not reached yet.
"""

import numpy as np

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

__all__ = ["grow_lists"]


@kernel
def _cheapest_in(v, in_ptr, in_link, src, cost, tree, stamp, also_pending):
    """Cheapest link into ``v`` from a holder (or a destination to come), the first of equals, or -1."""
    best, least = np.int64(-1), NONE
    for i in range(in_ptr[v], in_ptr[v + 1]):
        e = np.int64(in_link[i])
        state = tree[src[e]].state
        if (state == 2 * stamp + 1 or (also_pending and state == 2 * stamp)) and cost[e] < least:
            best, least = e, cost[e]
    return best


@kernel
def _hold(node, out_ptr, dst, cost, tree, stamp):
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
def _deliverable(left, cost, tree, stamp):
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
def _candidates(left, in_ptr, in_link, src, tree, stamp, search):
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
def _extra_relay(left, graph, cost, tree, stamp, search, least):
    """Link to the relay that saves most, more than ``least``, or -1."""
    src, _, _, in_ptr, in_link, _ = graph
    found = _candidates(left, in_ptr, in_link, src, tree, stamp, search)
    for i in range(left):
        d = tree[i].pending
        e = _cheapest_in(d, in_ptr, in_link, src, cost, tree, stamp, True)
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
def _closure(start, field_other, out_ptr, dst, tree, stamp, search, covered):
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
def _second_cover(x, left, graph, tree, stamp, covered, search):
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
                most = max(most, _closure(y, True, out_ptr, dst, tree, stamp, search, covered))
    return most, search


@kernel
def _relay(left, graph, cost, tree, stamp, search, hop):
    """Link to the best relay that has a destination next to it, or -1; and the last search."""
    src, dst, out_ptr, in_ptr, in_link, _ = graph
    worth = HALF + TOLL * hop
    search += 1
    found = _candidates(left, in_ptr, in_link, src, tree, stamp, search)
    best, least, relay = np.int64(-1), NONE, np.int64(-1)
    for i in range(found):
        x = np.int64(tree[i].candidate)
        search += 1
        covered = search
        count = _closure(x, False, out_ptr, dst, tree, stamp, search, np.int64(0))
        onward = NONE
        for e in range(out_ptr[x], out_ptr[x + 1]):
            if tree[dst[e]].state == 2 * stamp:
                onward = min(onward, cost[e])
        score = cost[tree[x].reach] + onward - worth * count
        if count < left:
            most, search = _second_cover(x, left, graph, tree, stamp, covered, search)
            score += worth - worth * most
        if score < least or (score == least and x < relay):
            best, least, relay = tree[x].reach, score, x
    return best, search


@kernel
def _nearer(node, left, graph, cost, tree):
    """Measure the way from a new holder to the destinations not reached yet."""
    way = graph[5]
    for i in range(left):
        d = np.int64(tree[i].pending)
        if way[d, node] <= tree[d].far:
            e, total = first_hop(node, d, graph, cost)
            if way[d, node] == tree[d].far and (
                total > tree[d].total or (total == tree[d].total and e > tree[d].hop)
            ):
                continue
            tree[d].far, tree[d].total, tree[d].hop = way[d, node], total, e


@kernel
def _approach(left, tree):
    """First link of the way to the nearest destination."""
    best, near, least = np.int64(-1), NONE, NONE
    for i in range(left):
        d = tree[i].pending
        far, total, e = tree[d].far, tree[d].total, tree[d].hop
        if far < near or (far == near and (total < least or (total == least and e < best))):
            best, near, least = e, far, total
    return best


@kernel
def _grow_list(source, left, graph, cost, hop, tree, stamp, search):
    """Grow one tree to the pending nodes; returns its transfers and the last search."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    tree[source].arrival = -1
    for i in range(left):
        tree[tree[i].pending].far = NONE
    _hold(source, out_ptr, dst, cost, tree, stamp)
    _nearer(source, left, graph, cost, tree)
    size = np.int64(0)
    while left > 0:
        e = _deliverable(left, cost, tree, stamp)
        delivering = np.int64(1)
        if e < 0:
            delivering = np.int64(0)
            e, search = _relay(left, graph, cost, tree, stamp, search, hop)
            if e < 0:
                e = _approach(left, tree)
        elif cost[e] > EXTRA_ABOVE + 2 * hop:
            search += 1
            extra = _extra_relay(left, graph, cost, tree, stamp, search, TOLL * hop)
            if extra >= 0:
                e, delivering = extra, np.int64(0)
        size = add(tree, size, e, src, dst, delivering)
        v = dst[e]
        if delivering:
            for i in range(left):
                if tree[i].pending == v:
                    left -= 1
                    tree[i].pending = tree[left].pending
                    break
        _hold(v, out_ptr, dst, cost, tree, stamp)
        _nearer(np.int64(v), left, graph, cost, tree)
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
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(4, np.int64)
    filled, first, search = np.int64(0), 0, np.int64(0)
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
            left = dest_ptr[t + 1] - dest_ptr[t]
            for i in range(left):
                d = dest[dest_ptr[t] + i]
                tree[i].pending = d
                tree[d].state = 2 * (t + 1)
            size, search = _grow_list(s, left, graph, cost, own[1], tree, np.int64(t + 1), search)
            filled = emit(tree, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
