"""Routing kernels: hop distances, multicast trees and pairwise shortest paths, compiled by numba.

Arrays come in checked.  :mod:`moxtrace.routing.policies` states the rules; the slow twin of every kernel is
``tests/reference/routing.py``.  A kernel routes a run of rows that begins and ends with whole sources, so
runs can be routed side by side.

Arguments that belong together travel as plain tuples (a named one would tie numba's cache to its class):

- ``graph``: ``src, dst, out_ptr, in_ptr, in_link`` of the topology, and ``hops`` of :func:`hop_distances`;
- ``rows``: ``source, dest_ptr`` of the run, and the whole demand's ``dest``, which ``dest_ptr`` points into;
- result: ``link, parent, delivers`` of each transfer, and ``end``, one past the last transfer of each row;
  ``end`` and ``parent`` count from the run's first transfer.
"""

import numpy as np

from moxtrace.jit import allocating

__all__ = ["draw_distinct", "hop_distances", "route_paths", "route_trees"]

# The tree that grows for the present row: a record per node, and lists that share the array.
# A stamp marks a node in the row (or search) that carries the same number, so nothing is cleared in between.
# numba counts references to the arrays of a tuple at every access; a record array costs nothing.
TREE = np.dtype(
    [
        ("seen", np.int64),  # stamp: some holder has a link to the node
        ("reach", np.int64),  # the cheapest such link ...
        ("reach_cost", np.float64),  # ... and its cost
        ("arrival", np.int64),  # transfer that brought the token to a holder
        ("mark", np.int64),  # stamp: the present search has met the node
        ("via", np.int64),  # last link of the best path to it ...
        ("worst", np.float64),  # ... the cost of that path's costliest link ...
        ("total", np.float64),  # ... and the sum of its costs
        ("queue", np.int32),  # list: nodes that the present search has met
        ("pending", np.int32),  # list: destinations not reached yet
        ("held", np.int32),  # list: holders
        ("fringe", np.int32),  # list: nodes to which some holder has a link
        ("path", np.int64),  # list: links of the chosen path, the last one first
    ]
)
PENDING, HELD, FRINGE, SEARCHES = 0, 1, 2, 3  # what the entries of ``count`` count


@allocating
def hop_distances(in_ptr, in_link, src, num_npus):
    """Links on a shortest path from every node to every NPU, int16, shape [NPU, node]."""
    nodes = len(in_ptr) - 1
    hops = np.full((num_npus, nodes), -1, np.int16)
    queue = np.empty(nodes, np.int32)
    for d in range(num_npus):
        row = hops[d]
        row[d] = 0
        queue[0] = d
        head, tail = 0, 1
        while head < tail:
            v = queue[head]
            head += 1
            for i in range(in_ptr[v], in_ptr[v + 1]):
                u = src[in_link[i]]
                if row[u] < 0:
                    row[u] = row[v] + 1
                    queue[tail] = u
                    tail += 1
    return hops


@allocating
def draw_distinct(uniform, num_items):
    """As many distinct items of ``num_items`` as a row has numbers in [0, 1), all sets alike likely.

    References
    ----------
    R. W. Floyd's sampling: Bentley and Floyd, "A sample of brilliance", CACM 30 (9), 1987.
    """
    rows, k = uniform.shape
    drawn = np.empty((rows, k), np.int32)
    for t in range(rows):
        for i in range(k):
            top = num_items - k + i
            item = np.int32(uniform[t, i] * (top + 1))
            for j in range(i):
                if drawn[t, j] == item:
                    item = np.int32(top)
                    break
            drawn[t, i] = item
    return drawn


@allocating
def _room(source, dest_ptr, dest, hops):
    """Links of a shortest path for each copy: no tree needs more, as its source can serve any destination."""
    total = np.int64(0)
    for t in range(len(source)):
        for i in range(dest_ptr[t], dest_ptr[t + 1]):
            total += hops[dest[i], source[t]]
    return total


