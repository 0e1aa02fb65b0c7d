"""How the engine's kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.options import DefaultOptions

__all__ = ["allocating", "kernel"]

# A numba that no longer knows the option compiles the same kernels, only slower.
_CAN_CHOOSE = hasattr(DefaultOptions, "_nrt")


def _compiled(counting: bool) -> Callable[[Callable[..., Any]], Any]:
    options: dict[str, Any] = {"cache": True, "nogil": True}
    if _CAN_CHOOSE:
        options["_nrt"] = counting
    return numba.njit(**options)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that makes no arrays.

    numba's run-time counts references to every array of a named tuple at each call, with atomic operations:
    nine tenths of the event loop's time.  A kernel whose arrays all belong to its caller needs no counting.
    """
    return _compiled(counting=False)(function)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile a function that makes arrays, also where a :func:`kernel` calls it."""
    return _compiled(counting=True)(function)
