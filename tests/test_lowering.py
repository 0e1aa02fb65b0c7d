"""Lowering against its slow twin, and worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.config import TraceConfig
from moxtrace.errors import TraceError
from moxtrace.lowering import Block, messages_of, token_order, traces_of
from moxtrace.topology import build, ideal_switch_of
from moxtrace.transfers import Phase, combine_of
from tests.reference.lowering import Program, rows_of
from tests.strategies import blocks

RATE = 0.01


def traces(block, orders, window=4, **options):
    return {name: trace for name, _, trace in traces_of(block, *orders, TraceConfig(**options), window)}


def shuffled_order(phase, seed):
    """A random order in which every transfer comes after those that it waits for."""
    key = np.random.default_rng(seed).random(phase.num_transfers)
    for i in range(phase.num_transfers):
        if phase.parent[i] >= 0:
            key[i] += key[phase.parent[i]]
    return np.argsort(-key if phase.toward_source else key, kind="stable")


@given(blocks(), st.integers(0, 3), st.integers(0, 1000), st.sampled_from(["collective", "flat"]),
       st.sampled_from(["phase", "tokens"]))  # fmt: skip
def test_equals_the_slow_twin(case, window, seed, form, barrier):
    demand, dispatch, combine = case
    compute = np.arange(10, 10 + demand.num_npus)
    block = Block(dispatch, combine, compute, RATE)
    orders = (shuffled_order(dispatch, seed), shuffled_order(combine, seed + 1))
    got = traces(block, orders, window, form=form, barrier=barrier)
    apart = form == "collective" and barrier == "phase"
    first = Program(demand.num_npus, window)
    first.dispatch(dispatch, orders[0].tolist())
    second = Program(demand.num_npus, window) if apart else first
    if not apart:
        first.compute(dispatch, compute, barrier)
    second.combine(combine, orders[1].tolist(), dispatch.num_trees, RATE, "" if apart else barrier)
    names = {"dispatch": first, "combine": second} if apart else {
        "workload" if form == "flat" else "block": first
    }  # fmt: skip
    for name, program in names.items():
        assert rows_of(got[name]) == program.rows()
        ids = got[name].node_id
        assert all(ids[got[name].rank_ptr[:-1]] == 1)


def relay_case():
    """0 -> 1 -> 2 on a ring of three, where 1 and 2 both need the token of 0."""
    ring = build("ring", 3)
    link = ring.link_id([0, 1], [1, 2]).astype(np.int32)
    dispatch = Phase("dispatch", ring, link, np.array([-1, 0], np.int32), np.array([0, 2, 2, 2]),
                     np.array([True, True]), 100)  # fmt: skip
    return Block(dispatch, combine_of(dispatch, ring, 100), np.array([5, 6, 7]), 0.1)


def test_relay_by_hand():
    block = relay_case()
    got = traces(block, (np.array([0, 1]), np.array([1, 0])))
    assert rows_of(got["workload"]) == [
        [(COLL, 6, 0, 1, []), (COMP, -1, 0, t, [0]), (COLL, 6, 0, 1, [1])] for t in (5, 6, 7)
    ]
    assert rows_of(got["dispatch"]) == [
        [(SEND, 1, 0, 100, [])],
        [(RECV, 0, 0, 100, []), (SEND, 2, 0, 100, [0])],
        [(RECV, 1, 0, 100, [])],
    ]
    # 1 adds its own output to that of 2: 100 bytes at 0.1 ns each
    assert rows_of(got["combine"]) == [
        [(RECV, 1, 3, 100, [])],
        [(RECV, 2, 3, 100, []), (COMP, -1, 0, 10, [0]), (SEND, 0, 3, 100, [1])],
        [(SEND, 1, 3, 100, [])],
    ]


def test_an_idle_rank_gets_one_node():
    ring = build("ring", 4)
    dispatch = Phase("dispatch", ring, ring.link_id([0], [1]).astype(np.int32), np.array([-1], np.int32),
                     np.array([0, 1]), np.array([True]), 8)  # fmt: skip
    block = Block(dispatch, combine_of(dispatch, ring, 8), np.zeros(4, np.int64), 0.0)
    got = traces(block, (np.array([0]), np.array([0])))
    assert rows_of(got["dispatch"])[2:] == [[(COMP, -1, 0, 0, [])]] * 2


def test_hops_through_a_switch_are_one_message():
    switch = ideal_switch_of(build("ring", 3))
    up, down = switch.link_id([0, 3], [3, 2]).astype(np.int32)
    dispatch = Phase("dispatch", switch, np.array([up, down], np.int32), np.array([-1, 0], np.int32),
                     np.array([0, 2]), np.array([False, True]), 8)  # fmt: skip
    combine = combine_of(dispatch, switch, 8)
    for phase in (dispatch, combine):
        view = messages_of(phase)
        assert view.messages.near.tolist() == [0]
        assert view.messages.far.tolist() == [2]
        assert view.messages.delivers.tolist() == [True]
        assert view.first.tolist() == [1 if phase.toward_source else 0]
    got = traces(Block(dispatch, combine, np.zeros(3, np.int64), 0.0), (np.array([0, 1]), np.array([1, 0])))
    assert rows_of(got["dispatch"])[0] == [(SEND, 2, 0, 8, [])]
    assert rows_of(got["combine"])[2] == [(SEND, 0, 1, 8, [])]


def test_token_order_takes_sources_in_turn():
    ring = build("ring", 3)
    link = ring.link_id([0, 0, 1, 1, 2], [1, 1, 2, 2, 0]).astype(np.int32)
    dispatch = Phase("dispatch", ring, link, np.full(5, -1, np.int32), np.arange(6), np.ones(5, bool), 8)
    assert token_order(dispatch, np.array([0, 0, 1, 1, 2])).tolist() == [0, 2, 4, 1, 3]


def test_token_order_sends_leaves_first_in_combine():
    block = relay_case()
    source = np.array([0, 1, 2])
    assert token_order(block.dispatch, source).tolist() == [0, 1]
    assert token_order(block.combine, source).tolist() == [1, 0]


def test_an_order_that_no_run_has_is_refused():
    block = relay_case()
    with pytest.raises(TraceError, match="combine message 0 starts before its inputs"):
        traces(block, (np.array([0, 1]), np.array([0, 1])))
