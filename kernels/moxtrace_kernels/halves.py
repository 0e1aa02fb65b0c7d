"""The interface of dispatch and combine: what both implementations take, give back and check.

``AllToAll`` (GPUs, NVSHMEM) and ``ReferenceAllToAll`` (plain torch) are the two; a program written for one
runs with the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .arguments import check_dispatch, check_out, check_rows, check_y
from .errors import OrderError
from .shape import Shape

__all__ = ["TORCH_DTYPES", "Dispatched", "Halves", "Inputs"]

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
_ORDER = ("dispatch_send", "dispatch_recv", "combine_send", "combine_recv")


class Dispatched(NamedTuple):
    """What a rank's experts are to work on.

    Attributes
    ----------
    rows : Tensor
        ``[local experts, capacity, hidden]`` padded, ``[capacity, hidden]`` packed; dispatch dtype. Rows of
        one expert follow each other in the order (source rank, token). What lies beyond an expert's count is
        undefined.
    scales : Tensor or None
        ``rows.shape[:-1] + [ceil(hidden / 128)]`` float32, fp8 only.
    counts : Tensor
        ``[local experts]`` int32, rows of each expert.
    starts : Tensor
        ``[local experts]`` int32, first row of each expert, counted over all rows.
    row_source : Tensor
        ``[rows, 2]`` int32, source rank and token of each row.
    """

    rows: torch.Tensor
    scales: torch.Tensor | None
    counts: torch.Tensor
    starts: torch.Tensor
    row_source: torch.Tensor


@dataclass(frozen=True)
class Inputs:
    """Checked arguments of ``dispatch_send``; see there."""

    x: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor | None
    scales: torch.Tensor | None
    bound_m: torch.Tensor | None

    @property
    def tokens(self) -> int:
        """Rows of ``x``."""
        return self.x.shape[0]


class Halves(ABC):
    """Dispatch and combine of one MoE layer, split into halves so that other work can run between them.

    One epoch is ``dispatch_send``, ``dispatch_recv``, the experts, ``combine_send``, ``combine_recv``, in
    this order. Every rank takes part in every epoch, with 0 tokens if it has none. Send halves do not wait
    for other ranks to reach this epoch. One object serves any number of layers, one after the other.

    Parameters
    ----------
    shape : Shape
        What every rank agrees on.
    rank : int
        This rank.
    device : torch.device
        Where its tensors live.
    """

    def __init__(self, shape: Shape, rank: int, device: torch.device) -> None:
        self.shape = shape
        self.rank = rank
        self.device = device
        self.local_experts = shape.local_experts(rank)
        self.first_expert = shape.first_expert(rank)
        self._turn = 0
        self._inputs: Inputs | None = None
        self._dispatch_dtype = TORCH_DTYPES[shape.dispatch]

    @property
    def row_capacity(self) -> int:
        """Rows per expert (padded) or in all (packed) that the outputs have room for."""
        return self.shape.capacity

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """Shape of ``Dispatched.rows``, and of what the experts write."""
        if self.shape.row_align:
            return (self.row_capacity, self.shape.hidden)
        return (self.local_experts, self.row_capacity, self.shape.hidden)

    # ---- the halves
    def dispatch_send(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        scales: torch.Tensor | None = None,
        bound_m: torch.Tensor | None = None,
    ) -> None:
        """Send every token to the ranks that host its experts.

        Parameters
        ----------
        x : Tensor
            ``[tokens, hidden]`` of the dispatch dtype, contiguous, at most ``max_tokens`` rows, 0 rows
            allowed. Like the other tensors it may be overwritten once the stream has passed this half.
        experts : Tensor
            ``[tokens, top_k]`` int32 or int64; a negative number names no expert. An expert that a token
            names twice gets it once, and counts with both weights.
        weights : Tensor, optional
            ``[tokens, top_k]`` float32: factor of each expert's output in the sum that combine returns. None:
            1.
        scales : Tensor, optional
            ``[tokens, ceil(hidden / 128)]`` float32; with fp8 required, otherwise refused.
        bound_m : Tensor, optional
            One int32 on the device: only the first ``min(tokens, bound_m)`` tokens are sent. Read by the
            kernel, so a captured graph follows it.

        Raises
        ------
        ArgumentError
            A tensor of the wrong dtype, device, shape or layout; the message names what was found and
            expected.
        OrderError
            The previous epoch has not been finished.
        """
        inputs = Inputs(x, experts, weights, scales, bound_m)
        check_dispatch(self.shape, self.device, x, experts, weights, scales, bound_m)
        self._expect(0)
        self._dispatch_send(inputs)
        self._dispatch_dtype = x.dtype
        self._inputs = inputs
        self._turn = 1

    def dispatch_recv(self, out: Dispatched | None = None) -> Dispatched:
        """Receive the rows of this rank's experts.

        Parameters
        ----------
        out : Dispatched, optional
            Where to write, as ``new_dispatched()`` makes it; None: new tensors. For CUDA graphs make it
            before the capture.

        Returns
        -------
        Dispatched
            Rows, scales, counts, starts and sources.

        Raises
        ------
        ArgumentError
            A tensor of ``out`` of the wrong dtype, device, shape or layout.
        OrderError
            Called before ``dispatch_send``.
        """
        if out is not None:
            check_out(self.new_dispatched(device="meta"), out, self.device)
        self._expect(1)
        out = self.new_dispatched() if out is None else out
        self._dispatch_recv(out)
        self._turn = 2
        return out

    def combine_send(self, rows: torch.Tensor) -> None:
        """Send what the experts made of the rows back to where the tokens came from.

        Parameters
        ----------
        rows : Tensor
            ``rows_shape`` of the expert dtype, contiguous, laid out as ``Dispatched.rows``.

        Raises
        ------
        ArgumentError
            Wrong dtype, device, shape or layout.
        OrderError
            Called before ``dispatch_recv``.
        """
        check_rows(self.shape, self.rows_shape, self.device, rows)
        self._expect(2)
        self._combine_send(rows)
        self._turn = 3

    def combine_recv(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Receive the weighted sums of the experts' outputs.

        Sums are taken in fp32 in a fixed order, whatever arrives first: on each host over its experts in the
        order of the token's list, then over the hosts. A partial sum is rounded once for the wire, to the
        combine dtype (not at all with ``wire_fp32``).

        Parameters
        ----------
        out : Tensor, optional
            ``[tokens, hidden]`` of the combine dtype, contiguous; None: a new tensor.

        Returns
        -------
        Tensor
            Row t is the sum for token t, 0 for a token without experts. Rows of tokens beyond ``bound_m`` are
            left alone.

        Raises
        ------
        ArgumentError
            ``out`` of the wrong dtype, device, shape or layout.
        OrderError
            Called before ``combine_send``.
        """
        tokens = self._inputs.tokens if self._inputs is not None else 0
        if out is not None:
            check_y(self.shape, tokens, self.device, out)
        self._expect(3)
        if out is None:
            out = torch.zeros(
                (tokens, self.shape.hidden), dtype=TORCH_DTYPES[self.shape.combine], device=self.device
            )
        self._combine_recv(out)
        self._turn = 0
        return out

    # ---- both halves at once
    def dispatch(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        scales: torch.Tensor | None = None,
        bound_m: torch.Tensor | None = None,
        out: Dispatched | None = None,
    ) -> Dispatched:
        """``dispatch_send`` and ``dispatch_recv``; parameters, result and errors are theirs."""
        self.dispatch_send(x, experts, weights, scales=scales, bound_m=bound_m)
        return self.dispatch_recv(out)

    def combine(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``combine_send`` and ``combine_recv``; parameters, result and errors are theirs."""
        self.combine_send(rows)
        return self.combine_recv(out)

    def new_dispatched(self, device: torch.device | str | None = None) -> Dispatched:
        """Tensors for ``dispatch_recv`` to write.

        Parameters
        ----------
        device : torch.device or str, optional
            None: this rank's device.

        Returns
        -------
        Dispatched
            Not initialized.
        """
        where = self.device if device is None else device
        fp8 = self.shape.dispatch == "fp8"
        head = self.rows_shape[:-1]
        rows = head[0] if len(head) == 1 else head[0] * head[1]
        return Dispatched(
            torch.empty(self.rows_shape, dtype=self._dispatch_dtype, device=where),
            torch.empty((*head, self.shape.scale_blocks), dtype=torch.float32, device=where) if fp8 else None,
            torch.empty(self.local_experts, dtype=torch.int32, device=where),
            torch.empty(self.local_experts, dtype=torch.int32, device=where),
            torch.empty((rows, 2), dtype=torch.int32, device=where),
        )

    def _expect(self, half: int) -> None:
        if half != self._turn:
            raise OrderError(
                f"rank {self.rank}: {_ORDER[half]} was called where {_ORDER[self._turn]} is due; an epoch is "
                f"{', '.join(_ORDER)}"
            )

    @abstractmethod
    def _dispatch_send(self, inputs: Inputs) -> None: ...

    @abstractmethod
    def _dispatch_recv(self, out: Dispatched) -> None: ...

    @abstractmethod
    def _combine_send(self, rows: torch.Tensor) -> None: ...

    @abstractmethod
    def _combine_recv(self, y: torch.Tensor) -> None: ...
