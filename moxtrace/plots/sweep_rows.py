"""Rows from a sweep folder: ``results.csv`` and, per run, ``rows/HASH.json``."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moxtrace.errors import ConfigError, TopologyError
from moxtrace.plots.results import Detail, Results, Row
from moxtrace.topology.graph import Topology

__all__ = ["SWEEP", "TABLE", "results_of_sweep"]

SWEEP, TABLE = "sweep.json", "results.csv"
AGAIN = "run 'moxtrace sweep' again"


def _cell(text: str) -> Any:
    """What a cell says: a number where it is one, None where it is empty."""
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}; {AGAIN}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: is cut or no JSON; {AGAIN}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: is no JSON object; {AGAIN}")
    return value


def _network(path: Path, values: Mapping[str, Any], config: Mapping[str, Any], links: Any) -> Topology:
    """The network that the links of a row make."""
    try:
        ends = [[str(end) for end in links[side]] for side in ("src", "dst")]
        rate = np.array([float(x) for x in links["capacity_gbps"]])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: links: expected src, dst, capacity_gbps, ...; {AGAIN}") from None
    if not len(ends[0]) == len(ends[1]) == len(rate):
        raise ConfigError(f"{path}: links: columns of different lengths; {AGAIN}")
    # links are sorted by source, and every NPU sends: the order of the sources is that of the NPUs
    names = [name for name in dict.fromkeys(ends[0] + ends[1]) if name != "switch"]
    has_switch = "switch" in ends[0]
    number = {name: i for i, name in enumerate([*names, "switch"])}
    block = config.get("topology")
    parameters = {k: v for k, v in block.items() if v is not None} if isinstance(block, Mapping) else {}
    plain = names == [str(i) for i in range(len(names))]
    src, dst = (np.array([number[end] for end in side], np.int32) for side in ends)
    if (np.diff(src.astype(np.int64) * (len(names) + 1) + dst) <= 0).any():
        raise ConfigError(f"{path}: links: expected each once, by src and dst; {AGAIN}")
    kind = str(values.get("topology") or parameters.get("kind", "graph"))
    try:
        return Topology(
            kind, len(names), src, dst, rate, np.zeros(len(rate)), np.ones(len(rate), np.int32),
            () if plain else tuple(names), parameters, len(names) + has_switch,
        )  # fmt: skip
    except TopologyError as error:
        raise ConfigError(f"{path}: links: {error}; {AGAIN}") from None


def _stored(folder: Path, values: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The file of a run, and what it says."""
    path = folder / "rows" / f"{values.get('run')}.json"
    return path, _json(path)


def _config(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    path, stored = _stored(folder, values)
    if not isinstance(stored.get("config"), dict):
        raise ConfigError(f"{path}: no configuration in it; {AGAIN}")
    return dict(stored["config"])


def _detail(folder: Path, values: Mapping[str, Any]) -> Detail:
    path, stored = _stored(folder, values)
    config, links = stored.get("config"), stored.get("links")
    if links is None and stored.get("status") == "ok" and "links" in stored:
        raise ConfigError(
            f"{path}: the network has more links than a row keeps; make a run directory of its config with "
            "'moxtrace generate', and draw that"
        )
    if not isinstance(config, dict) or not isinstance(links, dict):
        raise ConfigError(f"{path}: expected config and links in it; {AGAIN}")
    network = _network(path, values, config, links)
    try:
        sizes = [np.array([float(x) for x in links[f"{phase}_bytes"]]) for phase in ("dispatch", "combine")]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: links: expected dispatch_bytes and combine_bytes; {AGAIN}") from None
    if any(len(size) != network.num_links for size in sizes):
        raise ConfigError(f"{path}: links: columns of different lengths; {AGAIN}")
    facts = {name: stored[name] for name in ("stands_on", "inputs", "warnings") if stored.get(name)}
    return Detail(network, sizes[0], sizes[1], facts)


def results_of_sweep(folder: Path) -> Results:
    """Rows of a sweep folder, failed ones too.

    Parameters
    ----------
    folder : path

    Raises
    ------
    ConfigError
        When the table is missing or is none.
    """
    path = folder / TABLE
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            columns = tuple(table.fieldnames or ())
            cells = list(table)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}; {AGAIN}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(f"{path}: is no table; {AGAIN}") from None
    for name in ("run", "status"):
        if name not in columns:
            raise ConfigError(f"{path}: no column {name!r}; expected the table of 'moxtrace sweep'; {AGAIN}")
    rows: list[Row] = []
    for cell in cells:
        if None in cell or None in cell.values():
            raise ConfigError(f"{path}: row {len(rows) + 1}: expected {len(columns)} cells; {AGAIN}")
        values = {name: text if name in ("run", "reason") else _cell(text) for name, text in cell.items()}
        rows.append(Row(values, partial(_config, folder, values), partial(_detail, folder, values)))
    sweep = _json(folder / SWEEP) if (folder / SWEEP).exists() else {}
    several = [
        name for name in ("engine", "repeat") if len({row.values.get(name) for row in rows if row.ok}) > 1
    ]
    keys = (*(name for name in columns if "." in name), *several)
    return Results(str(folder), tuple(rows), keys, columns, sweep)
