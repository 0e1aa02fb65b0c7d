"""How near ``mox`` comes to a certified bound, and what its tables and the expander cost.

Called by ``scripts/bench.py``.  Traffic, graphs, placements and tokens have seeds that no parameter of the
policy was chosen with.  Recorded layers are those of ``../shared/data`` where that is there (four recordings
of DeepSeek-V3 serving, SGLang), else of the recording that the project ships.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from bench_rows import Row, higher, lower, seconds
from numpy.typing import NDArray

from moxtrace import placement, recordings, sampling, topology
from moxtrace.bound.cuts import ingress_load
from moxtrace.bound.duals import node_prices_load, relays_of
from moxtrace.bound.rows import distinct_rows
from moxtrace.demand import Demand, demand_of
from moxtrace.recordings import LayerCounts
from moxtrace.routing import route
from moxtrace.routing.loads import link_load
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.mox.train import compute_tables
from moxtrace.routing.weights import compute_weights
from moxtrace.topology import Topology

ROOT = Path(__file__).resolve().parent.parent
EXPERTS, SEED = 256, 77
TARGETS = {"expander": (1.03, 1.03, 1.06), "random-regular": (1.05, 1.05, 1.08)}


def recorded_layers(each: int) -> list[LayerCounts]:
    """``each`` layers, evenly spread, of every recording at hand."""
    folder = ROOT.parent / "shared" / "data" / "recordings" / "sglang_deepseek_v3"
    files = sorted(folder.glob("*.json")) or [ROOT / "configs" / "recordings" / "deepseek_v3_like.npz"]
    layers = []
    for file in files:
        recording = recordings.read(file)
        ids = recording.moe_layer_ids
        chosen = ids[np.linspace(0, len(ids) - 1, min(each, len(ids))).round().astype(int)]
        layers += [recording.layer(int(i)) for i in chosen]
    return layers


@dataclass(frozen=True)
class Cell:
    """A network, a placement on it, and a top-K."""

    kind: str
    npus: int
    top_k: int

    def network(self) -> Topology:
        """Degree 8, of another seed than the examples'."""
        return topology.build(self.kind, self.npus, degree=8, seed=SEED)

    def host(self) -> NDArray[np.int32]:
        """NPU of each expert."""
        return placement.place("random", EXPERTS, self.npus, SEED)

    def tokens(self, layer: LayerCounts | None, each: int, seed: int = SEED) -> Demand:
        """Tokens of a recorded layer, or uniform ones."""
        counts = layer or LayerCounts("uniform", (), np.ones(EXPERTS))
        source, ids = sampling.sample_tokens(
            counts, mode="uniform" if layer is None else "exact", top_k=self.top_k, tokens_per_npu=each,
            num_npus=self.npus, seed=seed, clip=True,
        )  # fmt: skip
        return demand_of(source, ids, self.host(), self.npus)


def certified(network: Topology, demand: Demand) -> float:
    """The better of two certified bounds: ingress, and all tokens' least links over all capacity."""
    rows = distinct_rows(demand)
    steiner, _ = node_prices_load(network, rows, relays_of(network, rows), np.ones(network.num_nodes))
    return max(ingress_load(network, rows), steiner)


def busiest(network: Topology, demand: Demand, policy: str, given: object) -> float:
    return float(link_load(route(network, demand, policy, given, 1, threads=1)).max())


def ratios(cell: Cell, layers: int, tokens: int) -> dict[str, list[float]]:
    """Busiest link over the bound per case and policy: two uniform cases first, then the recorded ones."""
    network, host = cell.network(), cell.host()
    given = {
        "mox": compute_tables(network, host, EXPERTS, cell.top_k, seed=SEED),
        "mox-paper": compute_weights(network, host, EXPERTS, cell.top_k, seed=SEED).weight,
        "tree": None,
    }
    found: dict[str, list[float]] = {policy: [] for policy in given}
    cases: list[tuple[LayerCounts | None, int]] = [(None, SEED), (None, SEED + 1)]
    cases += [(layer, SEED) for layer in recorded_layers(layers)]
    for layer, seed in cases:
        demand = cell.tokens(layer, tokens, seed)
        bound = certified(network, demand)
        for policy, argument in given.items():
            found[policy].append(busiest(network, demand, policy, argument) / bound)
    return found


