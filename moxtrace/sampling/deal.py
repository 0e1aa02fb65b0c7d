"""Tokens for every NPU: exact, uniform, or as recorded.

Goes in: one layer of a recording.  Comes out: the source NPU and the top-K experts of every token, which
``demand_of`` turns into destination sets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError, RecordingError
from moxtrace.recordings.recording import LayerCounts
from moxtrace.sampling.conditional_poisson import ConditionalPoisson, inclusion_probabilities
from moxtrace.sampling.kernels import draw_uniform

__all__ = ["sample_tokens"]

_LOG = logging.getLogger("moxtrace.sampling")

# spawn key of token draws, so that one seed serves the whole configuration
_TOKEN_STREAM = 3


def sample_tokens(
    layer_counts: LayerCounts,
    *,
    mode: str,
    top_k: int,
    tokens_per_npu: int,
    num_npus: int,
    seed: int,
    clip: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.integer]]:
    """Give every NPU its tokens.

    Each NPU draws from a stream of its own, so its tokens depend on the seed and its number alone: not on how
    many NPUs there are, and but for their number not on ``tokens_per_npu``.

    Parameters
    ----------
    layer_counts : LayerCounts
        From :meth:`Recording.layer`.
    mode : {"exact", "uniform", "replay"}
        ``exact`` draws independent sets with the recorded inclusion probabilities; ``uniform`` draws
        ``top_k`` distinct experts, all sets alike; ``replay`` takes recorded tokens in their order.  In
        replay, tokens whose source rank is known go to NPU ``rank mod num_npus`` if that gives every NPU
        some; else NPU ``n`` takes the ``n``-th block of ``tokens_per_npu``.  Either way it begins again from
        the start where there are too few, and says so in a warning of the log.
    top_k : int
        Experts per token; in replay it must be the recorded one.
    tokens_per_npu, num_npus : int
        At least 1.
    seed : int
        Not used by ``replay``.
    clip : bool
        See :func:`inclusion_probabilities`.
    progress : callable, optional
        Called as ``progress(npus_done, num_npus)``.

    Returns
    -------
    source : array of int32, shape (tokens,)
        NPU of each token, ascending.
    topk_ids : array of int16 or int32, shape (tokens, top_k)
        Experts of each token; ascending where drawn, in recorded order where replayed.

    Raises
    ------
    ConfigError
        For an unknown mode, no tokens or no NPUs.
    RecordingError
        Where the recording does not hold what the mode needs, or its popularity cannot be realised.
    """
    if tokens_per_npu < 1 or num_npus < 1:
        raise ConfigError(
            f"traffic: {tokens_per_npu} tokens on each of {num_npus} NPUs; expected >= 1 of both"
        )
    source = np.repeat(np.arange(num_npus, dtype=np.int32), tokens_per_npu)
    if mode == "replay":
        return source, _replay(layer_counts, top_k, tokens_per_npu, num_npus)
    experts = layer_counts.num_experts
    if mode not in ("exact", "uniform"):
        raise ConfigError(f"traffic.sampling: {mode!r}; expected exact, uniform or replay")
    design = None
    if mode == "exact":
        pi = inclusion_probabilities(layer_counts.counts, top_k, clip, layer_counts.where)
        design = ConditionalPoisson(pi, top_k)
    elif not 1 <= top_k <= experts:
        raise RecordingError(f"{layer_counts.where}: top_k {top_k}; expected 1 to the {experts} experts")
    topk_ids = np.empty((len(source), top_k), np.int16 if experts < 2**15 else np.int32)
    for npu in range(num_npus):
        block, generator = topk_ids[npu * tokens_per_npu : (npu + 1) * tokens_per_npu], _generator(seed, npu)
        if design is None:
            draw_uniform(experts, generator.random(block.shape), block)
        else:
            block[:] = design.draw(tokens_per_npu, generator)
        if progress is not None:
            progress(npu + 1, num_npus)
    return source, topk_ids


def _generator(seed: int, npu: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(_TOKEN_STREAM, npu))))


def _replay(layer: LayerCounts, top_k: int, tokens_per_npu: int, num_npus: int) -> NDArray[np.integer]:
    if layer.topk_ids is None:
        raise RecordingError(
            f"{layer.where}: the recording holds counts only, and replay needs token routes; "
            "set traffic.sampling: exact"
        )
    recorded, width = layer.topk_ids.shape
    if width != top_k:
        raise RecordingError(
            f"{layer.where}: replay: recorded with top_k {width}; expected the model's top_k {top_k}"
        )
    step = np.arange(tokens_per_npu)
    if layer.source_rank is not None:
        owner = layer.source_rank % num_npus
        have = np.bincount(owner, minlength=num_npus)
        if have.all():
            if have.min() < tokens_per_npu:
                _note_repeats(layer.where, int(have.min()), tokens_per_npu, "on some NPU")
            start = np.concatenate(([0], np.cumsum(have)[:-1]))
            order = np.argsort(owner, kind="stable")
            return layer.topk_ids[order[start[:, None] + step % have[:, None]].ravel()]
        _LOG.warning(
            "%s: source ranks leave %d of %d NPUs without tokens: consecutive blocks are replayed",
            layer.where, int((have == 0).sum()), num_npus,
        )  # fmt: skip
    if recorded < tokens_per_npu * num_npus:
        _note_repeats(layer.where, recorded, tokens_per_npu * num_npus, "in all")
    first = np.arange(num_npus)[:, None] * tokens_per_npu
    return layer.topk_ids[((first + step) % recorded).ravel()]


def _note_repeats(name: str, recorded: int, wanted: int, where: str) -> None:
    _LOG.warning("%s: %d recorded tokens for %d %s: they are replayed again", name, recorded, wanted, where)
