"""In which order ASTRA-sim issues nodes that became free together.

ASTRA-sim keeps the free nodes of a custom collective in a ``std::unordered_set`` of node ids and walks it.
That order decides ties, so it is computed here: libstdc++ hashes an integer to itself, holds all elements in
one singly linked list, puts the first element of a bucket at the list's front and any later one at the front
of its bucket, and when the set is full moves on to the next prime and inserts anew in list order.

References
----------
``bits/hashtable.h`` and ``_Prime_rehash_policy`` of libstdc++; ``feeder_v3/dependancy_solver.cpp`` of
astra-sim's Chakra.
"""

import numpy as np

from moxtrace.jit import allocating

__all__ = ["children_order", "hash_order", "insertion_order"]

# Bucket counts of a set that grows one element at a time: the first of ``_Prime_rehash_policy``'s primes that
# is at least twice the one before, printed by g++ 12.2.  The last is above what int32 positions can number.
BUCKETS = np.array(
    [
        13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697,
        1447153, 2938679, 5967347, 12117689, 24607243, 49969847, 101473717, 206062531, 418451333, 849749479,
        1725587117, 3504151727,
    ]
)  # fmt: skip
FEW = 32


@allocating
def _arrange_few(keys, sequence, count, buckets, order):
    """Like :func:`_arrange`, by comparing all pairs."""
    filled = 0
    for j in range(count - 1, -1, -1):
        bucket = keys[sequence[j]] % buckets
        first = True
        for i in range(j):
            if keys[sequence[i]] % buckets == bucket:
                first = False
                break
        if first:
            for i in range(count - 1, j - 1, -1):
                if keys[sequence[i]] % buckets == bucket:
                    order[filled] = sequence[i]
                    filled += 1


@allocating
def _arrange(keys, sequence, count, buckets, order):
    """List order after inserting ``keys[sequence[:count]]`` into empty ``buckets``, without growth."""
    low = high = keys[sequence[0]]
    for i in range(1, count):
        low = min(low, keys[sequence[i]])
        high = max(high, keys[sequence[i]])
    if high - low < buckets or count == 2:  # no bucket is shared, or sharing changes nothing
        for i in range(count):
            order[i] = sequence[count - 1 - i]
    elif count <= FEW:
        _arrange_few(keys, sequence, count, buckets, order)
    else:
        newest = np.full(buckets, -1, np.int32)
        before = np.empty(count, np.int32)
        for i in range(count):
            bucket = keys[sequence[i]] % buckets
            before[i] = newest[bucket]
            newest[bucket] = i
        filled = 0
        for i in range(count - 1, -1, -1):
            if before[i] < 0:
                at = newest[keys[sequence[i]] % buckets]
                while at >= 0:
                    order[filled] = sequence[at]
                    filled += 1
                    at = before[at]


@allocating
def hash_order(keys, buckets, order):
    """Walk of an empty ``unordered_set`` of ``buckets`` buckets (1: a new one) after inserting ``keys``.

    ``order`` gets positions in ``keys``.  Returns the bucket count that it has grown to.
    """
    count = len(keys)
    sequence = np.empty(count, np.int32)
    done = 0
    while True:
        stop = min(count, buckets if buckets > 1 else 0)
        if stop > done:
            sequence[:done] = order[:done]
            for i in range(done, stop):
                sequence[i] = i
            _arrange(keys, sequence, stop, buckets, order)
            done = stop
        if done == count:
            return buckets
        for larger in BUCKETS:
            if larger >= 2 * buckets:
                buckets = larger
                break


@allocating
def children_order(child_ptr, child, keys, first, stop):
    """Put the children of nodes ``first:stop`` into the order of their set, from the order in the file.

    ``keys[c]`` is the id of node ``c``; where ``keys`` has one entry, ids are positions.
    """
    for node in range(first, stop):
        low, high = child_ptr[node], child_ptr[node + 1]
        count = high - low
        if count < 2:
            continue
        if count == 2:
            child[low], child[low + 1] = child[low + 1], child[low]
            continue
        own = child[low:high].copy()
        ids = own.astype(np.int64)
        if len(keys) > 1:
            for i in range(count):
                ids[i] = keys[own[i]]
        order = np.empty(count, np.int32)
        hash_order(ids, np.int64(1), order)
        for i in range(count):
            child[low + i] = own[order[i]]


@allocating
def insertion_order(ids, dep_ptr, dep, order):
    """In which order a rank's nodes enter ASTRA-sim's map: a parent that comes later enters with its child.

    ``dep_ptr`` starts at the rank's first node; ``dep`` and ``order`` are positions in the rank.
    """
    entered = np.zeros(len(ids), np.bool_)
    filled = 0
    for node in range(len(ids)):
        if not entered[node]:
            entered[node] = True
            order[filled] = node
            filled += 1
        own = dep[dep_ptr[node] : dep_ptr[node + 1]]
        late = False
        for d in own:
            late = late or not entered[d]
        if not late:
            continue
        parents = np.empty(len(own), np.int32)
        count = 0
        for i in range(len(own)):
            again = False
            for j in range(count):
                again = again or parents[j] == own[i]
            if not again:
                parents[count] = own[i]
                count += 1
        walk = np.empty(count, np.int32)
        hash_order(ids[parents[:count]], np.int64(1), walk)
        for k in range(count):
            parent = parents[walk[k]]
            if not entered[parent]:
                entered[parent] = True
                order[filled] = parent
                filled += 1
