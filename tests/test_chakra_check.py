"""Every planted fault is found and named, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.chakra import reader
from moxtrace.chakra.check import problems
from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from tests.reference import chakra as twin
from tests.test_chakra_writer import make


def relay(**change):
    """0 sends to 1 (node 11 to node 21), 1 sends on to 2 (node 22 to node 31), then 2 computes."""
    nodes = {
        11: [11, SEND, 1, 5, 100, []],
        21: [21, RECV, 0, 5, 100, []],
        22: [22, SEND, 2, 5, 100, [0]],
        31: [31, RECV, 1, 5, 100, []],
        32: [32, COMP, -1, 0, 9, [0]],
    }
    for ident, fields in change.items():
        for at, value in fields.items():
            nodes[int(ident[1:])][at] = value
    return make([[nodes[11]], [nodes[21], nodes[22]], [nodes[31], nodes[32]]])


def test_a_good_trace_has_no_problems():
    assert problems(relay()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"n21": {1: COMP, 2: -1}},
            ["rank 0 node 11: send to rank 1, tag 5, 100 bytes, has no recv"],
        ),
        (
            {"n11": {1: COMP, 2: -1}},
            ["rank 1 node 21: recv from rank 0, tag 5, 100 bytes, has no send"],
        ),
        (
            {"n31": {4: 99}},
            [
                "rank 1 node 22: send to rank 2, tag 5, 100 bytes, but its recv, rank 2 node 31, "
                "expects 99 bytes"
            ],
        ),
        (
            {"n31": {3: 6}},
            [
                "rank 1 node 22: send to rank 2, tag 5, 100 bytes, has no recv",
                "rank 2 node 31: recv from rank 1, tag 6, 100 bytes, has no send",
            ],
        ),
        (
            {"n11": {2: 3}, "n21": {2: 1}},
            [
                "rank 0 node 11: COMM_SEND with rank 3; expected another of the ranks 0 to 2",
                "rank 1 node 21: COMM_RECV with rank 1; expected another of the ranks 0 to 2",
            ],
        ),
        (
            {"n32": {5: [2]}, "n11": {5: [-1]}},
            [
                "rank 0 node 11: it depends on position -1, which its rank's file does not have",
                "rank 2 node 32: it depends on position 2, which its rank's file does not have",
            ],
        ),
        (
            {"n21": {5: [1]}},
            ["dependency cycle of 2 nodes: rank 1 node 21 waits for rank 1 node 22 waits for rank 1 node 21"],
        ),
        (
            {"n32": {5: [1]}},
            ["dependency cycle of 1 nodes: rank 2 node 32 waits for rank 2 node 32"],
        ),
        ({"n22": {0: 21}}, ["rank 1 node 21: id used more than once"]),
    ],
)
def test_planted_faults_are_named(change, expected):
    assert problems(relay(**change)) == expected


def test_a_cycle_across_ranks():
    # each rank receives before it sends
    trace = make(
        [[(1, SEND, 1, 0, 8, [1]), (2, RECV, 1, 0, 8, [])], [(1, SEND, 0, 0, 8, [1]), (2, RECV, 0, 0, 8, [])]]
    )
    assert problems(trace) == [
        "dependency cycle of 4 nodes: rank 0 node 1 waits for rank 0 node 2 waits for rank 1 node 1 "
        "waits for rank 1 node 2 waits for rank 0 node 1"
    ]


def test_a_tag_used_again():
    nodes = [(i, SEND, 1, 7, 8, []) for i in (1, 2)], [(i, RECV, 0, 7, 8, []) for i in (1, 2)]
    assert problems(make(nodes)) == [
        "rank 0 node 1: send to rank 1, tag 7, 8 bytes, and so is rank 0 node 2: "
        "which recv each meets is left to chance"
    ]
    # another size, or another pair of ranks, is another message
    other = [(1, SEND, 1, 7, 8, []), (2, SEND, 1, 7, 9, [])], [(1, RECV, 0, 7, 9, []), (2, RECV, 0, 7, 8, [])]
    assert problems(make(other)) == []


def test_long_lists_and_long_cycles_are_cut():
    count = 25
    ring = [(i, COMP, -1, 0, 1, [(i + 1) % count]) for i in range(count)]
    lost = [(i, SEND, 1, i, 8, []) for i in range(count)]
    out = problems(make([lost, ring]), limit=3)
    assert out[:3] == [f"rank 0 node {i}: send to rank 1, tag {i}, 8 bytes, has no recv" for i in range(3)]
    assert out[3] == "... and 22 more sends without a recv"
    assert out[4].startswith("dependency cycle of 25 nodes: rank 1 node 0 waits for rank 1 node 1 waits for")
    assert out[4].endswith("rank 1 node 7 waits for ...")
    assert len(out) == 5


def test_rank_without_nodes():
    assert problems(make([[(1, COLL, 6, 0, 1, [])], []])) == ["rank 1: no node; ASTRA-sim needs at least one"]


def test_a_long_chain_is_no_deep_recursion():
    count = 200_000
    trace = make([[(1, COMP, -1, 0, 1, [])]])
    ids = np.arange(count)
    long = replace(
        trace, rank_ptr=np.array([0, count]), node_id=ids, kind=np.full(count, COMP, np.int8),
        peer=np.full(count, -1, np.int32), tag=np.zeros(count, np.int32), amount=np.ones(count, np.int64),
        dep_ptr=np.append(ids, count - 1),
        dep=np.arange(1, count, dtype=np.int32),
    )  # fmt: skip
    assert problems(long) == []
    assert problems(replace(long, dep=np.append(long.dep[:-1], 0).astype(np.int32)))[0].startswith(
        f"dependency cycle of {count - 1} nodes"
    )


@st.composite
def tangled(draw):
    """Small traces with few tags and sizes, so that everything happens."""
    num_ranks = draw(st.integers(2, 3))
    ranks = []
    for rank in range(num_ranks):
        size = draw(st.integers(1, 8))
        nodes = []
        for at in range(size):
            kind = draw(st.sampled_from([COMP, SEND, SEND, RECV, RECV]))
            peer = draw(st.sampled_from([r for r in range(num_ranks) if r != rank])) if kind != COMP else -1
            deps = draw(
                st.lists(st.integers(0, max(at, draw(st.integers(0, size - 1)))), max_size=2, unique=True)
            )
            tag, amount = draw(st.integers(0, 1)), draw(st.integers(1, 2))
            nodes.append((at + 1, kind, peer, tag, amount, deps))
        ranks.append(nodes)
    return make(ranks)


@settings(max_examples=300, deadline=None)
@given(tangled())
def test_counts_equal_the_twin(trace):
    phrases = {
        "no recv": "has no recv",
        "no send": "has no send",
        "mismatch": "but its recv",
        "ambiguous": "left to chance",
        "cyclic": "dependency cycle",
    }
    out = problems(trace, limit=1000)
    found = {name: sum(phrase in line for line in out) for name, phrase in phrases.items()}
    expected = twin.faults(trace)
    assert bool(found.pop("cyclic")) == bool(expected.pop("cyclic"))
    assert found == expected


def test_real_traces_are_sound(shared_data):
    for path in sorted(shared_data.glob("astra_sim_cases/*/*/*.0.et")):
        trace = reader.read(path.with_name(path.name.removesuffix(".0.et")))
        assert problems(trace) == [], path
