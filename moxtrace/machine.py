"""What this machine has to give: memory, cores, open files; and whether it killed for want of memory.

Linux tells it in files; where they are absent, the answer is None and nobody is held up by it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from moxtrace.errors import ExternalToolError

__all__ = [
    "available_memory",
    "cores",
    "descriptor_limits",
    "oom_kills",
    "peak_memory",
    "raise_descriptor_limit",
]

ROOT = Path("/")
_UNLIMITED = 2**60  # the first version of control groups writes no limit as a number near 2**63


def _numbers(path: Path) -> dict[str, int]:
    """``NAME NUMBER`` lines of a file of the kernel; empty where it cannot be read."""
    try:
        rows = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number that is all of a file; None where there is none, also for ``max``."""
    try:
        text = path.read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control groups, the innermost first, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return []
    folders = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if names not in ("", controller):
            continue
        mount = root / "sys/fs/cgroup" / names
        inner = mount / path.lstrip("/")
        folders += [f for f in (inner, *inner.parents) if f == mount or mount in f.parents]
    return folders


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that a new process can use: what the system has left, and every control group around us.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` lie.
    """
    left = []
    system = _numbers(root / "proc/meminfo").get("MemAvailable")
    if system is not None:
        left.append(system * 1024)
    for folder in _groups(root, "memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None and most < _UNLIMITED:
                stat = _numbers(folder / "memory.stat")  # pages of files are given back when asked for
                now -= stat.get("total_inactive_file", stat.get("inactive_file", 0))
                left.append(max(most - now, 0))
    return min(left, default=None)


def oom_kills(root: Path = ROOT) -> int | None:
    """How often the kernel has killed a process for want of memory, here or in the whole system.

    Only its growth says something.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` lie.
    """
    counts = [_numbers(root / "proc/vmstat").get("oom_kill")]
    for folder in _groups(root, "memory"):
        counts += [
            _numbers(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control")
        ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def peak_memory(process: int) -> int | None:
    """Most bytes of memory that a running process has held."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def cores(root: Path = ROOT) -> int:
    """Cores that this process may use, at least 1: its affinity, and the share of its control group.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` lie.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                count = min(count, max(1, int(quota) // int(period)))
    return count


def descriptor_limits() -> tuple[int | None, int | None]:
    """Files that a process may have open: what holds now, and to what it can be raised; None is no limit."""
    try:
        import resource  # only Unix has it
    except ImportError:
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    none = resource.RLIM_INFINITY
    return (None if soft == none else soft), (None if hard == none else hard)


def raise_descriptor_limit(needed: int, who: str) -> None:
    """Let this process, and those that it starts, have ``needed`` files open.

    Parameters
    ----------
    needed : int
    who : str
        What needs them, for the message.

    Raises
    ------
    ExternalToolError
        When the hard limit is lower.
    """
    soft, hard = descriptor_limits()
    if soft is None or soft >= needed:
        return
    if hard is not None and hard < needed:
        raise ExternalToolError(
            f"{who}: needs {needed} open files, the hard limit is {hard}: raise it with 'ulimit -H -n "
            f"{needed}' as root, or 'nofile' in /etc/security/limits.conf"
        )
    import resource

    top = resource.RLIM_INFINITY if hard is None else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, top))
    except (OSError, ValueError) as error:
        raise ExternalToolError(
            f"{who}: needs {needed} open files, and the limit cannot be raised ({error}): 'ulimit -n "
            f"{needed}'"
        ) from None
