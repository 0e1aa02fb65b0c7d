"""Trees of ``mox`` on any number of nodes, by adjacency.

:mod:`moxtrace.routing.mox.kernels` describes the arguments.  The destinations of a token have places in it,
from 0; ``left`` of them are not reached yet, and sets of them are rows of words, a bit for each place.
``stamp`` marks what belongs to the present tree, ``search`` what a search has met.  A key is the cost of a
link with its id in the low bits, so that the least key is the cheapest link, the first of equals.
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

__all__ = ["grow_lists"]

LINK_BITS = 32
LINK_MASK = (1 << LINK_BITS) - 1
ONE = np.uint64(1)

# A record per node: one line of the cache.
NODE = np.dtype(
    [
        ("state", np.int64),  # 2 * stamp: a destination not reached yet; 2 * stamp + 1: a holder
        ("seen", np.int64),  # stamp: some holder has a link to the node
        ("reach", np.int64),  # key of the cheapest such link
        ("tried", np.int64),  # search that has met the node
        ("around", np.int64),  # stamp: the node is outside and leads to a destination
        ("worth", np.int64),  # what the node saves as an extra relay, or its score as a needed one
        ("place", np.int32),  # of a destination
        ("arrival", np.int32),  # transfer that brought the token to a holder
    ]
)
# A record per destination of a token; lists share the array.
GOAL = np.dtype(
    [
        ("node", np.int64),
        ("saved", np.int64),  # cost of the cheapest link from a holder or another destination, or 0
        ("far", np.int64),  # cost of the way from the nearest holder ...
        ("scanned", np.int64),  # ... of so many ...
        ("looked", np.int64),  # ... of which so many count in:
        ("hop", np.int64),  # its first link ...
        ("total", np.int64),  # ... and the cost of that with the remaining length
        ("left", np.int64),  # list: places of the destinations not reached yet
    ]
)


@kernel
def _count_both(row, other):
    total = np.int64(0)
    for w in range(len(row)):
        total += count_bits(row[w] & other[w])
    return total


@kernel
def _has(row, place):
    return row[place >> 6] >> np.uint64(place & 63) & ONE != np.uint64(0)


@kernel
def _hold(at, ends, cost, tree, nearby, stamp):
    """Make a node a holder, and offer its links to its neighbours."""
    _, dst, out_ptr = ends
    tree[at].state = 2 * stamp + 1
    for e in range(out_ptr[at], out_ptr[at + 1]):
        v, key = dst[e], cost[e] << LINK_BITS | e
        if tree[v].seen != stamp:
            tree[v].seen = stamp
            tree[v].reach = key
            if tree[v].around == stamp:
                nearby[0] += 1
                nearby[nearby[0]] = v
        else:
            tree[v].reach = min(tree[v].reach, key)


@kernel
def _deliverable(left, goal, tree, stamp):
    """Key of the cheapest link from a holder to a destination, or NONE."""
    best = NONE
    for i in range(left):
        d = goal[goal[i].left].node
        if tree[d].seen == stamp:
            best = min(best, tree[d].reach)
    return best


@kernel
def _set_saved(left, graph, cost, goal, tree, stamp):
    """Cost of the cheapest link into each destination from a holder or another destination, or 0."""
    src, _, _, in_ptr, in_link, _ = graph
    for i in range(left):
        place = goal[i].left
        d, least = goal[place].node, NONE
        for k in range(in_ptr[d], in_ptr[d + 1]):
            if tree[src[in_link[k]]].state >= 2 * stamp:
                least = min(least, cost[in_link[k]])
        goal[place].saved = least if least < NONE else 0


@kernel
def _offer_saved(at, ends, cost, goal, tree, stamp):
    """Keep what :func:`_set_saved` found as a node becomes a holder that was no destination."""
    _, dst, out_ptr = ends
    for e in range(out_ptr[at], out_ptr[at + 1]):
        if tree[dst[e]].state == 2 * stamp:
            place = tree[dst[e]].place
            if goal[place].saved == 0 or cost[e] < goal[place].saved:
                goal[place].saved = cost[e]


@kernel
def _extra_relay(left, graph, cost, hop, goal, tree, around, stamp, search):
    """Key of the link to the relay that saves most, more than the toll, or NONE."""
    src, _, _, in_ptr, in_link, _ = graph
    cheapest = FLOOR + hop  # no link costs less
    least, possible, found = TOLL * hop, np.int64(0), 0
    for i in range(left):
        possible += max(0, goal[goal[i].left].saved - cheapest)
    if possible <= least + cheapest:
        return NONE
    for i in range(left):
        d, saved = goal[goal[i].left].node, goal[goal[i].left].saved
        if saved > cheapest:
            for k in range(in_ptr[d], in_ptr[d + 1]):
                e = in_link[k]
                x = src[e]
                if tree[x].seen == stamp and tree[x].state < 2 * stamp:
                    if tree[x].tried != search:
                        tree[x].tried = search
                        tree[x].worth = 0
                        around[found] = x
                        found += 1
                    tree[x].worth += max(0, saved - cost[e])
    best, relay = NONE, np.int64(-1)
    for i in range(found):
        x = np.int64(around[i])
        won = tree[x].worth - (tree[x].reach >> LINK_BITS)
        if won > least or (won == least and best < NONE and x < relay):
            best, least, relay = tree[x].reach, won, x
    return best


@kernel
def _closure(start, ends, goal, tree, stamp, queue, row):
    """Set of the destinations not reached yet that one of them leads to, with itself."""
    _, dst, out_ptr = ends
    row[:] = 0
    row[start >> 6] = ONE << np.uint64(start & 63)
    queue[0] = start
    size, at = 1, 0
    while at < size:
        v = goal[queue[at]].node
        at += 1
        for e in range(out_ptr[v], out_ptr[v + 1]):
            if tree[dst[e]].state == 2 * stamp:
                place = tree[dst[e]].place
                if not _has(row, place):
                    row[place >> 6] |= ONE << np.uint64(place & 63)
                    queue[size] = place
                    size += 1


@kernel
def _cover(left, graph, goal, tree, sets, stamp):
    """Find the destinations that each node outside leads to; returns the greatest number.

    This serves the whole tree: a later search for a relay finds no destination next to a holder, so with each
    destination reached since, all that it leads to has been reached as well.
    """
    src, dst, out_ptr, in_ptr, in_link, _ = graph
    nearby, queue, cover, row, _, _ = sets
    most = np.int64(0)
    nearby[0] = 0
    for i in range(left):
        place = goal[i].left
        d = goal[place].node
        _closure(place, (src, dst, out_ptr), goal, tree, stamp, queue, row)
        for k in range(in_ptr[d], in_ptr[d + 1]):
            x = src[in_link[k]]
            if tree[x].state >= 2 * stamp:
                continue
            if tree[x].around != stamp:
                tree[x].around = stamp
                cover[x, :] = np.uint64(0)
                if tree[x].seen == stamp:
                    nearby[0] += 1
                    nearby[nearby[0]] = x
            for w in range(len(row)):
                cover[x, w] |= row[w]
            most = max(most, _count_both(cover[x], cover[x]))
    return most


@kernel
def _onward(x, ends, cost, tree, stamp):
    """Cost of the cheapest link from ``x`` to a destination."""
    _, dst, out_ptr = ends
    least = NONE
    for e in range(out_ptr[x], out_ptr[x + 1]):
        if tree[dst[e]].state == 2 * stamp:
            least = min(least, cost[e])
    return least


@kernel
def _beside(at, ends, rest, cover, tree, stamp):
    """Most destinations of ``rest`` that a node outside leads to, of those to which a node has a link."""
    _, dst, out_ptr = ends
    reached = np.int64(0)
    for e in range(out_ptr[at], out_ptr[at + 1]):
        y = dst[e]
        if tree[y].around == stamp and tree[y].state < 2 * stamp:
            reached = max(reached, _count_both(cover[y], rest))
    return reached


@kernel
def _later(x, bound, ends, goal, tree, sets, stamp):
    """Most further destinations, ``bound`` at most, that one more relay leads to after relay ``x``."""
    nearby, _, cover, rest, pending, _ = sets
    for w in range(len(rest)):
        rest[w] = pending[w] & ~cover[x, w]
    reached = np.int64(0)
    for i in range(1, nearby[0] + 1):
        reached = max(reached, _count_both(cover[nearby[i]], rest))
        if reached >= bound:
            return reached
    reached = max(reached, _beside(x, ends, rest, cover, tree, stamp))
    for w in range(len(rest)):
        word = pending[w] & cover[x, w]
        while word and reached < bound:
            d = goal[64 * w + lowest_bit(word)].node
            word &= word - ONE
            reached = max(reached, _beside(d, ends, rest, cover, tree, stamp))
    return reached


@kernel
def _relay(left, most, ends, cost, hop, goal, tree, sets, stamp):
    """Key of the link to the best relay that has a destination next to it, or NONE.

    No node outside leads to more than ``most`` destinations.
    """
    nearby, _, cover, _, pending, _ = sets
    worth = HALF + TOLL * hop
    # scores as if the second relay were the best of all; the most promising first: most others cannot win
    best, least, kept = np.int64(-1), NONE, 0
    for i in range(1, nearby[0] + 1):
        x = nearby[i]
        count = _count_both(cover[x], pending)
        if count == 0 or tree[x].state >= 2 * stamp:
            continue
        kept += 1
        nearby[kept] = x
        score = (tree[x].reach >> LINK_BITS) + _onward(x, ends, cost, tree, stamp) - worth * count
        if count < left:
            score += worth - worth * min(left - count, most)
        tree[x].worth = score
        if score < least:
            best, least = x, score
    nearby[0] = kept
    if kept == 0:
        return NONE
    x, least = best, NONE
    for i in range(kept + 1):
        if i > 0:
            x = nearby[i]
        score = tree[x].worth
        if score < least or (score == least and x < best):
            bound = min(left - _count_both(cover[x], pending), most)
            if bound > 0:
                score += worth * (bound - _later(x, bound, ends, goal, tree, sets, stamp))
            if score < least or (score == least and x < best):
                best, least = x, score
    return tree[best].reach


@kernel
def _approach(left, size, holders, graph, cost, goal):
    """Key of the first link of the way to the nearest destination."""
    way = graph[5]
    near = NONE
    for i in range(left):
        place = goal[i].left
        d = goal[place].node
        for k in range(goal[place].scanned, size):
            if way[d, holders[k]] < goal[place].far:
                goal[place].far = way[d, holders[k]]
                goal[place].looked = k
                goal[place].total = NONE
        goal[place].scanned = size
        near = min(near, goal[place].far)
    best, least = np.int64(-1), NONE
    for i in range(left):
        place = goal[i].left
        if goal[place].far > near:
            continue
        d = goal[place].node
        for k in range(goal[place].looked, size):
            if way[d, holders[k]] == near:
                e, total = first_hop(holders[k], d, graph, cost)
                if total < goal[place].total or (total == goal[place].total and e < goal[place].hop):
                    goal[place].total, goal[place].hop = total, e
        goal[place].looked = size
        e, total = goal[place].hop, goal[place].total
        if total < least or (total == least and e < best):
            best, least = e, total
    return cost[best] << LINK_BITS | best


@kernel
def _grow_list(source, left, graph, cost, hop, goal, tree, holders, steps, sets, stamp, search):
    """Grow one tree to the pending nodes; returns its transfers and the last search."""
    src, dst, out_ptr = graph[0], graph[1], graph[2]
    ends = (src, dst, out_ptr)
    tree[source].arrival = -1
    holders[0] = source
    _hold(source, ends, cost, tree, sets[0], stamp)
    size, comparing, most = np.int64(0), False, np.int64(-1)
    while left > 0:
        best = _deliverable(left, goal, tree, stamp)
        delivering = np.int64(1)
        if best == NONE:
            delivering = np.int64(0)
            if most < 0:
                most = _cover(left, graph, goal, tree, sets, stamp)
            best = _relay(left, most, ends, cost, hop, goal, tree, sets, stamp)
            if best == NONE:
                best = _approach(left, size + 1, holders, graph, cost, goal)
        elif (best >> LINK_BITS) > EXTRA_ABOVE + 2 * hop:
            if not comparing:
                _set_saved(left, graph, cost, goal, tree, stamp)
                comparing = True
            search += 1
            extra = _extra_relay(left, graph, cost, hop, goal, tree, sets[5], stamp, search)
            if extra < NONE:
                best, delivering = extra, np.int64(0)
        e = best & LINK_MASK
        node = np.int64(dst[e])
        size = add(steps, size, e, tree[src[e]].arrival, delivering)
        tree[node].arrival = size - 1
        holders[size] = node
        _hold(node, ends, cost, tree, sets[0], stamp)
        if delivering:
            place = tree[node].place
            sets[4][place >> 6] &= ~(ONE << np.uint64(place & 63))
            for i in range(left):
                if goal[i].left == place:
                    left -= 1
                    goal[i].left = goal[left].left
                    break
        elif comparing:
            _offer_saved(node, ends, cost, goal, tree, stamp)
    return size, search


@kernel
def _set_goals(some, goal, tree, pending, stamp):
    """Make a token's destinations the goals of a new tree."""
    for i in range(len(some)):
        d = np.int64(some[i])
        goal[i].node, goal[i].left = d, i
        goal[i].far, goal[i].scanned = NONE, 0
        pending[i >> 6] |= ONE << np.uint64(i & 63)
        tree[d].state, tree[d].place = 2 * stamp, i


