"""kernels/moxtrace_kernels without a GPU: the reference against its twin, shapes, arguments, bytes."""

import doctest
import importlib
import inspect
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from .kernels_cases import FLOATS, KERNELS, answer, as_held, give, shapes, tolerance, torch
from .reference import kernels_alltoall as twin
from .test_contracts import documented

# ruff: isort: split
from moxtrace_kernels import (
    ArgumentError,
    CapacityError,
    Dispatched,
    InProcess,
    LibraryError,
    OrderError,
    ReferenceAllToAll,
    Shape,
    ShapeError,
)
from moxtrace_kernels.library import Library
from moxtrace_kernels.wire import expected_ranks, wire_of


def world(shape):
    network = InProcess(shape.ranks)
    return [ReferenceAllToAll(shape, rank, network) for rank in range(shape.ranks)]


def send(ranks, given):
    for rank, g in zip(ranks, given, strict=True):
        rank.dispatch_send(g.x, g.experts, g.weights, scales=g.scales, bound_m=g.bound_m)


def rows_of(got, local):
    """Rows of one local expert as the twin has them."""
    start, count = int(got.starts[local]), int(got.counts[local])
    rows = got.rows.flatten(0, -2)[start : start + count].view(torch.uint8).tolist()
    scales = (
        [[]] * count
        if got.scales is None
        else got.scales.flatten(0, -2)[start : start + count].view(torch.uint8).tolist()
    )
    sources = got.row_source[start : start + count].tolist()
    return [(s, t, (bytes(r), bytes(q))) for (s, t), r, q in zip(sources, rows, scales, strict=True)]


def check_epoch(shape, ranks, seed, exact):
    """One epoch of the reference against the twin."""
    given = give(shape, seed, exact)
    held = as_held(given)
    send(ranks, given)
    received = twin.dispatch(held, shape.experts, shape.dp)
    answers = [None] * shape.experts
    replies = []
    for rank in ranks:
        got = rank.dispatch_recv()
        rows = answer(shape, rank.rows_shape, seed + rank.rank, exact)
        replies.append(rows)
        mine = range(rank.first_expert, rank.first_expert + rank.local_experts)
        assert got.counts.tolist() == [len(received[expert]) for expert in mine]
        assert got.starts.tolist() == twin.starts(got.counts.tolist(), rank.row_capacity, shape.row_align)
        for local, expert in enumerate(mine):
            assert rows_of(got, local) == received[expert]
            start, count = int(got.starts[local]), int(got.counts[local])
            answers[expert] = rows.flatten(0, -2)[start : start + count].tolist()
    for rank, rows in zip(ranks, replies, strict=True):
        rank.combine_send(rows)
    sums, magnitudes = twin.combine(held, received, answers, shape.dp)
    for rank, g in zip(ranks, given, strict=True):
        y = rank.combine_recv()
        assert y.shape == (len(g.x), shape.hidden)
        assert y.dtype == FLOATS[shape.combine]
        for t in range(g.sent):
            check_row(shape, y[t].tolist(), sums[rank.rank][t], magnitudes[rank.rank][t], exact)


def check_row(shape, row, sums, magnitudes, exact):
    if not sums:  # no expert
        assert row == [0.0] * shape.hidden
    elif exact:
        assert row == sums
    else:
        for found, want, size in zip(row, sums, magnitudes, strict=True):
            assert abs(found - want) <= tolerance(shape) * size + 2.0**-24  # and fp16's smallest step


@for_all(shapes(), st.integers(0, 2**31), st.booleans())
def test_the_reference_is_its_twin(shape, seed, exact):
    ranks = world(shape)
    for epoch in range(2):
        check_epoch(shape, ranks, seed + 1000 * epoch, exact)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(ranks=7, experts=1024, top_k=16, max_tokens=20, hidden=16),
        Shape(ranks=3, experts=5, top_k=5, max_tokens=33, hidden=208, dispatch="fp8", combine="fp16"),
        Shape(ranks=6, experts=4, top_k=2, max_tokens=5, hidden=8, dp=3),  # ranks without experts
        Shape(ranks=1, experts=1, top_k=1, max_tokens=1, hidden=4, dispatch="fp32"),
    ],
    ids=["1024 experts, top-16", "fp8", "more ranks than experts", "alone"],
)
def test_corners(shape):
    ranks = world(shape)
    for epoch in range(2):
        check_epoch(shape, ranks, 5 + epoch, exact=True)


