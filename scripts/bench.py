"""Speed and memory, each measured beside its anchor in the same run.

    python scripts/bench.py [--json FILE] [--only NAME ...]

Ratios are medians over pairs that take turns; kernels are warmed up first, since a user's second run finds
them compiled.  Nothing here is a test: a slow machine is no failure, only a row that says ``no``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from bench_mox import bench_boardfly, bench_mox_grid, bench_mox_short, bench_mox_speed
from bench_rows import Row, command_cost, higher, lower, seconds
from bench_sweep import bench_sweep

from moxtrace.chakra import reader, writer
from moxtrace.chakra.trace import COMP, RECV, SEND, Trace
from moxtrace.cli.common import print_table
from moxtrace.config import RunConfig, TraceConfig
from moxtrace.engine.astra_sim import find_binary, run_astra_sim
from moxtrace.errors import ExternalToolError
from moxtrace.generate import generate
from moxtrace.lowering import Block, token_order, traces_of
from moxtrace.routing import route
from moxtrace.routing.weights import compute_weights
from moxtrace.rundir import Run
from moxtrace.scenario import Scenario, block_of, prepare
from moxtrace.simulate import simulate_run

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "configs" / "recordings" / "deepseek_v3_like.npz"
MILLION_NODES = 340  # tokens per NPU that make about a million nodes at 64 NPUs, K = 8


# ------------------------------------------------------------------------------------- the work


def scenario(npus: int, tokens: int, policy: str = "mox-paper") -> Scenario:
    value = {
        "recording": {"path": str(RECORDING), "layer": 20},
        "traffic": {"tokens_per_npu": tokens},
        "topology": {"kind": "expander", "npus": npus, "degree": 8},
        "routing": {"policy": policy},
    }
    return prepare(RunConfig.model_validate(value))


def moe_traces(block: Block) -> dict[str, Trace]:
    """The traces of a block in token order, with the default window for it."""
    source = np.repeat(np.arange(64, dtype=np.int32), block.dispatch.num_trees // 64)
    orders = token_order(block.dispatch, source), token_order(block.combine, source)
    return {name: trace for name, _, trace in traces_of(block, *orders, TraceConfig(order="token"), 64)}


def median_of_pairs(ours: Callable[[], float], theirs: Callable[[], float], pairs: int = 5) -> float:
    """Median of ours / theirs, measured in turn so that a drifting machine slows both."""
    return statistics.median(ours() / theirs() for _ in range(pairs))


# ------------------------------------------------------------------------------------- writing


def protobuf_messages() -> tuple[Any, Any, Any]:
    """Chakra's Node, GlobalMetadata and AttributeProto as protobuf-python builds them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str]) -> None:
        made = file.message_type.add(name=name)
        for title, number, kind, extra in fields:
            one = made.field.add(name=title, number=number, type=kind, label=field.LABEL_OPTIONAL)
            if extra == "repeated":
                one.label = field.LABEL_REPEATED
            elif extra:
                one.label, one.type_name = field.LABEL_REPEATED, extra
            if name == "AttributeProto" and number > 2:
                one.oneof_index = 0
        if name == "AttributeProto":
            made.oneof_decl.add(name="value")

    message(
        "AttributeProto", ("name", 1, field.TYPE_STRING, ""), ("int64_val", 9, field.TYPE_INT64, ""),
        ("uint32_val", 11, field.TYPE_UINT32, ""), ("uint64_val", 13, field.TYPE_UINT64, ""),
        ("bool_val", 27, field.TYPE_BOOL, ""),
    )  # fmt: skip
    message(
        "Node", ("id", 1, field.TYPE_UINT64, ""), ("name", 2, field.TYPE_STRING, ""),
        ("type", 3, field.TYPE_INT32, ""), ("data_deps", 5, field.TYPE_UINT64, "repeated"),
        ("duration_micros", 7, field.TYPE_UINT64, ""),
        ("attr", 10, field.TYPE_MESSAGE, ".bench.AttributeProto"),
    )  # fmt: skip
    message(
        "GlobalMetadata", ("version", 1, field.TYPE_STRING, ""),
        ("attr", 2, field.TYPE_MESSAGE, ".bench.AttributeProto"),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessages([file], pool=pool)
    return tuple(classes[f"bench.{name}"] for name in ("Node", "GlobalMetadata", "AttributeProto"))


def protobuf_write(trace: Trace, ranks: int, prefix: Path) -> int:
    """Write the first ranks of a trace with protobuf-python; returns how many nodes.

    As mlcommons/chakra's own generators do it: a Node, an AttributeProto for each attribute, one framed write
    per message.  Columns become lists first, so that no numpy scalar slows it down.
    """
    node_class, metadata_class, attribute = protobuf_messages()

    def framed(file: BinaryIO, message: Any) -> None:
        data = message.SerializeToString()
        length, head = len(data), bytearray()
        while length > 127:
            head.append(length & 127 | 128)
            length >>= 7
        head.append(length)
        file.write(head)
        file.write(data)

    names = {COMP: "comp", SEND: "send", RECV: "recv"}
    for rank in range(ranks):
        first, last = int(trace.rank_ptr[rank]), int(trace.rank_ptr[rank + 1])
        columns = (trace.node_id, trace.kind, trace.peer, trace.tag, trace.amount)
        rows = zip(*(column[first:last].tolist() for column in columns), strict=True)
        ends = (trace.dep_ptr[first : last + 1] - trace.dep_ptr[first]).tolist()
        deps = (trace.dep[trace.dep_ptr[first] : trace.dep_ptr[last]] + 1).tolist()
        with open(f"{prefix}.{rank}.et", "wb") as file:
            metadata = metadata_class(version=writer.VERSION)
            metadata.attr.append(attribute(name="moxtrace_num_nodes", uint64_val=last - first))
            framed(file, metadata)
            for i, (node_id, kind, peer, tag, amount) in enumerate(rows):
                node = node_class(id=node_id, name=names[kind], type=kind)
                node.data_deps.extend(deps[ends[i] : ends[i + 1]])
                node.attr.append(attribute(name="is_cpu_op", bool_val=False))
                if kind == COMP:
                    node.duration_micros = amount
                else:
                    src, dst = (rank, peer) if kind == SEND else (peer, rank)
                    node.attr.append(attribute(name="comm_src", uint32_val=src))
                    node.attr.append(attribute(name="comm_dst", uint32_val=dst))
                    node.attr.append(attribute(name="comm_size", uint64_val=amount))
                    node.attr.append(attribute(name="comm_tag", uint32_val=tag))
                framed(file, node)
    return int(trace.rank_ptr[ranks])


def bench_writing() -> Iterator[Row]:
    trace = moe_traces(block_of(scenario(64, MILLION_NODES)))["dispatch"]
    yield write_vs_protobuf(trace)
    yield from write_vs_disk(trace)


def write_vs_protobuf(trace: Trace) -> Row:
    """Both write into memory where there is a memory-backed folder; the disk has rows of its own."""
    ranks = 4
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        ours, theirs = Path(folder) / "ours", Path(folder) / "theirs"
        ours.mkdir()
        theirs.mkdir()

        def our_seconds_per_node() -> float:
            return seconds(lambda: writer.write(trace, ours / "t")) / trace.num_nodes

        def protobuf_seconds_per_node() -> float:
            return seconds(lambda: protobuf_write(trace, ranks, theirs / "t")) / int(trace.rank_ptr[ranks])

        our_seconds_per_node()
        ratio = 1 / median_of_pairs(our_seconds_per_node, protobuf_seconds_per_node, 7)
        for rank in range(ranks):
            if (ours / f"t.{rank}.et").read_bytes() != (theirs / f"t.{rank}.et").read_bytes():
                raise SystemExit("bench: protobuf-python wrote other bytes than the encoder")
    return higher("write_vs_protobuf", ratio, "x nodes/s", 50)


def write_vs_disk(trace: Trace) -> Iterator[Row]:
    """Against the same bytes written from memory, with and without waiting for the disk."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        ours, raw = Path(folder) / "ours", Path(folder) / "raw"
        ours.mkdir()
        raw.mkdir()
        writer.write(trace, ours / "t")
        contents = [(raw / path.name, path.read_bytes()) for path in sorted(ours.iterdir())]

        def write_raw() -> None:
            for path, data in contents:
                path.write_bytes(data)

        def write_ours() -> None:
            writer.write(trace, ours / "t")

        def confirmed(folder: Path, write: Callable[[], None]) -> None:
            write()
            for path in folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

        disk = median_of_pairs(
            lambda: seconds(lambda: confirmed(ours, write_ours)),
            lambda: seconds(lambda: confirmed(raw, write_raw)),
            7,
        )
        yield higher("write_vs_disk", 1 / disk, "x bytes/s", 0.4)
        cache = median_of_pairs(lambda: seconds(write_ours), lambda: seconds(write_raw), 9)
        yield higher("write_vs_page_cache", 1 / cache, "x bytes/s", 0.4)


# ------------------------------------------------------------------------------------- engine


def bench_engine() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        generate(scenario(64, MILLION_NODES).config, Path(folder) / "run")
        probe = subprocess.run(
            [sys.executable, __file__, "--probe-engine", str(Path(folder) / "run")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found = json.loads(probe.stdout)
    yield higher("engine_nodes_per_s", found["nodes_per_s"] / 1e6, "M nodes/s", 2)
    yield lower("engine_bytes_per_node", found["bytes_per_node"], "bytes", 100)


def probe_engine(run: Path) -> None:
    """In a process of its own: nodes/s and peak memory of reading and simulating a run."""
    from moxtrace.baseline import network_of
    from moxtrace.engine.result import ComputeModel
    from moxtrace.engine.traces import simulate
    from moxtrace.topology import read

    opened = Run.open(run)
    network = network_of(read(run / "topology.json"), opened.manifest["time_scale"])

    def load() -> tuple[Trace, dict[int, Trace]]:
        workload, *collectives = (
            reader.read(run / "traces" / n) for n in ("workload", "dispatch", "combine")
        )
        return workload, dict(zip((1, 3), collectives, strict=True))

    workload, collectives = load()
    simulate(workload, collectives, network, ComputeModel())  # compiles
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        simulate(workload, collectives, network, ComputeModel())
        best = min(best, time.process_time() - start)
    nodes = sum(t.num_nodes for t in (workload, *collectives.values()))
    del workload, collectives

    def status(key: str) -> int:
        text = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(key))

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    workload, collectives = load()
    simulate(workload, collectives, network, ComputeModel())
    peak = status("VmHWM") - before
    print(json.dumps({"nodes_per_s": nodes / best, "bytes_per_node": peak / nodes}))


def bench_astra_sim() -> Iterator[Row]:
    """ASTRA-sim itself on the same run directory, where a binary is found."""
    try:
        binary = find_binary()
    except ExternalToolError:
        return
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        generate(scenario(64, 64).config, Path(folder) / "run")
        run = Run.open(Path(folder) / "run")
        simulate_run(run)
        theirs = seconds(lambda: run_astra_sim(run, binary))
        ours = seconds(lambda: simulate_run(run))
        finished, _ = run_astra_sim(run, binary)
        agreement = simulate_run(run).completion_ns * 1000 / finished.max()
    yield higher("simulate_vs_astra_sim", theirs / ours, "x faster", 10)
    yield lower("completion_vs_astra_sim", abs(agreement - 1), "relative", 0.02)


# ------------------------------------------------------------------------------------- routing


def bench_routing() -> Iterator[Row]:
    one = scenario(64, 5120, "tree")
    weights = compute_weights(one.topology, one.host, 256, 8, seed=1).weight
    for policy, given in (("tree", None), ("mox-paper", weights)):
        work = lambda policy=policy, given=given: route(  # noqa: E731
            one.topology, one.demand, policy, given, 14336, threads=1
        )
        work()
        rate = one.demand.num_tokens / min(seconds(work) for _ in range(3))
        yield higher(f"route_{policy}_tokens_per_s", rate / 1e3, "k tokens/s/core", 500)
    weigh = lambda: compute_weights(one.topology, one.host, 256, 8, seed=1)  # noqa: E731
    yield lower("weights_n64_s", min(seconds(weigh) for _ in range(3)), "s", 2)


# ------------------------------------------------------------------------------------- the main job


def bench_main_job() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        run = f"{folder}/run"
        settings = ["--set", "topology.npus=64", "--set", "traffic.tokens_per_npu=5120"]
        took, memory = command_cost("generate", f"{ROOT}/configs/training.yaml", "-o", run, *settings)
        yield lower("generate_64x5120_s", took, "s", 60)
        yield lower("generate_64x5120_memory", memory, "GB", 4)
        took, memory = command_cost("simulate", run)
        yield lower("simulate_64x5120_s", took, "s", 30)
        yield lower("simulate_64x5120_memory", memory, "GB", 4)


def bench_start() -> Iterator[Row]:
    took = statistics.median(command_cost("--help")[0] for _ in range(9))
    yield lower("help_s", took, "s", 0.3)


BENCHES = {
    "writing": bench_writing,
    "engine": bench_engine,
    "astra-sim": bench_astra_sim,
    "routing": bench_routing,
    "mox-grid": bench_mox_grid,
    "mox-short": bench_mox_short,
    "mox-speed": bench_mox_speed,
    "boardfly": bench_boardfly,
    "main-job": bench_main_job,
    "start": bench_start,
    "sweep": bench_sweep,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=BENCHES, help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--probe-engine", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe_engine:
        probe_engine(given.probe_engine)
        return
    rows = []
    for name in given.only or BENCHES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += list(BENCHES[name]())
    print_table(
        ["figure", "value", "unit", "target", "ok"],
        [
            [r.name, f"{r.value:.4g}", r.unit, f"{'>=' if r.better == 'higher' else '<='} {r.target:g}",
             "yes" if r.ok else "no"]
            for r in rows
        ],
    )  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps([{**asdict(r), "ok": r.ok} for r in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
