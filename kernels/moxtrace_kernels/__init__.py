"""Dispatch and combine for MoE layers over NVSHMEM, with a torch interface.

``AllToAll`` runs on GPUs; ``ReferenceAllToAll`` is the same interface in plain torch, for tests and for
people without one. ``python -m moxtrace_kernels.doctor`` looks at the machine. Names are loaded when they are
first used, so that importing the package needs neither torch nor the compiled library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import (
    ArgumentError,
    CapacityError,
    DeviceError,
    Failure,
    KernelsError,
    LibraryError,
    OrderError,
    ShapeError,
    WaitExpiredError,
)
from .shape import Shape

__version__ = "0.1.0"

_LATER = {
    "AllToAll": "alltoall",
    "Dispatched": "halves",
    "Distributed": "exchange",
    "Halves": "halves",
    "InProcess": "exchange",
    "ReferenceAllToAll": "reference",
    "finalize": "bootstrap",
    "initialize": "bootstrap",
}

__all__ = [
    "AllToAll",
    "ArgumentError",
    "CapacityError",
    "DeviceError",
    "Dispatched",
    "Distributed",
    "Failure",
    "Halves",
    "InProcess",
    "KernelsError",
    "LibraryError",
    "OrderError",
    "ReferenceAllToAll",
    "Shape",
    "ShapeError",
    "WaitExpiredError",
    "finalize",
    "initialize",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
