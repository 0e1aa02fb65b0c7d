"""Slow twins of the bounds: trees by enumeration, and the linear program with every tree as a column."""

from itertools import combinations

import numpy as np
from scipy.optimize import linprog

from tests.reference.routing import rows_of


def token_rows(demand):
    """{(source, destinations): tokens} of the rows that go anywhere."""
    rows = {}
    for source, dests in rows_of(demand):
        if dests:
            key = source, tuple(sorted(dests))
            rows[key] = rows.get(key, 0) + 1
    return dict(sorted(rows.items()))


def ends(topology):
    return list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


def spans(topology, source, nodes):
    """Whether ``source`` reaches all ``nodes`` without leaving them."""
    reached = {source}
    while True:
        more = {b for a, b in ends(topology) if a in reached and b in nodes} - reached
        if not more:
            return set(nodes) <= reached
        reached |= more


def relays(topology, source, dests):
    """Fewest nodes that must be added for ``source`` to reach all ``dests``."""
    others = [v for v in range(topology.num_nodes) if v != source and v not in dests]
    for extra in range(len(others) + 1):
        for some in combinations(others, extra):
            if spans(topology, source, {source, *dests, *some}):
                return extra
    return None


def trees(topology, source, dests):
    """Every tree from ``source`` that covers ``dests``, with destinations for leaves, as sets of links."""
    found = set()

    def grow(holders, links, banned):
        """Trees with ``links`` and any others but ``banned``."""
        if set(dests) <= holders:
            leaves = {ends(topology)[e][1] for e in links} - {ends(topology)[e][0] for e in links}
            if leaves <= set(dests):
                found.add(frozenset(links))
        for e, (a, b) in enumerate(ends(topology)):
            if a in holders and b not in holders and e not in banned:
                grow(holders | {b}, links | {e}, banned)
                banned = banned | {e}

    grow(frozenset([source]), frozenset(), frozenset())
    return sorted(found, key=sorted)


def cheapest_tree(topology, source, dests, price):
    return min(sum(price[e] for e in tree) for tree in trees(topology, source, dests))


def node_prices_total(topology, demand, price, relays):
    """Price of entering every destination, and as many of the cheapest others as each row needs relays."""
    total = 0
    for ((s, dests), count), extra in zip(token_rows(demand).items(), relays, strict=True):
        others = sorted(price[v] for v in range(topology.num_nodes) if v != s and v not in dests)
        total += count * (sum(price[d] for d in dests) + sum(others[:extra]))
    return total


def cut_tokens(demand, inside):
    """Tokens from outside with a destination inside."""
    return sum(c for (s, dests), c in token_rows(demand).items() if s not in inside and inside & set(dests))


def linear_program(topology, demand):
    """Least busiest link, tokens per Gbit/s, over all distributions on trees."""
    rows = token_rows(demand)
    columns = [(q, tree) for q, (s, dests) in enumerate(rows) for tree in trees(topology, s, dests)]
    load = np.zeros((topology.num_links, len(columns) + 1))
    share = np.zeros((len(rows), len(columns) + 1))
    for j, (q, tree) in enumerate(columns):
        load[sorted(tree), j] = 1.0
        share[q, j] = 1.0
    load[:, -1] = -topology.bandwidth_gbps * topology.lanes
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    tokens = np.array(list(rows.values()), float)
    return linprog(cost, load, np.zeros(len(load)), share, tokens, method="highs").fun
