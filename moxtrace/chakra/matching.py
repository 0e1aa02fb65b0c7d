# mypy: allow-untyped-defs, no-check-untyped-defs
"""Kernels of the checks: which send meets which receive, and which nodes wait for each other in a circle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.jit import allocating

__all__ = [
    "AMBIGUOUS", "BAD_DEP", "BAD_PEER", "CYCLE", "MISMATCH", "NO_RECV", "NO_SEND", "SHOWN", "Found",
    "find_bad_nodes", "find_cycles", "match",
]  # fmt: skip

BAD_PEER, BAD_DEP, NO_RECV, NO_SEND, MISMATCH, AMBIGUOUS, CYCLE = range(7)
SHOWN = 8  # nodes of a cycle that are kept


class Found(NamedTuple):
    """Problems by kind: how many, and what the first of them are about.

    Parameters
    ----------
    total : array of int64, shape (kinds,)
    about : array of int64, shape (kinds, kept, SHOWN + 1)
        Global indices of the nodes, or one node and what is wrong with it; a cycle's length stands last.
    """

    total: NDArray[np.int64]
    about: NDArray[np.int64]


@allocating
def _note(found, kind, first, second):
    """Count a problem, and keep what it is about while there is room."""
    k = found.total[kind]
    if k < found.about.shape[1]:
        found.about[kind, k, 0] = first
        found.about[kind, k, 1] = second
    found.total[kind] += 1


@allocating
def find_bad_nodes(rank_ptr, kind, peer, dep_ptr, dep, found):
    """Note messages with ranks that do not exist and dependencies on nodes that do not.

    The other kernels rely on their absence.
    """
    ranks = len(rank_ptr) - 1
    for r in range(ranks):
        size = rank_ptr[r + 1] - rank_ptr[r]
        for i in range(rank_ptr[r], rank_ptr[r + 1]):
            message = kind[i] == 5 or kind[i] == 6
            if message and (peer[i] < 0 or peer[i] >= ranks or peer[i] == r):
                _note(found, BAD_PEER, i, peer[i])
            for k in range(dep_ptr[i], dep_ptr[i + 1]):
                if dep[k] < 0 or dep[k] >= size:
                    _note(found, BAD_DEP, i, dep[k])


@allocating
def _recvs_by_src(rank_ptr, kind, peer):
    """Receives in the order of (src, dst, place in the file), by counting, and where each src begins."""
    ranks = len(rank_ptr) - 1
    ptr = np.zeros(ranks + 1, np.int64)
    for i in range(rank_ptr[ranks]):
        if kind[i] == 6:
            ptr[peer[i] + 1] += 1
    for r in range(ranks):
        ptr[r + 1] += ptr[r]
    recvs = np.empty(ptr[ranks], np.int64)
    at = ptr.copy()
    for i in range(rank_ptr[ranks]):
        if kind[i] == 6:
            recvs[at[peer[i]]] = i
            at[peer[i]] += 1
    return recvs, ptr


@allocating
def _sends_by_dst(first, last, ranks, kind, peer):
    """Sends among the nodes ``first : last`` in the order of (dst, place in the file), by counting."""
    at = np.zeros(ranks + 1, np.int64)
    for i in range(first, last):
        if kind[i] == 5:
            at[peer[i] + 1] += 1
    for r in range(ranks):
        at[r + 1] += at[r]
    sends = np.empty(at[ranks], np.int64)
    for i in range(first, last):
        if kind[i] == 5:
            sends[at[peer[i]]] = i
            at[peer[i]] += 1
    return sends


@allocating
def _sort_by_tag(nodes, tag, amount):
    """Sort the messages of one link by (tag, size, place in the file), in place; they mostly stand so."""
    for k in range(1, len(nodes)):
        a, b = nodes[k - 1], nodes[k]
        if tag[a] > tag[b] or (tag[a] == tag[b] and amount[a] > amount[b]):
            nodes[:] = nodes[np.argsort(amount[nodes], kind="mergesort")]
            nodes[:] = nodes[np.argsort(tag[nodes], kind="mergesort")]
            return


@allocating
def _match_link(sends, recvs, tag, amount, partner, found):
    """Pair the messages of one link, both sides sorted by (tag, size, place in the file).

    Within a tag, equal sizes pair first in, first out, as ASTRA-sim's queues do.  What is left on both sides
    differs in size; what is left on one side has no counterpart.
    """
    i, j = 0, 0
    none = np.int64(2**31)
    while i < len(sends) or j < len(recvs):
        here = np.int64(tag[sends[i]]) if i < len(sends) else none
        there = np.int64(tag[recvs[j]]) if j < len(recvs) else none
        now = min(here, there)
        a, b = i, j
        left, over = a, b  # the unpaired are moved to the front of the tag's places
        last = np.int64(-1)
        while True:
            more = i < len(sends) and tag[sends[i]] == now
            wanted = j < len(recvs) and tag[recvs[j]] == now
            pair = more and wanted and amount[sends[i]] == amount[recvs[j]]
            if pair or (more and (not wanted or amount[sends[i]] < amount[recvs[j]])):
                send = sends[i]
                if last >= 0 and amount[send] == amount[last]:
                    _note(found, AMBIGUOUS, last, send)
                last = send
                if pair:
                    partner[recvs[j]] = send
                    j += 1
                else:
                    sends[left] = send
                    left += 1
                i += 1
            elif wanted:
                recvs[over] = recvs[j]
                over += 1
                j += 1
            else:
                break
        both = min(left - a, over - b)
        for k in range(both):
            _note(found, MISMATCH, sends[a + k], recvs[b + k])
        for k in range(a + both, left):
            _note(found, NO_RECV, sends[k], -1)
        for k in range(b + both, over):
            _note(found, NO_SEND, recvs[k], -1)


@allocating
def match(rank_ptr, kind, peer, tag, amount, found):
    """Find the send of every receive, and note sends and receives that do not meet.

    Returns
    -------
    partner : array of int64, shape (nodes,)
        Global index of a receive's send; -1 for everything else.
    """
    ranks = len(rank_ptr) - 1
    partner = np.full(rank_ptr[ranks], -1, np.int64)
    recvs, recv_ptr = _recvs_by_src(rank_ptr, kind, peer)
    for src in range(ranks):
        sends = _sends_by_dst(rank_ptr[src], rank_ptr[src + 1], ranks, kind, peer)
        i, j = 0, recv_ptr[src]
        dst = 0
        while i < len(sends) or j < recv_ptr[src + 1]:
            a, b = i, j
            while i < len(sends) and peer[sends[i]] == dst:
                i += 1
            while j < recv_ptr[src + 1] and recvs[j] < rank_ptr[dst + 1]:
                j += 1
            if i > a or j > b:
                here, there = sends[a:i], recvs[b:j]
                _sort_by_tag(here, tag, amount)
                _sort_by_tag(there, tag, amount)
                _match_link(here, there, tag, amount, partner, found)
            dst += 1
    return partner


@allocating
def _note_cycle(found, path, last):
    """Count a cycle that leads from the end of ``path`` back to ``last``, which is on it."""
    k = found.total[CYCLE]
    found.total[CYCLE] += 1
    if k >= found.about.shape[1]:
        return
    begin = len(path) - 1
    while path[begin] != last:
        begin -= 1
    length = len(path) - begin
    for n in range(min(length, SHOWN)):
        found.about[CYCLE, k, n] = path[begin + n]
    found.about[CYCLE, k, SHOWN] = length


@allocating
def find_cycles(rank_ptr, peer, dep_ptr, dep, partner, found):
    """Walk from every node to what it waits for, depth first; note every way that leads back to itself.

    A node waits for its dependencies, a receive also for its send.  A walk backwards needs no list of
    children: one byte and one cursor per node, and the path.
    """
    nodes = rank_ptr[-1]
    state = np.zeros(nodes, np.int8)  # 0 not seen, 1 on the path, 2 done
    cursor = np.zeros(nodes, np.int32)
    path = np.empty(nodes, np.int64)
    rank_on_path = np.empty(nodes, np.int32)
    for rank in range(len(rank_ptr) - 1):
        for start in range(rank_ptr[rank], rank_ptr[rank + 1]):
            if state[start] != 0:
                continue
            depth = 1
            path[0], rank_on_path[0], state[start] = start, rank, 1
            while depth > 0:
                node, r = path[depth - 1], rank_on_path[depth - 1]
                edge = dep_ptr[node] + cursor[node]
                if edge < dep_ptr[node + 1]:
                    to = rank_ptr[r] + dep[edge]
                elif edge == dep_ptr[node + 1] and partner[node] >= 0:
                    to = partner[node]
                    r = peer[node]
                else:
                    state[node] = 2
                    depth -= 1
                    continue
                cursor[node] += 1
                if state[to] == 0:
                    path[depth], rank_on_path[depth], state[to] = to, r, 1
                    depth += 1
                elif state[to] == 1:
                    _note_cycle(found, path[:depth], to)
