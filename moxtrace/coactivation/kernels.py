"""Kernels of placement by co-activation: what a swap of two experts does to the fan-out of tokens."""

import numpy as np

from moxtrace.jit import allocating, kernel

__all__ = ["fan_out", "improve"]


@allocating
def fan_out(topk_ids, host, num_npus):
    """NPUs that each token touches, summed over tokens."""
    stamp = np.full(num_npus, -1, np.int64)
    total = np.int64(0)
    for t in range(topk_ids.shape[0]):
        for k in range(topk_ids.shape[1]):
            expert = topk_ids[t, k]
            if expert >= 0 and stamp[host[expert]] != t:
                stamp[host[expert]] = t
                total += 1
    return total


@kernel
def _moved(expert, other, start, stop, token_ptr, token, has, held):
    """Change of the fan-out when ``expert`` moves from NPU ``start`` to ``stop``.

    Tokens that chose ``other`` too, which moves the other way, do not change: both NPUs stay touched.
    """
    change = np.int64(0)
    for j in range(token_ptr[expert], token_ptr[expert + 1]):
        t = token[j]
        if not has[t, other]:
            change += np.int64(held[t, stop] == 0) - np.int64(held[t, start] == 1)
    return change


@kernel
def improve(host, load, limit, weight, token_ptr, token, has, held):
    """Swap pairs of experts, in the order of their numbers, while that lowers the fan-out.

    A swap is not made where it would raise one of the two NPUs above ``limit`` and above what the busier of
    them carries.  ``host``, ``load`` and ``held`` (tokens by NPU: chosen experts there) are kept up to date.
    Returns the gain of one pass over all pairs.
    """
    gained = np.int64(0)
    for a in range(len(host)):
        for b in range(a + 1, len(host)):
            x, y = host[a], host[b]
            if x == y:
                continue
            shift = weight[b] - weight[a]
            busier = max(load[x], load[y], limit)
            if load[x] + shift > busier or load[y] - shift > busier:
                continue
            change = _moved(a, b, x, y, token_ptr, token, has, held)
            change += _moved(b, a, y, x, token_ptr, token, has, held)
            if change >= 0:
                continue
            for j in range(token_ptr[a], token_ptr[a + 1]):
                held[token[j], x] -= 1
                held[token[j], y] += 1
            for j in range(token_ptr[b], token_ptr[b + 1]):
                held[token[j], y] -= 1
                held[token[j], x] += 1
            host[a], host[b] = y, x
            load[x] += shift
            load[y] -= shift
            gained -= change
    return gained
