#!/usr/bin/env python3
"""Times of dispatch and combine, halves apart, against torch's all-to-all and the floor of the wires.

One GPU per rank::

    torchrun --nproc-per-node 8 kernels/bench/alltoall.py --tokens 64 128

Without a GPU, the reference::

    torchrun --nproc-per-node 2 kernels/bench/alltoall.py --backend reference --hidden 256

Every shape is first verified against the reference, bit by bit. Then, per half, over all rounds of the
slowest rank: p50 and p99 in microseconds; bytes that a rank sends (mean) and how they come about; algbw =
bytes / p50, busbw = bytes to other ranks / p50; and the share of the floor, for one copy per expert, per rank
and per node. torch's rows move the same copies with all_to_all_single, its split sizes known beforehand,
packing and unpacking not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import Case, answers, make, verify
from floors import WAYS, Copies, Fabric, counted_copies, floor_us
from measure import percentile, rounds
from moxtrace_kernels import AllToAll, Distributed, Halves, KernelsError, ReferenceAllToAll, Shape
from moxtrace_kernels.halves import TORCH_DTYPES
from moxtrace_kernels.shape import DTYPE_BYTES
from moxtrace_kernels.wire import wire_of


@dataclass(frozen=True)
class Traffic:
    """Copies that one rank sends, averaged over the ranks; ``own`` stay on the rank."""

    tokens: float
    copies: float
    own: float
    ways: dict[str, Copies]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", choices=["nvshmem", "reference"], default="nvshmem", help="what is measured"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[128], help="tokens per rank, one shape each"
    )
    parser.add_argument("--hidden", type=int, default=7168, help="elements of a row")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--dispatch", default="fp8", choices=list(TORCH_DTYPES))
    parser.add_argument("--combine", default="bf16", choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--wire-fp32", action="store_true", help="partial sums travel as fp32")
    parser.add_argument("--dp", type=int, default=1, help="ranks that hold the same tokens")
    parser.add_argument(
        "--row-align", type=int, default=0, help="0: padded rows; n: packed, at multiples of n"
    )
    parser.add_argument("--repeat", type=int, default=100, help="rounds that count")
    parser.add_argument("--warmup", type=int, default=10, help="rounds that do not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--nvlink-gbs", type=float, default=450, help="GB/s that a GPU sends within its node")
    parser.add_argument("--network-gbs", type=float, default=50, help="GB/s that a GPU sends beyond it")
    parser.add_argument("--json", type=Path, help="rows go here as well")
    return parser.parse_args()


def start(backend: str) -> torch.device:
    """Join the other ranks; alone without torchrun."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    if backend == "reference":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("bench: torch sees no GPU; expected one per rank, or --backend reference")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device


def traffic_of(shape: Shape, case: Case, rank: int, fabric: Fabric) -> Traffic:
    """Count what this rank sends, then average over the ranks."""
    mine = [t for t in range(len(case.x)) if shape.sender(rank, t) == rank]
    hosts = [[shape.host(e) for e in case.experts[t].tolist()] for t in mine]
    ways = {way: counted_copies(way, rank, hosts, fabric) for way in WAYS}
    numbers = [float(len(mine)), float(sum(len(set(h)) for h in hosts)), float(sum(rank in h for h in hosts))]
    numbers += [n * len(mine) for c in ways.values() for n in (c.nvlink, c.network)]
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    tokens, copies, own, *rest = (sums / shape.ranks).tolist()
    scale = max(tokens, 1e-9)
    means = {way: Copies(rest[2 * i] / scale, rest[2 * i + 1] / scale) for i, way in enumerate(WAYS)}
    return Traffic(tokens, copies, own, means)


def time_kernels(
    kernels: Halves, shape: Shape, case: Case, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Times of the four halves; what the experts write does not change from round to round."""
    out = kernels.new_dispatched()
    kernels.dispatch(case.x, case.experts, case.weights, scales=case.scales, out=out)
    out.row_source.zero_()  # rows beyond the counts are undefined
    rows = answers(shape, out)
    y = kernels.combine(rows)
    steps = [
        lambda: kernels.dispatch_send(case.x, case.experts, case.weights, scales=case.scales),
        lambda: kernels.dispatch_recv(out),
        lambda: kernels.combine_send(rows),
        lambda: kernels.combine_recv(y),
    ]
    times = rounds(steps, options.repeat, options.warmup, kernels.device)
    names = ["dispatch send", "dispatch recv", "combine send", "combine recv"]
    found = dict(zip(names, times, strict=True))
    for whole in ("dispatch", "combine"):
        halves = zip(found[f"{whole} send"], found[f"{whole} recv"], strict=True)
        found[whole] = [a + b for a, b in halves]
    return {name: found[name] for name in (*names[:2], "dispatch", *names[2:], "combine")}


def time_torch(
    shape: Shape, case: Case, device: torch.device, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Times of torch's all-to-all with the same copies: rows and scales out, sums back."""
    rank, ranks = dist.get_rank(), shape.ranks
    sends = [0] * ranks
    for t in range(len(case.x)):
        if shape.sender(rank, t) == rank:
            for peer in {shape.host(e) for e in case.experts[t].tolist()}:
                sends[peer] += 1
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, sends)
    receives = [row[rank] for row in everyone]
    payload = torch.zeros((sum(sends), wire_of(shape).payload), dtype=torch.uint8, device=device)
    arrived = torch.zeros((sum(receives), payload.shape[1]), dtype=torch.uint8, device=device)
    dtype = TORCH_DTYPES[wire_dtype(shape)]
    partial = torch.zeros((sum(receives), shape.hidden), dtype=dtype, device=device)
    back = torch.zeros((sum(sends), shape.hidden), dtype=dtype, device=device)
    steps = [
        lambda: dist.all_to_all_single(arrived, payload, receives, sends),
        lambda: dist.all_to_all_single(back, partial, sends, receives),
    ]
    times = rounds(steps, options.repeat, options.warmup, device)
    return {"torch dispatch": times[0], "torch combine": times[1]}


