#!/usr/bin/env python3
"""What a single GPU can show: the kernels are right, and how far they are from the memory's bandwidth.

python kernels/bench/one_gpu.py            tests, then times; exit status 1 at the first thing that is wrong

Tests: many shapes, several epochs each, with the rank's own tokens on the wire (self put) and as a local
shuffle; every bit of dispatch and every sum of combine against the reference; a captured CUDA graph that
follows bound_m; too small a row_capacity is reported. Times: p50 and p99 of each half beside the floor, the
least bytes a half has to read and write at the bandwidth of a large copy measured in the same run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from cases import answers, make, verify
from measure import percentile, rounds
from moxtrace_kernels import AllToAll, DeviceError, KernelsError, Shape, finalize, initialize
from moxtrace_kernels.shape import DTYPE_BYTES
from moxtrace_kernels.wire import wire_of

SYMMETRIC_BYTES = 2 << 30
TOKENS = (1, 16, 64, 128)
EPOCHS = (130, 0, 1, 77)  # tokens of each


def shapes() -> Iterator[Shape]:
    """Shapes to verify: every dtype, packed and padded, few and many experts, odd widths."""
    for self_put in (True, False):
        for dispatch, expert_out, combine in (
            ("bf16", "bf16", "bf16"),
            ("fp16", "fp16", "fp32"),
            ("fp32", "fp32", "fp16"),
            ("fp8", "bf16", "bf16"),
        ):
            for experts, top_k, hidden, row_align in ((32, 8, 7168, 0), (1024, 16, 208, 8), (1, 1, 16, 1)):
                yield Shape(
                    ranks=1,
                    experts=experts,
                    top_k=top_k,
                    max_tokens=max(EPOCHS),
                    hidden=hidden,
                    dispatch=dispatch,
                    expert_out=expert_out,
                    combine=combine,
                    wire_fp32=row_align == 8,
                    row_align=row_align,
                    self_put=self_put,
                )


def check_shapes() -> int:
    """Every shape over several epochs, with other tokens in each; how many epochs were checked."""
    checked = 0
    for shape in shapes():
        with AllToAll(shape) as kernels:
            for epoch, tokens in enumerate(EPOCHS):
                wrong = verify(kernels, shape, tokens, seed=epoch)
                kernels.check()
                if wrong:
                    sys.exit(f"one_gpu: {shape}, epoch {epoch}: {wrong}")
                checked += 1
    return checked


def check_graph(device: torch.device) -> None:
    """Four halves in one CUDA graph: replays follow new inputs and a bound on the device."""
    shape = Shape(ranks=1, experts=16, top_k=4, max_tokens=64, hidden=512, self_put=True)
    with AllToAll(shape) as kernels:
        case, bound = make(shape, 64, 0, 1, device), torch.tensor([64], dtype=torch.int32, device=device)
        out, y = kernels.new_dispatched(), torch.zeros((64, 512), dtype=torch.bfloat16, device=device)
        rows = torch.ones(kernels.rows_shape, dtype=torch.bfloat16, device=device)

        def epoch() -> None:
            kernels.dispatch(case.x, case.experts, case.weights, bound_m=bound, out=out)
            kernels.combine(rows, out=y)

        epoch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            epoch()
        for tokens in (64, 5, 0, 33):
            bound.fill_(tokens)
            y.zero_()
            graph.replay()
            torch.cuda.synchronize()
            kernels.check()
            wanted = case.weights.sum(1).to(torch.bfloat16) * (torch.arange(64, device=device) < tokens)
            if int(out.counts.sum()) != 4 * tokens or not torch.equal(y[:, 0], wanted):
                sys.exit(f"one_gpu: a replayed graph with bound_m {tokens} is wrong")


def check_capacity(device: torch.device) -> None:
    """More rows than there is room for: an error, not a hang and not a write beyond the end."""
    shape = Shape(ranks=1, experts=2, top_k=1, max_tokens=4, hidden=64, row_capacity=3)
    with AllToAll(shape) as kernels:
        x = torch.zeros((4, 64), dtype=torch.bfloat16, device=device)
        kernels.dispatch(x, torch.ones((4, 1), dtype=torch.int32, device=device))
        torch.cuda.synchronize()
        try:
            kernels.check()
        except DeviceError:
            return
        sys.exit("one_gpu: 4 rows for an expert with room for 3 were not reported")


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    a = torch.zeros(1 << 30, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    times = rounds([lambda: b.copy_(a)], 20, 3, device)[0]
    return 2 * a.numel() / percentile(times, 0.5) * 1e6


def floors_bytes(shape: Shape, tokens: int) -> dict[str, int]:
    """Least bytes that each has to read and write: a row once per expert, and once where it is held."""
    payload = wire_of(shape).payload
    answer = shape.hidden * DTYPE_BYTES[shape.expert_out]
    result = shape.hidden * DTYPE_BYTES[shape.combine]
    return {
        "dispatch": tokens * payload * (1 + shape.top_k),
        "combine": tokens * (shape.top_k * answer + result),
    }


def time_shape(shape: Shape, tokens: int, bandwidth: float, device: torch.device) -> None:
    """Print the four halves of one shape."""
    with AllToAll(shape) as kernels:
        case, out = make(shape, tokens, 0, 9, device), kernels.new_dispatched()
        kernels.dispatch(case.x, case.experts, case.weights, scales=case.scales, out=out)
        out.row_source.zero_()
        rows = answers(shape, out)
        y = kernels.combine(rows)
        steps = [
            lambda: kernels.dispatch_send(case.x, case.experts, case.weights, scales=case.scales),
            lambda: kernels.dispatch_recv(out),
            lambda: kernels.combine_send(rows),
            lambda: kernels.combine_recv(y),
        ]
        times = rounds(steps, 100, 10, device)
        kernels.check()
    way = "self put" if shape.self_put else "local"
    names = ["dispatch send", "dispatch recv", "combine send", "combine recv"]
    for name, all_times in zip(names, times, strict=True):
        p50, p99 = percentile(all_times, 0.5), percentile(all_times, 0.99)
        print(f"{way:9} {tokens:6} {name:15} {p50:9.1f} {p99:9.1f}")
    for whole, halves in (("dispatch", times[:2]), ("combine", times[2:])):
        both = [a + b for a, b in zip(*halves, strict=True)]
        p50, least = percentile(both, 0.5), floors_bytes(shape, tokens)[whole]
        floor = least / bandwidth * 1e6
        print(
            f"{way:9} {tokens:6} {whole:15} {p50:9.1f} {percentile(both, 0.99):9.1f} {least:12} B "
            f"{floor:9.1f} us floor {floor / p50:6.1%}"
        )


def main() -> None:
    """Test, then time."""
    if not torch.cuda.is_available():
        print("one_gpu: torch sees no GPU", file=sys.stderr)
        sys.exit(77)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29534"}
    for name, value in (alone | {"NVSHMEM_REMOTE_TRANSPORT": "none"}).items():
        os.environ.setdefault(name, value)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    try:
        initialize(device=device, symmetric_bytes=SYMMETRIC_BYTES)
        print(f"{check_shapes()} epochs verified", flush=True)
        check_graph(device)
        check_capacity(device)
        print("graph and capacity verified", flush=True)
        bandwidth = copy_bandwidth(device)
        print(f"copy: {bandwidth / 1e9:.0f} GB/s read and written")
        print(f"{'':9} {'tokens':>6} {'':15} {'p50 us':>9} {'p99 us':>9}")
        for self_put in (False, True):
            for tokens in TOKENS:
                shape = Shape(1, 32, 8, tokens, 7168, "fp8", row_align=16, self_put=self_put)
                time_shape(shape, tokens, bandwidth, device)
        finalize()
    except KernelsError as error:
        sys.exit(f"one_gpu: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
