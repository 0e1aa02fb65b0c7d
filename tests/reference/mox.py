"""Slow twin of the policy ``mox``: the rule of ``moxtrace.routing.mox.policy``, in plain Python integers."""

import math
from itertools import groupby

from tests.reference.routing import rows_of

UNIT, FINE = 1 << 10, 1 << 20


def exponential(i):
    """``exp(10 x)`` for ``x = i / UNIT - 1``, held to the table from -1 to 1."""
    i = min(max(i, 0), 2 * UNIT - 1)
    return round(UNIT * math.exp(10 * (i / UNIT - 1)))


def route(topology, demand, tables):
    """Links of every row's tree in the order in which they are chosen, and the costs that each row saw."""
    network = Network(topology, tables)
    trees, costs = [], []
    for source, group in groupby(rows_of(demand), key=lambda row: row[0]):
        sets = [dests for _, dests in group]
        some_trees, some_costs = network.collective(source, sets)
        trees += some_trees
        costs += some_costs
    return trees, costs


class Network:
    """A topology with its tables, as lists."""

    def __init__(self, topology, tables):
        self.ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        self.nodes, self.npus = topology.num_nodes, topology.num_npus
        self.share, self.level, self.price = (
            tables.share.tolist(),
            tables.level.tolist(),
            tables.price.tolist(),
        )
        self.ingress, self.prior = tables.ingress.tolist(), tables.prior.tolist()
        self.into = [[e for e, (_, b) in enumerate(self.ends) if b == v] for v in range(self.nodes)]
        self.out = [[e for e, (a, _) in enumerate(self.ends) if a == v] for v in range(self.nodes)]
        capacity = (topology.bandwidth_gbps * topology.lanes).tolist()
        self.mean = int(sum(u * c for u, c in zip(self.level, capacity, strict=True)) // sum(capacity))
        nominal = [UNIT + tables.stretch * price for price in self.price]
        self.way = [self._ways(d, nominal) for d in range(self.npus)]

    def _ways(self, d, cost):
        """Bellman-Ford towards ``d``."""
        way = [math.inf] * self.nodes
        way[d] = 0
        for _ in range(self.nodes):
            for e, (a, b) in enumerate(self.ends):
                way[a] = min(way[a], way[b] + cost[e])
        return way

    def collective(self, source, sets):
        """Trees and costs of all tokens of one source."""
        tokens = len(sets)
        copies = [sum(d in dests for dests in sets) for d in range(self.npus)]
        loads = [c * i // tokens for c, i in zip(copies, self.ingress, strict=True)]
        sure = [(c - math.isqrt(c)) * i // tokens for c, i in zip(copies, self.ingress, strict=True)]
        busiest = max([UNIT, *loads])
        hop = exponential(self.mean * UNIT // max([UNIT, *sure]))
        calm = exponential(UNIT * UNIT // max([UNIT, *sure]))
        popularity = [
            ((c << 20) + 8 * q) * UNIT // ((tokens + 8) * q) if q > 0 else UNIT
            for c, q in zip(copies, self.prior, strict=True)
        ]
        used, due, trees, costs = [0] * len(self.ends), 0, [], []
        for t, dests in enumerate(sets):
            if t >= due:
                cost = [
                    self._cost(source, e, t, used[e], popularity, busiest, hop, calm)
                    for e in range(len(used))
                ]
                due = t + min(32, max(1, t // 8, len(used) // 512))
            tree = self.tree(source, set(dests), cost, hop)
            for e in tree:
                used[e] += 1
            trees.append(tree)
            costs.append(cost)
        return trees, costs

    def _cost(self, source, e, seen, used, popularity, busiest, hop, calm):
        p = popularity[self.ends[e][1]]
        sent = seen * self.share[source][e]
        ahead = used * FINE - (sent * p >> 10)
        ratio = p + ahead * UNIT // (sent + 4 * FINE)
        most = 102 + (308 * (UNIT - calm) >> 10)
        excess = (ratio * self.level[e] * (2**30 // busiest) >> 30) - UNIT
        toll = min(self.price[e], 410) * calm >> 10
        return 51 + hop + exponential(min(excess + toll, most + max(toll, 0)) + UNIT)

    def tree(self, source, pending, cost, hop):
        """Links of one tree, without the relays that serve nobody."""
        held, tree, wanted = {source}, [], set(pending)
        while pending:
            e = self._cheapest(held, pending, cost)
            if e is None:
                e = self._relay(held, pending, cost, hop)
                if e is None:
                    e = self._approach(held, pending, cost)
            elif cost[e] > 205 + 2 * hop:
                extra = self._extra(held, pending, cost, 4 * hop)
                e = e if extra is None else extra
            tree.append(e)
            held.add(self.ends[e][1])
            pending.discard(self.ends[e][1])
        while True:
            feeding = {self.ends[e][0] for e in tree}
            kept = [e for e in tree if self.ends[e][1] in wanted or self.ends[e][1] in feeding]
            if kept == tree:
                return tree
            tree = kept

    def _cheapest(self, sources, targets, cost):
        links = [e for e, (a, b) in enumerate(self.ends) if a in sources and b in targets]
        return min(links, key=lambda e: (cost[e], e), default=None)

    def _between(self, held, pending):
        """Nodes that are neither, next to a holder and to a destination."""
        outside = set(range(self.nodes)) - held - pending
        return [
            x
            for x in sorted(outside)
            if any(self.ends[e][0] in held for e in self.into[x])
            and any(self.ends[e][1] in pending for e in self.out[x])
        ]

    def _extra(self, held, pending, cost, toll):
        best, least = None, toll
        for x in self._between(held, pending):
            saved = 0
            for d in pending:
                now = self._cheapest((held | pending) - {d}, {d}, cost)
                mine = self._cheapest({x}, {d}, cost)
                if now is not None and mine is not None:
                    saved += max(0, cost[now] - cost[mine])
            e = self._cheapest(held, {x}, cost)
            if saved - cost[e] > least:
                best, least = e, saved - cost[e]
        return best

    def _covers(self, x, pending):
        met, front = set(), [x]
        while front:
            v = front.pop()
            for e in self.out[v]:
                u = self.ends[e][1]
                if u in pending and u not in met:
                    met.add(u)
                    front.append(u)
        return met

    def _relay(self, held, pending, cost, hop):
        worth = 512 + 4 * hop
        scores = []
        for x in self._between(held, pending):
            covered = self._covers(x, pending)
            e = self._cheapest(held, {x}, cost)
            score = cost[e] + cost[self._cheapest({x}, pending, cost)] - worth * len(covered)
            rest = pending - covered
            if rest:
                later = [len(self._covers(y, rest)) for y in self._between(held | covered | {x}, rest)]
                score += worth - worth * max(later, default=0)
            scores.append((score, x, e))
        return min(scores)[2] if scores else None

    def _approach(self, held, pending, cost):
        ways = [
            (self.way[d][h], cost[e] + self.way[d][self.ends[e][1]], e)
            for d in pending
            for h in held
            for e in self.out[h]
            if self.way[d][self.ends[e][1]] < self.way[d][h]
        ]
        return min(ways)[2]
