"""Compiled loops of sampling.  All arrays are float64 and C-contiguous unless said otherwise."""

import numpy as np

from moxtrace.jit import allocating

__all__ = ["draw_subsets", "draw_uniform", "inclusion", "suffix_table"]


@allocating
def suffix_table(p, q, top_k, table):
    """Fill ``table[i, j] = P(exactly j of the Bernoulli trials i, i + 1, ... succeed)``.

    Parameters
    ----------
    p, q : array, shape (experts,)
        Chance of success of each trial, and ``1 - p`` (apart, since p may be within rounding of 1).
    top_k : int
    table : array, shape (experts + 1, top_k + 1)
    """
    n = len(p)
    table[n, :] = 0.0
    table[n, 0] = 1.0
    for i in range(n - 1, -1, -1):
        table[i, 0] = q[i] * table[i + 1, 0]
        for j in range(1, top_k + 1):
            table[i, j] = q[i] * table[i + 1, j] + p[i] * table[i + 1, j - 1]


@allocating
def inclusion(p, q, top_k, table, chosen, spared):
    """Chance of each expert to be chosen, and to be spared, given that exactly ``top_k`` trials succeed.

    Both are sums of positive terms, so each is exact to rounding however close the other is to 1.

    Parameters
    ----------
    p, q : array, shape (experts,)
    top_k : int
        At least 1.
    table : array, shape (experts + 1, top_k + 1)
        From ``suffix_table``.
    chosen, spared : array, shape (experts,)
        Filled.
    """
    n = len(p)
    total = table[0, top_k]
    prefix = np.zeros(top_k + 1)
    prefix[0] = 1.0
    for i in range(n):
        yes = 0.0
        no = prefix[top_k] * table[i + 1, 0]
        for j in range(top_k):
            yes += prefix[j] * table[i + 1, top_k - 1 - j]
            no += prefix[j] * table[i + 1, top_k - j]
        chosen[i] = p[i] * yes / total
        spared[i] = q[i] * no / total
        for j in range(top_k, 0, -1):
            prefix[j] = q[i] * prefix[j] + p[i] * prefix[j - 1]
        prefix[0] *= q[i]


@allocating
def draw_subsets(survival, experts, uniform, always, out):
    """One subset per row of ``uniform``.

    ``survival[j, m]`` is the log of the chance that none of the trials before ``m`` succeeds and ``j`` of
    the others do.  With ``j`` experts still to choose among those from ``i`` on, the next one is at ``m`` or
    later with chance ``exp(survival[j, m] - survival[j, i])``, which falls in ``m``: so one uniform number
    and a binary search give it.

    Parameters
    ----------
    survival : array, shape (top_k + 1, active + 1)
    experts : array of int64, shape (active,)
        Expert of each trial, ascending.
    uniform : array, shape (tokens, top_k)
        In [0, 1).
    always : array of int64, shape (fixed,)
        Experts that are in every subset, ascending.
    out : array of int, shape (tokens, top_k + fixed)
        Filled, ascending.
    """
    tokens, top_k = uniform.shape
    active = len(experts)
    fixed = len(always)
    for t in range(tokens):
        i = np.int64(0)
        filled = np.int64(0)
        f = np.int64(0)
        for k in range(top_k):
            row = survival[top_k - k]
            level = row[i] + np.log(1.0 - uniform[t, k])
            low = i  # row[low] >= level; the answer is the last such index
            length = active - i
            while length > 1:
                half = length >> 1
                low = low + half if row[low + half] >= level else low
                length -= half
            expert = experts[low]
            while f < fixed and always[f] < expert:
                out[t, filled] = always[f]
                f += 1
                filled += 1
            out[t, filled] = expert
            filled += 1
            i = low + 1
        while f < fixed:
            out[t, filled] = always[f]
            f += 1
            filled += 1


@allocating
def draw_uniform(num_experts, uniform, out):
    """Distinct experts, every subset alike, by Floyd's method: one uniform number per expert.

    Parameters
    ----------
    num_experts : int
    uniform : array, shape (tokens, top_k)
        In [0, 1).
    out : array of int, shape (tokens, top_k)
        Filled, ascending.
    """
    tokens, top_k = uniform.shape
    for t in range(tokens):
        for k in range(top_k):
            last = np.int64(num_experts - top_k + k)
            pick = min(np.int64(uniform[t, k] * (last + 1)), last)
            for at in range(k):
                if out[t, at] == pick:
                    pick = last  # cannot be there yet: all others are below it
                    break
            at = k
            while at > 0 and out[t, at - 1] > pick:
                out[t, at] = out[t, at - 1]
                at -= 1
            out[t, at] = pick
