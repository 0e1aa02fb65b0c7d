"""How kernels are compiled: cached beside their files, and never stale."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core.options import DefaultOptions

__all__ = ["allocating", "kernel"]

# A numba that no longer knows the option compiles the same kernels, only slower.
_CAN_CHOOSE = hasattr(DefaultOptions, "_nrt")


_ROOT = Path(__file__).resolve().parent
_IMPORT = re.compile(rb"^(?:from|import) +moxtrace\.?([\w.]*)(?: +import +(\([^)]*\)|.*))?", re.M)


@lru_cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


def _imports(source: bytes) -> set[Path]:
    """Files of this package that a source imports at its top level, whole modules and their names alike."""
    found = set()
    for module, names in _IMPORT.findall(source):
        place = _ROOT.joinpath(*module.decode().split("."))
        inner = [place / name for name in re.findall(r"\w+", names.decode())]
        for path in (place, *inner):
            found |= {p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()}
    return found


@lru_cache
def _fingerprint(path: Path) -> str:
    """SHA-256 of a file and of all that it imports: what its kernels call, and constants of other files."""
    seen, queue = set(), [path]
    while queue:
        one = queue.pop()
        if one not in seen:
            seen.add(one)
            queue += _imports(_read(one))
    digest = hashlib.sha256()
    for one in sorted(seen):
        digest.update(_read(one))
    return digest.hexdigest()


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
    kept._source_stamp = (kept._source_stamp, _fingerprint(Path(function.__code__.co_filename).resolve()))
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