def bench_mox_grid(layers: int = 2, tokens: int = 5120) -> Iterator[Row]:
    """The grid: two kinds of graph, 16 to 64 NPUs, top-8 and top-12; the worst cell of each column counts."""
    cells = [Cell(*one) for one in product(TARGETS, (16, 32, 64), (8, 12))]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(cells, pool.map(_ratios, [(c, layers, tokens) for c in cells]), strict=True))
    for cell, by_policy in found.items():
        text = "  ".join(f"{p} {'/'.join(f'{v:.3f}' for v in columns(r))}" for p, r in by_policy.items())
        print(f"  {cell.kind} {cell.npus} NPUs, top-{cell.top_k}: {text}", file=sys.stderr)
    for kind, targets in TARGETS.items():
        worst = np.max([columns(r["mox"]) for cell, r in found.items() if cell.kind == kind], axis=0)
        for name, value, target in zip(("uniform", "median", "p95"), worst, targets, strict=True):
            yield lower(f"mox_{kind}_{name}", value, "x bound", target)
    above = [
        np.max(np.array(r["mox"]) / np.minimum(r["tree"], r["mox-paper"]))
        for cell, r in found.items()
        if cell.kind == "expander"
    ]
    yield lower("mox_over_tree_and_paper", max(above), "x the better tree", 1.01)


def _ratios(arguments: tuple[Cell, int, int]) -> dict[str, list[float]]:
    return ratios(*arguments)


def columns(values: list[float]) -> tuple[float, float, float]:
    """Uniform mean, recorded median, recorded 95th percentile."""
    recorded = values[2:]
    return (
        float(np.mean(values[:2])),
        float(np.median(recorded)),
        float(np.percentile(recorded, 95, method="higher")),
    )


def bench_mox_short() -> Iterator[Row]:
    """Few tokens, sources that differ, links that differ: 64 NPUs, top-8."""
    cell = Cell("expander", 64, 8)
    network, host = cell.network(), cell.host()
    tables = compute_tables(network, host, EXPERTS, 8, seed=SEED)

    def mean_ratio(tokens: int, draws: int) -> float:
        demands = [cell.tokens(None, tokens, SEED + i) for i in range(draws)]
        return float(np.mean([busiest(network, d, "mox", tables) / certified(network, d) for d in demands]))

    yield lower("mox_128_tokens", mean_ratio(128, 8), "x bound", 1.15)
    yield lower("mox_512_tokens", mean_ratio(512, 4), "x bound", 1.08)
    yield from odd_case("unlike_sources", network, host, unlike_sources(cell))
    yield from odd_case("unequal_links", unequal_links(network), host, cell.tokens(None, 2560))


def odd_case(name: str, network: Topology, host: NDArray[np.int32], demand: Demand) -> Iterator[Row]:
    """Where the tables' assumptions fail: over the bound, and against the better of the other trees."""
    ours = busiest(network, demand, "mox", compute_tables(network, host, EXPERTS, 8, seed=SEED))
    weight = compute_weights(network, host, EXPERTS, 8, seed=SEED).weight
    others = busiest(network, demand, "tree", None), busiest(network, demand, "mox-paper", weight)
    print(f"  {name}: mox {ours / certified(network, demand):.3f} x the bound", file=sys.stderr)
    yield lower(f"mox_{name}", ours / min(others), "x the better tree", 1.01)


def unlike_sources(cell: Cell) -> Demand:
    """Each half of the NPUs draws from a layer of its own, 2,560 tokens each."""
    layers = recorded_layers(2)
    return halves(cell.tokens(layers[0], 2560), cell.tokens(layers[-1], 2560))


