"""Times and bytes that int64 could not count are refused by name, and nothing smaller is."""

import pytest

from moxtrace.chakra.trace import COMP, RECV, SEND
from moxtrace.engine.blocks import simulate_block
from moxtrace.engine.network import Network
from moxtrace.engine.result import ComputeModel
from moxtrace.engine.traces import simulate
from moxtrace.errors import SimulationError
from moxtrace.topology.graph import Topology
from moxtrace.transfers import combine_of
from tests.reference.engine import trace_of
from tests.test_engine_blocks import phase
from tests.test_engine_traces import IDLE

HUGE = 2**61
TREE = [(0, 1, -1, True), (1, 2, 0, True)]


def message(size, count=1):
    return [
        [(t + 1, SEND, 1, t, size, []) for t in range(count)],
        [(t + 1, RECV, 0, t, size, []) for t in range(count)],
    ]


@pytest.mark.parametrize(
    ("ranks", "kind", "words"),
    [
        (
            [[(1, COMP, -1, 0, HUGE // 1000 + 1, [])], IDLE],
            "ring",
            "rank 0: node 1 .COMP of duration_micros 2305",
        ),
        ([[(1, COMP, -1, 0, 2**63 - 1, [])], IDLE], "ring", r"most of 9.22e\+21 cycles or bytes"),
        (
            [[(i, COMP, -1, 0, HUGE // 3000 + 1, []) for i in (1, 2, 3)], IDLE],
            "ring",
            "rank 0: node 1 .*2.31e",
        ),
        (message(HUGE), "fully-connected", f"rank 0: node 1 .COMM_SEND of {HUGE} bytes to rank 1"),
        (message(HUGE // 2), "switch", "rank 0: node 1 .COMM_SEND"),  # twice over a link
        (message(HUGE // 8, 8), "ring", "2.31e"),
    ],
)
def test_traces_too_large_to_count(ranks, kind, words):
    with pytest.raises(SimulationError, match=words) as caught:
        simulate(trace_of(ranks), {}, Network.uniform(kind, 2, 50.0, 500.0))
    assert "counted up to 2**61" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_latency_and_rate_count_too():
    for rate, latency in ((50.0, 1e30), (1e-16, 1.0)):
        with pytest.raises(SimulationError, match="COMM_SEND of 1000 bytes"):
            simulate(trace_of(message(1000)), {}, Network.uniform("ring", 2, rate, latency))
    ranks = [[(1, COMP, -1, 0, 9, [], (2_000_000, 1_000))], IDLE]
    with pytest.raises(SimulationError, match="roofline with local-mem-bw 50, peak-perf 1e-30"):
        simulate(trace_of(ranks), {}, Network.uniform("ring", 2, 1.0, 1.0), ComputeModel(True, 50, 1e-30))


def test_large_times_that_fit_are_exact():
    long = HUGE // 1000 - 1
    result = simulate(
        trace_of([[(1, COMP, -1, 0, long, [])], IDLE]), {}, Network.uniform("ring", 2, 1.0, 1.0)
    )
    assert result.completion == long * 1000
    size = HUGE // 4
    result = simulate(trace_of(message(size, 3)), {}, Network.uniform("ring", 2, 1.0, 0.0))
    assert result.completion == 3 * size
    assert result.links.busy.tolist()[0] == 3 * size


def run_block(compute_ns=0.0, size=1_000, combine_size=1_000, rate=0.0, latency=10.0, scale=1000):
    ends = ([0, 1, 1, 2], [1, 0, 2, 1])
    dispatch = phase(Topology("graph", 3, *ends, 100.0, latency, 1), [TREE], size)
    combine = combine_of(dispatch, dispatch.topology, combine_size)
    network = Network.from_topology(dispatch.topology, scale)
    return simulate_block(
        dispatch, combine, [0.0, compute_ns, 0.0], network, barrier="phase", reduce_ns_per_byte=rate
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 10**17}, r"dispatch, 2 messages of 1e\+17 bytes: most of"),
        ({"size": 10**30}, r"dispatch, 2 messages of 1e\+30 bytes"),
        ({"combine_size": 10**17}, r"combine, 2 messages of 1e\+17 bytes"),
        ({"compute_ns": 1e17}, r"compute of up to 1e\+17 ns"),
        ({"compute_ns": 1e300}, r"compute of up to 1e\+300 ns"),
        ({"rate": 1e15}, r"sums of 1e\+03 bytes at 1e\+15 ns per byte"),
        ({"latency": 1e17}, "dispatch, 2 messages of 1e"),
    ],
)
def test_blocks_too_large_to_count(settings, words):
    with pytest.raises(SimulationError, match=words) as caught:
        run_block(**settings)
    assert "counted up to 2**61" in str(caught.value)


def test_large_blocks_that_fit_are_exact():
    # a hop of 1,000 bytes takes 80 ns and 10 ns of latency: two hops, compute, a sum of one cycle, a hop
    assert run_block(compute_ns=1e15).completion == 180_000 + 10**18 + 1 + 90_000
    links = run_block(size=10**15, scale=1).links
    assert links.size_bytes.tolist() == [10**15, 1000, 10**15, 1000]
