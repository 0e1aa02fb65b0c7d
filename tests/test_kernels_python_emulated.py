"""The kernels on their emulator against the torch reference, through the C interface that Python uses."""

import ctypes
import json
import os
import shutil
import subprocess

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from .kernels_cases import FLOATS, KERNELS, answer, give, shapes, tolerance, torch

# ruff: isort: split
from moxtrace_kernels import InProcess, LibraryError, ReferenceAllToAll, Shape, ShapeError
from moxtrace_kernels import library as c_interface
from moxtrace_kernels import shape as limits
from moxtrace_kernels.alltoall import dispatch_in, dispatch_out
from moxtrace_kernels.halves import Inputs
from moxtrace_kernels.library import DispatchIn, DispatchOut, Library, Options, shape_of
from moxtrace_kernels.wire import wire_of

EMPTY = torch.zeros(16, dtype=torch.uint8)
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
FOLDERS = ["-Iinclude", "-Iemulator", "-Iemulator/shim", "-Ibinding"]
BUILD = [f'-DMOX_BUILD_{what}="emulated"' for what in ("NVSHMEM", "CUDA", "ARCHITECTURES")]


@pytest.fixture(scope="module")
def compiler():
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        pytest.skip(f"no C++ compiler: {name} is not on PATH (CXX names another)")
    return name


