"""The rule ``tree``, compiled by numba: :mod:`moxtrace.replicas.replicas` states it.

The slow twin is ``tests/reference/replicas.py``.
"""

import numpy as np

from moxtrace.jit import allocating, kernel

__all__ = ["choose_by_tree"]

FAR = np.int64(1) << 40


@kernel
def _join(npu, hops, far):
    """Add an NPU to the tree: all others may be nearer to it now."""
    for v in range(len(far)):
        far[v] = min(far[v], np.int64(hops[npu, v]))


@kernel
def _take(npu, ids, hosts, served, chosen):
    """Serve at ``npu`` all remaining experts that it hosts; returns how many."""
    count = np.int64(0)
    for k in range(len(ids)):
        if served[k]:
            continue
        for r in range(hosts.shape[1]):
            if hosts[ids[k], r] == npu:
                served[k] = True
                chosen[k] = npu
                count += 1
                break
    return count


@kernel
def _covers(npu, ids, hosts, served):
    """How many remaining experts ``npu`` hosts."""
    count = np.int64(0)
    for k in range(len(ids)):
        if served[k]:
            continue
        for r in range(hosts.shape[1]):
            if hosts[ids[k], r] == npu:
                count += 1
                break
    return count


@kernel
def _cheapest(at, ids, hosts, served, far, assigned):
    """The NPU with the fewest hops for each expert that it would serve, or -1 where none remains."""
    npus = len(far)
    best, best_far, best_covers = np.int64(-1), FAR, np.int64(1)
    for k in range(len(ids)):
        if served[k]:
            continue
        for r in range(hosts.shape[1]):
            npu = np.int64(hosts[ids[k], r])
            if npu < 0 or npu == best:
                continue
            covers = _covers(npu, ids, hosts, served)
            mine, theirs = far[npu] * best_covers, best_far * covers
            if mine > theirs:
                continue
            if mine == theirs:
                if assigned[npu] > assigned[best]:
                    continue
                if assigned[npu] == assigned[best] and (npu - at) % npus > (best - at) % npus:
                    continue
            best, best_far, best_covers = npu, far[npu], covers
    return best


@allocating
def choose_by_tree(source, topk, hosts, hops):
    """NPU that serves each expert of each token, int32, shape (tokens, top_k)."""
    tokens, top_k = topk.shape
    chosen = np.full((tokens, top_k), -1, np.int32)
    served, far = np.empty(top_k, np.bool_), np.empty(len(hops), np.int64)
    assigned = np.zeros(len(hops), np.int64)
    last = np.int64(-1)
    for t in range(tokens):
        at = np.int64(source[t])
        if at != last:
            assigned[:] = 0
            last = at
        for v in range(len(far)):
            far[v] = hops[at, v]
        for k in range(top_k):
            expert = topk[t, k]
            served[k] = expert < 0
            if expert >= 0 and (hosts.shape[1] == 1 or hosts[expert, 1] < 0):
                served[k] = True
                chosen[t, k] = hosts[expert, 0]
                assigned[hosts[expert, 0]] += 1
                _join(hosts[expert, 0], hops, far)
        npu = _cheapest(at, topk[t], hosts, served, far, assigned)
        while npu >= 0:
            assigned[npu] += _take(npu, topk[t], hosts, served, chosen[t])
            _join(npu, hops, far)
            npu = _cheapest(at, topk[t], hosts, served, far, assigned)
    return chosen
