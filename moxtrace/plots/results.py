"""Results: what figures and reports are made from, one row per run, whoever made them.

Goes in: a sweep folder or run directories (``read``).  Comes out: :class:`Results`, whose rows have the
columns of a sweep's ``results.csv``; their details (configuration, links) are read when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError
from moxtrace.topology.graph import Topology

__all__ = ["Detail", "Results", "Row", "same", "shown"]

POLICY_KEYS = ("routing.policy", "policy")


def shown(value: Any, limit: int = 28) -> str:
    """A value as a label: one line, numbers short, paths by their last part, at most ``limit`` characters."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    text = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(str(value).split())
    )
    if "/" in text and " " not in text:
        text = text.rstrip("/").rpartition("/")[2] or text
    return text if len(text) <= limit else text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"


def same(value: Any, wanted: str) -> bool:
    """Whether a cell says what a user typed: as text, or as a number."""
    if str(value) == wanted or shown(value) == wanted:
        return True
    try:
        return isinstance(value, (int, float)) and float(wanted) == value
    except ValueError:
        return False


@dataclass(frozen=True, eq=False)
class Detail:
    """What one run has besides its row.

    Parameters
    ----------
    topology : Topology
        Its network, links in the order of the arrays below.
    dispatch_bytes, combine_bytes : array of float64, shape (links,)
    facts : dict
        What else is known: ``stands_on``, ``inputs``, ``warnings``.
    """

    topology: Topology
    dispatch_bytes: NDArray[np.float64]
    combine_bytes: NDArray[np.float64]
    facts: dict[str, Any] = field(default_factory=dict)

    def loads(self, busiest: float) -> NDArray[np.float64]:
        """Load of each link in dispatch over the ideal switch's busiest port, shape (links,).

        Parameters
        ----------
        busiest : float
            That of the busiest link per unit of its capacity; 1.0 is busy as long as the switch's port.
        """
        load = self.dispatch_bytes / self.topology.capacity_gbps
        top = float(load.max(initial=0.0))
        return load * (busiest / top) if top > 0 else load


@dataclass(frozen=True, eq=False)
class Row:
    """One run.

    Parameters
    ----------
    values : mapping of str to number, text or None
        The columns of ``results.csv``; None where a cell is empty.
    load_config : callable
        Reads its resolved configuration, which failed runs have too.
    load : callable
        Reads its :class:`Detail`.
    """

    values: Mapping[str, Any]
    load_config: Callable[[], dict[str, Any]] = field(repr=False)
    load: Callable[[], Detail] = field(repr=False)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, read once."""
        return self.load_config()

    @cached_property
    def detail(self) -> Detail:
        """The network and its loads, read once."""
        return self.load()

    @property
    def ok(self) -> bool:
        """Whether the run has results."""
        return bool(self.values.get("status") == "ok")

    @property
    def policy(self) -> str:
        """Name of its routing policy."""
        for key in POLICY_KEYS:
            if self.values.get(key) is not None:
                return str(self.values[key])
        return "unknown policy"


@dataclass(frozen=True, eq=False)
class Results:
    """Rows, and the keys in which they differ.

    Parameters
    ----------
    where : str
        What was read, for messages.
    rows : tuple of Row
        In the order of the table.
    keys : tuple of str
        The configuration keys that were swept, in order.
    columns : tuple of str
        Every column, the swept keys among them.
    sweep : dict
        What ``sweep.json`` says; empty for run directories.
    missing : int
        Runs of the sweep that have no row yet.
    """

    where: str
    rows: tuple[Row, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    sweep: dict[str, Any] = field(default_factory=dict)
    missing: int = 0

    @property
    def ok(self) -> tuple[Row, ...]:
        """Rows with results.

        Raises
        ------
        ConfigError
            When there is none: nothing can be drawn.
        """
        good = tuple(row for row in self.rows if row.ok)
        if good:
            return good
        if not self.rows:
            raise ConfigError(f"{self.where}: no results yet; run 'moxtrace sweep' to its end")
        why = next((str(r.values["reason"]) for r in self.rows if r.values.get("reason")), "no reason given")
        raise ConfigError(
            f"{self.where}: all {len(self.rows)} runs failed, nothing to draw; the first: {shown(why, 160)}"
        )

    def require(self, *names: str) -> None:
        """Refuse a table without some columns.

        Raises
        ------
        ConfigError
            Names the first that is missing, or that holds no number in any run that has results.
        """
        for name in names:
            if name not in self.columns:
                raise ConfigError(f"{self.where}: no column {name!r} in these results")
            if not any(isinstance(row.values.get(name), (int, float)) for row in self.ok):
                raise ConfigError(f"{self.where}: column {name!r} holds no number; nothing to draw from it")

    def numbers(self, *names: str) -> tuple[list[Row], NDArray[np.float64]]:
        """Rows with a number in every named column, and these, shape (rows, names)."""
        self.require(*names)
        rows = [r for r in self.ok if all(isinstance(r.values.get(n), (int, float)) for n in names)]
        return rows, np.array([[float(r.values[n]) for n in names] for r in rows]).reshape(-1, len(names))

    def values(self, key: str) -> list[Any]:
        """Different values of a column among the runs with results, numbers ascending, else in order."""
        found = list(dict.fromkeys(row.values.get(key) for row in self.ok))
        if all(isinstance(value, (int, float)) for value in found):
            return sorted(found)
        return found

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Swept keys with more than one value among the runs with results."""
        return tuple(key for key in self.keys if len(self.values(key)) > 1)

    @property
    def settings(self) -> tuple[str, ...]:
        """Varying keys that are no seed, no repeat and not the policy."""
        return tuple(key for key in self.varying if key not in POLICY_KEYS and not is_seed(key))

    def where_is(self, conditions: Sequence[tuple[str, str]]) -> Results:
        """Keep the rows that say so.

        Parameters
        ----------
        conditions : sequence of (key, value)

        Raises
        ------
        ConfigError
            For a column that does not exist, or a value that no row has.
        """
        rows = self.rows
        for key, wanted in conditions:
            if key not in self.columns:
                raise ConfigError(f"--where {key}: no such column; expected one of {', '.join(self.columns)}")
            left = tuple(row for row in rows if same(row.values.get(key), wanted))
            if not left:
                there = ", ".join(dict.fromkeys(shown(row.values.get(key)) for row in rows))
                raise ConfigError(f"--where {key}={wanted}: no such row; there is {shown(there, 120)}")
            rows = left
        return replace(self, rows=rows)


def is_seed(key: str) -> bool:
    """Whether a key only draws again: a seed or a repeat."""
    return key == "repeat" or key.rpartition(".")[2] == "seed"
