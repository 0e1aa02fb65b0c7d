"""Checks of the tensors that a caller hands in; on the host alone, nothing looks at what is on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .errors import ArgumentError
from .shape import Shape

if TYPE_CHECKING:
    from .halves import Dispatched

__all__ = ["DTYPES", "check_dispatch", "check_out", "check_rows", "check_tensor", "check_y"]

DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "bf16": (torch.bfloat16,),
    "fp16": (torch.float16,),
    "fp32": (torch.float32,),
    "fp8": (torch.float8_e4m3fn, torch.float8_e5m2),
}


def _words(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)


def check_tensor(
    name: str,
    tensor: object,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | str],
    device: torch.device,
) -> None:
    """Refuse a tensor that a kernel could not read.

    Parameters
    ----------
    name : str
        What the caller calls it.
    tensor : Tensor
        What was handed in.
    dtypes : sequence of torch.dtype
        Types that are taken.
    shape : sequence of int or str
        Length of each axis; a string names an axis of any length.
    device : torch.device
        Where it has to live.

    Raises
    ------
    ArgumentError
        With what was found and what was expected.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.dtype not in dtypes:
        raise ArgumentError(f"{name} is {tensor.dtype}; expected {_words(dtypes)}")
    fits = len(shape) == tensor.dim() and all(
        isinstance(want, str) or want == found for want, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        want = ", ".join(str(axis) for axis in shape)
        raise ArgumentError(f"{name} has shape {list(tensor.shape)}; expected [{want}]")
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device}; expected {device}, as this rank was made there")
    if not tensor.is_contiguous():
        raise ArgumentError(
            f"{name} has strides {list(tensor.stride())}; expected a contiguous tensor: call .contiguous()"
        )


def _check_aligned(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda" and tensor.data_ptr() % 16:
        raise ArgumentError(
            f"{name} starts {tensor.data_ptr() % 16} bytes past a 16-byte boundary; expected an aligned "
            "tensor: call .clone()"
        )


def check_dispatch(
    shape: Shape,
    device: torch.device,
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor | None,
    scales: torch.Tensor | None,
    bound_m: torch.Tensor | None,
) -> None:
    """Check the arguments of ``dispatch_send``, in its words.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.
    device : torch.device
        This rank's.
    x, experts, weights, scales, bound_m
        As ``dispatch_send`` takes them.

    Raises
    ------
    ArgumentError
        With what was found and what was expected.
    """
    check_tensor("x", x, DTYPES[shape.dispatch], ["tokens", shape.hidden], device)
    _check_aligned("x", x)
    tokens = x.shape[0]
    if tokens > shape.max_tokens:
        raise ArgumentError(f"x has {tokens} rows; max_tokens is {shape.max_tokens}")
    check_tensor("experts", experts, (torch.int32, torch.int64), [tokens, shape.top_k], device)
    if weights is not None:
        check_tensor("weights", weights, (torch.float32,), [tokens, shape.top_k], device)
    if shape.dispatch == "fp8":
        if scales is None:
            raise ArgumentError(
                f"scales is None; expected [{tokens}, {shape.scale_blocks}] torch.float32 beside fp8 rows"
            )
        check_tensor("scales", scales, (torch.float32,), [tokens, shape.scale_blocks], device)
    elif scales is not None:
        raise ArgumentError(
            f"scales was given, but rows are {shape.dispatch}; expected None, only fp8 has scales"
        )
    if bound_m is not None:
        scalar = isinstance(bound_m, torch.Tensor) and bound_m.dim() == 0
        check_tensor("bound_m", bound_m, (torch.int32,), [] if scalar else [1], device)


def check_out(expected: Dispatched, out: Dispatched, device: torch.device) -> None:
    """Check the tensors that ``dispatch_recv`` is to write.

    Parameters
    ----------
    expected : Dispatched
        Tensors of the right dtypes and shapes, on any device.
    out : Dispatched
        What was handed in.
    device : torch.device
        This rank's.

    Raises
    ------
    ArgumentError
        With what was found and what was expected.
    """
    for name, want, found in zip(expected._fields, expected, out, strict=True):
        if want is None:
            if found is not None:
                raise ArgumentError(f"out.{name} was given; expected None, only fp8 has scales")
        else:
            check_tensor(f"out.{name}", found, (want.dtype,), want.shape, device)
    _check_aligned("out.rows", out.rows)


def check_rows(shape: Shape, rows_shape: Sequence[int], device: torch.device, rows: torch.Tensor) -> None:
    """Check what the experts wrote.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.
    rows_shape : sequence of int
        Shape of the dispatched rows.
    device : torch.device
        This rank's.
    rows : Tensor
        As ``combine_send`` takes it.

    Raises
    ------
    ArgumentError
        With what was found and what was expected.
    """
    check_tensor("rows", rows, DTYPES[shape.expert_out], rows_shape, device)
    _check_aligned("rows", rows)


def check_y(shape: Shape, tokens: int, device: torch.device, out: torch.Tensor) -> None:
    """Check where ``combine_recv`` is to write.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.
    tokens : int
        Rows that this epoch's ``dispatch_send`` was given.
    device : torch.device
        This rank's.
    out : Tensor
        As ``combine_recv`` takes it.

    Raises
    ------
    ArgumentError
        With what was found and what was expected.
    """
    check_tensor("out", out, DTYPES[shape.combine], [tokens, shape.hidden], device)
    _check_aligned("out", out)
