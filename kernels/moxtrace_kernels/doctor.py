"""What this machine has for the kernels, what is missing, what to do: ``python -m moxtrace_kernels.doctor``.

Everything is read, nothing is changed, and nothing needs a GPU. Under torchrun every rank looks at its own
machine and rank 0 compares: the same versions and drivers everywhere, a GPU and a network card of its own for
each rank.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int
from typing import Any

from .errors import KernelsError
from .library import LIBRARY, load, preload_nvshmem
from .machine import Finding, network, system, transport
from .shape import Shape
from .wire import wire_of

__all__ = ["compare", "doctor", "gpu", "main", "memory", "nvshmem", "pinned_nvshmem", "versions"]

_MARKS = {"ok": "ok  ", "warn": "warn", "bad": "BAD ", "none": "-   "}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pinned_nvshmem() -> str | None:
    """NVSHMEM that the installed torch asks for.

    Returns
    -------
    str or None
        Its version; None when torch is absent or asks for none, as its CPU builds do.
    """
    try:
        requires = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for requirement in requires:
        found = re.match(r"nvidia[-_]nvshmem[-_]cu\d+\s*==\s*([\d.]+)", requirement)
        if found:
            return found.group(1)
    return None


def _host_library() -> str | None:
    library = preload_nvshmem()
    if library is None:
        return None
    parts = [c_int() for _ in range(3)]
    library.nvshmemx_vendor_get_version_info(*map(byref, parts))
    return ".".join(str(part.value) for part in parts)


def versions() -> Iterator[Finding]:
    """The compiled library, NVSHMEM in its three places, and torch.

    Yields
    ------
    Finding
        One for each.
    """
    headers = None
    if not LIBRARY.is_file():
        yield Finding(
            "library", "warn", "absent", "reference only; for GPUs: pip install ./kernels where nvcc is"
        )
    else:
        try:
            build = load().build
            headers = build["nvshmem"]
            yield Finding("library", "ok", f"CUDA {build['cuda']}, architectures {build['architectures']}")
        except KernelsError as error:
            yield Finding("library", "bad", str(error))
    torch = _version("torch")
    yield Finding("torch", "ok" if torch else "bad", torch or "absent", "" if torch else "pip install torch")
    yield nvshmem(headers, _host_library(), pinned_nvshmem())


def nvshmem(headers: str | None, host: str | None, pinned: str | None) -> Finding:
    """Judge whether the three NVSHMEMs go together.

    Parameters
    ----------
    headers, host, pinned : str or None
        What the library was compiled with, what is loaded, what torch asks for; None where there is none.

    Returns
    -------
    Finding
        The same version everywhere is right; a newer host library of the same major version works.
    """
    found = ", ".join(
        f"{what} {which or 'none'}"
        for what, which in zip(("headers", "host library", "torch's"), (headers, host, pinned), strict=True)
    )
    if host is None:
        return Finding(
            "nvshmem", "warn", found, "pip install nvidia-nvshmem-cu13==" + (pinned or headers or "3.4.5")
        )
    if (
        headers
        and _numbers(host)[:1] != _numbers(headers)[:1]
        or headers
        and _numbers(host) < _numbers(headers)
    ):
        return Finding(
            "nvshmem", "bad", found, f"pip install nvidia-nvshmem-cu13=={headers}, or build ./kernels again"
        )
    if len({headers or host, host, pinned or host}) > 1:
        return Finding(
            "nvshmem", "warn", found, f"one version everywhere: nvidia-nvshmem-cu13=={pinned or headers}"
        )
    return Finding("nvshmem", "ok", found)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def memory(shape: Shape, free_bytes: int | None) -> Finding:
    """Judge a shape's buffers by the GPU's free memory.

    Parameters
    ----------
    shape : Shape
        What the ranks would agree on.
    free_bytes : int or None
        Of the GPU; None without one.

    Returns
    -------
    Finding
        Symmetric memory and the outputs of dispatch.
    """
    symmetric = wire_of(shape).symmetric
    rows = shape.capacity * (1 if shape.row_align else shape.local_experts(0)) * wire_of(shape).payload
    found = f"{symmetric / 2**20:.1f} MiB symmetric, {rows / 2**20:.1f} MiB for dispatched rows"
    if free_bytes is None:
        return Finding("memory", "none", found, "no GPU to compare with")
    if symmetric + rows > free_bytes:
        return Finding("memory", "bad", f"{found}, {free_bytes / 2**20:.1f} MiB free",
                       "fewer max_tokens, a smaller row_capacity, or row_align for packed rows")  # fmt: skip
    return Finding("memory", "ok", f"{found}, {free_bytes / 2**20:.1f} MiB free")


def gpu() -> tuple[Finding, int | None, str]:
    """Look at the GPU of this rank.

    Returns
    -------
    tuple
        What was found, free bytes (None without a GPU), and a name that no other GPU has.
    """
    try:
        import torch
    except ImportError:
        return Finding("GPU", "bad", "torch is absent", "pip install torch"), None, ""
    if not torch.cuda.is_available():
        return Finding("GPU", "bad", "torch sees none", "the reference works without"), None, ""
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    found = torch.cuda.get_device_properties(index)
    capability = found.major * 10 + found.minor
    state = "ok" if capability in (90, 100, 103) else "bad"
    advice = (
        ""
        if state == "ok"
        else "the library is built for sm_90 and sm_100: -C cmake.define.CMAKE_CUDA_ARCHITECTURES"
    )
    name = f"{os.uname().nodename} {getattr(found, 'uuid', index)}"
    return (
        Finding("GPU", state, f"{found.name}, sm_{capability}", advice),
        torch.cuda.mem_get_info(index)[0],
        name,
    )


def compare(everyone: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """What has to be the same on every rank, and what must not be.

    Parameters
    ----------
    everyone : sequence of dict
        By rank: ``findings`` and the ``gpu``'s name.

    Yields
    ------
    Finding
        One for each difference; one that says so when there is none.
    """
    agreed = True
    for name in ("driver", "library", "torch", "nvshmem"):
        said = {rank: f.found for rank, one in enumerate(everyone) for f in one["findings"] if f.name == name}
        other = [rank for rank, text in said.items() if text != said.get(0)]
        if other:
            agreed = False
            yield Finding(f"same {name}", "bad", f"rank 0: {said.get(0)}; rank {other[0]}: {said[other[0]]}",
                          "one version on every node")  # fmt: skip
    seen: dict[str, int] = {}
    for rank, one in enumerate(everyone):
        if one["gpu"] and one["gpu"] in seen:
            agreed = False
            yield Finding(
                "GPU of a rank", "bad", f"ranks {seen[one['gpu']]} and {rank} share one", "one rank per GPU"
            )
        seen.setdefault(one["gpu"], rank)
    if agreed:
        yield Finding("all ranks", "ok", f"{len(everyone)} agree")


def doctor(shape: Shape, nodes: int = 1) -> tuple[list[Finding], str]:
    """Look at everything on this rank.

    Parameters
    ----------
    shape : Shape
        Whose buffers are computed.
    nodes : int
        Machines that take part.

    Returns
    -------
    tuple
        Findings in the order of printing, and the name of this rank's GPU.
    """
    here, free, name = gpu()
    cards = transport(network(), dict(os.environ), nodes)
    return [*versions(), here, *system(), *cards, memory(shape, free)], name


def _lines(findings: Sequence[Finding]) -> str:
    lines = []
    for f in findings:
        lines.append(f"{_MARKS[f.state]} {f.name:15} {f.found}")
        if f.advice:
            lines.append(f"{'':21}{f.advice}")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m moxtrace_kernels.doctor", description=__doc__)
    parser.add_argument("--ranks", type=int, default=8, help="GPUs of the shape whose memory is computed")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of one rank")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--dispatch", default="fp8", help="bf16, fp16, fp32 or fp8")
    parser.add_argument("--row-align", type=int, default=0, help="0: padded rows; n: packed")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    return parser.parse_args()


def main() -> int:
    """Print what was found.

    Returns
    -------
    int
        1 when something will not work, otherwise 0.
    """
    options = _arguments()
    try:
        shape = Shape(
            ranks=options.ranks,
            experts=options.experts,
            top_k=options.top_k,
            max_tokens=options.tokens,
            hidden=options.hidden,
            dispatch=options.dispatch,
            row_align=options.row_align,
        )
    except KernelsError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 1
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    nodes = max(1, ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    findings, name = doctor(shape, nodes)
    if ranks > 1:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        everyone: list[Any] = [None] * ranks
        dist.all_gather_object(everyone, {"findings": findings, "gpu": name})
        findings += compare(everyone)
        leader = dist.get_rank() == 0
        dist.destroy_process_group()
        if not leader:
            return 0
    text = json.dumps([f._asdict() for f in findings], indent=1) if options.json else _lines(findings)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # a reader that has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(any(f.state == "bad" for f in findings))


if __name__ == "__main__":
    sys.exit(main())