def test_nobody_has_a_token():
    shape = Shape(ranks=3, experts=6, top_k=2, max_tokens=4, hidden=8)
    ranks = world(shape)
    for rank in ranks:
        rank.dispatch_send(torch.zeros((0, 8), dtype=torch.bfloat16), torch.zeros((0, 2), dtype=torch.int64))
    for rank in ranks:
        assert rank.dispatch_recv().counts.tolist() == [0, 0]
    for rank in ranks:
        rank.combine_send(torch.zeros(rank.rows_shape, dtype=torch.bfloat16))
    assert all(rank.combine_recv().shape == (0, 8) for rank in ranks)


def test_an_expert_named_twice_gets_one_row_and_counts_twice():
    shape = Shape(ranks=1, experts=3, top_k=3, max_tokens=1, hidden=8)
    (rank,) = world(shape)
    got = rank.dispatch(
        torch.full((1, 8), 2.0, dtype=torch.bfloat16),
        torch.tensor([[1, -1, 1]]),
        torch.tensor([[3.0, 9.0, 4.0]]),
    )
    assert got.counts.tolist() == [0, 1, 0]
    assert rank.combine(got.rows).tolist() == [[14.0] * 8]


def test_outputs_made_before_are_written():
    shape = Shape(ranks=1, experts=2, top_k=1, max_tokens=2, hidden=8, row_align=4)
    (rank,) = world(shape)
    out, y = rank.new_dispatched(), torch.full((2, 8), 7.0, dtype=torch.bfloat16)
    x = torch.ones((2, 8), dtype=torch.bfloat16)
    assert rank.dispatch(x, torch.tensor([[1], [1]]), bound_m=torch.tensor([1]).int(), out=out) is out
    assert out.row_source[0].tolist() == [0, 0]
    assert rank.combine(out.rows, out=y) is y
    assert y.tolist() == [[1.0] * 8, [7.0] * 8]  # beyond bound_m nothing is written


# ---- errors
SHAPE = Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=8)
FP8 = Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=256, dispatch="fp8")
BF16 = torch.bfloat16


def arguments(shape=SHAPE, **changes):
    fp8 = shape.dispatch == "fp8"
    plain = {
        "x": torch.zeros((3, shape.hidden)).to(torch.float8_e4m3fn if fp8 else BF16),
        "experts": torch.zeros((3, 2), dtype=torch.int64),
        "weights": None,
        "scales": torch.zeros((3, 2)) if fp8 else None,
        "bound_m": None,
    }
    return plain | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": [[0.0] * 8]}, "x is a list; expected a torch.Tensor"),
        ({"x": torch.zeros((3, 8))}, "x is torch.float32; expected torch.bfloat16"),
        ({"x": torch.zeros((3, 9), dtype=BF16)}, "x has shape [3, 9]; expected [tokens, 8]"),
        ({"x": torch.zeros(8, dtype=BF16)}, "x has shape [8]; expected [tokens, 8]"),
        ({"x": torch.zeros((4, 8), dtype=BF16)}, "x has 4 rows; max_tokens is 3"),
        ({"x": torch.zeros((3, 8), dtype=BF16, device="meta")}, "x is on meta; expected cpu"),
        ({"x": torch.zeros((8, 3), dtype=BF16).T}, "x has strides [1, 3]; expected a contiguous tensor"),
        ({"experts": torch.zeros((3, 2))}, "experts is torch.float32; expected torch.int32 or torch.int64"),
        ({"experts": torch.zeros((3, 3), dtype=torch.int32)}, "experts has shape [3, 3]; expected [3, 2]"),
        ({"experts": torch.full((3, 2), 4)}, "experts of token 0 are [4, 4]; expected numbers below 4"),
        ({"weights": torch.zeros((3, 2), dtype=BF16)}, "weights is torch.bfloat16; expected torch.float32"),
        ({"weights": torch.zeros((2, 2))}, "weights has shape [2, 2]; expected [3, 2]"),
        ({"scales": torch.zeros((3, 1))}, "scales was given, but rows are bf16; expected None"),
        ({"bound_m": torch.zeros(1)}, "bound_m is torch.float32; expected torch.int32"),
        ({"bound_m": torch.zeros(2, dtype=torch.int32)}, "bound_m has shape [2]; expected [1]"),
        ({"bound_m": 3}, "bound_m is a int; expected a torch.Tensor"),
    ],
)
def test_dispatch_send_says_what_is_wrong(changes, says):
    rank = world(SHAPE)[0]
    with pytest.raises(ArgumentError) as caught:
        rank.dispatch_send(**arguments(**changes))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    rank.dispatch_send(**arguments())  # nothing has happened


