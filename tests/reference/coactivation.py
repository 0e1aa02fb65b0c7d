"""Placement by co-activation, slowly: the fan-out counted anew for every swap that is tried."""

from __future__ import annotations

import numpy as np


def fan_out(topk_ids: np.ndarray, host: np.ndarray) -> int:
    return sum(len({int(host[e]) for e in row if e >= 0}) for row in topk_ids)


def improve(topk_ids: np.ndarray, host: np.ndarray, num_npus: int, limit: float) -> int:
    """One pass over all pairs; ``host`` is changed."""
    chosen = topk_ids[topk_ids >= 0]
    weight = np.bincount(chosen, minlength=len(host))
    gained = 0
    for a in range(len(host)):
        for b in range(a + 1, len(host)):
            if host[a] == host[b]:
                continue
            swapped = host.copy()
            swapped[a], swapped[b] = host[b], host[a]
            load = np.bincount(host, weights=weight, minlength=num_npus)
            new = np.bincount(swapped, weights=weight, minlength=num_npus)
            pair = [host[a], host[b]]
            if new[pair].max() > max(load[pair].max(), limit):
                continue
            change = fan_out(topk_ids, swapped) - fan_out(topk_ids, host)
            if change < 0:
                host[:] = swapped
                gained -= change
    return gained
