"""``read``: any supported file to a :class:`Recording`.

A further format is one module with ``READERS`` and one line below; the first reader that matches wins, so
the special stand before the general.
"""

from __future__ import annotations

import os
from typing import Any

from moxtrace.errors import RecordingError
from moxtrace.recordings import arrays, canonical, csv_counts, json_counts, token_logs
from moxtrace.recordings.container import open_container
from moxtrace.recordings.draft import finish
from moxtrace.recordings.recording import Recording

__all__ = ["formats", "read"]

_READERS = (
    *canonical.READERS,
    *json_counts.READERS,
    *csv_counts.READERS,
    *token_logs.READERS,
    *arrays.READERS,
)


def formats() -> list[str]:
    """Names of all formats that ``read`` knows, each once."""
    return list(dict.fromkeys(reader.format for reader in _READERS))


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording in any supported format, told apart by content.

    Raises
    ------
    RecordingError
        If the file is missing, empty, cut or of no known format, or if its numbers cannot be used.
    """
    name = os.fspath(path)
    container, value = open_container(name)
    for reader in _READERS:
        if reader.container == container and reader.matches(value):
            return finish(name, reader.format, reader.read(name, value))
    raise RecordingError(
        f"{name}: {container} of no known format ({_found(value)}); expected one of {', '.join(formats())}"
    )


def _found(value: Any) -> str:
    if isinstance(value, dict):
        return f"keys {', '.join(list(value)[:5]) or 'none'}"
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return f"line {value[0][0]}: {str(value[0][1])[:60]}"
    return str(value)[:60]