def halves(first: Demand, second: Demand) -> Demand:
    """The even sources of one demand and the odd ones of another."""
    keep = [d.source % 2 == odd for d, odd in ((first, 0), (second, 1))]
    source = np.concatenate([d.source[k] for d, k in zip((first, second), keep, strict=True)])
    count = np.concatenate([np.diff(d.dest_ptr)[k] for d, k in zip((first, second), keep, strict=True)])
    dest = np.concatenate(
        [d.dest[np.repeat(k, np.diff(d.dest_ptr))] for d, k in zip((first, second), keep, strict=True)]
    )
    start = np.concatenate(([0], np.cumsum(count)))
    order = np.argsort(source, kind="stable")
    pieces = [dest[start[t] : start[t + 1]] for t in order]
    return Demand(
        first.num_npus, source[order], np.concatenate(([0], np.cumsum(count[order]))), np.concatenate(pieces),
        np.arange(len(source), dtype=np.int32), first.pairs + second.pairs,
    )  # fmt: skip


def unequal_links(network: Topology) -> Topology:
    """The same network, a third of its cables twice as fast."""
    ends = np.minimum(network.src, network.dst) * 64 + np.maximum(network.src, network.dst)
    rate = np.where(ends % 3 == 0, 200.0, 100.0)
    return Topology("mixed", 64, network.src, network.dst, rate, network.latency_ns, network.lanes)


def bench_mox_speed() -> Iterator[Row]:
    """Tables, routing and the choice of the expander: 64 NPUs, and the Boardfly of 1,024."""
    took = seconds(lambda: topology.build("expander", 16, degree=4, seed=1))  # compiles
    took = seconds(lambda: topology.build("expander", 64, degree=8, seed=SEED))
    yield lower("expander_n64_s", took, "s", 10)
    for top_k in (8, 12):
        cell = Cell("random-regular", 64, top_k)
        network, host = cell.network(), cell.host()
        compute_tables(network, host, EXPERTS, top_k, replays=1)  # compiles
        tables = {}
        took = seconds(lambda: tables.update(mox=compute_tables(network, host, EXPERTS, top_k, seed=SEED)))  # noqa: B023
        yield lower(f"mox_tables_n64_k{top_k}_s", took, "s", 10)
        demand = cell.tokens(None, 5120)
        work = lambda: route(network, demand, "mox", tables["mox"], 1, threads=1)  # noqa: B023, E731
        rate = demand.num_tokens / min(seconds(work) for _ in range(3))
        yield higher(f"route_mox_n64_k{top_k}_tokens_per_s", rate / 1e3, "k tokens/s/core", 500)


def bench_boardfly() -> Iterator[Row]:
    """1,024 TPUs, 4,096 experts: tables, routing, and the busiest link under mox over that under min-hop."""
    network = topology.build("boardfly", seed=1)
    npus, experts = network.num_npus, 4 * network.num_npus
    host = placement.place("random", experts, npus, 1)
    compute_tables(network, host, experts, 8, replays=1, tokens_per_source=4)
    made: list[MoxTables] = []
    yield lower(
        "mox_tables_boardfly_s",
        seconds(lambda: made.append(compute_tables(network, host, experts, 8, seed=1))),
        "s",
        120,
    )
    counts = LayerCounts("uniform", (), np.ones(experts))
    source, ids = sampling.sample_tokens(
        counts, mode="uniform", top_k=8, tokens_per_npu=256, num_npus=npus, seed=SEED
    )
    demand = demand_of(source, ids, host, npus)
    rate = demand.num_tokens / seconds(lambda: route(network, demand, "mox", made[0], 1, threads=1))
    yield higher("route_mox_n1024_tokens_per_s", rate / 1e3, "k tokens/s/core", 100)
    ours, theirs = (busiest(network, demand, p, t) for p, t in (("mox", made[0]), ("min-hop", None)))
    yield lower("mox_boardfly_busiest_link", ours / theirs, "x min-hop", 0.53)
