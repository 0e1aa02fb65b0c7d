"""From what a reader found to a recording that can be trusted: every check that formats share.

Goes in: :class:`Draft`, loosely typed.  Comes out: :class:`Recording`, or one line that says what is wrong.
A format is a :class:`Reader`: its container, how to recognise it, and a function that returns a draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RecordingError
from moxtrace.recordings.kernels import count_routes
from moxtrace.recordings.recording import Recording, describe_layers, impossible_marginals

__all__ = ["Draft", "Reader", "finish"]

# shorter runs of identical tokens happen in real text
_WARM_UP_RUN = 64


@dataclass
class Draft:
    """What a reader found; at least one of ``counts`` and ``topk_ids``.

    Fields mean what they mean in :class:`Recording`; nothing is checked yet.
    """

    counts: NDArray[Any] | None = None
    topk_ids: NDArray[Any] | None = None
    layer_ids: NDArray[Any] | None = None
    num_experts: int | None = None
    top_k: int | None = None
    source_rank: NDArray[Any] | None = None
    request_offsets: NDArray[Any] | None = None
    note: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """One file format.

    Parameters
    ----------
    format : str
        Name that users see.
    container : {"npz", "npy", "json", "jsonl", "csv"}
        What the file must be; the value that the functions get is described in ``container.py``.
    matches : function of the value
        Whether the value is this format.
    read : function of path and value
        The draft; raises RecordingError.
    """

    format: str
    container: str
    matches: Callable[[Any], bool]
    read: Callable[[str, Any], Draft]


def finish(path: str, format_name: str, draft: Draft) -> Recording:
    """Check a draft and make the recording.

    Raises
    ------
    RecordingError
        For counts that are NaN, infinite, negative or all zero, experts out of range or named twice, and
        arrays whose shapes do not fit together.
    """
    counts = None if draft.counts is None else _checked_counts(path, draft)
    topk_ids, top_k = None, draft.top_k
    if draft.topk_ids is not None:
        topk_ids = _checked_routes(path, draft, None if counts is None else counts.shape[1])
        top_k = topk_ids.shape[2]
        if (topk_ids < 0).all():
            raise RecordingError(f"{path}: topk_ids: every slot is unused (-1); expected expert ids")
    layers = topk_ids.shape[1] if topk_ids is not None else len(counts) if counts is not None else 0
    layer_ids = _checked_layer_ids(path, draft.layer_ids, layers)
    if topk_ids is not None:
        topk_ids, derived = _count(path, draft, topk_ids, layer_ids, counts)
        if counts is not None and (counts.shape != derived.shape or (counts != derived).any()):
            raise RecordingError(
                f"{path}: counts and topk_ids contradict each other; expected counts of the routes"
            )
        counts = derived
    if counts is None:
        raise RecordingError(f"{path}: holds neither counts nor token routes")
    if not counts.any():
        raise RecordingError(f"{path}: every count is zero; expected at least one MoE layer with tokens")
    if top_k is not None and not 1 <= top_k <= counts.shape[1]:
        raise RecordingError(f"{path}: top_k {top_k}; expected 1 to {counts.shape[1]}, the number of experts")
    draft.warnings += _warnings(draft, counts, layer_ids, topk_ids, top_k)
    return Recording(
        format_name,
        "totals" if topk_ids is None else "tokens",
        counts,
        layer_ids,
        topk_ids,
        _checked_vector(path, "source_rank", draft.source_rank, topk_ids),
        _checked_offsets(path, draft.request_offsets, topk_ids),
        top_k,
        path,
        draft.note,
        tuple(draft.warnings),
    )


def _checked_counts(path: str, draft: Draft) -> NDArray[np.float64]:
    raw = np.asarray(draft.counts)
    if raw.dtype.kind not in "iuf":
        raise RecordingError(f"{path}: counts are of type {raw.dtype}; expected numbers")
    if raw.ndim == 3:
        raw = _sum_buffer(raw, draft.warnings)
    if raw.ndim == 1:
        raw = raw[None, :]
    if raw.ndim != 2 or 0 in raw.shape:
        raise RecordingError(f"{path}: counts have shape {list(raw.shape)}; expected [layers, experts]")
    counts = raw.astype(np.float64)
    unset = (counts == -1).all(axis=1)
    counts[unset] = 0  # some tools mark dense layers by -1
    bad = ~np.isfinite(counts) | (counts < 0)
    if bad.any():
        row, expert = (int(i) for i in np.argwhere(bad)[0])
        layer = row if draft.layer_ids is None or row >= len(draft.layer_ids) else draft.layer_ids[row]
        raise RecordingError(
            f"{path}: layer {layer}, expert {expert}: count {counts[row, expert]:g}; "
            "expected a finite number >= 0"
        )
    if raw.dtype.kind == "f":
        whole = bool((counts == np.rint(counts)).all())
        draft.warnings.append(
            f"counts are floats{', all of them whole' if whole else ', not all of them whole'}"
        )
    return counts


def _sum_buffer(raw: NDArray[Any], warnings: list[str]) -> NDArray[Any]:
    """Sum a buffer of passes, [buffer, layers, experts]; an unused entry of the ring is all zeros."""
    used = raw.reshape(len(raw), -1).any(axis=1)
    text = f"summed {int(used.sum())} buffer rows"
    if not used.all():
        text += f" ({int((~used).sum())} unused ones are zero)"
    warnings.append(text + "; the unevenness of single passes is lost")
    rows = raw[used].reshape(int(used.sum()), -1)
    same = int((rows[1:] == rows[:-1]).all(axis=1).sum()) if len(rows) > 1 else 0
    if same:
        warnings.append(f"{same} buffer rows equal the row before them: warm-up?")
    total: NDArray[Any] = raw.sum(axis=0, dtype=np.float64 if raw.dtype.kind == "f" else np.int64)
    return total


def _checked_routes(path: str, draft: Draft, width: int | None) -> NDArray[np.integer]:
    raw = np.asarray(draft.topk_ids)
    if raw.dtype.kind not in "iu":
        raise RecordingError(f"{path}: topk_ids are of type {raw.dtype}; expected integers")
    if raw.ndim == 2 and draft.layer_ids is not None and len(draft.layer_ids) == 1:
        raw = raw[:, None, :]
    if raw.ndim != 3 or 0 in raw.shape:
        raise RecordingError(
            f"{path}: topk_ids have shape {list(raw.shape)}; expected [tokens, layers, top_k], none of them 0"
        )
    known = draft.num_experts or width
    low, high = int(raw.min()), int(raw.max())
    if low < -1 or high >= (known or 2**31 - 1):
        raise RecordingError(
            f"{path}: topk_ids hold {low if low < -1 else high}; expected experts 0 to "
            f"{known - 1 if known else 2**31 - 2}, or -1 for an unused slot"
        )
    return np.ascontiguousarray(raw, np.int16 if high < 2**15 else np.int32)


def _count(
    path: str,
    draft: Draft,
    topk_ids: NDArray[np.integer],
    layer_ids: NDArray[np.int64],
    counts: NDArray[np.float64] | None,
) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
    """Counts of the routes; layers that were not captured are marked unused."""
    _, layers, top_k = topk_ids.shape
    experts = (
        counts.shape[1] if counts is not None else draft.num_experts or max(int(topk_ids.max()) + 1, top_k)
    )
    derived = np.zeros((layers, experts))
    twice = np.empty(layers, np.int64)
    count_routes(topk_ids, derived, twice)
    # SGLang returns expert 0 in every slot of a layer that it did not capture
    absent = [i for i in np.flatnonzero(twice >= 0) if not topk_ids[:, i].any()]
    if absent:
        topk_ids = topk_ids.copy()
        topk_ids[:, absent] = -1
        derived[absent] = 0
        twice[absent] = -1
        draft.warnings.append(
            f"expert 0 in every slot, so not captured and left out: {describe_layers(layer_ids[absent])}"
        )
    if (twice >= 0).any():
        layer = int(np.argmax(twice >= 0))
        raise RecordingError(
            f"{path}: token {twice[layer]}, layer {layer_ids[layer]}: experts "
            f"{topk_ids[twice[layer], layer].tolist()} name one twice; expected distinct experts"
        )
    return topk_ids, derived


def _checked_layer_ids(path: str, layer_ids: NDArray[Any] | None, layers: int) -> NDArray[np.int64]:
    if layer_ids is None:
        return np.arange(layers, dtype=np.int64)
    ids = np.asarray(layer_ids)
    if ids.shape != (layers,) or ids.dtype.kind not in "iu":
        raise RecordingError(
            f"{path}: layer_ids are {ids.dtype} of shape {list(ids.shape)}; "
            f"expected {layers} integers, one per layer"
        )
    if len(np.unique(ids)) != layers:
        raise RecordingError(f"{path}: layer_ids name a layer twice; expected distinct layers")
    return ids.astype(np.int64)


def _checked_vector(
    path: str, name: str, value: NDArray[Any] | None, topk_ids: NDArray[np.integer] | None
) -> NDArray[np.int32] | None:
    if value is None or topk_ids is None:
        return None
    vector = np.asarray(value)
    if vector.shape != (len(topk_ids),) or vector.dtype.kind not in "iu" or vector.min() < 0:
        raise RecordingError(
            f"{path}: {name} is {vector.dtype} of shape {list(vector.shape)}; "
            f"expected {len(topk_ids)} integers >= 0, one per token"
        )
    return vector.astype(np.int32)


def _checked_offsets(
    path: str, value: NDArray[Any] | None, topk_ids: NDArray[np.integer] | None
) -> NDArray[np.int64] | None:
    if value is None or topk_ids is None:
        return None
    offsets = np.asarray(value)
    fits = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 2
    if not fits or offsets[0] != 0 or offsets[-1] != len(topk_ids) or (offsets[1:] < offsets[:-1]).any():
        raise RecordingError(
            f"{path}: request_offsets do not cut {len(topk_ids)} tokens into requests; "
            f"expected ascending integers from 0 to {len(topk_ids)} (is the file cut?)"
        )
    return offsets.astype(np.int64)


def _warnings(
    draft: Draft,
    counts: NDArray[np.float64],
    layer_ids: NDArray[np.int64],
    topk_ids: NDArray[np.integer] | None,
    top_k: int | None,
) -> list[str]:
    found = []
    totals = counts.sum(axis=1)
    dense = totals == 0
    if dense.any():
        found.append(
            f"without counts (dense): {describe_layers(layer_ids[dense])}; "
            f"{int((~dense).sum())} of {len(totals)} layers are MoE layers"
        )
    moe, ids = totals[~dense], layer_ids[~dense]
    if moe.min() != moe.max():
        low, high = int(np.argmin(moe)), int(np.argmax(moe))
        found.append(
            f"layer sums differ: {moe[low]:.0f} in layer {ids[low]} to {moe[high]:.0f} in layer {ids[high]}"
        )
    if topk_ids is not None:
        found += _warm_up(topk_ids)
    if top_k is not None:
        found += impossible_marginals(counts, layer_ids, top_k)
    return found


def _warm_up(topk_ids: NDArray[np.integer]) -> list[str]:
    """A warning about long runs of identical tokens."""
    same = (topk_ids[1:] == topk_ids[:-1]).all(axis=(1, 2))
    edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
    first, last = edges[::2], edges[1::2]  # token numbers, last included
    length = last - first + 1
    long = length >= _WARM_UP_RUN
    if not long.any():
        return []
    at = int(np.argmax(length))
    share = 100 * length[long].sum() / len(topk_ids)
    return [
        f"{int(length[long].sum())} tokens ({share:.0f} %) stand in runs of identical ones, the longest "
        f"is tokens {first[at]} to {last[at]}: warm-up rows?"
    ]
