"""What the benchmark sends, and the check that comes before any timing."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from moxtrace_kernels import Dispatched, Halves, InProcess, ReferenceAllToAll, Shape
from moxtrace_kernels.halves import TORCH_DTYPES

__all__ = ["Case", "answers", "make", "verify"]


class Case(NamedTuple):
    """Arguments of one rank's ``dispatch_send``."""

    x: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor
    scales: torch.Tensor | None


def make(shape: Shape, tokens: int, rank: int, seed: int, device: torch.device) -> Case:
    """Tokens of one rank: uniformly drawn experts, weights that sum to 1; members of a DP group get the same.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.
    tokens : int
        Rows of ``x``.
    rank : int
        Whose.
    seed : int
        Of the draw; the same seed gives every rank its own tokens.
    device : torch.device
        Where to.

    Returns
    -------
    Case
        Contiguous tensors.
    """
    generator = torch.Generator().manual_seed(seed * 65536 + rank // shape.dp)
    dtype = TORCH_DTYPES[shape.dispatch]
    x = torch.randn((tokens, shape.hidden), generator=generator).to(dtype)
    order = torch.rand((tokens, shape.experts), generator=generator).argsort(1)
    weights = torch.randint(1, 4, (tokens, shape.top_k), generator=generator).float()  # sums stay exact
    scales = None
    if shape.dispatch == "fp8":
        scales = torch.rand((tokens, shape.scale_blocks), generator=generator).to(device)
    return Case(x.to(device), order[:, : shape.top_k].contiguous().to(device), weights.to(device), scales)


def answers(shape: Shape, got: Dispatched) -> torch.Tensor:
    """What the experts write: small whole numbers by the source of a row, so that sums are exact.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.
    got : Dispatched
        What arrived.

    Returns
    -------
    Tensor
        Shaped like ``got.rows``, of the expert dtype.
    """
    source = got.row_source.long()
    value = (source[:, 0] * 3 + source[:, 1]) % 5 - 2
    rows: torch.Tensor = value.reshape(*got.rows.shape[:-1], 1).expand(got.rows.shape)
    return rows.to(TORCH_DTYPES[shape.expert_out]).contiguous()


def verify(kernels: Halves, shape: Shape, tokens: int, seed: int) -> str | None:
    """One epoch against the reference: every bit of what was dispatched, every sum of what came back.

    Parameters
    ----------
    kernels : Halves
        What is measured; every rank calls this.
    shape : Shape
        What the ranks agreed on.
    tokens : int
        Rows on every rank.
    seed : int
        Of the draw.

    Returns
    -------
    str or None
        What is wrong on this rank, None when nothing is.
    """
    case = make(shape, tokens, kernels.rank, seed, kernels.device)
    got = kernels.dispatch(case.x, case.experts, case.weights, scales=case.scales)
    want, replies, ranks = _expected(shape, tokens, seed, kernels.rank)
    wrong = _difference(got, want)
    y = kernels.combine(answers(shape, _valid(got)))
    for rank, reply in zip(ranks, replies, strict=True):
        rank.combine_send(reply)
    wanted = ranks[kernels.rank].combine_recv()
    if not torch.equal(y.cpu(), wanted):
        token = int((y.cpu() != wanted).any(1).nonzero()[0])
        wrong = wrong or f"token {token} combines to {y[token, 0].item()}, expected {wanted[token, 0].item()}"
    return wrong


def _expected(
    shape: Shape, tokens: int, seed: int, rank: int
) -> tuple[Dispatched, list[torch.Tensor], list[Any]]:
    """The same epoch on all ranks in this process; tokens are drawn from the seed, nothing is sent."""
    network = InProcess(shape.ranks)
    ranks = [ReferenceAllToAll(shape, peer, network) for peer in range(shape.ranks)]
    for one in ranks:
        case = make(shape, tokens, one.rank, seed, torch.device("cpu"))
        one.dispatch_send(case.x, case.experts, case.weights, scales=case.scales)
    got = [one.dispatch_recv() for one in ranks]
    return got[rank], [answers(shape, _valid(one)) for one in got], ranks


def _valid(got: Dispatched) -> Dispatched:
    """The same with sources of 0 where no row is: they are undefined, and an answer is made of each."""
    row = torch.arange(len(got.row_source), device=got.row_source.device)
    ends = got.starts + got.counts
    inside = ((row[:, None] >= got.starts) & (row[:, None] < ends)).any(1)
    return got._replace(row_source=torch.where(inside[:, None], got.row_source, 0))


def _difference(got: Dispatched, want: Dispatched) -> str | None:
    if got.counts.tolist() != want.counts.tolist():
        return f"counts are {got.counts.tolist()}, expected {want.counts.tolist()}"
    for local, (start, count) in enumerate(zip(want.starts.tolist(), want.counts.tolist(), strict=True)):
        here = slice(start, start + count)
        for name in ("row_source", "rows", "scales"):
            found, wanted = getattr(got, name), getattr(want, name)
            if found is None:
                continue
            flat = found if name == "row_source" else found.flatten(0, -2)
            flat_wanted = wanted if name == "row_source" else wanted.flatten(0, -2)
            if not torch.equal(flat[here].cpu().view(torch.uint8), flat_wanted[here].view(torch.uint8)):
                return f"{name} of local expert {local} differ from the reference"
    return None
