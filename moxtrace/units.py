"""Every unit conversion of the project.

Link rates are Gbit/s (1e9 bit/s), times ns, sizes bytes.  ASTRA-sim's "GB/s" is 2**30 bytes per second, and
its cycle is 1 ns unless a trace is written on the picosecond scale, where a cycle is 1 ps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "GIB",
    "bytes_per_ns",
    "comp_cycles",
    "cycles_per_ns",
    "duration_micros",
    "format_bytes",
    "format_ns",
    "gbps_to_gibps",
    "gibps_to_bytes_per_ns",
]

GIB = 2**30


def bytes_per_ns(bandwidth_gbps: float) -> float:
    """Bytes per ns of a link of ``bandwidth_gbps`` Gbit/s."""
    return bandwidth_gbps / 8.0


def gbps_to_gibps(bandwidth_gbps: float) -> float:
    """GiB/s, what ASTRA-sim's network file calls GB/s, of ``bandwidth_gbps`` Gbit/s."""
    return bandwidth_gbps * 1e9 / 8.0 / GIB


def gibps_to_bytes_per_ns(bandwidth_gibps: float) -> float:
    """Bytes per ns as ASTRA-sim computes them: ``bandwidth * 2**30 / 1e9`` in double precision.

    References
    ----------
    ``bw_GBps_to_Bpns`` of astra-network-analytical, ``common/NetworkFunction.cpp``.
    """
    return bandwidth_gibps * float(GIB) / 1e9


def cycles_per_ns(time_scale: str) -> int:
    """Simulator cycles in one ns: 1000 on the scale ``ps``, 1 on the scale ``ns``."""
    return {"ps": 1000, "ns": 1}[time_scale]


def duration_micros(time_ns: ArrayLike, time_scale: str) -> NDArray[np.int64]:
    """A COMP node's ``duration_micros`` for a time in ns, rounded to the nearest.

    ASTRA-sim counts it as 1,000 cycles, so one unit is 1 ns on the scale ``ps`` and 1 us on the scale ``ns``.
    """
    return np.rint(np.asarray(time_ns, np.float64) * cycles_per_ns(time_scale) / 1000.0).astype(np.int64)


def comp_cycles(duration: ArrayLike) -> NDArray[np.int64]:
    """Cycles that ASTRA-sim takes for a COMP node's ``duration_micros``: 1,000 each, 1 for none."""
    cycles = np.asarray(duration, np.int64) * 1000
    return np.where(cycles == 0, 1, cycles)


def format_bytes(size_bytes: float) -> str:
    """``size_bytes`` for people, in decimal multiples: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


def format_ns(time_ns: float) -> str:
    """``time_ns`` for people: ``767 ns``, ``2.14 ms``."""
    for unit in ("ns", "us", "ms"):
        if time_ns < 1000:
            return f"{time_ns:.4g} {unit}"
        time_ns /= 1000
    return f"{time_ns:.4g} s"
