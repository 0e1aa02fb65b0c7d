"""Rows from run directories: their summaries, configurations and links."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moxtrace import topology
from moxtrace.errors import TraceError
from moxtrace.plots.results import Detail, Results, Row
from moxtrace.rundir import Run

__all__ = ["results_of_runs"]

COLUMNS = (
    "run", "npus", "policy", "topology", "status", "completion_ns", "switch_completion_ns", "slowdown",
    "dispatch_ns", "compute_ns", "combine_ns", "max_link_load", "mean_link_load", "busiest_link_bytes",
    "mean_link_bytes", "bandwidth_tax", "engine", "moxtrace_version",
)  # fmt: skip


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys; lists as JSON."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, bool | list) else value
    return found


def _config(run: Run) -> dict[str, Any]:
    import yaml

    path = run.path / "config.resolved.yaml"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise TraceError(f"{path}: is cut or no YAML; generate the run again") from None
    if not isinstance(value, dict):
        raise TraceError(f"{path}: is no block of keys; generate the run again")
    return value


def _detail(run: Run) -> Detail:
    path = run.path / "links.csv"
    network = topology.read(run.path / "topology.json")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        sizes = {
            phase: np.array([float(r[f"{phase}_bytes"]) for r in rows]) for phase in ("dispatch", "combine")
        }
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise TraceError(f"{path}: cannot read the link loads: {error}; generate the run again") from None
    if len(rows) != network.num_links:
        raise TraceError(
            f"{path}: {len(rows)} links; topology.json has {network.num_links}: generate the run again"
        )
    summary = run.json("summary.json")
    facts = {name: summary[name] for name in ("stands_on", "warnings") if summary.get(name)}
    facts["inputs"] = run.manifest["inputs"]
    return Detail(network, sizes["dispatch"], sizes["combine"], facts)


def _read_before(detail: Detail) -> Detail:
    return detail


def _phases(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Times of the phases, one after the other; only the compute of runs that were not simulated."""
    ends = [summary.get(key) for key in ("dispatch_done_ns", "compute_done_ns", "completion_ns")]
    if any(end is None for end in ends):
        return {"compute_ns": summary["max_compute_ns"]}
    dispatch, compute, whole = (float(end or 0) for end in ends)
    return {"dispatch_ns": dispatch, "compute_ns": compute - dispatch, "combine_ns": whole - compute}


def _row(run: Run, name: str, detail: Detail) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of a run, and its configuration."""
    summary, config = run.json("summary.json"), _config(run)
    times = _phases(summary)
    own = {key: summary.get(key) for key in COLUMNS if key in summary}
    load = float(summary["normalized_max_load"])
    return {
        **flat(config),
        **dict.fromkeys(COLUMNS),
        **own,
        **times,
        "run": name,
        "status": "ok",
        "max_link_load": load,
        "mean_link_load": float(detail.loads(load).mean()),
        "engine": "builtin, by transfers" if summary.get("completion_ns") is not None else None,
        "moxtrace_version": run.manifest["moxtrace"],
    }, config


def results_of_runs(paths: Sequence[Path]) -> Results:
    """Rows of run directories; the keys in which their configurations differ count as swept.

    Parameters
    ----------
    paths : sequence of path

    Raises
    ------
    MoxtraceError
        When one is no run directory, or not whole.
    """
    runs = [Run.open(path) for path in paths]
    names = [path.name or str(path) for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    details = [_detail(run) for run in runs]
    found = [_row(*each) for each in zip(runs, names, details, strict=True)]
    keys = list(dict.fromkeys(key for values, _ in found for key in values if "." in key))
    swept = tuple(key for key in keys if len({str(values.get(key)) for values, _ in found}) > 1)
    rows = []
    for detail, (values, config) in zip(details, found, strict=True):
        kept = {key: value for key, value in values.items() if "." not in key or key in swept}
        rows.append(Row({"run": kept["run"], **kept}, partial(dict, config), partial(_read_before, detail)))
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} run directories"
    return Results(where, tuple(rows), swept, ("run", *swept, *COLUMNS[1:]))
