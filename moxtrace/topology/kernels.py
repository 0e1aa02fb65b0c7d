"""Compiled inner loops on graphs in CSR form: shortest paths as bit sets, random graphs, bisection.

Goes in: plain arrays.  Comes out: plain arrays and numbers; the modules beside this one check and name them.
"""

from __future__ import annotations

import numpy as np

from moxtrace.jit import allocating

__all__ = ["all_hops", "anneal", "count_triangles", "path_stats", "random_regular", "refine_bisection"]

# Tries to mend one clash before the whole pairing is thrown away.  Below half of all links, about one try
# in four or more succeeds, so only tiny graphs, which can truly be stuck, ever start again.
MEND_TRIES = 1000


@allocating
def _popcount(x):
    """Bits set in a 64-bit word, by pairwise sums."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@allocating
def _own_bits(n):
    """Bit sets that hold each node alone, shape (n, words)."""
    reach = np.zeros((n, (n + 63) // 64), np.uint64)
    for u in range(n):
        reach[u, u >> 6] = np.uint64(1) << np.uint64(u & 63)
    return reach


@allocating
def _widen(ptr, dst, reach, grown, u):
    """What ``u`` reaches in one hop more: its own set and its neighbours' sets."""
    for w in range(reach.shape[1]):
        grown[u, w] = reach[u, w]
    for e in range(ptr[u], ptr[u + 1]):
        v = dst[e]
        for w in range(reach.shape[1]):
            grown[u, w] |= reach[v, w]


@allocating
def all_hops(ptr, dst):
    """Hops between all ordered pairs, int16, shape (n, n); -1 where there is no path.

    Breadth-first search from all nodes at once, 64 targets a word: links x n / 64 steps per level.
    """
    n = len(ptr) - 1
    hops = np.full((n, n), -1, np.int16)
    reach = _own_bits(n)
    grown = np.zeros_like(reach)
    for u in range(n):
        hops[u, u] = 0
    level = 0
    changed = True
    while changed:
        level += 1
        changed = False
        for u in range(n):
            _widen(ptr, dst, reach, grown, u)
            for w in range(reach.shape[1]):
                fresh = grown[u, w] & ~reach[u, w]
                if fresh == np.uint64(0):
                    continue
                changed = True
                for b in range(64):
                    if (fresh >> np.uint64(b)) & np.uint64(1):
                        hops[u, w * 64 + b] = level
        reach, grown = grown, reach
    return hops


@allocating
def path_stats(ptr, dst):
    """Radius, diameter and sum of the hops over all ordered pairs; all -1 if some pair has no path."""
    n = len(ptr) - 1
    reach = _own_bits(n)
    grown = np.zeros_like(reach)
    missing = np.full(n, n - 1, np.int64)
    radius, diameter, total = np.int64(-1), np.int64(0), np.int64(0)
    left = np.int64(n) * (n - 1)
    level = np.int64(0)
    while left > 0:
        level += 1
        total += left  # every pair still apart is at least this far apart
        before = left
        for u in range(n):
            if missing[u] == 0:
                grown[u] = reach[u]
                continue
            _widen(ptr, dst, reach, grown, u)
            got = np.int64(0)
            for w in range(reach.shape[1]):
                got += _popcount(grown[u, w])
            left -= missing[u] - (n - got)
            missing[u] = n - got
            if missing[u] == 0:
                diameter = level
                if radius < 0:
                    radius = level
        if left == before:
            return np.int64(-1), np.int64(-1), np.int64(-1)
        reach, grown = grown, reach
    return radius, diameter, total


