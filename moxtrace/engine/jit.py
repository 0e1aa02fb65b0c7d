"""How the engine's kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["allocating", "kernel"]


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that allocates nothing.

    numba's run-time counts references to every array of a named tuple at each call, with atomic operations:
    nine tenths of the event loop's time.  A kernel whose arrays all belong to its caller needs no counting.
    """
    return numba.njit(cache=True, nogil=True, _nrt=False)(function)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile a function that makes arrays, also where a :func:`kernel` calls it."""
    return numba.njit(cache=True, nogil=True, _nrt=True)(function)