@allocating
def route_paths(graph, rows):
    """Lead every row to its only destination."""
    src, dst, out_ptr, _, _, hops = graph
    source, dest_ptr, dest = rows
    room = _room(source, dest_ptr, dest, hops)
    link, parent = np.empty(room, np.int32), np.empty(room, np.int32)
    delivers, end = np.empty(room, np.bool_), np.empty(len(source), np.int64)
    used = np.zeros(len(src), np.int64)
    last, filled = np.int64(-1), np.int64(0)
    for t in range(len(source)):
        if source[t] != last:
            last = np.int64(source[t])
            used[:] = 0
        d = dest[dest_ptr[t]]
        v = last
        before = np.int64(-1)
        while v != d:
            best = -1
            for e in range(out_ptr[v], out_ptr[v + 1]):
                if hops[d, dst[e]] == hops[d, v] - 1 and (best < 0 or used[e] < used[best]):
                    best = e
            used[best] += 1
            v = np.int64(dst[best])
            link[filled] = best
            parent[filled] = before
            delivers[filled] = v == d
            before = filled
            filled += 1
        end[t] = filled
    return link, parent, delivers, end


@allocating
def _hold(out_ptr, dst, cost, tree, count, node, stamp):
    """Make ``node`` a holder, and offer its links to its neighbours.

    The cost of a link changes only when the node it leads to is reached, so an offer stays good for the row.
    """
    tree[count[HELD]].held = node
    count[HELD] += 1
    size = count[FRINGE]
    for e in range(out_ptr[node], out_ptr[node + 1]):
        v = dst[e]
        c = cost[e]
        if tree[v].seen != stamp:
            tree[v].seen = stamp
            tree[size].fringe = v
            size += 1
        elif c > tree[v].reach_cost or (c == tree[v].reach_cost and e > tree[v].reach):
            continue
        tree[v].reach = e
        tree[v].reach_cost = c
    count[FRINGE] = size


@allocating
def _pick_neighbour(tree, count, stamp):
    """Step 1: place in ``pending`` of the destination with the cheapest link from a holder, or -1."""
    best, best_cost, best_link = np.int64(-1), np.inf, np.int64(0)
    for i in range(count[PENDING]):
        d = tree[i].pending
        if tree[d].seen == stamp:
            c, e = tree[d].reach_cost, tree[d].reach
            if c < best_cost or (c == best_cost and e < best_link):
                best, best_cost, best_link = np.int64(i), c, e
    if best >= 0:
        tree[0].path = best_link
    return best


@allocating
def _better(worst, total, link, other_worst, other_total, other_link):
    """Whether a path is better than another: costliest link, sum of costs, id of the last link."""
    if worst != other_worst:
        return worst < other_worst
    if total != other_total:
        return total < other_total
    return link < other_link


@allocating
def _pick_relay(in_ptr, in_link, src, cost, tree, count, stamp):
    """Step 2 with one relay: place in ``pending`` of the best path's destination; -1 if it takes more."""
    best, best_worst, best_total, best_link = np.int64(-1), np.inf, np.inf, np.int64(0)
    for i in range(count[PENDING]):
        d = tree[i].pending
        for k in range(in_ptr[d], in_ptr[d + 1]):
            e = np.int64(in_link[k])
            x = src[e]
            if tree[x].seen == stamp:
                worst, total = max(tree[x].reach_cost, cost[e]), tree[x].reach_cost + cost[e]
                if _better(worst, total, e, best_worst, best_total, best_link):
                    best, best_worst, best_total, best_link = np.int64(i), worst, total, e
    if best >= 0:
        tree[0].path = best_link
        tree[1].path = tree[src[best_link]].reach
    return best


