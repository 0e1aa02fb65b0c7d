"""Which replica a token takes, in plain Python."""

from __future__ import annotations

from fractions import Fraction


def chosen_by_tree(source, topk_ids, hosts, hops):
    """One NPU for each expert of each token, as lists."""
    npus = len(hops)
    result = []
    assigned = {}
    for t, at in enumerate(source):
        if t == 0 or at != source[t - 1]:
            assigned = dict.fromkeys(range(npus), 0)
        homes = {k: [h for h in hosts[e] if h >= 0] for k, e in enumerate(topk_ids[t]) if e >= 0}
        serve = {k: home[0] for k, home in homes.items() if len(home) == 1}
        for npu in serve.values():
            assigned[npu] += 1
        tree = {at, *serve.values()}
        while len(serve) < len(homes):
            left = [k for k in homes if k not in serve]

            prices = {}
            for npu in {npu for k in left for npu in homes[k]}:
                hop = min(hops[h][npu] for h in tree)
                covers = sum(npu in homes[k] for k in left)
                prices[Fraction(int(hop), covers), assigned[npu], (npu - at) % npus] = npu
            best = prices[min(prices)]
            for k in left:
                if best in homes[k]:
                    serve[k] = best
                    assigned[best] += 1
            tree.add(best)
        result.append([serve.get(k, -1) for k in range(len(topk_ids[t]))])
    return result


def chosen_by_table(rule, source, topk_ids, hosts, hops):
    """The same for the rules ``static`` and ``nearest``."""
    result = []
    for at, experts in zip(source, topk_ids, strict=True):
        row = []
        for e in experts:
            home = [h for h in hosts[e] if h >= 0] if e >= 0 else []
            if e < 0:
                row.append(-1)
            elif at in home:
                row.append(at)
            else:
                least = min(hops[at][h] for h in home)
                home = [h for h in home if rule == "static" or hops[at][h] == least]
                row.append(home[(at + e) % len(home)])
        result.append(row)
    return result
