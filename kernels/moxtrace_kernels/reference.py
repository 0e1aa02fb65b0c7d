"""Dispatch and combine in plain torch: the same interface, results and checks, without GPU and NVSHMEM.

Ranks live in one process (``InProcess``: call a half on every rank before the next half) or in several
(``Distributed``: any torch.distributed group, gloo included). What travels is what the kernels send: one
packet per (token, rank that hosts one of its experts), one partial sum back.

Examples
--------
>>> import torch
>>> from moxtrace_kernels import InProcess, ReferenceAllToAll, Shape
>>> shape = Shape(ranks=2, experts=4, top_k=2, max_tokens=3, hidden=8, dispatch="fp32", expert_out="fp32",
...               combine="fp32")
>>> world = InProcess(2)
>>> ranks = [ReferenceAllToAll(shape, rank, world) for rank in range(2)]
>>> for rank in ranks:
...     rank.dispatch_send(torch.full((1, 8), rank.rank + 1.0), torch.tensor([[0, 3]]))
>>> got = [rank.dispatch_recv() for rank in ranks]
>>> got[1].counts
tensor([0, 2], dtype=torch.int32)
>>> for rank, rows in zip(ranks, got):
...     rank.combine_send(rows.rows)
>>> [rank.combine_recv()[0, 0].item() for rank in ranks]
[2.0, 4.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .errors import ArgumentError, CapacityError
from .exchange import Distributed, Exchange
from .halves import TORCH_DTYPES, Dispatched, Halves, Inputs
from .shape import Shape

__all__ = ["ReferenceAllToAll"]


class _Packets(NamedTuple):
    """Tokens of one rank for another; payloads as bytes, since torch does not index every 8-bit format."""

    token: torch.Tensor
    payload: torch.Tensor
    scales: torch.Tensor | None
    experts: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class _Arrived:
    """Packets in the order (source, token), and the row of each choice: -1 where it is not hosted here."""

    source: torch.Tensor
    token: torch.Tensor
    weights: torch.Tensor
    row: torch.Tensor


class ReferenceAllToAll(Halves):
    """Dispatch and combine without a GPU; arguments, results and errors are those of ``Halves``.

    Parameters
    ----------
    shape : Shape
        What every rank agrees on.
    rank : int, optional
        This rank; None: taken from the exchange.
    exchange : Exchange, optional
        The network between ranks; None: the default torch.distributed group.

    Raises
    ------
    ArgumentError
        The rank is not one of the shape's, or the exchange has another number of ranks.
    """

    def __init__(
        self,
        shape: Shape,
        rank: int | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        network = Distributed() if exchange is None else exchange
        here = getattr(network, "rank", None) if rank is None else rank
        if here is None or not 0 <= here < shape.ranks:
            raise ArgumentError(f"rank is {here}; expected a number from 0 to {shape.ranks - 1}")
        if network.ranks != shape.ranks:
            raise ArgumentError(f"the exchange has {network.ranks} ranks; the shape has {shape.ranks}")
        super().__init__(shape, here, torch.device("cpu"))
        self._exchange = network
        self._epoch = 0
        self._arrived: _Arrived | None = None
        self._host_of = torch.tensor([shape.host(expert) for expert in range(shape.experts)])

    def _dispatch_send(self, inputs: Inputs) -> None:
        shape, experts = self.shape, inputs.experts.long()
        if experts.numel() and int(experts.max()) >= shape.experts:
            first = int((experts >= shape.experts).any(1).nonzero()[0])
            raise ArgumentError(
                f"experts of token {first} are {experts[first].tolist()}; expected numbers below "
                f"{shape.experts}, negative for none"
            )
        self._epoch += 1
        bound = inputs.tokens if inputs.bound_m is None else min(inputs.tokens, int(inputs.bound_m))
        token = torch.arange(max(bound, 0))[self.rank % shape.dp :: shape.dp]
        hosts = torch.where(experts >= 0, self._host_of[experts.clamp(min=0)], -1)[token]
        weights = torch.ones(experts.shape) if inputs.weights is None else inputs.weights
        messages: list[Any] = []
        for peer in range(shape.ranks):
            mine = token[(hosts == peer).any(1)]
            scales = None if inputs.scales is None else inputs.scales[mine]
            payload = inputs.x.view(torch.uint8)[mine]
            messages.append(tuple(_Packets(mine, payload, scales, experts[mine], weights[mine])))
        self._exchange.post("dispatch", self._epoch, self.rank, messages)

    def _dispatch_recv(self, out: Dispatched) -> None:
        packets = [_Packets(*m) for m in self._exchange.collect("dispatch", self._epoch, self.rank)]
        source = torch.cat([torch.full_like(p.token, peer) for peer, p in enumerate(packets)])
        token = torch.cat([p.token for p in packets])
        local = torch.cat([p.experts for p in packets]) - self.first_expert
        chosen = (local[:, :, None] == torch.arange(self.local_experts)).any(1)  # [packets, local experts]
        counts = chosen.sum(0)
        starts = self._starts(counts)
        # the n-th packet that an expert gets goes into its n-th row
        row = torch.where(chosen, starts + chosen.cumsum(0) - 1, -1)
        packet, expert = chosen.nonzero(as_tuple=True)
        at = row[packet, expert]
        for given in out:
            if given is not None:
                given.view(torch.uint8).zero_()
        out.rows.flatten(0, -2).view(torch.uint8)[at] = torch.cat([p.payload for p in packets])[packet]
        if out.scales is not None:
            scales = torch.cat([p.scales for p in packets if p.scales is not None])
            out.scales.flatten(0, -2)[at] = scales[packet]
        out.counts.copy_(counts)
        out.starts.copy_(starts)
        out.row_source[at] = torch.stack([source[packet], token[packet]], 1).int()
        here = (local >= 0) & (local < self.local_experts)
        place = local.clamp(0, max(self.local_experts - 1, 0))
        rows = (
            torch.where(here, row.gather(1, place), -1) if self.local_experts else torch.full_like(local, -1)
        )
        self._arrived = _Arrived(source, token, torch.cat([p.weights for p in packets]), rows)

    def _starts(self, counts: torch.Tensor) -> torch.Tensor:
        """First row of each expert; refuses more rows than there is room for."""
        shape, capacity = self.shape, self.row_capacity
        if not shape.row_align:
            for expert, count in enumerate(counts.tolist(), self.first_expert):
                if count > capacity:
                    raise CapacityError(
                        f"rank {self.rank}: expert {expert} gets {count} rows; row_capacity is {capacity}"
                    )
            return torch.arange(self.local_experts) * capacity
        padded = -(-counts // shape.row_align) * shape.row_align
        starts = padded.cumsum(0) - padded
        last = int(((starts + counts) * (counts > 0)).max()) if self.local_experts else 0
        if last > capacity:
            raise CapacityError(
                f"rank {self.rank}: its experts get {last} rows, aligned to {shape.row_align}; row_capacity "
                f"is {capacity}"
            )
        return starts

    def _combine_send(self, rows: torch.Tensor) -> None:
        arrived, shape = self._arrived, self.shape
        assert arrived is not None  # dispatch_recv has had its turn
        flat = rows.flatten(0, -2)
        total = torch.zeros((len(arrived.token), shape.hidden))
        for k in range(shape.top_k):  # in the order of the token's list
            at = arrived.row[:, k]
            here = (at >= 0).nonzero()[:, 0]
            total[here] += arrived.weights[here, k, None] * flat[at[here]].float()
        wire = total if shape.wire_fp32 else total.to(TORCH_DTYPES[shape.combine])
        messages: list[Any] = []
        for peer in range(shape.ranks):
            mine = arrived.source // shape.dp == peer // shape.dp  # every member of the group has the token
            messages.append((arrived.token[mine], wire[mine]))
        self._exchange.post("combine", self._epoch, self.rank, messages)

    def _combine_recv(self, y: torch.Tensor) -> None:
        inputs = self._inputs
        assert inputs is not None  # dispatch_send has had its turn
        total = torch.zeros(y.shape)
        for token, partial in self._exchange.collect("combine", self._epoch, self.rank):  # ascending hosts
            total[token] += partial.float()
        bound = inputs.tokens if inputs.bound_m is None else min(inputs.tokens, max(int(inputs.bound_m), 0))
        y[:bound] = total[:bound].to(y.dtype)
