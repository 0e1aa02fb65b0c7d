"""The folder of a sweep: whose it is, who works in it, and what lies where.

``sweep.json`` says what the sweep is, ``rows/`` holds a file per finished run, ``cache/`` what runs share,
``scratch/`` run directories while they are needed, ``results.csv`` and ``results.parquet`` the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moxtrace import __version__
from moxtrace.errors import ConfigError, OutputError
from moxtrace.outputs import reason, written_aside
from moxtrace.sweep.locks import Held, held, holder_of
from moxtrace.sweep.plan import Plan
from moxtrace.sweep.rows import RowStore

__all__ = ["Shard", "SweepFolder", "at_work", "open_folder", "read_sweep"]

FORMAT = 1
SWEEP = "sweep.json"
_LOCK = ".lock"


@dataclass(frozen=True)
class Shard:
    """One of several processes that share a sweep, perhaps on different machines.

    Parameters
    ----------
    number, count : int
        The first is number 1.
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shard:
        """Read ``3/8``.

        Raises
        ------
        ConfigError
            When it is something else.
        """
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ConfigError(f"--shard {text!r}: expected NUMBER/COUNT, from 1/8 to 8/8")
        return cls(int(number), int(count))


@dataclass(frozen=True)
class SweepFolder:
    """A sweep's folder, held.

    Parameters
    ----------
    path : path
    """

    path: Path

    @property
    def rows(self) -> RowStore:
        """The finished runs."""
        return RowStore(self.path / "rows")


@contextmanager
def open_folder(path: Path, plan: Plan, shard: Shard | None = None) -> Iterator[SweepFolder]:
    """Hold a folder for a plan while the body runs; it is made where it does not exist.

    Parameters
    ----------
    path : path
    plan : Plan
    shard : Shard, optional
        Hold it together with the other shards of the same sweep.

    Raises
    ------
    OutputError
        When the folder is another sweep's or something else's, somebody works in it, or it cannot be written.
    """
    _check_place(path)
    with ExitStack() as stack:
        try:
            (path / "rows").mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(path / _LOCK, shared=shard is not None))
            if shard is not None:
                stack.enter_context(held(path / f"{_LOCK}-{shard.number}-of-{shard.count}"))
        except Held as holder:
            raise OutputError(
                f"{path}: {holder} works on this sweep; wait for it, see 'moxtrace sweep status', or end it"
            ) from None
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {reason(error)}") from None
        _claim(path, plan)
        if shard is None:
            _remove_leftovers(path)
        yield SweepFolder(path)


def at_work(path: Path) -> str | None:
    """Who works in a sweep's folder now; None if nobody does."""
    return holder_of(path / _LOCK)


def _check_place(path: Path) -> None:
    """Refuse a file, and a folder that holds something but no sweep."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path}: is a file; expected a folder for the sweep")
    if path.is_dir() and not (path / SWEEP).exists():
        ours = {"rows", _LOCK}
        foreign = sorted(
            p.name for p in path.iterdir() if p.name not in ours and not p.name.startswith(_LOCK)
        )
        if foreign:
            raise OutputError(
                f"{path}: holds {foreign[0]} and no sweep; choose a folder of its own for the sweep"
            )


def _claim(path: Path, plan: Plan) -> None:
    """Write what the sweep is, once it is known that the folder is not another's."""
    value = {
        "format": FORMAT,
        "moxtrace": __version__,
        "name": plan.name,
        "columns": list(plan.columns),
        **plan.resolved,
        "runs": [run.run for run in plan.runs],
    }
    there = None
    if (path / SWEEP).exists():
        there = read_sweep(path)
        _refuse_another(path, there, value)
    if there != json.loads(json.dumps(value)):
        with written_aside(path / SWEEP) as aside:
            aside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _refuse_another(path: Path, there: dict[str, Any], new: dict[str, Any]) -> None:
    """A folder is the sweep's own if no row of its table would be lost, or if its file has been edited."""
    before, after = set(there["runs"]), set(new["runs"])
    edited = there["name"] == new["name"] and (there["columns"] == new["columns"] or before & after)
    if before <= after or edited:
        return
    varied = ", ".join(there["columns"]) or "nothing"
    raise OutputError(
        f"{path}: holds another sweep, {there['name']}, which varies {varied}; choose another folder "
        "with -o, or move this one away"
    )


def read_sweep(path: Path) -> dict[str, Any]:
    """What ``sweep.json`` of a folder says.

    Raises
    ------
    ConfigError
        When the folder is no sweep's, or the file is damaged.
    """
    try:
        value = json.loads((path / SWEEP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no {SWEEP} in it; expected a folder of 'moxtrace sweep'") from None
    except OSError as error:
        raise ConfigError(f"{path / SWEEP}: cannot read: {error.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    if (
        not isinstance(value, dict)
        or value.get("format") != FORMAT
        or not isinstance(value.get("name"), str)
        or not _is_list_of_text(value.get("columns"))
        or not _is_list_of_text(value.get("runs"))
    ):
        raise ConfigError(
            f"{path / SWEEP}: is cut, or not of this moxtrace; delete it and start the sweep again: rows stay"
        )
    return value


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _remove_leftovers(path: Path) -> None:
    """Remove what a sweep that was killed left: nobody else works here."""
    shutil.rmtree(path / "scratch", ignore_errors=True)
    places = [path, path / "rows", *(path / "cache").glob("*")]
    for place in places:
        for leftover in place.glob(".*.partial*"):
            with contextlib.suppress(OSError):
                os.unlink(leftover)