def test_fp8_wants_its_scales():
    rank = world(FP8)[0]
    with pytest.raises(ArgumentError, match=r"scales is None; expected \[3, 2\] torch.float32"):
        rank.dispatch_send(**arguments(FP8, scales=None))
    with pytest.raises(ArgumentError, match=r"scales has shape \[3, 1\]; expected \[3, 2\]"):
        rank.dispatch_send(**arguments(FP8, scales=torch.zeros((3, 1))))
    rank.dispatch_send(**arguments(FP8, x=torch.zeros((3, 256)).to(torch.float8_e5m2)))


def test_the_later_halves_say_what_is_wrong():
    ranks = world(SHAPE)
    for rank in ranks:
        rank.dispatch_send(**arguments())
    rank = ranks[0]
    out = rank.new_dispatched()
    with pytest.raises(ArgumentError, match=r"out.counts has shape \[3\]; expected \[2\]"):
        rank.dispatch_recv(out._replace(counts=torch.zeros(3, dtype=torch.int32)))
    with pytest.raises(ArgumentError, match="out.scales was given; expected None"):
        rank.dispatch_recv(out._replace(scales=torch.zeros(1)))
    rank.dispatch_recv(out)
    with pytest.raises(ArgumentError, match=r"rows has shape \[2, 8\]; expected \[2, 6, 8\]"):
        rank.combine_send(torch.zeros((2, 8), dtype=BF16))
    for one in ranks[1:]:
        one.combine_send(one.dispatch_recv().rows)
    rank.combine_send(out.rows)
    with pytest.raises(ArgumentError, match="out is torch.float32; expected torch.bfloat16"):
        rank.combine_recv(torch.zeros((3, 8)))
    assert rank.combine_recv().shape == (3, 8)


def test_halves_are_called_in_order():
    first, second = world(SHAPE)
    with pytest.raises(OrderError, match="dispatch_recv was called where dispatch_send is due"):
        first.dispatch_recv()
    first.dispatch_send(**arguments())
    with pytest.raises(OrderError, match="rank 1 has not called dispatch_send of epoch 1"):
        first.dispatch_recv()
    second.dispatch_send(**arguments())
    first.dispatch_recv()
    with pytest.raises(OrderError, match="rank 0: combine_recv was called where combine_send is due"):
        first.combine_recv()


@pytest.mark.parametrize(
    ("align", "says"),
    [
        (0, "expert 0 gets 6 rows; row_capacity is 5"),
        (4, "its experts get 6 rows, aligned to 4; row_capacity is 5"),
    ],
)
def test_too_many_rows(align, says):
    ranks = world(Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=8, row_capacity=5, row_align=align))
    for rank in ranks:
        rank.dispatch_send(**arguments())
    with pytest.raises(CapacityError, match=says):
        ranks[0].dispatch_recv()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranks": 0}, "ranks is 0; expected a whole number from 1 to 4096"),
        ({"experts": 1025}, "experts is 1025; expected a whole number from 1 to 1024"),
        ({"top_k": 17}, "top_k is 17; expected a whole number from 1 to 16"),
        ({"top_k": 5}, "top_k is 5, but there are only 4 experts"),
        ({"max_tokens": 2.0}, "max_tokens is 2.0; expected a whole number"),
        ({"wire_fp32": "no"}, "wire_fp32 is 'no'; expected True or False"),
        ({"self_put": 1}, "self_put is 1; expected True or False"),
        ({"ranks": 4, "dp": 3}, "dp is 3, which does not divide the 4 ranks"),
        ({"hidden": 12}, "a row of bf16 is 24 bytes; expected a multiple of 16"),
        ({"dispatch": torch.int8}, "dtype is torch.int8; expected bf16, fp16, fp32 or fp8"),
        ({"combine": "fp8"}, "combine is fp8; sums need bf16, fp16 or fp32"),
        ({"row_capacity": 2**31 - 1}, "4294967294 rows; expected fewer than 2^31: lower row_capacity"),
        ({"max_tokens": 2**20, "ranks": 4096}, "4294967296 tokens of all ranks; expected fewer than 2^31"),
    ],
)
def test_shapes_say_what_is_wrong(changes, says):
    plain = {"ranks": 2, "experts": 4, "top_k": 2, "max_tokens": 3, "hidden": 8}
    with pytest.raises(ShapeError, match=says.replace("^", r"\^")):
        Shape(**plain | changes)


