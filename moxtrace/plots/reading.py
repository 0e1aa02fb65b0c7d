"""What a user names becomes rows: a sweep folder, or run directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moxtrace.errors import ConfigError
from moxtrace.plots.results import Results
from moxtrace.plots.run_rows import results_of_runs
from moxtrace.plots.sweep_rows import results_of_sweep
from moxtrace.rundir import MANIFEST
from moxtrace.sweep.folder import SWEEP

__all__ = ["read"]


def read(paths: Sequence[Path]) -> Results:
    """Read a sweep folder, or one or more run directories.

    Parameters
    ----------
    paths : sequence of path

    Raises
    ------
    MoxtraceError
        When they are neither, or not whole.
    """
    sweeps = [path for path in paths if (path / SWEEP).exists()]
    if sweeps and len(paths) > 1:
        raise ConfigError(f"{sweeps[0]}: is a sweep; give it alone, or run directories only")
    if sweeps:
        return results_of_sweep(paths[0])
    for path in paths:
        if path.is_dir() and not (path / MANIFEST).exists():
            raise ConfigError(
                f"{path}: neither {SWEEP} nor {MANIFEST} in it; expected a folder of 'moxtrace sweep' or a "
                "run directory of 'moxtrace generate'"
            )
    return results_of_runs(paths)
