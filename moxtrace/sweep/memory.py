"""How much memory this process may use now, whoever limits it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["available_bytes"]

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Free memory, or what is left below the limit of the container if that is less."""
    found = [_free()]
    with contextlib.suppress(OSError, ValueError):  # version 2; "max" is no number
        found.append(_number("memory.max") - _number("memory.current"))
    with contextlib.suppress(OSError, ValueError):
        found.append(_number("memory/memory.limit_in_bytes") - _number("memory/memory.usage_in_bytes"))
    return max(0, min(found))


def _number(name: str) -> int:
    return int((_CGROUP / name).read_text())


def _free() -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