@pytest.fixture(scope="module")
def library(compiler, tmp_path_factory):
    sources = ["binding/mox_c.cu", "binding/emulated.cc", "src/alltoall.cu", "src/shape.cc"]
    sources += [f"emulator/{p.name}" for p in sorted(KERNELS.glob("emulator/*.cc"))]
    path = tmp_path_factory.mktemp("emulated") / "libmoxtrace_emulated.so"
    command = [compiler, *FLAGS, *FOLDERS, *BUILD, "-x", "c++", *sources, "-o", str(path)]
    done = subprocess.run(command, cwd=KERNELS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Library(path)


def addresses(tensors):
    return (ctypes.c_void_p * len(tensors))(
        *[t.data_ptr() if t.numel() else EMPTY.data_ptr() for t in tensors]
    )


def emulate(library, shape, seed, inputs, outs, rows, ys):
    """Every epoch on every rank; lists are flat, [epochs, ranks]."""
    sends = (DispatchIn * len(inputs))(*[dispatch_in(one, EMPTY) for one in inputs])
    receives = (DispatchOut * len(outs))(*[dispatch_out(one, EMPTY) for one in outs])
    library.call(
        "mox_emulate",
        ctypes.c_uint64(seed),
        ctypes.c_uint32(len(inputs) // shape.ranks),
        ctypes.byref(shape_of(shape)),
        ctypes.byref(Options(1000, 2, 64)),
        sends,
        receives,
        addresses(rows),
        addresses(ys),
    )


def check(library, shape, seed, exact, epochs=2):
    network = InProcess(shape.ranks)
    ranks = [ReferenceAllToAll(shape, rank, network) for rank in range(shape.ranks)]
    inputs, wanted, rows, sums = [], [], [], []
    for epoch in range(epochs):
        given = give(shape, seed + epoch, exact)
        for rank, g in zip(ranks, given, strict=True):
            inputs.append(Inputs(g.x, g.experts, g.weights, g.scales, g.bound_m))
            rank.dispatch_send(g.x, g.experts, g.weights, scales=g.scales, bound_m=g.bound_m)
        wanted += [rank.dispatch_recv() for rank in ranks]
        answers = [answer(shape, rank.rows_shape, seed + rank.rank, exact) for rank in ranks]
        for rank, mine in zip(ranks, answers, strict=True):
            rank.combine_send(mine)
        rows += answers
        sums += [rank.combine_recv() for rank in ranks]
    outs = [rank.new_dispatched() for _ in range(epochs) for rank in ranks]
    ys = [torch.zeros_like(y) for y in sums]
    emulate(library, shape, seed, inputs, outs, rows, ys)
    for want, found in zip(wanted, outs, strict=True):
        check_dispatched(want, found)
    for want, found, one in zip(sums, ys, inputs, strict=True):
        if exact:
            assert found.tolist() == want.tolist()
        else:  # both are this far from the exact sum, of at most top_k products of |answers| below 8
            scale = 8.0 * (one.experts >= 0).sum(1, keepdim=True)
            assert ((found.float() - want.float()).abs() <= 2 * tolerance(shape) * scale + 2.0**-23).all()


def check_dispatched(want, found):
    assert found.counts.tolist() == want.counts.tolist()
    assert found.starts.tolist() == want.starts.tolist()
    for start, count in zip(want.starts.tolist(), want.counts.tolist(), strict=True):
        here = slice(start, start + count)
        assert found.row_source[here].tolist() == want.row_source[here].tolist()
        for a, b in ((found.rows, want.rows), (found.scales, want.scales)):
            if a is not None:
                bits = [t.flatten(0, -2)[here].view(torch.uint8) for t in (a, b)]
                assert torch.equal(*bits)


@settings(max_examples=25)
@for_all(shapes(), st.integers(0, 2**31), st.booleans())
def test_the_kernels_are_the_reference(library, shape, seed, exact):
    check(library, shape, seed, exact)


def test_many_experts(library):
    check(library, Shape(ranks=7, experts=1024, top_k=16, max_tokens=5, hidden=16), seed=3, exact=True)


@for_all(shapes())
def test_bytes_are_those_of_the_kernels_layout(library, shape):
    sizes, wire = library.sizes(shape), wire_of(shape)
    assert (sizes.symmetric, sizes.packet, sizes.partial) == (wire.symmetric, wire.packet, wire.partial)
    assert (sizes.manifest, sizes.result) == (wire.manifest, wire.result)
    assert (sizes.capacity, sizes.slots) == (shape.capacity, shape.slots)
    library.check(shape)


STRUCTURES = {
    "mox_shape": type(shape_of(Shape(1, 1, 1, 1, 8))),
    "mox_options": Options,
    "mox_dispatch_in": DispatchIn,
    "mox_dispatch_out": DispatchOut,
    "mox_failure": c_interface._Failure,
    "mox_sizes": c_interface.Sizes,
    "mox_text": c_interface._Text,
}
NUMBERS = {
    "mox::kMaxRanks": limits.MAX_RANKS,
    "mox::kMaxExperts": limits.MAX_EXPERTS,
    "mox::kMaxTopK": limits.MAX_TOP_K,
    "mox::kScaleGroup": limits.SCALE_BLOCK,
    "mox::kMaxBlocks": limits.MAX_BLOCKS,
    "mox::kMaxThreads": limits.MAX_THREADS,
    "mox::kNoToken": c_interface._NO_TOKEN,
    "MOX_C_ABI": c_interface.ABI,
    **{f"(int)mox::DType::{name}": number for name, number in c_interface._DTYPES.items()},
    **{f"mox::bytes_of(mox::DType::{name})": size for name, size in limits.DTYPE_BYTES.items()},
}


def test_structures_and_numbers_are_those_of_the_headers(compiler, tmp_path):
    """Asked of the compiler: size and place of every field, and every number that both languages name."""
    asked = {f"(long){name}": value for name, value in NUMBERS.items()}
    for name, structure in STRUCTURES.items():
        asked[f"(long)sizeof({name})"] = ctypes.sizeof(structure)
        for field, _ in structure._fields_:
            place = getattr(structure, field)
            asked[f"(long)offsetof({name}, {field})"] = place.offset
            asked[f"(long)sizeof({name}::{field})"] = place.size
    source = tmp_path / "ask.cc"
    includes = "".join(
        f"#include {name}\n" for name in ('"mox_c.h"', '"mox/failure.h"', '"mox/shape.h"', "<cstdio>")
    )
    print_all = "".join(f'std::printf(",%ld", {expression});\n' for expression in asked)
    source.write_text(f"{includes}int main() {{\n{print_all}}}\n")
    program = tmp_path / "ask"
    command = [compiler, "-std=c++17", "-Iinclude", "-Ibinding", str(source), "-o", str(program)]
    done = subprocess.run(command, cwd=KERNELS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert dict(zip(asked, json.loads(f"[{said[1:]}]"), strict=True)) == asked


def test_what_the_library_says(library):
    shape = Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=8)
    assert library.build == {"nvshmem": "emulated", "cuda": "emulated", "architectures": "emulated"}
    assert "in all" in library.describe(shape)
    object.__setattr__(shape, "top_k", 17)  # what only a faulty caller would hand over
    with pytest.raises(ShapeError, match="top_k is 17, expected 1 to 16"):
        library.check(shape)
    with pytest.raises(LibraryError, match="top_k is 17"):
        library.sizes(shape)
    with pytest.raises(LibraryError, match="starts its ranks by itself"):
        library.unique_id()
    asked = shape_of(Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=8))
    asked.combine = 9
    with pytest.raises(LibraryError, match=r"combine is 9, expected 0 to 3 \(bf16, fp16, fp32, fp8\)"):
        library.call("mox_get_sizes", asked, c_interface.Sizes())


def test_a_failure_on_the_device_is_an_error(library):
    shape = Shape(ranks=1, experts=2, top_k=1, max_tokens=2, hidden=8, row_capacity=1)
    rank = ReferenceAllToAll(shape, 0, InProcess(1))
    x, experts = torch.zeros((2, 8), dtype=FLOATS["bf16"]), torch.tensor([[1], [1]])
    out, rows = rank.new_dispatched(), torch.zeros(rank.rows_shape, dtype=FLOATS["bf16"])
    with pytest.raises(LibraryError, match="expert 1 of this rank needs row 2, but there is room for 1"):
        emulate(library, shape, 1, [Inputs(x, experts, None, None, None)], [out], [rows], [x.clone()])