def wire_dtype(shape: Shape) -> str:
    """What partial sums travel as."""
    return "fp32" if shape.wire_fp32 else shape.combine


def sent_bytes(name: str, shape: Shape, traffic: Traffic) -> tuple[float, float, int, str]:
    """Bytes that a rank sends in all and to others, bytes of one copy, and how they come about."""
    wire, copies, others = wire_of(shape), traffic.copies, traffic.copies - traffic.own
    out = "dispatch" in name
    if name.startswith("torch"):  # neither headers nor manifests
        size = wire.payload if out else shape.hidden * DTYPE_BYTES[wire_dtype(shape)]
        return copies * size, others * size, size, f"{copies:.1f} copies x {size} B"
    if out:
        size, more, each = wire.packet, shape.ranks, wire.manifest
        formula = f"{copies:.1f} copies x {size} B + {more} manifests x {each} B"
        return copies * size + more * each, others * size + (more - 1) * each, size, formula
    size, rest = wire.partial, traffic.tokens * (shape.dp - 1)
    formula = f"{copies:.1f} partial sums x {size} B"
    formula += f" + {rest:.1f} rows x {wire.result} B" if rest else ""
    return copies * size + rest * wire.result, others * size + rest * wire.result, size, formula


def rows_of(
    shape: Shape, times: dict[str, list[float]], traffic: Traffic, fabric: Fabric
) -> list[dict[str, Any]]:
    """One row of the table for each half."""
    rows = []
    for name, all_times in times.items():
        total, others, size, formula = sent_bytes(name, shape, traffic)
        p50 = percentile(all_times, 0.5)
        floors = {way: floor_us(traffic.tokens, copies, size, fabric) for way, copies in traffic.ways.items()}
        rows.append(
            {
                "name": name,
                "p50_us": p50,
                "p99_us": percentile(all_times, 0.99),
                "bytes": total,
                "formula": formula,
                "algbw_gbs": total / p50 / 1e3,
                "busbw_gbs": others / p50 / 1e3,
                "floor_us": floors,
                "floor_share": {way: floor / p50 for way, floor in floors.items()},
            }
        )
    return rows


def table(shape: Shape, tokens: int, rows: list[dict[str, Any]]) -> str:
    """What people read."""
    lines = [
        f"{shape.ranks} ranks, {tokens} tokens x {shape.hidden}, top-{shape.top_k} of {shape.experts}, "
        f"{shape.dispatch} out, {shape.combine} back: verified",
        f"{'':15} {'p50 us':>9} {'p99 us':>9} {'bytes':>12} {'algbw':>8} {'busbw':>8}  "
        + "  ".join(f"{f'floor {way}':>20}" for way in WAYS)
        + "  formula",
    ]
    for row in rows:
        floors = "  ".join(f"{row['floor_us'][way]:10.1f} us {row['floor_share'][way]:6.1%}" for way in WAYS)
        lines.append(
            f"{row['name']:15} {row['p50_us']:9.1f} {row['p99_us']:9.1f} {row['bytes']:12.0f} "
            f"{row['algbw_gbs']:8.2f} {row['busbw_gbs']:8.2f}  {floors}  {row['formula']}"
        )
    return "\n".join(lines)


def measure_shape(tokens: int, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Verify and time one shape; the same result on every rank."""
    shape = Shape(
        ranks=dist.get_world_size(),
        experts=options.experts,
        top_k=options.top_k,
        max_tokens=max(tokens, 1),
        hidden=options.hidden,
        dispatch=options.dispatch,
        combine=options.combine,
        wire_fp32=options.wire_fp32,
        dp=options.dp,
        row_align=options.row_align,
    )
    fabric = Fabric(options.gpus_per_node, options.nvlink_gbs * 1e9, options.network_gbs * 1e9)
    kernels = (
        AllToAll(shape) if options.backend == "nvshmem" else ReferenceAllToAll(shape, exchange=Distributed())
    )
    wrong: list[Any] = [None] * shape.ranks
    dist.all_gather_object(wrong, verify(kernels, shape, tokens, options.seed))
    for rank, what in enumerate(wrong):
        if what is not None:
            sys.exit(f"bench: rank {rank}: {what}")
    case = make(shape, tokens, kernels.rank, options.seed + 1, device)
    traffic = traffic_of(shape, case, kernels.rank, fabric)
    times = time_kernels(kernels, shape, case, options) | time_torch(shape, case, device, options)
    if isinstance(kernels, AllToAll):
        kernels.close()
    rows = rows_of(shape, times, traffic, fabric)
    if dist.get_rank() == 0:
        print(table(shape, tokens, rows), flush=True)
    return {
        "ranks": shape.ranks,
        "tokens": tokens,
        "hidden": shape.hidden,
        "top_k": shape.top_k,
        "rows": rows,
    }


def main() -> None:
    """Measure every shape of the command line."""
    options = arguments()
    device = start(options.backend)
    try:
        results = [measure_shape(tokens, device, options) for tokens in options.tokens]
    except KernelsError as error:
        sys.exit(f"bench: {error}")
    if options.json and dist.get_rank() == 0:
        options.json.write_text(json.dumps({"backend": options.backend, "shapes": results}, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
