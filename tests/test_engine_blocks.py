"""Block simulation: hand calculations, the slow twin, and the traces of the same block."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.engine.blocks import ready_block, simulate_block
from moxtrace.engine.blocks.kernels import sort_by
from moxtrace.engine.network import Network
from moxtrace.errors import SimulationError, TopologyError
from moxtrace.topology.graph import Topology
from moxtrace.transfers import Phase, combine_of
from tests.reference.engine import BlockTwin
from tests.test_engine_traces import random_graph

TOKEN = 1_250  # 100 ns at 100 Gbit/s


def line(npus, lanes=1):
    """NPUs in a row, 100 Gbit/s and 10 ns both ways."""
    a = np.arange(npus - 1)
    return Topology("graph", npus, np.append(a, a + 1), np.append(a + 1, a), 100.0, 10.0, lanes)


def phase(topology, trees, size=TOKEN):
    """A dispatch of trees, each a list of ``(src, dst, parent in the tree, delivers)``."""
    rows = [t for tree in trees for t in tree]
    first = np.concatenate(([0], np.cumsum([len(tree) for tree in trees])))
    offset = np.repeat(first[:-1], np.diff(first))
    parent = np.array([r[2] for r in rows])
    return Phase(
        "dispatch", topology, topology.link_id([r[0] for r in rows], [r[1] for r in rows]).astype(np.int32),
        np.where(parent < 0, -1, parent + offset).astype(np.int32), first.astype(np.int64),
        np.array([r[3] for r in rows], bool), size,
    )  # fmt: skip


def both(dispatch, compute_ns, barrier="phase", rate=0.0, scale=1, size=TOKEN):
    combine = combine_of(dispatch, dispatch.topology, size)
    network = Network.from_topology(dispatch.topology, scale)
    return simulate_block(
        dispatch, combine, compute_ns, network, barrier=barrier, reduce_ns_per_byte=rate
    ), combine  # fmt: skip


def test_one_token_over_a_relay():
    dispatch = phase(line(3), [[(0, 1, -1, False), (1, 2, 0, True)]])
    result, _ = both(dispatch, [0, 0, 2_000])
    assert result.dispatch_done.tolist() == [110, 220, 220]
    assert result.compute_done.tolist() == [111, 221, 2_220]
    assert result.finished.tolist() == [2_440, 2_440, 2_330]
    assert result.completion == 2_440
    assert result.links.busy.tolist() == [100, 100, 100, 100]
    assert result.links.size_bytes.tolist() == [TOKEN] * 4
    assert result.dispatch_order.tolist() == [0, 1]
    assert result.combine_order.tolist() == [1, 0]


def test_phases_alone():
    dispatch = phase(line(3), [[(0, 1, -1, True), (1, 2, 0, True)]])
    network = Network.from_topology(dispatch.topology)
    one = simulate_block(dispatch, None, [0, 0, 0], network, barrier="phase", reduce_ns_per_byte=0)
    assert one.finished.tolist() == [111, 221, 221]
    assert len(one.combine_start) == 0
    combine = combine_of(dispatch, dispatch.topology, TOKEN)
    two = simulate_block(None, combine, [0, 0, 0], network, barrier="phase", reduce_ns_per_byte=0)
    # 2 sends at 1; 1 sums what arrives at 111 with its own in a cycle, and sends
    assert two.finished.tolist() == [222, 222, 111]
    assert len(two.dispatch_start) == 0


def test_reduction_takes_time_where_vectors_meet():
    # 0 -> 1 -> {2, 3}: 1 hosts an expert too, so it sums three vectors
    star = Topology("graph", 4, [0, 1, 1, 1, 2, 3], [1, 0, 2, 3, 1, 1], 100.0, 10.0, 1)
    dispatch = phase(star, [[(0, 1, -1, True), (1, 2, 0, True), (1, 3, 0, True)]])
    result, _ = both(dispatch, [0] * 4, rate=0.8)
    # dispatch: 1 at 110, 2 and 3 at 220; computed 221; at 1 at 331; 2 * 1,250 * 0.8 = 2,000 ns; 110 more
    assert result.finished.tolist() == [2_441, 2_441, 331, 331]
    fine, _ = both(dispatch, [0] * 4, rate=0.0004, scale=1_000)
    # computed 220,001 ps, at 1 at 330,001; a sum of 1 ns is 1,000 ps; 110,000 more
    assert fine.completion == 441_001


def test_the_source_sums_its_branches():
    dispatch = phase(line(3), [[(1, 0, -1, True), (1, 2, -1, True)]])
    result, _ = both(dispatch, [0] * 3, rate=0.8)
    assert result.finished.tolist() == [221, 1_221, 221]


def test_barriers_differ_in_what_waits():
    # 1 relays for 0 -> 2 twice and hosts the token of 2; under tokens it computes at its own arrival
    dispatch = phase(
        line(3),
        [[(0, 1, -1, False), (1, 2, 0, True)], [(0, 1, -1, False), (1, 2, 0, True)], [(2, 1, -1, True)]],
    )
    whole, _ = both(dispatch, [0, 5_000, 0], "phase")
    tokens, _ = both(dispatch, [0, 5_000, 0], "tokens")
    assert whole.compute_done.tolist() == [211, 5_320, 321]
    assert tokens.compute_done.tolist() == [1, 5_110, 321]
    assert whole.finished.tolist() == [5_320 + 210, 5_530, 5_430]  # 1 relays combine only after its compute
    assert tokens.finished.tolist() == [641, 5_220, 5_220]


def test_an_idle_npu_takes_a_cycle_per_phase():
    dispatch = phase(line(3), [[(0, 1, -1, True)]])
    result, _ = both(dispatch, [0, 0, 3_000])
    assert result.dispatch_done.tolist() == [110, 110, 1]
    assert result.finished.tolist() == [221, 221, 3_002]
    assert both(dispatch, [0, 0, 3_000], "tokens")[0].finished[2] == 3_000


def test_switch_hops_have_no_barrier():
    hub = Topology("switch", 2, [0, 1, 2, 2], [2, 2, 0, 1], [100, 100, 100, 50], 10.0, 1, num_nodes=3)
    dispatch = phase(hub, [[(0, 2, -1, False), (2, 1, 0, True)]])
    result, _ = both(dispatch, [0, 0])
    assert result.dispatch_done.tolist() == [320, 320]  # the send ends when its message is through
    assert result.finished.tolist() == [321 + 220] * 2


def test_lanes_start_messages_side_by_side():
    dispatch = phase(line(2, lanes=2), [[(0, 1, -1, True)]] * 3)
    result, _ = both(dispatch, [0, 0])
    assert result.dispatch_done.tolist() == [210, 210]
    assert result.dispatch_start.tolist() == [0, 1, 2]
    assert result.links.busy.tolist() == [300, 300]


def random_forest(rng, graph, rows):
    trees = []
    for source in np.sort(rng.integers(0, graph.num_npus, rows)).tolist():
        reached, tree = [(source, -1)], []
        for _ in range(int(rng.integers(0, 6))):
            node, at = reached[rng.integers(len(reached))]
            ends = graph.dst[graph.out_ptr[node] : graph.out_ptr[node + 1]].tolist()
            new = [e for e in ends if e not in [n for n, _ in reached]]
            if new:
                end = new[rng.integers(len(new))]
                reached.append((end, len(tree)))
                tree.append([node, end, at, bool(rng.random() < 0.6)])
        inner = {t[2] for t in tree}
        trees.append([(*t[:3], t[3] or i not in inner) for i, t in enumerate(tree)])
    return [tree for tree in trees if tree]


def two_way(graph):
    """The graph with a reverse of every link, of its own rate."""
    pairs = sorted({*zip(graph.src.tolist(), graph.dst.tolist(), strict=True)}
                   | {*zip(graph.dst.tolist(), graph.src.tolist(), strict=True)})  # fmt: skip
    src, dst = (np.array(x) for x in zip(*pairs, strict=True))
    back = np.maximum(graph.link_id(src, dst), graph.link_id(dst, src))
    return Topology(
        "graph",
        graph.num_npus,
        src,
        dst,
        graph.bandwidth_gbps[back],
        graph.latency_ns[back],
        graph.lanes[back],
    )


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.sampled_from(["phase", "tokens"]),
    st.sampled_from([1, 1_000]),
)
def test_equals_the_twin(seed, rows, barrier, scale):
    rng = np.random.default_rng(seed)
    graph = two_way(random_graph(rng, int(rng.integers(2, 7))))
    trees = random_forest(rng, graph, rows)
    if not trees:
        return
    dispatch = phase(graph, trees, int(rng.choice([64, 900])))
    compute, rate = rng.integers(0, 3_000, graph.num_npus), float(rng.choice([0.0, 0.7, 3.0]))
    result, combine = both(dispatch, compute, barrier, rate, scale, size=500)
    twin = BlockTwin(dispatch, combine, compute, Network.from_topology(graph, scale), barrier, rate)
    assert result.finished.tolist() == twin.finished.tolist()
    assert result.dispatch_done.tolist() == twin.dispatch_done.tolist()
    assert result.compute_done.tolist() == twin.compute_done.tolist()
    assert result.dispatch_order.tolist() == twin.starts["dispatch"]
    assert result.combine_order.tolist() == twin.starts["combine"]
    assert result.links.busy.tolist() == [w.busy for w in twin.wires]
    assert result.links.messages.tolist() == (dispatch.link_messages() + combine.link_messages()).tolist()


def test_progress_and_refusals(monkeypatch):
    monkeypatch.setattr("moxtrace.engine.blocks.simulation.SLICE", 1)
    dispatch = phase(line(3), [[(0, 1, -1, True), (1, 2, 0, True)]])
    network = Network.from_topology(dispatch.topology)
    told = []
    keys = {"barrier": "phase", "reduce_ns_per_byte": 0.0}
    simulate_block(dispatch, None, [0] * 3, network, progress=lambda *x: told.append(x), **keys)
    assert told[-1] == (2, 2)
    with pytest.raises(SimulationError, match="barrier 'none'"):
        simulate_block(dispatch, None, [0] * 3, network, barrier="none", reduce_ns_per_byte=0.0)
    with pytest.raises(SimulationError, match="expected 3 times >= 0 ns"):
        simulate_block(dispatch, None, [0, 0, -1], network, **keys)
    with pytest.raises(SimulationError, match="expected a finite time >= 0"):
        simulate_block(dispatch, None, [0] * 3, network, barrier="phase", reduce_ns_per_byte=-1.0)
    with pytest.raises(SimulationError, match="combine: was given a phase named dispatch"):
        simulate_block(None, dispatch, [0] * 3, network, **keys)
    with pytest.raises(SimulationError, match="dispatch: routed on another network .*3 NPUs, 4 links"):
        simulate_block(dispatch, None, [0] * 4, Network.from_topology(line(4)), **keys)


def test_a_rate_may_be_given_where_links_are_equal():
    assert Network.from_topology(line(3), bytes_per_cycle=3.5).bytes_per_cycle.tolist() == [3.5] * 4
    with pytest.raises(TopologyError, match="its links differ"):
        Network.from_topology(line(3, lanes=[1, 2, 1, 1]), bytes_per_cycle=3.5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_what_has_no_queue_goes_into_the_heap(seed, queues):
    rng = np.random.default_rng(seed)
    graph = two_way(random_graph(rng, int(rng.integers(2, 7))))
    trees = random_forest(rng, graph, 20)
    if not trees:
        return
    dispatch = phase(graph, trees, 900)
    compute = rng.integers(0, 3_000, graph.num_npus)
    usual, combine = both(dispatch, compute, rate=0.7, size=500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moxtrace.engine.blocks.links.kernels.MOST_QUEUES", queues)
        block = ready_block(
            dispatch, combine, compute, Network.from_topology(graph), barrier="phase", reduce_ns_per_byte=0.7
        )
    assert len(block.links.queues) <= queues
    other = block.run()
    assert other.finished.tolist() == usual.finished.tolist()
    assert other.combine_order.tolist() == usual.combine_order.tolist()
    assert other.events == usual.events


def test_messages_without_duration_have_room():
    # 1 byte takes 0 ns and 10 ns of latency: all are on their way at once, and released in one cycle
    dispatch = phase(line(2), [[(0, 1, -1, True)]] * 50, size=1)
    result, _ = both(dispatch, [0, 0], size=1)
    assert result.dispatch_done.tolist() == [10, 10]
    assert result.finished.tolist() == [21, 21]


def test_a_ready_block_needs_its_phases_no_longer():
    dispatch = phase(line(3), [[(0, 1, -1, False), (1, 2, 0, True)]])
    combine = combine_of(dispatch, dispatch.topology, TOKEN)
    network = Network.from_topology(dispatch.topology)
    told = []
    block = ready_block(
        dispatch, combine, [0, 0, 2_000], network, barrier="phase", reduce_ns_per_byte=0.0, order=False,
        progress=lambda *x: told.append(x),
    )  # fmt: skip
    assert told == [(i, 5) for i in range(1, 6)]
    held = [weakref.ref(array) for one in (dispatch, combine) for array in (one.link, one.parent)]
    del dispatch, combine
    assert [ref() for ref in held] == [None] * 4
    result = block.run()
    assert result.finished.tolist() == [2_440, 2_440, 2_330]
    assert len(result.dispatch_start) == len(result.combine_start) == len(result.dispatch_times) == 0


def test_times_of_transfers():
    dispatch = phase(line(3), [[(0, 1, -1, True)], [(0, 1, -1, False), (1, 2, 0, True)]])
    network = Network.from_topology(dispatch.topology)
    result = simulate_block(
        dispatch, None, [0] * 3, network, barrier="phase", reduce_ns_per_byte=0.0, times=True
    )
    assert result.dispatch_times.tolist() == [[0, 0], [0, 100], [210, 210]]


@given(st.lists(st.integers(0, 6), max_size=40))
def test_rows_are_sorted_by_key_and_keep_their_order(keys):
    key = np.array(keys, np.int32)
    rows, ordered = np.arange(len(key), dtype=np.int32)[::-1].copy(), np.empty(len(key), np.int32)
    ptr = np.zeros(9, np.int64)
    sort_by(key, rows, ptr, ordered)
    assert ordered.tolist() == sorted(rows.tolist(), key=lambda row: keys[row])
    assert np.diff(ptr[:8]).tolist() == [keys.count(k) for k in range(7)]
