"""Counts and token routes as bare NumPy arrays.

=========  ======================================================================================
file       meaning
=========  ======================================================================================
``.npy``   counts: [experts] is one layer, [layers, experts], or [passes, layers, experts], summed
``.npy``   uint8 or uint16 of three axes: routes [tokens, layers, top_k], vLLM's ``routed_experts``
``.npz``   ``counts`` or ``logical_count`` or the only array, as above; ``layer_ids``, ``top_k``
``.npz``   ``topk_ids`` [tokens, layers, top_k]; ``layer_ids``, ``request_offsets``, ``source_rank``,
           ``num_experts``
``.npz``   ``prefill_ids`` and ``decode_ids`` of the same form, or [tokens, layers] of a top-1 model
=========  ======================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moxtrace.errors import RecordingError
from moxtrace.recordings.draft import Draft, Reader

__all__ = ["READERS"]

_COUNTS = ("counts", "logical_count", "weight")
_ROUTES = ("topk_ids", "prefill_ids", "decode_ids")


def _is_vllm_routes(array: Any) -> bool:
    # counts of three axes fit into 8 or 16 bits in no real file; expert ids always do
    return array.ndim == 3 and array.dtype in (np.uint8, np.uint16)


def _read_npy(path: str, array: Any) -> Draft:
    return Draft(counts=array)


def _read_vllm(path: str, array: Any) -> Draft:
    return Draft(topk_ids=array)


def _counts_name(arrays: Any) -> str | None:
    named = [name for name in _COUNTS if name in arrays]
    return named[0] if named else next(iter(arrays)) if len(arrays) == 1 else None


def _integer(path: str, arrays: dict[str, Any], name: str) -> int | None:
    if name not in arrays:
        return None
    value = arrays[name]
    if value.shape != () or value.dtype.kind not in "iu" or value < 1:
        raise RecordingError(
            f"{path}: {name}: expected one integer >= 1, found {value.dtype} {value.tolist()!r}"
        )
    return int(value)


def _read_npz_counts(path: str, arrays: dict[str, Any]) -> Draft:
    name = _counts_name(arrays)
    if name is None:
        raise RecordingError(
            f"{path}: cannot tell which of {', '.join(arrays)} holds the counts; call it counts"
        )
    return Draft(
        counts=arrays[name], layer_ids=arrays.get("layer_ids"), top_k=_integer(path, arrays, "top_k")
    )


def _read_npz_routes(path: str, arrays: dict[str, Any]) -> Draft:
    layer_ids = arrays.get("layer_ids")
    warnings = []
    if "topk_ids" in arrays:
        routes = arrays["topk_ids"]
    else:
        stages = [arrays[name] for name in ("prefill_ids", "decode_ids") if name in arrays]
        if len({stage.shape[1:] for stage in stages}) > 1:
            raise RecordingError(f"{path}: prefill_ids and decode_ids differ in shape beyond the first axis")
        routes = np.concatenate(stages)
        if len(stages) == 2:
            warnings.append(f"{len(stages[0])} tokens of prefill stand before {len(stages[1])} of decode")
        if routes.ndim == 2 and layer_ids is not None and len(layer_ids) == routes.shape[1]:
            routes = routes[:, :, None]
    return Draft(
        topk_ids=routes,
        layer_ids=layer_ids,
        num_experts=_integer(path, arrays, "num_experts"),
        source_rank=arrays.get("source_rank"),
        request_offsets=arrays.get("request_offsets"),
        warnings=warnings,
    )


READERS = (
    Reader("token-routes", "npy", _is_vllm_routes, _read_vllm),
    Reader("counts-npy", "npy", lambda array: True, _read_npy),
    Reader("token-routes", "npz", lambda arrays: any(n in arrays for n in _ROUTES), _read_npz_routes),
    Reader("counts-npz", "npz", lambda arrays: True, _read_npz_counts),
)
