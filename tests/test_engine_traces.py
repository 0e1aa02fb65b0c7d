"""Trace simulation: hand calculations, the slow twin, what cannot finish, and ASTRA-sim's own answers."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.engine.inputs import load, simulate_inputs
from moxtrace.engine.network import Network
from moxtrace.engine.order.kernels import hash_order
from moxtrace.engine.result import ComputeModel
from moxtrace.engine.traces import simulate
from moxtrace.errors import SimulationError
from moxtrace.topology.graph import Topology
from moxtrace.units import gibps_to_bytes_per_ns
from tests.reference.engine import HashSet, TraceTwin, trace_of

TOKEN = 14_336
RATE = gibps_to_bytes_per_ns(50)  # serialization 267, hop 767 with 500 ns
ALL_TO_ALL = 6
IDLE = [(1, COMP, -1, 0, 0, [])]


def network(kind, npus):
    return Network.uniform(kind, npus, RATE, 500.0)


def as_collective(ranks):
    """A workload of one COLL node per rank, and what it runs."""
    work = trace_of([[(1, COLL, ALL_TO_ALL, 0, 1, [])] for _ in ranks])
    return work, {1: trace_of(ranks)}


def relay(tokens):
    """Rank 0 sends ``tokens`` messages to rank 1, which passes each on to rank 2."""
    return [
        [(t + 1, SEND, 1, t, TOKEN, []) for t in range(tokens)],
        [(2 * t + 1, RECV, 0, t, TOKEN, []) for t in range(tokens)]
        + [(2 * t + 2, SEND, 2, t, TOKEN, [2 * t + 1]) for t in range(tokens)],
        [(t + 1, RECV, 1, t, TOKEN, []) for t in range(tokens)],
    ]


def neighbours(npus, degree, tokens, chained=False):
    """Every rank sends ``tokens`` messages to each of the next ``degree`` ranks."""
    ranks = []
    for r in range(npus):
        nodes = []
        for j in range(1, degree + 1):
            for t in range(tokens):
                after = [len(nodes) - 1] if chained and t else []
                nodes.append((len(nodes) + 1, SEND, (r + j) % npus, t, TOKEN, after))
                nodes.append((len(nodes) + 1, RECV, (r - j) % npus, t, TOKEN, []))
        ranks.append(nodes)
    return ranks


@pytest.mark.parametrize(("kind", "cycles"), [("fully-connected", 1_534), ("switch", 3_068)])
def test_relay_by_hand(kind, cycles):
    result = simulate(*as_collective(relay(1)), network(kind, 3))
    assert result.completion == cycles
    assert result.finished.tolist() == [cycles // 2, cycles, cycles]  # rank 1's send ends as it arrives
    assert result.exposed.tolist() == result.finished.tolist()


def test_ten_tokens_over_the_relay():
    assert simulate(*as_collective(relay(10)), network("fully-connected", 3)).completion == 3_937


@pytest.mark.parametrize(
    ("kind", "chained", "collective", "cycles"),
    [
        ("fully-connected", False, True, 267_500),
        ("switch", False, True, 2_137_267),
        ("fully-connected", True, True, 767_000),
        ("fully-connected", False, False, 6_136_000),
    ],
)
def test_eight_neighbours_a_thousand_tokens_each(kind, chained, collective, cycles):
    ranks = neighbours(16, 8, 1_000, chained)
    work, custom = as_collective(ranks) if collective else (trace_of(ranks), {})
    result = simulate(work, custom, network(kind, 16))
    assert result.completion == cycles
    assert result.links.messages.sum() == 16 * 8 * 1_000 * (2 if kind == "switch" else 1)
    assert result.links.size_bytes.sum() == result.links.messages.sum() * TOKEN
    assert (result.links.busy == result.links.messages * 267).all()


def test_links_fed_evenly_take_their_load_and_a_hop():
    # (busiest link - 1) * serialization + hop
    ranks = [
        [(t + 1, SEND, 1 if t < 5 else 2, t, TOKEN, []) for t in range(12)],
        [(t + 1, RECV, 0, t, TOKEN, []) for t in range(5)],
        [(t + 1, RECV, 0, t, TOKEN, []) for t in range(5, 12)],
    ]
    assert simulate(*as_collective(ranks), network("fully-connected", 3)).finished.tolist() == [
        6 * 267 + 767, 4 * 267 + 767, 6 * 267 + 767,
    ]  # fmt: skip


def test_ring_goes_the_shorter_way_and_clockwise_on_a_tie():
    ranks = [[(1, SEND, 3, 0, TOKEN, []), (2, SEND, 2, 0, TOKEN, [])], IDLE, [(1, RECV, 0, 0, TOKEN, [])]]
    ranks += [[(1, RECV, 0, 0, TOKEN, [])]]
    result = simulate(*as_collective(ranks), network("ring", 4))
    assert result.finished.tolist() == [1_534, 1, 1_534, 767]
    assert result.links.messages.tolist() == [1, 1, 0, 0, 1, 0, 0, 0]  # 0 -> 1, 1 -> 2; 0 -> 3


def test_two_lanes_carry_two_messages_at_once():
    link = Topology("graph", 2, [0, 1], [1, 0], 100.0, 100.0, [2, 1])  # 12.5 bytes per ns
    ranks = [
        [(t + 1, SEND, 1, t, 1_250, []) for t in range(3)],
        [(t + 1, RECV, 0, t, 1_250, []) for t in range(3)],
    ]
    result = simulate(*as_collective(ranks), Network.from_topology(link))
    assert result.completion == 100 + 200  # the third starts when a lane is free
    assert result.links.busy.tolist() == [300, 0]


def test_workload_has_one_send_and_one_comp_in_flight():
    ranks = [
        [(i, SEND, 1, i, TOKEN, []) for i in (1, 2)] + [(i, COMP, -1, 0, 3, []) for i in (3, 4)],
        [(i, RECV, 0, i, TOKEN, []) for i in (1, 2)] + [(3, COMP, -1, 0, 0, [])],
    ]
    result = simulate(trace_of(ranks), {}, network("fully-connected", 2))
    assert result.node_start.tolist() == [0, 767, 0, 3_000, 0, 0, 0]
    assert result.node_finish.tolist() == [767, 1_534, 3_000, 6_000, 767, 1_534, 1]
    assert result.finished.tolist() == [6_000, 1_534]
    assert result.exposed.tolist() == [0, 1_533]


def test_free_nodes_of_a_workload_start_in_id_order():
    ranks = [[(7, SEND, 1, 7, 2 * TOKEN, []), (5, SEND, 1, 5, TOKEN, [])],
             [(1, RECV, 0, 7, 2 * TOKEN, []), (2, RECV, 0, 5, TOKEN, [])]]  # fmt: skip
    result = simulate(trace_of(ranks), {}, network("fully-connected", 2))
    assert result.node_start.tolist() == [767, 0, 0, 0]


def test_roofline_by_hand():
    ranks = [[(1, COMP, -1, 0, 9, [], (2_000_000, 1_000)), (2, COMP, -1, 0, 9, [1], (2_000_000, 10_000_000))]]
    work = trace_of(ranks + [IDLE])
    wires = network("fully-connected", 2)
    assert simulate(work, {}, wires, ComputeModel(True, 1_000, 1)).finished.tolist() == [2_000 + 10_000, 1]
    assert simulate(work, {}, wires, ComputeModel(False, 1_000, 1)).finished.tolist() == [18_000, 1]


def test_a_receive_posted_after_arrival_is_done_at_once():
    ranks = [[(1, SEND, 1, 0, TOKEN, [])], [(1, COMP, -1, 0, 5, []), (2, RECV, 0, 0, TOKEN, [1])]]
    assert simulate(trace_of(ranks), {}, network("fully-connected", 2)).finished.tolist() == [767, 5_000]


@given(st.sets(st.integers(1, 3_000), min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_hash_order_is_that_of_the_twin(keys, shuffler):
    keys = sorted(keys)
    shuffler.shuffle(keys)
    twin = HashSet()
    for key in keys:
        twin.insert(key)
    order = np.empty(len(keys), np.int32)
    assert hash_order(np.array(keys), 1, order) == twin.buckets
    assert [keys[i] for i in order] == twin.items


def test_hash_order_as_libstdcxx_printed_it():
    # g++ 12.2: std::unordered_set<uint64_t> s; for (k : keys) s.insert(k); for (k : s) print(k)
    keys = np.array([1, 14, 2, 27, 40, 3, 15, 28, 4, 53, 66, 5, 6, 7, 20])
    order = np.empty(len(keys), np.int32)
    assert hash_order(keys, 1, order) == 29
    assert keys[order].tolist() == [20, 7, 1, 14, 27, 40, 53, 66, 2, 15, 28, 3, 4, 5, 6]


def random_graph(rng, npus):
    """A ring with chords: unequal rates, latencies and lanes."""
    pairs = {(i, (i + 1) % npus) for i in range(npus)}
    pairs |= {(int(a), int(b)) for a, b in rng.integers(0, npus, (2 * npus, 2)) if a != b}
    src, dst = (np.array(x) for x in zip(*sorted(pairs), strict=True))
    return Topology(
        "graph", npus, src, dst, rng.choice([8.0, 40.0, 100.0], len(src)),
        rng.choice([0.0, 3.5, 120.0], len(src)), rng.integers(1, 4, len(src)),
    )  # fmt: skip


def random_network(rng):
    npus = int(rng.integers(2, 7))
    kind = str(rng.choice(["graph", "fully-connected", "switch", "ring"]))
    if kind == "graph":
        return Network.from_topology(random_graph(rng, npus))
    return Network.uniform(
        kind, npus, float(rng.choice([0.7, 3.0, 53.68709])), float(rng.choice([0, 2.5, 90]))
    )


def random_nodes(rng, wires, items, plain_ids, tags=6):
    """Nodes of every rank: ``items`` computations and messages, each after some earlier nodes of its rank."""
    npus = wires.num_npus
    pairs = [(int(a), int(b)) for a, b in zip(wires.src, wires.dst, strict=True) if max(a, b) < npus]
    if wires.kind != "graph":
        pairs = [(a, b) for a in range(npus) for b in range(npus) if a != b]
    ranks = [[] for _ in range(npus)]

    def add(rank, kind, peer, tag, amount):
        before = len(ranks[rank])
        deps = rng.integers(0, before, int(rng.integers(0, min(before, 4) + 1))) if before else []
        ranks[rank].append([kind, peer, tag, amount, [int(d) for d in deps]])

    for _ in range(items):
        if rng.random() < 0.25:
            add(int(rng.integers(npus)), COMP, -1, 0, int(rng.integers(0, 2)))
        else:
            a, b = pairs[rng.integers(len(pairs))]
            tag, size = int(rng.integers(0, tags)), int(rng.choice([64, 64, 300]))
            for rank, kind, peer in sorted([(a, SEND, b), (b, RECV, a)], key=lambda x: rng.random()):
                add(rank, kind, peer, tag, size)
    made = []
    for nodes in ranks:
        nodes = nodes or [[COMP, -1, 0, 0, []]]
        ids = np.arange(1, len(nodes) + 1)
        order = np.arange(len(nodes))
        if not plain_ids:
            ids = rng.permutation(3 * len(nodes))[: len(nodes)] + 1
            order = rng.permutation(len(nodes))
        made.append(
            [
                (int(ids[i]), *nodes[i][:4], list(dict.fromkeys(int(ids[d]) for d in nodes[i][4])))
                for i in order
            ]
        )
    return made


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.booleans(), st.sampled_from(["astra-sim", "id"]))
def test_equals_the_twin(seed, items, plain_ids, order):
    rng = np.random.default_rng(seed)
    wires = random_network(rng)
    work = random_nodes(rng, wires, int(rng.integers(0, 12)), plain_ids)
    collectives = {}
    for step in range(int(rng.integers(0, 3))):  # collectives after everything else, chained
        node_id = 900 + step
        collectives[node_id] = trace_of(random_nodes(rng, wires, items, plain_ids))
        for nodes in work:
            nodes.append((node_id, COLL, ALL_TO_ALL, 0, 1, [nodes[-1][0]]))
    work = trace_of(work)
    twin = TraceTwin(work, collectives, wires, order=order)
    if (twin.finished < 0).any():
        with pytest.raises(SimulationError, match="cannot finish"):
            simulate(work, collectives, wires, order=order)
        return
    result = simulate(work, collectives, wires, order=order)
    assert result.finished.tolist() == twin.finished.tolist()
    assert result.exposed.tolist() == twin.exposed.tolist()
    assert result.links.busy.tolist() == [w.busy for w in twin.wires.wires]
    assert result.links.size_bytes.tolist() == [w.size_bytes for w in twin.wires.wires]
    assert result.links.messages.tolist() == [w.messages for w in twin.wires.wires]


def test_many_free_receives_and_a_large_hash_set():
    rng = np.random.default_rng(3)
    wires = network("fully-connected", 4)
    for order in ("astra-sim", "id"):
        nodes = random_nodes(rng, wires, 700, plain_ids=False, tags=10**9)
        work, custom = as_collective(nodes)
        assert simulate(work, custom, wires, order=order).finished.tolist() == (
            TraceTwin(work, custom, wires, order=order).finished.tolist()
        )
        flat = trace_of([[(*n[:5], []) for n in rank] for rank in nodes])
        assert simulate(flat, {}, wires).finished.tolist() == TraceTwin(flat, {}, wires).finished.tolist()


def test_progress_is_told_and_may_stop_the_run(monkeypatch):
    monkeypatch.setattr("moxtrace.engine.traces.simulation.SLICE", 7)
    told = []
    simulate(*as_collective(relay(10)), network("fully-connected", 3), progress=lambda *x: told.append(x))
    assert told[-1] == (43, 43)
    assert told == sorted(told)
    assert len(told) > 5

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(*as_collective(relay(10)), network("fully-connected", 3), progress=interrupt)


SEND_1 = (1, SEND, 1, 5, TOKEN, [])
RECV_1 = (1, RECV, 0, 5, TOKEN, [])


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([[SEND_1], IDLE], ["rank 0: node 1", "rank 1 never receives it", "exit with status 0"]),
        ([IDLE, [RECV_1]], ["rank 1: node 1", "rank 0 never sends it"]),
        ([[SEND_1], [(1, RECV, 0, 6, TOKEN, [])]], ["rank 0: node 1", "tag 5", "never receives"]),
        ([[SEND_1], [(4, RECV, 0, 5, 99, [])]], ["sizes differ", "14336", "99", "rank 1: node 4"]),
        ([[SEND_1, (2, SEND, 1, 5, TOKEN, [])], [RECV_1]], ["rank 1 receives fewer messages", "node 2"]),
        ([[(1, SEND, 2, 0, 8, [])], IDLE], ["names rank 2; there are ranks 0 to 1"]),
        ([[(1, SEND, 0, 0, 8, [])], IDLE], ["a rank to itself"]),
        ([[(1, SEND, 1, 0, 0, [])], [(1, RECV, 0, 0, 0, [])]], ["no positive size"]),
        ([[(1, COMP, -1, 0, -4, [])], IDLE], ["duration of -4"]),
        ([[(1, COLL, ALL_TO_ALL, 0, 1, [])], IDLE], ["COMM_COLL", "COMP, COMM_SEND and COMM_RECV"]),
        ([[(1, 2, -1, 0, 1, [])], IDLE], ["MEM_LOAD"]),
        ([[(3, COMP, -1, 0, 1, [4]), (4, COMP, -1, 0, 1, [3]), (5, COMP, -1, 0, 1, [])], IDLE],
         ["a cycle of dependencies", "3 nodes", "rank 0: node 3 (COMP), which waits for", "rank 0: node 4"]),
        ([[(1, RECV, 1, 0, 8, []), (2, SEND, 1, 0, 8, [1])],
          [(1, RECV, 0, 0, 8, []), (2, SEND, 0, 0, 8, [1])]],
         ["ranks wait for each other", "ranks 0, 1 of 2", "rank 0: node 1 (COMM_RECV of 8 bytes from"]),
    ],
)  # fmt: skip
def test_what_cannot_finish_names_ranks_and_nodes(ranks, words):
    with pytest.raises(SimulationError) as caught:
        simulate(*as_collective(ranks), network("fully-connected", 2))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_cycle_across_collectives_is_told():
    # rank 0 runs the collectives in the order 1, 2 and rank 1 in the order 2, 1
    work = trace_of([
        [(1, COLL, ALL_TO_ALL, 0, 1, []), (2, COLL, ALL_TO_ALL, 0, 1, [1])],
        [(2, COLL, ALL_TO_ALL, 0, 1, []), (1, COLL, ALL_TO_ALL, 0, 1, [2])],
    ])  # fmt: skip
    there = trace_of([[(1, RECV, 1, 0, 8, [])], [(1, SEND, 0, 0, 8, [])]])
    back = trace_of([[(1, SEND, 1, 0, 8, [])], [(1, RECV, 0, 0, 8, [])]])
    with pytest.raises(SimulationError, match="cannot finish: .* ranks wait for each other") as caught:
        simulate(work, {1: there, 2: back}, network("fully-connected", 2))
    for part in (
        "collective of node 1: rank 0: node 1",
        "workload: rank 1: node 1",
        "workload: rank 0: node 2",
    ):
        assert part in str(caught.value)


def test_inputs_that_make_no_sense_are_refused():
    wires = network("fully-connected", 2)
    work = trace_of([[(1, COLL, ALL_TO_ALL, 0, 1, [])], IDLE])
    with pytest.raises(SimulationError, match="rank 0: node 1 has no custom implementation"):
        simulate(work, {}, wires)
    with pytest.raises(SimulationError, match="comm_type 5"):
        simulate(trace_of([[(1, COLL, 5, 0, 1, [])], IDLE]), {1: trace_of([IDLE, IDLE])}, wires)
    with pytest.raises(SimulationError, match="2 ranks on a network of 3 NPUs"):
        simulate(work, {}, network("switch", 3))
    with pytest.raises(SimulationError, match="rank 1 has no nodes"):
        simulate(trace_of([IDLE, []]), {}, wires)
    with pytest.raises(SimulationError, match="order 'fifo'"):
        simulate(trace_of([IDLE, IDLE]), {}, wires, order="fifo")
    ring = Network.from_topology(Topology("ring", 3, [0, 1, 2], [1, 2, 0], 100.0, 500.0, 1))
    with pytest.raises(SimulationError, match="needs a link 0 -> 2, which the network does not have"):
        simulate(*as_collective([[(1, SEND, 2, 0, 8, [])], IDLE, [(1, RECV, 0, 0, 8, [])]]), ring)
    roof = trace_of([[(1, COMP, -1, 0, 9, [], (100, 0))], IDLE])
    with pytest.raises(SimulationError, match="tensor_size 0"):
        simulate(roof, {}, wires, ComputeModel(True, 50, 900))
    with pytest.raises(SimulationError, match="peak-perf is 0"):
        simulate(roof, {}, wires, ComputeModel(True, 50, 0))


CASES = ["flat", "ring", "moe8", "moe8-chain", "moe16", "moe16-chain", "moe16-roof", "moe16-switch"]
CASES += ["moe16-switch-chain", "moe32", "moe32-chain"]


@pytest.mark.parametrize("case", CASES)
def test_equals_astra_sim(case, shared_data, tmp_path, monkeypatch):
    """Every rank's finish and exposed communication, where order is fixed and where the hash set decides."""
    found = sorted((shared_data / "astra_sim_cases").glob(f"seed*/{case}"))
    assert found
    monkeypatch.chdir(tmp_path)  # the map's paths are then found beside system.json
    for folder in found:
        result = simulate_inputs(
            load(folder / "workload", folder / "system.json", folder / "network.yml", folder / "memory.json")
        )
        said = json.loads((folder / "astra_sim.json").read_text())
        assert result.finished.tolist() == said["finished_cycles"]
        assert result.exposed.tolist() == said["exposed_communication_cycles"]
