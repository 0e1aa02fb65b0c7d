"""Kernels of the policy ``mox``: :mod:`moxtrace.routing.mox.policy` states the rule.

All numbers are integers, so every machine makes the same choices.  Ratios, levels, prices and costs count
in ``1 / UNIT``, copies per token in ``1 / FINE``.  Two kernels grow the same trees from what stands here:
:mod:`moxtrace.routing.mox.masks.kernels` holds sets of at most 64 nodes as bits of a word,
:mod:`moxtrace.routing.mox.lists.kernels` walks the adjacency of larger networks.  Their slow twin is
``tests/reference/mox.py``.

Arguments that belong together travel as plain tuples:

- ``graph``: ``src, dst, out_ptr, in_ptr, in_link`` of the topology, and ``way`` of :func:`way_costs`;
- ``tables``: ``share, level, price, ingress, prior`` of the tables, ``exponential``, and the mean level;
- ``rows``: ``source, dest_ptr`` of the run, and the whole demand's ``dest``, which ``dest_ptr`` points into;
- result: ``link, parent, delivers`` of each transfer, and ``end``, one past the last transfer of each row.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moxtrace.jit import allocating, kernel

__all__ = [
    "ALPHA",
    "EXTRA_ABOVE",
    "FAR",
    "FINE",
    "FLOOR",
    "HALF",
    "NEAR",
    "NONE",
    "STEP",
    "TOLL",
    "UNIT",
    "add",
    "count_bits",
    "emit",
    "first_hop",
    "lowest_bit",
    "next_refresh",
    "popularity_at",
    "price_links",
    "quotient",
    "read_own",
    "roomier",
    "way_costs",
]

UNIT = 1 << 10
FINE = 1 << 20
ALPHA = 10  # steepness of the cost
FLOOR = 51  # a link costs this at least: 0.05
PRIOR_TOKENS = 8  # weight of the uniform prior in a destination's popularity, in tokens
PRIOR_COPIES = 4  # weight of the popularity in a link's ratio, in copies
NEAR, FAR = 102, 410  # greatest excess of a link that still counts: 0.1 where the mean binds, else up to 0.4
TOLL = 4  # what an extra relay must save, and what coverage is worth, in hops
HALF = 512
EXTRA_ABOVE = 205  # a link that costs at most 0.2, and twice the price of a hop, is never avoided
SLOWEST = 32  # tokens between two refreshes, at most
LINKS_PER_TOKEN = 512  # in a large network a refresh serves at least a token for so many links
NONE = np.int64(1) << 60


# ---- words of bits


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


lowest_bit: Any = intrinsic(_lowest_code)
count_bits: Any = intrinsic(_count_code)


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
def read_own(tables, first, stop, dest_ptr, dest, popularity, own):
    """Count where a source's tokens go: the popularity of each NPU, and the load that binds.

    ``own`` gets the busiest ingress that it foresees, the price of a hop, the weight of the tables' prices,
    and the greatest excess.
    """
    _, _, _, ingress, prior, exponential, mean = tables
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
        if prior[d] > 0:
            expected = (tokens + PRIOR_TOKENS) * prior[d]
            popularity[d] = ((copies << 20) + PRIOR_TOKENS * prior[d]) * UNIT // expected
        else:
            popularity[d] = UNIT
    hop = exponential[mean * UNIT // sure]
    calm = exponential[UNIT * UNIT // sure]
    own[0], own[1], own[2], own[3] = busiest, hop, calm, NEAR + ((FAR - NEAR) * (UNIT - calm) >> 10)


@kernel
def quotient(a, b):
    """``a // b`` for ``b > 0``, of less than 2**52: as the loop below wants it, several at a time.

    Division of floats is exact but for its last bit, which the remainder sets right.
    """
    q = np.int64(np.true_divide(np.float64(a), np.float64(b)))
    rest = a - q * b
    return q + np.int64(rest >= b) - np.int64(rest < 0)


@kernel
def popularity_at(dst, popularity, at_link):
    """Popularity of the NPU that each link leads to; 1 at a switch."""
    for e in range(len(dst)):
        at_link[e] = popularity[dst[e]] if dst[e] < len(popularity) else np.int64(UNIT)


@kernel
def price_links(tables, source, seen, used, at_link, own, cost):
    """Costs of all links, from the counters as they stand after ``seen`` tokens."""
    share, level, price, _, _, exponential, _ = tables
    inverse = (np.int64(1) << 30) // own[0]
    hop, calm, most = own[1], own[2], own[3]
    last = np.int64(len(exponential) - 1)
    row = share[source]
    for e in range(len(cost)):
        p = at_link[e]
        sent = seen * row[e]
        ahead = (used[e] << 20) - (sent * p >> 10)
        ratio = p + quotient(ahead * UNIT, sent + PRIOR_COPIES * FINE)
        toll = price[e] * calm >> 10
        # a discount does not hide that a link is hot
        excess = min((ratio * level[e] * inverse >> 30) - UNIT, most - min(toll, 0)) + toll
        cost[e] = min(max(excess + UNIT, 0), last)
    for e in range(len(cost)):
        cost[e] = FLOOR + hop + exponential[np.uint64(cost[e])]


@kernel
def next_refresh(seen, links):
    """Tokens after which costs are computed again, if they were at ``seen``."""
    return seen + min(SLOWEST, max(1, seen >> 3, links // LINKS_PER_TOKEN))


# ---- the tree of a token

# A record per transfer of the present tree.
STEP = np.dtype(
    [
        ("link", np.int64),
        ("parent", np.int64),  # transfer before it, -1 at the root
        ("needed", np.int64),  # whether it delivers, or leads to one that does
        ("delivers", np.int64),
        ("place", np.int64),  # where it goes in the result
    ]
)


@kernel
def add(steps, size, e, parent, delivering):
    """Record the transfer over link ``e``; returns the new length of the tree."""
    steps[size].link = e
    steps[size].parent = parent
    steps[size].needed = steps[size].delivers = delivering
    return size + 1


@kernel
def emit(steps, size, used, filled, link, parent, delivers):
    """Write a finished tree without the relays that serve nobody; returns the new length of the result."""
    for i in range(size - 1, -1, -1):
        if steps[i].needed and steps[i].parent >= 0:
            steps[steps[i].parent].needed = 1
    for i in range(size):
        if steps[i].needed:
            before = steps[i].parent
            link[filled] = steps[i].link
            parent[filled] = steps[before].place if before >= 0 else -1
            delivers[filled] = steps[i].delivers == 1
            steps[i].place = filled
            used[steps[i].link] += 1
            filled += 1
    return filled


@allocating
def roomier(filled, least, link, parent, delivers):
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


@kernel
def first_hop(at, target, graph, cost):
    """Best link that leads from ``at`` nearer to a destination, and its cost with what remains after it."""
    _, dst, out_ptr, _, _, way = graph
    best, least = np.int64(-1), NONE
    for e in range(out_ptr[at], out_ptr[at + 1]):
        onward = way[target, dst[e]]
        if onward < way[target, at] and cost[e] + onward < least:
            best, least = np.int64(e), cost[e] + onward
    return best, least