def test_shapes_take_torch_dtypes_and_place_experts():
    shape = Shape(ranks=3, experts=8, top_k=2, max_tokens=4, hidden=128, dispatch=torch.float8_e4m3fn)
    assert shape.dispatch == "fp8"
    assert [shape.host(e) for e in range(8)] == [twin.host(e, 8, 3) for e in range(8)]
    assert [shape.first_expert(r) for r in range(3)] == [0, 3, 6]
    assert [shape.local_experts(r) for r in range(3)] == [3, 3, 2]


def test_a_rank_belongs_to_its_world():
    with pytest.raises(ArgumentError, match="rank is 2; expected a number from 0 to 1"):
        ReferenceAllToAll(SHAPE, 2, InProcess(2))
    with pytest.raises(ArgumentError, match="the exchange has 3 ranks; the shape has 2"):
        ReferenceAllToAll(SHAPE, 0, InProcess(3))


def test_bytes_worked_by_hand():
    shape = Shape(ranks=8, experts=256, top_k=8, max_tokens=128, hidden=7168, dispatch="fp8")
    wire = wire_of(shape)
    assert wire.payload == 7168 + 56 * 4
    assert wire.packet == 16 + 8 * 8 + 7168 + 224
    assert wire.partial == 7168 * 2
    assert wire.manifest == 33 * 4 * 4
    slot = 80 + 14336  # a header and a partial sum are more than a packet
    packets, manifests, partials = [128 * slot, 8 * 128 * slot], [2 * 8 * 528] * 2, [128 * 8 * 14336]
    lines = packets + manifests + partials + [2 * 8 * 8, 8 * 128 * 8, 128 * 8 * 8]
    assert wire.symmetric == sum(math.ceil(size / 128) * 128 for size in lines)
    assert expected_ranks(2, 4, 2) == pytest.approx(2 * (1 - 1 / 6))  # one of the 6 pairs misses a rank


# ---- the package
def test_the_library_that_is_not_there(tmp_path):
    with pytest.raises(LibraryError, match="absent: this is an install without the GPU library"):
        Library(tmp_path / "libmoxtrace_kernels.so")
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(LibraryError, match="does not load"):
        Library(tmp_path / "broken.so")


def test_importing_needs_no_torch():
    code = "import sys, moxtrace_kernels as m; m.Shape(2, 4, 2, 3, 8); sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(KERNELS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0


def test_public_names_are_there_and_documented():
    package = importlib.import_module("moxtrace_kernels")
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing
    assert Dispatched._fields == ("rows", "scales", "counts", "starts", "row_source")


MODULES = sorted(p.stem for p in (KERNELS / "moxtrace_kernels").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_documented_parameters_are_those_of_the_signature(name):
    module = importlib.import_module(f"moxtrace_kernels.{name}")
    assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    for public in module.__all__:
        value = getattr(module, public)
        methods = (
            vars(value).values() if inspect.isclass(value) and value.__module__ == module.__name__ else []
        )
        for function in [value, *methods]:
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            said = documented(inspect.getdoc(function) or "")
            taken = {
                p for p in inspect.signature(function).parameters if not p.startswith("_") and p != "self"
            }
            assert not said or said == taken, f"{name}.{public}.{function.__name__}"


@pytest.mark.parametrize("name", ["reference", "exchange"])
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"moxtrace_kernels.{name}")).failed == 0
