"""The project's own file: an uncompressed .npz whose bytes depend on the recording alone.

=====================  ===========================================================
array                  content
=====================  ===========================================================
``moxtrace_recording`` version of this layout: 1
``counts``             integers, or float64 where not whole, [layers, experts]
``layer_ids``          int64 [layers]
``topk_ids``           optional, int16 or int32 [tokens, layers, top_k]
``source_rank``        optional, int32 [tokens]
``request_offsets``    optional, int64 [requests + 1]
``top_k``              optional, int64
``note``               optional, text
=====================  ===========================================================
"""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RecordingError
from moxtrace.outputs import written_aside
from moxtrace.recordings.draft import Draft, Reader
from moxtrace.recordings.recording import Recording

__all__ = ["READERS", "write_canonical"]

_VERSION = 1
_MARK = "moxtrace_recording"


def _matches(arrays: Any) -> bool:
    return _MARK in arrays


def _read(path: str, arrays: dict[str, Any]) -> Draft:
    version = arrays[_MARK]
    if version.shape != () or version != _VERSION:
        raise RecordingError(
            f"{path}: canonical layout {version}; this moxtrace reads {_VERSION}: upgrade it"
        )
    missing = [name for name in ("counts", "layer_ids") if name not in arrays]
    if missing:
        raise RecordingError(
            f"{path}: canonical recording without {missing[0]}; expected counts and layer_ids"
        )
    top_k = arrays.get("top_k")
    return Draft(
        arrays["counts"],
        arrays.get("topk_ids"),
        arrays["layer_ids"],
        top_k=None if top_k is None else _scalar(path, "top_k", top_k),
        source_rank=arrays.get("source_rank"),
        request_offsets=arrays.get("request_offsets"),
        note=str(arrays.get("note", "")),
    )


def _scalar(path: str, name: str, value: NDArray[Any]) -> int:
    if value.shape != () or value.dtype.kind not in "iu":
        raise RecordingError(
            f"{path}: {name} is {value.dtype} of shape {list(value.shape)}; expected one integer"
        )
    return int(value)


def write_canonical(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write ``recording`` to ``path``, aside first and then renamed; an existing file is replaced.

    The same recording gives the same bytes on every machine: nothing is compressed, and no time of day is
    kept.

    Raises
    ------
    OutputError
        If the file cannot be written there.
    """
    counts = recording.counts
    whole = counts.max() < 2**53 and (counts == np.rint(counts)).all()
    arrays: dict[str, Any] = {
        _MARK: np.int64(_VERSION),
        "counts": counts.astype(np.int32 if counts.max() < 2**31 else np.int64) if whole else counts,
        "layer_ids": recording.layer_ids,
        "topk_ids": recording.topk_ids,
        "source_rank": recording.source_rank,
        "request_offsets": recording.request_offsets,
        "top_k": None if recording.top_k is None else np.int64(recording.top_k),
        "note": np.str_(recording.note) if recording.note else None,
    }
    with written_aside(path) as aside, aside.open("wb") as file:
        _write_npz(file, {name: a for name, a in arrays.items() if a is not None})


def _write_npz(file: Any, arrays: dict[str, Any]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            little = np.asarray(array)
            np.lib.format.write_array(
                buffer, little.astype(little.dtype.newbyteorder("<")), allow_pickle=False
            )
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same on every operating system
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, buffer.getvalue())


READERS = (Reader("canonical", "npz", _matches, _read),)
