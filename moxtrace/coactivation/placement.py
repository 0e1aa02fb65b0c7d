"""Placement by co-activation, from recorded token routes.

Goes in: the experts of every recorded token.  Comes out: the NPU of every expert, such that a token touches
few NPUs, while no NPU is loaded much more than an even spread allows.  Half of the tokens decide; the gain is
measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.coactivation.kernels import fan_out, improve
from moxtrace.errors import RecordingError
from moxtrace.recordings import LayerCounts

__all__ = ["CoactivationGain", "place_by_coactivation"]

MOST_TOKENS = 100_000  # tokens that decide; more change the placement no further
SLACK = 1.02  # an NPU may carry so much of what the most even placement's busiest NPU carries
_STREAM = 5  # spawn key of the starting placement


@dataclass(frozen=True)
class CoactivationGain:
    """What the placement won on tokens that it was not fitted to.

    Parameters
    ----------
    fan_out_before, fan_out_after : float
        NPUs that a token touches, in the mean; before: experts shuffled and dealt out evenly.
    load_before, load_after : float
        Token-expert pairs of the busiest NPU over the mean.
    tokens : int
        Tokens that it was measured on.
    """

    fan_out_before: float
    fan_out_after: float
    load_before: float
    load_after: float
    tokens: int


def _most_even(weight: NDArray[np.int64], num_npus: int, shuffled: NDArray[np.int64]) -> NDArray[np.int32]:
    """Experts from the busiest down, each to the least loaded NPU that has room; ties by ``shuffled``."""
    each, more = divmod(len(weight), num_npus)
    room = np.full(num_npus, each)
    room[:more] += 1
    load = np.zeros(num_npus, np.int64)
    host = np.empty(len(weight), np.int32)
    for expert in np.lexsort((shuffled, -weight)):
        npu = int(np.where(room > 0, load, np.iinfo(np.int64).max).argmin())
        host[expert] = npu
        load[npu] += weight[expert]
        room[npu] -= 1
    return host


def _tokens_of(
    topk_ids: NDArray[np.integer], num_experts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens that chose each expert, in CSR form."""
    row, column = np.nonzero(topk_ids >= 0)
    expert = topk_ids[row, column].astype(np.int64)
    order = np.argsort(expert, kind="stable")
    ptr = np.concatenate(([0], np.cumsum(np.bincount(expert, minlength=num_experts))))
    return ptr.astype(np.int64), row[order].astype(np.int64)


def _imbalance(topk_ids: NDArray[np.integer], host: NDArray[np.int32], num_npus: int) -> float:
    chosen = topk_ids[topk_ids >= 0]
    load = np.bincount(host[chosen], minlength=num_npus)
    return float(load.max() / load.mean())


def place_by_coactivation(
    layer: LayerCounts, num_npus: int, reference: NDArray[np.int32], seed: int = 0
) -> tuple[NDArray[np.int32], CoactivationGain]:
    """Place experts that tokens choose together on one NPU.

    From the most even placement, pairs of experts change places as long as that lowers the number of NPUs
    that tokens touch, summed over tokens, and no NPU gets more than 2 % above what the busiest had.  Every
    NPU hosts as many experts as under the kind ``random``.

    Parameters
    ----------
    layer : LayerCounts
        A layer of token routes; its even-numbered tokens decide, the odd-numbered ones measure.
    num_npus : int
    reference : array of int32, shape (experts,)
        The placement to compare with.
    seed : int
        Decides between experts of the same popularity at the start.

    Returns
    -------
    host : array of int32, shape (experts,)
    gain : CoactivationGain

    Raises
    ------
    RecordingError
        When the recording holds no token routes, or fewer than two tokens.
    """
    if layer.topk_ids is None:
        raise RecordingError(
            f"{layer.where}: placement by co-activation needs token routes, and the recording holds totals; "
            "use placement.kind: random"
        )
    if len(layer.topk_ids) < 2:
        raise RecordingError(f"{layer.where}: {len(layer.topk_ids)} tokens; expected 2 or more to place by")
    fitted, held_out = layer.topk_ids[::2][:MOST_TOKENS], layer.topk_ids[1::2]
    experts = layer.num_experts
    token_ptr, token = _tokens_of(fitted, experts)
    weight = np.diff(token_ptr)
    shuffled = np.random.Generator(
        np.random.Philox(np.random.SeedSequence(seed, spawn_key=(_STREAM,)))
    ).permutation(experts)
    host = _most_even(weight, num_npus, shuffled)
    has = np.zeros((len(fitted), experts), np.bool_)
    has[token, np.repeat(np.arange(experts), weight)] = True
    held = np.zeros((len(fitted), num_npus), np.uint8)
    np.add.at(held, (token, np.repeat(host, weight)), 1)
    load = np.bincount(host, weights=weight, minlength=num_npus).astype(np.int64)
    limit = np.int64(load.max() * SLACK)
    while improve(host, load, limit, weight, token_ptr, token, has, held):
        pass
    before, after = (fan_out(held_out, h, num_npus) / len(held_out) for h in (reference, host))
    return host, CoactivationGain(
        float(before),
        float(after),
        _imbalance(held_out, reference, num_npus),
        _imbalance(held_out, host, num_npus),
        len(held_out),
    )