@allocating
def grow_lists(graph, tables, rows):
    """Grow the tree of every row; any number of nodes."""
    dst, out_ptr = graph[1], graph[2]
    source, dest_ptr, dest = rows
    nodes = len(out_ptr) - 1
    link, parent = np.empty(2 * len(source), np.int32), np.empty(2 * len(source), np.int32)
    delivers, end = np.empty(2 * len(source), np.bool_), np.empty(len(source), np.int64)
    tree, steps, holders = np.zeros(nodes, NODE), np.zeros(nodes, STEP), np.zeros(nodes, np.int64)
    most = np.int64(1)
    for t in range(len(source)):
        most = max(most, dest_ptr[t + 1] - dest_ptr[t])
    goal, words = np.zeros(most, GOAL), (most + 63) >> 6
    around, nearby, queue = np.zeros(nodes, np.int64), np.zeros(nodes + 1, np.int64), np.zeros(most, np.int64)
    sets = (
        nearby,
        queue,
        np.zeros((nodes, words), np.uint64),
        np.zeros(words, np.uint64),
        np.zeros(words, np.uint64),
        around,
    )
    used, cost = np.zeros(len(dst), np.int64), np.zeros(len(dst), np.int64)
    popularity, own = np.zeros(len(tables[4]), np.int64), np.zeros(4, np.int64)
    at_link = np.zeros(len(dst), np.int64)
    filled, first, search = np.int64(0), 0, np.int64(0)
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
                due = next_refresh(due, len(dst))
            link, parent, delivers = roomier(filled, nodes, link, parent, delivers)
            some = dest[dest_ptr[t] : dest_ptr[t + 1]]
            stamp = np.int64(t + 1)
            _set_goals(some, goal, tree, sets[4], stamp)
            size, search = _grow_list(
                s, len(some), graph, cost, own[1], goal, tree, holders, steps, sets, stamp, search
            )
            filled = emit(steps, size, used, filled, link, parent, delivers)
            end[t] = filled
        first = stop
    return link[:filled].copy(), parent[:filled].copy(), delivers[:filled].copy(), end
