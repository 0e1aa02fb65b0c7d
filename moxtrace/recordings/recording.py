"""What a recording is, once its file format is forgotten.

Goes in: checked arrays, from a reader.  Comes out: :class:`Recording`, and :class:`LayerCounts`, the one
layer (or the sum of layers) that sampling turns into tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RecordingError

__all__ = ["LayerCounts", "LayerSkew", "Recording", "describe_layers"]

# spawn key of the stream that chooses a layer, so that one seed serves the whole configuration
_LAYER_STREAM = 1


@dataclass(frozen=True)
class LayerSkew:
    """How uneven one layer is; a dense layer (no counts) has ``None`` but for its total.

    Parameters
    ----------
    layer : int
        The recording's own number of the layer.
    total : float
        Sum of the counts: token-expert pairs.
    max_over_mean : float or None
        Count of the hottest expert over the mean count.
    cv : float or None
        Coefficient of variation: standard deviation (of the population) over the mean.
    gini : float or None
        Gini coefficient: 0 where all experts are equal, (E - 1) / E where one takes everything.
    """

    layer: int
    total: float
    max_over_mean: float | None
    cv: float | None
    gini: float | None


@dataclass(frozen=True, eq=False)
class LayerCounts:
    """The popularity, and where known the tokens, that one collective is made of.

    Parameters
    ----------
    name : str
        ``"layer 3"`` or ``"all 58 MoE layers"``.
    layer_ids : tuple of int
        Layers that are in it.
    counts : array of float64, shape (experts,)
        Tokens per expert.
    topk_ids : array of int16 or int32, shape (tokens, top_k), or None
        Experts of each token; -1 marks an unused slot.  Of several layers: token by token, the layers of
        each in order, so that any stretch of it holds every layer alike.
    source_rank : array of int32, shape (tokens,), or None
        Rank that each token came from.
    path : str
        File of the recording, for messages.
    """

    name: str
    layer_ids: tuple[int, ...]
    counts: NDArray[np.float64]
    topk_ids: NDArray[np.integer] | None = None
    source_rank: NDArray[np.int32] | None = None
    path: str = ""

    @property
    def num_experts(self) -> int:
        """Experts of the layer."""
        return len(self.counts)

    @property
    def where(self) -> str:
        """File and name, for messages: ``"recording.npz: layer 3"``."""
        return f"{self.path}: {self.name}" if self.path else self.name


@dataclass(frozen=True, eq=False)
class Recording:
    """Expert popularity of a model, per layer, and the routes of single tokens where they were recorded.

    Parameters
    ----------
    format : str
        File format that it was read from: ``"canonical"``, ``"sglang-json"``, ``"counts-npy"``, ...
    kind : {"totals", "tokens"}
        The best that the file holds: counts over a run, or the experts of every token.
    counts : array of float64, shape (layers, experts)
        Tokens per expert; a row of zeros is a dense layer.
    layer_ids : array of int64, shape (layers,)
        The model's own layer numbers.
    topk_ids : array of int16 or int32, shape (tokens, layers, top_k), or None
        Experts of every token in every layer; -1 marks an unused slot.
    source_rank : array of int32, shape (tokens,), or None
        Rank that each token came from.
    request_offsets : array of int64, shape (requests + 1,), or None
        Tokens of request ``r`` are ``request_offsets[r] : request_offsets[r + 1]``.
    top_k : int or None
        Experts per token, where the file says so.
    path : str
        File that it was read from, for messages.
    note : str
        What the file says about itself.
    warnings : tuple of str
        What a reader should know before trusting it, one line each.
    """

    format: str
    kind: str
    counts: NDArray[np.float64]
    layer_ids: NDArray[np.int64]
    topk_ids: NDArray[np.integer] | None = None
    source_rank: NDArray[np.int32] | None = None
    request_offsets: NDArray[np.int64] | None = None
    top_k: int | None = None
    path: str = ""
    note: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.counts, self.layer_ids, self.topk_ids, self.source_rank, self.request_offsets):
            if array is not None:
                array.setflags(write=False)

    @property
    def num_layers(self) -> int:
        """Layers, dense ones included."""
        return len(self.layer_ids)

    @property
    def num_experts(self) -> int:
        """Experts of each layer."""
        return self.counts.shape[1]

    @property
    def num_tokens(self) -> int | None:
        """Recorded tokens; None where only totals are known."""
        return None if self.topk_ids is None else len(self.topk_ids)

    @property
    def moe_layer_ids(self) -> NDArray[np.int64]:
        """Layers that have counts."""
        return self.layer_ids[self.counts.sum(axis=1) > 0]

    def skew(self) -> list[LayerSkew]:
        """Unevenness of every layer, in the order of ``layer_ids``."""
        return [_skew(int(i), row) for i, row in zip(self.layer_ids, self.counts, strict=True)]

    def layer(self, selector: int | str, seed: int = 0) -> LayerCounts:
        """Choose what to sample from.

        Parameters
        ----------
        selector : int or {"random", "all"}
            A layer by the recording's own number, one MoE layer drawn by ``seed``, or the sum of all MoE
            layers.
        seed : int
            Used by ``"random"`` only.

        Raises
        ------
        RecordingError
            For a layer that is dense or not recorded; the nearest MoE layers are named.
        """
        moe = self.moe_layer_ids
        if selector == "all":
            return self._view(moe, f"all {len(moe)} MoE layers")
        if selector == "random":
            stream = np.random.SeedSequence(seed, spawn_key=(_LAYER_STREAM,))
            selector = int(np.random.Generator(np.random.Philox(stream)).choice(moe))
        if isinstance(selector, bool) or not isinstance(selector, int | np.integer):
            raise RecordingError(f"layer {selector!r}: expected a layer number, random or all")
        if selector not in moe:
            what = "is dense: it has no counts" if selector in self.layer_ids else "is not recorded"
            near = np.sort(moe[np.argsort(np.abs(moe - selector), kind="stable")[:3]])
            raise RecordingError(
                f"{self.path}: layer {selector} {what}; "
                f"the nearest of its {len(moe)} MoE layers: {', '.join(str(i) for i in near)}"
            )
        return self._view(np.array([selector]), f"layer {selector}")

    def _view(self, layers: NDArray[np.int64], name: str) -> LayerCounts:
        rows = np.flatnonzero(np.isin(self.layer_ids, layers))
        topk_ids, source_rank = self.topk_ids, self.source_rank
        if topk_ids is not None:
            topk_ids = topk_ids[:, rows].reshape(-1, topk_ids.shape[2])
            if source_rank is not None:
                source_rank = np.repeat(source_rank, len(rows))
        counts = self.counts[rows].sum(axis=0)
        ids = tuple(self.layer_ids[rows].tolist())
        return LayerCounts(name, ids, counts, topk_ids, source_rank, self.path)

    def fit(self, num_experts: int, top_k: int) -> Recording:
        """The same recording as a model of ``num_experts`` experts and ``top_k`` per token sees it.

        Fewer experts than the model's are filled up with experts that nobody chose, with a warning.

        Raises
        ------
        RecordingError
            If the recording has more experts than the model, or a token would need more experts than exist.
        """
        if self.num_experts > num_experts:
            raise RecordingError(
                f"{self.path}: {self.num_experts} experts, but the model has {num_experts}; "
                "choose the model that was recorded, or set num_experts"
            )
        if top_k > num_experts:
            raise RecordingError(f"{self.path}: top_k {top_k} exceeds the model's {num_experts} experts")
        warnings, counts = list(self.warnings), self.counts
        if self.num_experts < num_experts:
            counts = np.pad(counts, ((0, 0), (0, num_experts - self.num_experts)))
            warnings.append(
                f"{self.num_experts} experts recorded, the model has {num_experts}: "
                "the others were never chosen"
            )
        if self.top_k not in (None, top_k):
            warnings.append(f"recorded with top_k {self.top_k}, used with {top_k}")
        if self.top_k != top_k:
            warnings += impossible_marginals(counts, self.layer_ids, top_k)
        return replace(self, counts=counts, warnings=tuple(warnings))


def impossible_marginals(counts: NDArray[np.float64], layer_ids: NDArray[np.int64], top_k: int) -> list[str]:
    """One warning if some expert would have to be chosen more than once per token.

    An inclusion probability ``top_k * c_e / sum(c)`` above 1 is possible for no sampler.
    """
    totals = counts.sum(axis=1)
    peak = top_k * counts.max(axis=1) / np.where(totals > 0, totals, 1)
    bad = peak > 1 + 1e-12
    if not bad.any():
        return []
    row = int(np.argmax(peak))
    return [
        f"impossible at top_k {top_k} in {describe_layers(layer_ids[bad])}: "
        f"top_k * count / sum > 1 (expert {int(np.argmax(counts[row]))} of layer {layer_ids[row]}: "
        f"{peak[row]:.4g}); exact sampling refuses these layers unless clipped"
    ]


def describe_layers(layers: NDArray[np.int64]) -> str:
    """``layers`` for people, runs shortened: ``layers 0-2, 5, 7``."""
    runs = np.split(layers, np.flatnonzero(np.diff(layers) != 1) + 1)
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(str(i) for i in r) for r in runs if len(r)]
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(parts)}"


def _skew(layer: int, counts: NDArray[np.float64]) -> LayerSkew:
    total = float(counts.sum())
    if total == 0:
        return LayerSkew(layer, 0.0, None, None, None)
    mean = total / len(counts)
    # Gini from ranks: sum over ascending counts of (2 i - E - 1) c_i / (E sum c), i from 1
    ranks = 2 * np.arange(1, len(counts) + 1) - len(counts) - 1
    gini = float((ranks * np.sort(counts)).sum() / (len(counts) * total))
    return LayerSkew(layer, total, float(counts.max() / mean), float(counts.std() / mean), gini)
