"""Counts in JSON: SGLang's expert statistics, and plain lists.

``{"logical_count": [[...]]}`` (SGLang, ``--init-expert-location``; [layers, experts], or with a buffer axis
before them), ``{"counts": ...}``, or the list alone.  Other keys are left aside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RecordingError
from moxtrace.recordings.draft import Draft, Reader

__all__ = ["READERS"]

# no router picks more experts than this, and no model has more
_MOST_TOP_K = 16
_MOST_EXPERTS = 4096


def _number_lists(path: str, key: str, value: Any) -> NDArray[Any]:
    """``value`` as a numeric array; names the first row that does not fit."""
    width: int | None = None
    rows: list[tuple[list[int], Any]] = [([], value)]
    while rows:  # depth first, in the order of the file
        at, row = rows.pop()
        if not isinstance(row, list) or not row:
            raise RecordingError(
                f"{path}: {key}{at or ''}: found {str(row)[:40]!r}; expected a list of numbers"
            )
        if isinstance(row[0], list) and len(at) < 2:
            rows += [([*at, i], item) for i, item in reversed(list(enumerate(row)))]
            continue
        bad = [i for i, x in enumerate(row) if isinstance(x, bool) or not isinstance(x, int | float)]
        if bad:
            raise RecordingError(
                f"{path}: {key}{[*at, bad[0]]}: found {str(row[bad[0]])[:40]!r}; expected a number"
            )
        if width is not None and len(row) != width:
            raise RecordingError(f"{path}: {key}{at}: {len(row)} numbers; the rows before have {width}")
        width = len(row)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        raise RecordingError(
            f"{path}: {key}: rows differ in depth or numbers are too large; expected a matrix"
        ) from None
    if array.dtype.kind == "O":  # integers beyond 64 bits
        array = array.astype(np.float64)
    return array


def _read_sglang(path: str, document: Any) -> Draft:
    return Draft(counts=_number_lists(path, "logical_count", document["logical_count"]))


def _read_counts(path: str, document: Any) -> Draft:
    note = "; ".join(str(document[key]) for key in ("source", "note") if key in document)
    return Draft(counts=_number_lists(path, "counts", document["counts"]), note=note)


def _is_list(document: Any) -> bool:
    return isinstance(document, list) and bool(document) and not isinstance(document[0], dict)


def _read_list(path: str, document: Any) -> Draft:
    array = _number_lists(path, "list", document)
    if array.ndim >= 2 and _looks_like_ids(array):
        raise RecordingError(
            f"{path}: rows of {array.shape[-1]} distinct small integers could be counts or expert ids; "
            'say which: {"counts": ...}, or an .npz with topk_ids'
        )
    return Draft(counts=array)


def _looks_like_ids(array: NDArray[Any]) -> bool:
    rows = array.reshape(-1, array.shape[-1])
    if rows.dtype.kind not in "iu" or rows.shape[1] > _MOST_TOP_K:
        return False
    ordered = np.sort(rows, axis=1)
    return bool(rows.min() >= 0 and rows.max() < _MOST_EXPERTS and (ordered[:, 1:] != ordered[:, :-1]).all())


def _has(key: str) -> Any:
    return lambda document: isinstance(document, dict) and key in document


READERS = (
    Reader("sglang-json", "json", _has("logical_count"), _read_sglang),
    Reader("counts-json", "json", _has("counts"), _read_counts),
    Reader("counts-json", "json", _is_list, _read_list),
)
