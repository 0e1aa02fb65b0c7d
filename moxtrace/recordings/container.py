"""Opening a file: what it is by its content, whatever its name says.

Goes in: a path.  Comes out: the container and its value, which readers recognise their formats in.

=========  ==============================================================
container  value
=========  ==============================================================
``npz``    dict of name to array
``npy``    array
``json``   the parsed document
``jsonl``  list of (line number, object); see :func:`_json_lines`
``csv``    list of (line number, cells), the header first
=========  ==============================================================
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from moxtrace.errors import RecordingError

__all__ = ["CUT_LINE", "open_container"]

# stands for the last line of a JSON-lines file when the file ends in the middle of it
CUT_LINE = object()


def open_container(path: str) -> tuple[str, Any]:
    """Read ``path`` into (container, value).

    Raises
    ------
    RecordingError
        If the file is missing, empty, cut, or of no known kind.
    """
    try:
        data = Path(path).read_bytes()
    except IsADirectoryError:
        raise RecordingError(f"{path}: is a directory; expected a recording file") from None
    except FileNotFoundError:
        raise RecordingError(f"{path}: no such file; expected a recording") from None
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from None
    if not data.strip():
        raise RecordingError(f"{path}: is empty; expected a recording")
    if data.startswith(b"PK"):
        return "npz", _npz(path, data)
    if data.startswith(b"\x93NUMPY"):
        return "npy", _npy(path, data)
    return _text(path, data)


def _npy(path: str, data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, SyntaxError) as error:
        raise _unreadable(path, "NumPy array", error) from None


def _npz(path: str, data: bytes) -> dict[str, Any]:
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
        if any(name.endswith("/data.pkl") for name in names):
            raise RecordingError(
                f"{path}: is a torch.save file, which is not read; save its counts with numpy.savez "
                "(counts=tensor.cpu().numpy())"
            )
        if not names or not all(name.endswith(".npy") for name in names):
            raise RecordingError(f"{path}: is a zip archive, but no .npz; expected arrays in it")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (
        ValueError, EOFError, OSError, MemoryError, SyntaxError, KeyError, NotImplementedError, RuntimeError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise _unreadable(path, "NumPy .npz archive", error) from None


def _unreadable(path: str, what: str, error: BaseException) -> RecordingError:
    if "allow_pickle" in str(error):
        reason = "holds Python objects (pickle), which are never loaded; expected arrays of numbers"
    else:
        reason = f"cannot be read: {' '.join(str(error).split())}; is the file cut?"
    return RecordingError(f"{path}: {what} {reason}")


def _text(path: str, data: bytes) -> tuple[str, Any]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RecordingError(
            f"{path}: is of no known kind (starts with {data[:8]!r}); expected .npz, .npy, JSON or CSV"
        )
    if text.lstrip()[0] in "{[":
        lines = [line for line in text.splitlines() if line.strip()]
        # a document that is indented has no complete object on its first line
        if len(lines) > 1 and all(line.startswith("{") for line in lines[:2]):
            return "jsonl", _json_lines(path, text)
        return "json", _json(path, text)
    if "," not in text.lstrip().splitlines()[0]:
        first = text.lstrip().splitlines()[0][:40]
        raise RecordingError(
            f"{path}: is of no known kind (line 1: {first!r}); expected .npz, .npy, JSON or CSV"
        )
    return "csv", _csv(path, text)


def _json(path: str, text: str, line: int = 0) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordingError(
            f"{path}: line {line or error.lineno}, column {error.colno}: {error.msg}; "
            "expected JSON (is the file cut?)"
        ) from None
    except RecursionError:
        raise RecordingError(f"{path}: JSON is nested too deeply; expected lists of counts") from None


def _json_lines(path: str, text: str) -> list[tuple[int, Any]]:
    """One object per line; a last line that ends before its object does becomes CUT_LINE."""
    values: list[tuple[int, Any]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values.append((number, _json(path, line, number)))
        except RecordingError:
            if number < len(lines):
                raise
            values.append((number, CUT_LINE))
    return values


def _csv(path: str, text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise RecordingError(
            f"{path}: line {reader.line_num}: {error}; expected CSV (is the file cut?)"
        ) from None
    return rows
