"""Kernels of the bounds: relays, cuts and minimum trees, compiled by numba.

Arrays come in checked; the slow twins are ``tests/reference/bound.py``.  Arguments that belong together
travel as plain tuples:

- ``graph``: ``src, dst, out_ptr, in_ptr, in_link`` of the topology;
- ``rows``: ``source, ptr, dest, count``: row ``q`` stands for ``count[q]`` tokens of NPU ``source[q]`` to the
  NPUs ``dest[ptr[q] : ptr[q + 1]]``, of which there is at least one.

A *price* is a whole number of at least 1 kept in floating point, small enough that every sum of prices is
exact: so equal sums compare equal, and nothing that is proved with them hangs on rounding.
"""

import numpy as np

from moxtrace.jit import allocating, kernel

__all__ = [
    "count_relays",
    "cross_cut",
    "flip_gains",
    "minimum_trees",
    "node_prices_cost",
    "prices_to",
]


# ------------------------------------------------------------------------------------------- relays
# The nodes of a row, source first, then destinations, then relays on trial, have places 0, 1, 2, ...; sets of
# them are bits of an int64.


@kernel
def _closure(step, size, start):
    """Places that ``start`` leads to, itself included, along the links ``step`` among the first ``size``."""
    reached = start
    while True:
        grown = reached
        for i in range(size):
            if (grown >> i) & 1:
                grown |= step[i]
        if grown == reached:
            return reached
        reached = grown


@kernel
def _place(adjacent, node, into, out, at, x):
    """Put node ``x`` at place ``at``, after those that stand; links to later places are forgotten."""
    below = (np.int64(1) << at) - 1
    bit = np.int64(1) << at
    node[at] = x
    into[at] = out[at] = 0
    for i in range(at):
        v = node[i]
        into[i] &= below
        out[i] &= below
        if adjacent[v, x]:
            into[at] |= np.int64(1) << i
            out[i] |= bit
        if adjacent[x, v]:
            out[at] |= np.int64(1) << i
            into[i] |= bit


@kernel
def _cut_off(into, out, size):
    """The smallest set of places without the source that no link enters; 0 if the source reaches all."""
    everything = (np.int64(1) << size) - 1
    reached = _closure(out, size, np.int64(1))
    smallest, least = np.int64(0), size + 1
    for i in range(size):
        if (reached >> i) & 1:
            continue
        behind = _closure(into, size, np.int64(1) << i) & everything
        members = 0
        for j in range(size):
            members += (behind >> j) & 1
        if members < least:
            smallest, least = behind, members
    return smallest


@kernel
def _entrances(graph, node, size, cut_off, candidate):
    """List the nodes outside the row that have a link into ``cut_off``; returns how many."""
    src, _, _, in_ptr, in_link = graph
    found = 0
    for i in range(size):
        if not (cut_off >> i) & 1:
            continue
        for k in range(in_ptr[node[i]], in_ptr[node[i] + 1]):
            x = src[in_link[k]]
            known = False
            for j in range(size):
                known |= node[j] == x
            for j in range(found):
                known |= candidate[j] == x
            if not known:
                candidate[found] = x
                found += 1
    return found


@kernel
def _reaches(graph, adjacent, places, trial, size, relays):
    """Whether some ``relays`` nodes outside the row let the source reach every destination inside the row.

    No link of the row enters a set that is cut off, so one of the nodes with a link into it must be a relay:
    these are tried in turn, each as one more destination.
    """
    node, into, out = places
    candidate, found, at = trial
    cut_off = _cut_off(into, out, size)
    if cut_off == 0 or relays == 0:
        return cut_off == 0
    level = 0
    found[0] = _entrances(graph, node, size, cut_off, candidate[0])
    at[0] = 0
    while level >= 0:
        if at[level] == found[level]:
            level -= 1
            continue
        _place(adjacent, node, into, out, size + level, candidate[level, at[level]])
        at[level] += 1
        now = size + level + 1
        if level + 1 == relays:
            if _closure(out, now, np.int64(1)) == (np.int64(1) << now) - 1:
                return True
            continue
        cut_off = _cut_off(into, out, now)
        if cut_off == 0:
            return True
        level += 1
        found[level] = _entrances(graph, node, now, cut_off, candidate[level])
        at[level] = 0
    return False


@kernel
def _far(hops, node, size):
    """Relays on the way to the destination that is farthest from all others and the source, at least."""
    most = np.int64(0)
    for i in range(1, size):
        least = np.int64(32767)
        for j in range(size):
            if j != i:
                least = min(least, np.int64(hops[node[i], node[j]]))
        most = max(most, least - 1)
    return most