@allocating
def _search(out_ptr, dst, hops, cost, tree, count, length):
    """Best path of ``length`` links, the least possible, from a holder to the node at 0 ``hops``."""
    count[SEARCHES] += 1
    mark = count[SEARCHES]
    met = 0
    for i in range(count[FRINGE]):
        v = tree[i].fringe
        if hops[v] == length - 1:  # no holder: none is as near
            tree[v].mark = mark
            tree[v].worst = tree[v].reach_cost
            tree[v].total = tree[v].reach_cost
            tree[v].via = tree[v].reach
            tree[met].queue = v
            met += 1
    at = 0
    while hops[tree[at].queue] > 0:
        v = tree[at].queue
        at += 1
        for e in range(out_ptr[v], out_ptr[v + 1]):
            u = dst[e]
            if hops[u] != hops[v] - 1:
                continue
            worst, total = max(tree[v].worst, cost[e]), tree[v].total + cost[e]
            if tree[u].mark != mark:
                tree[u].mark = mark
                tree[met].queue = u
                met += 1
            elif not _better(worst, total, e, tree[u].worst, tree[u].total, tree[u].via):
                continue
            tree[u].worst = worst
            tree[u].total = total
            tree[u].via = e


@allocating
def _distance(hops, tree, count):
    """Links from the nearest holder to the node at 0 ``hops``."""
    least = np.int64(hops[tree[0].held])
    for i in range(1, count[HELD]):
        least = min(least, np.int64(hops[tree[i].held]))
    return least


@allocating
def _pick_path(out_ptr, dst, src, hops, cost, tree, count):
    """Step 2 in general: place in ``pending`` of the best path's destination, and the path's length."""
    length = np.int64(len(tree))
    for i in range(count[PENDING]):
        length = min(length, _distance(hops[tree[i].pending], tree, count))
    best, best_worst, best_total, best_link = np.int64(-1), np.inf, np.inf, np.int64(0)
    for i in range(count[PENDING]):
        d = tree[i].pending
        if _distance(hops[d], tree, count) != length:
            continue
        _search(out_ptr, dst, hops[d], cost, tree, count, length)
        worst, total, e = tree[d].worst, tree[d].total, tree[d].via
        if _better(worst, total, e, best_worst, best_total, best_link):
            best, best_worst, best_total, best_link = np.int64(i), worst, total, e
            for k in range(length):
                tree[k].path = tree[d].via
                d = src[tree[d].via]
    return best, length


@allocating
def route_trees(graph, inverse_weight, rows):
    """Grow the tree of every row."""
    src, dst, out_ptr, in_ptr, in_link, hops = graph
    source, dest_ptr, dest = rows
    room = _room(source, dest_ptr, dest, hops)
    link, parent = np.empty(room, np.int32), np.empty(room, np.int32)
    delivers, end = np.empty(room, np.bool_), np.empty(len(source), np.int64)
    tree = np.zeros(len(out_ptr) - 1, TREE)
    count = np.zeros(4, np.int64)
    used = np.zeros(len(src), np.int64)
    cost = inverse_weight.copy()
    last, filled = np.int64(-1), np.int64(0)
    for t in range(len(source)):
        if source[t] != last:
            last = np.int64(source[t])
            used[:] = 0
            cost[:] = inverse_weight
        stamp = t + 1
        count[PENDING] = dest_ptr[t + 1] - dest_ptr[t]
        for i in range(count[PENDING]):
            tree[i].pending = dest[dest_ptr[t] + i]
        count[HELD] = count[FRINGE] = 0
        tree[last].arrival = -1
        if count[PENDING] > 0:
            _hold(out_ptr, dst, cost, tree, count, last, stamp)
        while count[PENDING] > 0:
            at, length = _pick_neighbour(tree, count, stamp), np.int64(1)
            if at < 0:
                at, length = _pick_relay(in_ptr, in_link, src, cost, tree, count, stamp), np.int64(2)
            if at < 0:
                at, length = _pick_path(out_ptr, dst, src, hops, cost, tree, count)
            count[PENDING] -= 1
            tree[at].pending = tree[count[PENDING]].pending
            for k in range(length - 1, -1, -1):
                e = tree[k].path
                v = np.int64(dst[e])
                link[filled] = e
                parent[filled] = tree[src[e]].arrival
                delivers[filled] = k == 0
                tree[v].arrival = filled
                filled += 1
                used[e] += 1
                cost[e] = (used[e] + 1) * inverse_weight[e]
                _hold(out_ptr, dst, cost, tree, count, v, stamp)
        end[t] = filled
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
