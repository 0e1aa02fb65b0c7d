"""Rows of a sweep folder, those that are there, in the order of the plan."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError, TopologyError
from moxtrace.plots.results import Detail, Results, Row
from moxtrace.sweep.folder import read_sweep
from moxtrace.sweep.rows import RowStore, row_columns
from moxtrace.topology.graph import Topology

__all__ = ["results_of_sweep"]

log = logging.getLogger(__name__)
AGAIN = "delete it and run 'moxtrace sweep' again"
FACTS = ("stands_on", "warnings", "inputs")


def _cell(value: Any) -> Any:
    """A value as a number, text or None; blocks and lists as JSON."""
    if value is None or value == "":
        return None
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return value


def _array(path: Path, links: Mapping[str, Any], name: str, count: int) -> NDArray[np.float64]:
    """One column of numbers of the links."""
    try:
        found = np.array([float(x) for x in links[name]])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: links: {name}: expected a list of numbers; {AGAIN}") from None
    if len(found) != count:
        raise ConfigError(f"{path}: links: {len(found)} values of {name} for {count} links; {AGAIN}")
    return found


def _network(path: Path, values: Mapping[str, Any], config: Mapping[str, Any], links: Any) -> Topology:
    """The network that the links of a row make."""
    try:
        ends = [[str(end) for end in links[side]] for side in ("src", "dst")]
    except (KeyError, TypeError):
        raise ConfigError(f"{path}: links: expected lists src and dst; {AGAIN}") from None
    if len(ends[0]) != len(ends[1]):
        raise ConfigError(f"{path}: links: src and dst of different lengths; {AGAIN}")
    rate = _array(path, links, "capacity_gbps", len(ends[0]))
    # links are sorted by source, and every NPU sends: the order of the sources is that of the NPUs
    names = [name for name in dict.fromkeys(ends[0] + ends[1]) if name != "switch"]
    has_switch = "switch" in ends[0]
    number = {name: i for i, name in enumerate([*names, "switch"])}
    block = config.get("topology")
    parameters = {k: v for k, v in block.items() if v is not None} if isinstance(block, Mapping) else {}
    src, dst = (np.array([number[end] for end in side], np.int32) for side in ends)
    if (np.diff(src.astype(np.int64) * (len(names) + 1) + dst) <= 0).any():
        raise ConfigError(f"{path}: links: expected each once, by src and dst; {AGAIN}")
    plain = names == [str(i) for i in range(len(names))]
    try:
        return Topology(
            str(values.get("topology")), len(names), src, dst, rate, np.zeros(len(rate)),
            np.ones(len(rate), np.int32), () if plain else tuple(names), parameters, len(names) + has_switch,
        )  # fmt: skip
    except TopologyError as error:
        raise ConfigError(f"{path}: links: {error}; {AGAIN}") from None


def _detail(store: RowStore, run: str) -> Detail:
    """Links of a run, read when they are asked for."""
    path, row = store.path(run), store.read(run)
    if row is None:
        raise ConfigError(f"{path}: is no row of a sweep; {AGAIN}")
    links = row.get("links")
    if links is None:
        raise ConfigError(
            f"{path}: the network has more links than a row keeps; make a run directory of its config with "
            "'moxtrace generate', and draw that"
        )
    network = _network(path, row, row["config"], links)
    sizes = [_array(path, links, f"{phase}_bytes", network.num_links) for phase in ("dispatch", "combine")]
    return Detail(network, sizes[0], sizes[1], {name: row[name] for name in FACTS if row.get(name)})


def results_of_sweep(folder: Path) -> Results:
    """Rows of a sweep folder, failed ones too; also of one that is not finished.

    Parameters
    ----------
    folder : path

    Raises
    ------
    ConfigError
        When it is no sweep's folder.
    """
    sweep = read_sweep(folder)
    store = RowStore(folder / "rows")
    stored, corrupt = store.read_all(sweep["runs"])
    missing = len(sweep["runs"]) - len(stored)
    if missing:
        damaged = f", {len(corrupt)} of them damaged" if corrupt else ""
        log.warning(
            "%s: %d of %d runs are missing%s; 'moxtrace sweep' does them",
            folder, missing, len(sweep["runs"]), damaged,
        )  # fmt: skip
    columns = tuple(row_columns(sweep["columns"]))
    rows = []
    for run in sweep["runs"]:
        if run in stored:
            values = {name: _cell(stored[run].get(name)) for name in columns}
            rows.append(Row(values, partial(dict, stored[run]["config"]), partial(_detail, store, run)))
    more = [name for name in ("engine", "repeat") if len({r.values[name] for r in rows if r.ok}) > 1]
    return Results(str(folder), tuple(rows), (*sweep["columns"], *more), columns, sweep, missing)
