"""How kernels are compiled: cached beside their files, and never stale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.options import DefaultOptions

__all__ = ["allocating", "kernel"]

# A numba that no longer knows the option compiles the same kernels, only slower.
_CAN_CHOOSE = hasattr(DefaultOptions, "_nrt")


def _fingerprint() -> str:
    """SHA-256 of the package's source: kernels also take in what they call, and constants of other files."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCE = _fingerprint()


def _compiled(function: Callable[..., Any], counting: bool) -> Any:
    options: dict[str, Any] = {"nogil": True}
    if _CAN_CHOOSE:
        options["_nrt"] = counting
    dispatcher: Any = numba.njit(cache=True, **options)(function)
    # numba takes a cached kernel for fresh as long as its own file is unchanged, though what it calls in
    # another file is compiled into it: after an update it would run the old code
    kept: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not hasattr(kept, "_source_stamp"):  # a numba that keeps its stamps elsewhere: rather slow than stale
        return numba.njit(**options)(function)
    kept._source_stamp = (kept._source_stamp, _SOURCE)
    return dispatcher


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that makes no arrays.

    numba's run-time counts references to every array of a named tuple at each call, with atomic operations:
    nine tenths of the event loop's time.  A kernel whose arrays all belong to its caller needs no counting.
    """
    return _compiled(function, counting=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile a function that makes arrays, also where a :func:`kernel` calls it."""
    return _compiled(function, counting=True)