@kernel
def _count_relays(graph, adjacent, hops, rows, most, relays, places, trial):
    source, ptr, dest, _ = rows
    node, into, out = places
    for q in range(len(source)):
        size = ptr[q + 1] - ptr[q] + 1
        if size + most > 62:
            relays[q] = 0
            continue
        _place(adjacent, node, into, out, 0, source[q])
        for i in range(1, size):
            _place(adjacent, node, into, out, i, dest[ptr[q] + i - 1])
        least = _far(hops, node, size)
        while least <= most and not _reaches(graph, adjacent, places, trial, size, least):
            least += 1
        relays[q] = least


@allocating
def count_relays(graph, adjacent, hops, rows, most):
    """Nodes outside the row that a tree needs at least, int64, shape (rows,).

    Exact up to ``most``; where it is more, some number that it is not below.  0, which is always safe, for
    rows of more than about 60 destinations.
    """
    nodes = len(adjacent)
    relays = np.zeros(len(rows[0]), np.int64)
    places = (np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(64, np.int64))
    levels = max(1, most)
    trial = (np.zeros((levels, nodes), np.int64), np.zeros(levels, np.int64), np.zeros(levels, np.int64))
    _count_relays(graph, adjacent, hops, rows, most, relays, places, trial)
    return relays


@allocating
def node_prices_cost(rows, relays, price, order, used):
    """What the rows cost at least if every link costs the price of its head; adds up the nodes' uses.

    A tree enters each destination, and ``relays[q]`` other nodes that are not the source, once: they cost no
    less than the cheapest such nodes.  ``order`` has the nodes from cheap to dear; ``used``, shape (nodes,),
    gains ``count[q]`` at each node that the least cost of row ``q`` pays for.
    """
    source, ptr, dest, count = rows
    stamp = np.full(len(price), -1, np.int64)
    total = 0.0
    for q in range(len(source)):
        stamp[source[q]] = q
        cost = 0.0
        for i in range(ptr[q], ptr[q + 1]):
            d = dest[i]
            stamp[d] = q
            cost += price[d]
            used[d] += count[q]
        left, at = relays[q], 0
        while left > 0:
            v = order[at]
            at += 1
            if stamp[v] != q:
                cost += price[v]
                used[v] += count[q]
                left -= 1
        total += count[q] * cost
    return total


# --------------------------------------------------------------------------------------------- cuts


@allocating
def cross_cut(rows, inside):
    """Tokens from outside a set of nodes with a destination inside: each enters the set at least once."""
    source, ptr, dest, count = rows
    total = np.int64(0)
    for q in range(len(source)):
        if inside[source[q]]:
            continue
        for i in range(ptr[q], ptr[q + 1]):
            if inside[dest[i]]:
                total += count[q]
                break
    return total


@allocating
def flip_gains(rows, inside):
    """What :func:`cross_cut` gains if one node changes sides, for each node, int64, shape (nodes,)."""
    source, ptr, dest, count = rows
    gain = np.zeros(len(inside), np.int64)
    for q in range(len(source)):
        within, last = 0, -1
        for i in range(ptr[q], ptr[q + 1]):
            if inside[dest[i]]:
                within += 1
                last = dest[i]
        s = source[q]
        if within > 0:
            gain[s] += count[q] if inside[s] else -count[q]
        if inside[s]:
            continue
        if within == 1:
            gain[last] -= count[q]
        elif within == 0:
            for i in range(ptr[q], ptr[q + 1]):
                gain[dest[i]] += count[q]
    return gain


# ------------------------------------------------------------------------------------ minimum trees


@allocating
def prices_to(graph, price):
    """Price of the cheapest path to node ``d`` from node ``v``, dtype of ``price``, shape [d, v]."""
    src, _, out_ptr, in_ptr, in_link = graph
    nodes = len(out_ptr) - 1
    to = np.full((nodes, nodes), np.inf, price.dtype)
    done = np.zeros(nodes, np.bool_)
    for d in range(nodes):
        row = to[d]
        row[d] = 0
        done[:] = False
        for _ in range(nodes):
            v = -1
            for u in range(nodes):
                if not done[u] and (v < 0 or row[u] < row[v]):
                    v = u
            done[v] = True
            for k in range(in_ptr[v], in_ptr[v + 1]):
                e = in_link[k]
                row[src[e]] = min(row[src[e]], row[v] + price[e])
    return to


@kernel
def _merge(best, mask):
    """Cheapest pair of trees from each node that share the terminals of ``mask``, into ``best[mask]``."""
    row = best[mask]
    nodes = len(row)
    row[:] = np.inf
    lowest = mask & -mask
    part = (mask - 1) & mask
    while part > 0:
        if part & lowest:
            one, other = best[part], best[mask ^ part]
            for v in range(nodes):
                c = one[v] + other[v]
                row[v] = c if c < row[v] else row[v]
        part = (part - 1) & mask


