"""Compiled loops over token routes."""

import numpy as np

from moxtrace.jit import allocating

__all__ = ["count_routes"]


@allocating
def count_routes(topk_ids, counts, bad):
    """Add up the experts of all tokens, and find the first token that names one expert twice.

    Parameters
    ----------
    topk_ids : array of int, shape (tokens, layers, top_k)
        Entries in -1 .. experts - 1; -1 is left out.
    counts : array of float64, shape (layers, experts)
        Filled; zero on entry.
    bad : array of int64, shape (layers,)
        Filled with the first token of each layer that names an expert twice, -1 where none does.
    """
    tokens, layers, top_k = topk_ids.shape
    bad[:] = -1
    for t in range(tokens):
        for layer in range(layers):
            for k in range(top_k):
                expert = np.int64(topk_ids[t, layer, k])
                if expert < 0:
                    continue
                counts[layer, expert] += 1.0
                if bad[layer] >= 0:
                    continue
                for other in range(k):
                    if topk_ids[t, layer, other] == expert:
                        bad[layer] = t
                        break
