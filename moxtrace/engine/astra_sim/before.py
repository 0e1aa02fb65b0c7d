"""What would make ASTRA-sim fail, or lie, found before it starts.

Three rings: the files on disk against ``npus_count`` and the manifest, the traces by our own reader and
``verify``, and the whole run by the built-in engine, which is the caller's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.engine.network import Network
from moxtrace.errors import ExternalToolError, TraceError
from moxtrace.rundir import Run
from moxtrace.verify import verify_run

__all__ = ["check_inputs", "check_traces"]

_FILE = re.compile(r"(.+)\.(\d+)\.et")


def _counts(run: Run) -> dict[str, set[int]]:
    """Ranks whose trace is on disk, for each file set."""
    found: dict[str, set[int]] = {name: set() for name in run.manifest["traces"]}
    for path in (run.path / TRACES).glob("*.et"):
        match = _FILE.fullmatch(path.name)
        if match:
            found.setdefault(match[1], set()).add(int(match[2]))
    return found


def check_inputs(run: Run) -> None:
    """Refuse a run whose files ASTRA-sim cannot take: network, number of traces, permissions.

    Raises
    ------
    ExternalToolError
        When ASTRA-sim cannot be told the topology.
    TraceError
        When there are more or fewer traces than NPUs, or one cannot be opened for writing.
    """
    if not (run.path / "network.yml").is_file():
        why = run.manifest["astra_sim"]
        why = "network.yml: missing file" if why == "expressible" else why
        raise ExternalToolError(f"{run.path}: {why}; use --engine builtin")
    npus = Network.from_astra(run.path / "network.yml").num_npus
    for name, ranks in _counts(run).items():
        if ranks != set(range(npus)):
            wrong = sorted(ranks ^ set(range(npus)))
            few = "" if wrong[0] in ranks else f"; {TRACES}/{name}.{wrong[0]}.et is missing"
            many = f"; {TRACES}/{name}.{wrong[0]}.et has no NPU" if wrong[0] in ranks else few
            raise TraceError(
                f"{run.path / TRACES / name}: {len(ranks)} .et files, but npus_count in network.yml is {npus}"
                f"{many}: not run; generate the run again"
            )
    locked = next((n for n in run.manifest["files"] if _is_locked(run.path / n)), None)
    if locked:
        raise TraceError(
            f"{run.path / locked}: cannot be written, and ASTRA-sim opens traces for writing: 'chmod u+w', "
            "or copy the run directory to where you may write"
        )


def _is_locked(path: Path) -> bool:
    return path.suffix == ".et" and path.exists() and not os.access(path, os.W_OK)


def check_traces(run: Run, progress: Callable[[int, int], None] | None = None) -> None:
    """Refuse a run that ``verify`` has something against; what is wrong inside comes before what changed.

    Parameters
    ----------
    run : Run
    progress : callable, optional
        Called with (done, total) steps.

    Raises
    ------
    TraceError
        With the first problem, and how many there are.
    """
    problems = verify_run(run, progress).problems
    if not problems:
        return
    changed = [p for p in problems if p.partition(": ")[0] in run.manifest["files"]]
    inside = [p for p in problems if p not in changed]
    named = [p.removeprefix(f"{run.path}/") for p in (*inside[:1], *changed[:1])]
    more = len(problems) - len(named)
    also = (
        f" (and {more} more problem{'' if more == 1 else 's'}: 'moxtrace verify' lists them)" if more else ""
    )
    raise TraceError(f"{run.path}: {'; '.join(named)}{also}: not run")
