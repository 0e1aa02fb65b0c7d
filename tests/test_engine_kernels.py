"""Timers of the event loop, and the table of bucket counts that ASTRA-sim's hash sets go through."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moxtrace.chakra.trace import COMP
from moxtrace.engine.kernels import CLOCK_ENTRIES, NOW, SIZE, end_timer, new_timers, pop, start_timer
from moxtrace.engine.network import Network
from moxtrace.engine.order.kernels import BUCKETS
from moxtrace.engine.traces import simulate
from tests.reference.engine import Clock, TimersOfRank
from tests.test_engine_traces import IDLE, as_collective


class Loop:
    """Timers alone on an event queue."""

    def __init__(self, most, ranks):
        self.timers, self.behind = new_timers(most, ranks), np.full(most, -1, np.int32)
        self.heap, self.clock = np.empty((most + 1, 3), np.int64), np.zeros(CLOCK_ENTRIES, np.int64)

    def start(self, rank, item, cycles):
        start_timer(self.timers, self.behind, self.heap, self.clock, rank, item, cycles)

    def run(self, done):
        while self.clock[SIZE]:
            what = pop(self.heap, self.clock)
            timer, rank = (what >> 2) & 0xFFFFFFFF, what >> 34
            item = self.timers.data[timer, 1]
            while item >= 0:
                done(int(self.clock[NOW]), int(rank), int(item))
                item = self.behind[item]
            end_timer(self.timers, rank, timer)

    def chains(self):
        """Timers in each bucket."""
        lengths = []
        for first in self.timers.bucket[: self.timers.table[1]]:
            lengths.append(0)
            while first >= 0:
                lengths[-1] += 1
                first = self.timers.data[first, 3]
        return lengths


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=80))
def test_timers_ring_like_the_twin(starts):
    """Each timer starts another one of its rank when it rings, so slots and buckets are used again."""
    loop, clock = Loop(2 * len(starts), 5), Clock()
    twins = [TimersOfRank(clock) for _ in range(5)]
    rung, expected = [], []

    def done(now, rank, item):
        rung.append((now, rank, item))
        if item < len(starts):
            loop.start(rank, item + len(starts), starts[item][2])

    def done_in_twin(rank, item):
        expected.append((clock.now, rank, item))
        if item < len(starts):
            later = item + len(starts)
            twins[rank].start(starts[item][2], lambda: done_in_twin(rank, later))

    for item, (rank, cycles, _) in enumerate(starts):
        loop.start(rank, item, cycles)
        twins[rank].start(cycles, lambda rank=rank, item=item: done_in_twin(rank, item))
    loop.run(done)
    clock.run()
    assert rung == expected
    assert sum(loop.chains()) == loop.timers.table[0] == 0


def test_timers_of_one_rank_share_no_long_chain():
    """Work per timer is the length of a chain, whatever the times: a list of 30,000 would fail."""
    count = 30_000
    for times in (
        range(count, 0, -1),
        range(1000, 1000 * count + 1, 1000),
        range(2**40, 2**40 * count, 2**40),
    ):
        loop = Loop(count, 2)
        for item, time in enumerate(times):
            loop.start(1, item, time)
        chains = loop.chains()
        assert sum(chains) == loop.timers.table[0] == len(times)
        assert max(chains) <= 16


def test_a_collective_of_many_computations_that_all_run_at_once():
    count = 200_000
    nodes = [(i + 1, COMP, -1, 0, count - i, []) for i in range(count)]
    result = simulate(*as_collective([nodes, IDLE]), Network.uniform("fully-connected", 2, 50.0, 500.0))
    assert result.finished.tolist() == [count * 1000, 1]
    assert result.events == count + 1


def test_bucket_counts_reach_as_far_as_positions():
    """Beyond the last count the set could not grow: that must be more than int32 can number."""
    counts = BUCKETS.tolist()
    assert counts[-1] > np.iinfo(np.int32).max
    assert all(2 * small <= large < 2.2 * small for small, large in zip(counts, counts[1:], strict=False)
               if small > 5087)  # fmt: skip
    assert all(c % d for c in counts for d in range(3, int(c**0.5) + 1, 2))
    # g++ 12.2: std::__detail::_Prime_rehash_policy()._M_next_bkt(2 * 49969847), and so on
    assert counts[counts.index(49969847) + 1 :] == [
        101473717, 206062531, 418451333, 849749479, 1725587117, 3504151727,
    ]  # fmt: skip