@allocating
def count_triangles(ptr, nbr):
    """Triangles of an undirected graph whose CSR lists every edge from both ends."""
    n = len(ptr) - 1
    adjacent = np.zeros((n, (n + 63) // 64), np.uint64)
    for u in range(n):
        for e in range(ptr[u], ptr[u + 1]):
            v = nbr[e]
            adjacent[u, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    corners = np.int64(0)
    for u in range(n):
        for e in range(ptr[u], ptr[u + 1]):
            v = nbr[e]
            if v > u:
                for w in range(adjacent.shape[1]):
                    corners += _popcount(adjacent[u, w] & adjacent[v, w])
    return corners // 3


@allocating
def _next(state):
    """Next 64 random bits: splitmix64 on ``state``, uint64, shape (1,)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@allocating
def _below(state, bound):
    """A number in ``0 .. bound - 1``; the bias of the remainder is below ``bound / 2**63``."""
    return np.int64(_next(state) >> np.uint64(1)) % bound


@allocating
def _mend(a, b, count, state):
    """Switch ends of clashing edges with random other edges until none clashes; False when stuck.

    A switch is made only where it makes no new clash, so the number of clashes only falls.
    """
    m = len(a)
    for e in range(m):
        tries = 0
        while a[e] == b[e] or count[a[e], b[e]] > 1:
            if tries == MEND_TRIES:
                return False
            tries += 1
            f = _below(state, m)
            turned = _below(state, 2)
            u, v = a[e], b[e]
            x, y = (b[f], a[f]) if turned else (a[f], b[f])
            two_loops = u == v and x == y  # would become one doubled edge
            if f == e or u == x or v == y or count[u, x] or count[v, y] or two_loops:
                continue
            for p, q, change in ((u, v, -1), (x, y, -1), (u, x, 1), (v, y, 1)):
                count[p, q] += change
                if p != q:
                    count[q, p] += change
            a[e], b[e] = u, x
            a[f], b[f] = v, y
    return True


@allocating
def random_regular(n, degree, seed):
    """A random simple graph in which every node has ``degree`` neighbours; edges int32, shape (m, 2).

    The pairing model: every node offers ``degree`` ends, the ends are shuffled and paired, and loops and
    doubled edges are mended by switching.  Wants ``degree <= (n - 1) / 2`` and ``n * degree`` even.
    """
    state = np.empty(1, np.uint64)
    state[0] = seed
    m = n * degree // 2
    ends = np.empty(2 * m, np.int32)
    while True:
        for i in range(2 * m):
            ends[i] = i // degree
        for i in range(2 * m - 1, 0, -1):
            j = _below(state, i + 1)
            ends[i], ends[j] = ends[j], ends[i]
        a, b = ends[0::2].copy(), ends[1::2].copy()
        count = np.zeros((n, n), np.int16)
        for e in range(m):
            count[a[e], b[e]] += 1
            if a[e] != b[e]:
                count[b[e], a[e]] += 1
        if _mend(a, b, count, state):
            return np.stack((a, b), axis=1)


@allocating
def _flip(ptr, nbr, weight, side, gain, u):
    """Move ``u`` to the other side and bring its neighbours' gains up to date."""
    side[u] = 1 - side[u]
    for e in range(ptr[u], ptr[u + 1]):
        v = nbr[e]
        if side[v] == side[u]:
            gain[v] -= 2 * weight[e]
        else:
            gain[v] += 2 * weight[e]


@allocating
def refine_bisection(ptr, nbr, weight, side):
    """Lower the weight cut between the two sides by Kernighan-Lin passes; ``side`` (0 or 1) is changed.

    Every pass swaps node after node in pairs, best gain first (ties: lowest number), each node once, and
    keeps the swaps up to the best moment; passes end when one gains nothing.  Sizes of the sides stay.

    References
    ----------
    Kernighan and Lin, An efficient heuristic procedure for partitioning graphs, 1970.
    """
    n = len(side)
    ones = side.sum()
    pairs = min(ones, n - ones)
    gain = np.empty(n, np.float64)
    moved = np.empty(2 * pairs, np.int64)
    least = 1e-9 * weight.sum()
    while True:
        locked = np.zeros(n, np.bool_)
        gain[:] = 0.0
        for u in range(n):
            for e in range(ptr[u], ptr[u + 1]):
                gain[u] += weight[e] if side[nbr[e]] != side[u] else -weight[e]
        total, best, kept = 0.0, least, 0
        for k in range(2 * pairs):
            pick = -1
            for u in range(n):
                if side[u] == k % 2 and not locked[u] and (pick < 0 or gain[u] > gain[pick]):
                    pick = u
            total += gain[pick]
            locked[pick] = True
            moved[k] = pick
            _flip(ptr, nbr, weight, side, gain, pick)
            if k % 2 == 1 and total > best:
                best, kept = total, k + 1
        for k in range(kept, 2 * pairs):
            side[moved[k]] = 1 - side[moved[k]]
        if kept == 0:
            return


@allocating
def _detach(u, v, nbr, degree, walks, adjacent):
    """Take cable u-v out; returns the change of 2 * (3 * triangles + pairs beyond 2 hops / 2)."""
    change = -6 * np.int64(walks[u, v])
    for p, q in ((u, v), (v, u)):
        for i in range(degree[p]):
            x = nbr[p, i]
            if x != q:  # the walk x - p - q is gone
                walks[x, q] -= 1
                walks[q, x] -= 1
                if walks[x, q] == 0 and not adjacent[x, q]:
                    change += 1
    adjacent[u, v] = adjacent[v, u] = False
    if walks[u, v] == 0:
        change += 1
    for p, q in ((u, v), (v, u)):
        degree[p] -= 1
        for i in range(degree[p]):
            if nbr[p, i] == q:
                nbr[p, i] = nbr[p, degree[p]]
    return change


@allocating
def _attach(u, v, nbr, degree, walks, adjacent):
    """Put cable u-v in; returns the change of 2 * (3 * triangles + pairs beyond 2 hops / 2)."""
    change = 6 * np.int64(walks[u, v])
    if walks[u, v] == 0:
        change -= 1
    adjacent[u, v] = adjacent[v, u] = True
    for p, q in ((u, v), (v, u)):
        for i in range(degree[p]):
            x = nbr[p, i]
            if walks[x, q] == 0 and not adjacent[x, q]:
                change -= 1
            walks[x, q] += 1
            walks[q, x] += 1
    for p, q in ((u, v), (v, u)):
        nbr[p, degree[p]] = q
        degree[p] += 1
    return change


@allocating
def _corners(cables, walks):
    """Triangles: each is a walk of two links beside each of its three cables."""
    count = np.int64(0)
    for e in range(len(cables)):
        count += walks[cables[e, 0], cables[e, 1]]
    return count // 3


@allocating
def _is_connected(nbr, degree):
    n = len(degree)
    seen = np.zeros(n, np.bool_)
    queue = np.zeros(n, np.int64)
    seen[0] = True
    found = 1
    for head in range(n):
        if head == found:
            return False
        u = queue[head]
        for i in range(degree[u]):
            v = nbr[u, i]
            if not seen[v]:
                seen[v] = True
                queue[found] = v
                found += 1
    return True


@allocating
def _falls_short(change, heat, state):
    """Whether a step that raises the doubled score by ``change`` is refused at this heat.

    ``exp(-x)`` as ``(1 - x / 1024) ** 1024`` by squaring: additions and products round alike on every
    machine, libraries' ``exp`` does not.
    """
    chance = max(0.0, 1.0 - np.float64(change) / 2 / heat / 1024)
    for _ in range(10):
        chance *= chance
    return np.float64(_next(state) >> np.uint64(11)) >= chance * 9007199254740992.0  # 2**53


@allocating
def anneal(cables, n, proposals, heat, seed):
    """Swap ends of cables for fewer triangles and fewer distant pairs; ``cables`` becomes the best found.

    The score is ``3 * triangles + 0.5 * pairs at distance > 2``, both counted once.  A proposal takes two
    cables a-b, c-d to a-c, b-d, unless that makes a loop or a doubled cable; what raises the score by ``x``
    is taken with probability ``exp(-x / t)``, where ``t`` falls evenly from ``heat``.  The best is the first
    of the lowest score that is connected; the cables given must be.

    Returns
    -------
    int64, int64, int64, int64
        Twice the score, and triangles, before; the same of the best.
    """
    m = len(cables)
    state = np.empty(1, np.uint64)
    state[0] = seed
    degree = np.zeros(n, np.int64)
    for e in range(m):
        degree[cables[e, 0]] += 1
        degree[cables[e, 1]] += 1
    nbr = np.zeros((n, degree.max()), np.int32)
    degree[:] = 0
    walks = np.zeros((n, n), np.int16)
    adjacent = np.zeros((n, n), np.bool_)
    score = np.int64(n) * (n - 1) // 2
    for e in range(m):
        score += _attach(cables[e, 0], cables[e, 1], nbr, degree, walks, adjacent)
    first, triangles = score, _corners(cables, walks)
    best, fewest = first, triangles
    now = cables.copy()
    for k in range(proposals):
        i, j, turned = _below(state, m), _below(state, m), _below(state, 2)
        a, b = now[i, 0], now[i, 1]
        c, d = (now[j, 1], now[j, 0]) if turned else (now[j, 0], now[j, 1])
        if i == j or a == c or b == d or adjacent[a, c] or adjacent[b, d]:
            continue
        change = _detach(a, b, nbr, degree, walks, adjacent) + _detach(c, d, nbr, degree, walks, adjacent)
        change += _attach(a, c, nbr, degree, walks, adjacent) + _attach(b, d, nbr, degree, walks, adjacent)
        if change > 0 and _falls_short(change, max(heat * (proposals - k) / proposals, 1e-3), state):
            _detach(a, c, nbr, degree, walks, adjacent)
            _detach(b, d, nbr, degree, walks, adjacent)
            _attach(a, b, nbr, degree, walks, adjacent)
            _attach(c, d, nbr, degree, walks, adjacent)
            continue
        score += change
        now[i, 0], now[i, 1] = a, c
        now[j, 0], now[j, 1] = b, d
        if score < best and _is_connected(nbr, degree):
            best = score
            cables[:] = now
            fewest = _corners(cables, walks)
    return first, triangles, best, fewest