@kernel
def _relax(row, to, merged):
    """Let every node's tree begin with a path to another node's."""
    nodes = len(row)
    first = 0
    for v in range(nodes):
        merged[v] = row[v]
        row[v] = np.inf
        if merged[v] < merged[first]:
            first = v
    for turn in range(-1, nodes):  # the cheapest first: it spares most others
        v = first if turn < 0 else turn
        base = merged[v]
        if row[v] <= base:  # somebody's path to v is no dearer: whoever comes by v is as well off there
            continue
        path = to[v]
        for w in range(nodes):
            c = path[w] + base
            row[w] = c if c < row[w] else row[w]


@kernel
def _cheapest(to, source, terminals, best, merged):
    """Price of the cheapest tree from ``source`` to all terminals: Dreyfus and Wagner's recursion.

    ``best[mask, v]`` becomes the price of the cheapest tree from ``v`` to the terminals of ``mask``; for all
    terminals together, of the cheapest that branches at ``v``.
    """
    size = len(terminals)
    full = (1 << size) - 1
    for i in range(size):
        row, path = best[1 << i], to[terminals[i]]
        for v in range(len(path)):
            row[v] = path[v]
    if size == 1:
        return best[1, source]
    for mask in range(3, full):
        if mask & (mask - 1):
            _merge(best, mask)
            _relax(best[mask], to, merged)
    _merge(best, full)
    least = best[full, source]
    for v in range(len(to)):
        c = to[v, source] + best[full, v]
        least = c if c < least else least
    return least


@kernel
def _walk(graph, price, to, v, d, count, load):
    """Add ``count`` to the links of the cheapest path from ``v`` to ``d``, the lowest link of equals."""
    _, dst, out_ptr, _, _ = graph
    while v != d:
        for e in range(out_ptr[v], out_ptr[v + 1]):
            if to[d, v] == price[e] + to[d, dst[e]]:
                load[e] += count
                v = dst[e]
                break


@kernel
def _split(to, best, mask, v, cost):
    """Node where the cheapest tree from ``v`` branches, and the terminals of one branch."""
    for u in range(len(to)):
        if to[u, v] + best[mask, u] == cost:
            part = (mask - 1) & mask
            while part > 0:
                if best[part, u] + best[mask ^ part, u] == best[mask, u]:
                    return u, part
                part = (part - 1) & mask
    return -1, 0


@kernel
def _add_tree(graph, price, to, row, best, stack, load):
    """Add ``count`` to the links of the cheapest tree that :func:`_cheapest` found."""
    source, terminals, count, cost = row
    full = (1 << len(terminals)) - 1
    stack[0, 0], stack[0, 1] = full, source
    height = 1
    while height > 0:
        height -= 1
        mask, v = stack[height, 0], stack[height, 1]
        if mask & (mask - 1) == 0:
            i = 0
            while mask >> i != 1:
                i += 1
            _walk(graph, price, to, v, terminals[i], count, load)
            continue
        u, part = _split(to, best, mask, v, cost if mask == full else best[mask, v])
        _walk(graph, price, to, v, u, count, load)
        stack[height, 0], stack[height, 1] = part, u
        stack[height + 1, 0], stack[height + 1, 1] = mask ^ part, u
        height += 2


@kernel
def _minimum_trees(graph, price, to, rows, cost, load, group, room):
    source, ptr, dest, count = rows
    best, merged, stack = room
    for q in range(len(source)):
        terminals = dest[ptr[q] : ptr[q + 1]]
        least = _cheapest(to, source[q], terminals, best, merged)
        cost[q] = least
        if len(load):
            row = (source[q], terminals, count[q], least)
            _add_tree(graph, price, to, row, best, stack, load[group[q]])


@allocating
def minimum_trees(graph, price, to, rows, group, groups):
    """Price of the cheapest tree of each row, and the loads of the links if every row takes it.

    Parameters
    ----------
    graph, rows : tuple
    price : array of float, shape (links,)
    to : array of float, shape (nodes, nodes)
        :func:`prices_to` of ``price``.
    group : array of int64, shape (rows,)
        Rows whose loads are added up together.
    groups : int
        How many there are; 0 if loads are not wanted, which is faster.

    Returns
    -------
    cost : array of float64, shape (rows,)
    load : array of float64, shape (groups, links)
        Tokens on each link, each row on its cheapest tree.

    References
    ----------
    S. E. Dreyfus and R. A. Wagner, "The Steiner problem in graphs", Networks 1 (3), 1971.
    """
    source, ptr, _, _ = rows
    longest = 1
    for q in range(len(source)):
        longest = max(longest, ptr[q + 1] - ptr[q])
    best = np.empty((1 << longest, len(to)), to.dtype)
    room = (best, np.empty(len(to), to.dtype), np.empty((2 * longest + 2, 2), np.int64))
    cost, load = np.zeros(len(source)), np.zeros((groups, len(price)))
    _minimum_trees(graph, price, to, rows, cost, load, group, room)
    return cost, load
