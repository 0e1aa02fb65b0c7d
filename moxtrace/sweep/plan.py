"""A sweep file becomes a plan: every run with its resolved configuration and its name.

Goes in: a YAML file with ``base``, ``grid``, ``zip``, ``engine``, ``repeats``, ``bound``.  Comes out:
:class:`Plan`.  A run's name is a hash of all that decides its result, so that a result that is there can be
told from one that is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from moxtrace.config import PATH_KEYS, RunConfig, Setting, resolve, setting_of
from moxtrace.documents import Document, explain, read_document
from moxtrace.errors import ConfigError
from moxtrace.rundir import sha256_of
from moxtrace.sweep.axes import Axis, axes_of
from moxtrace.sweep.code import code_version

__all__ = ["ENGINES", "MOST_RUNS", "Plan", "PlannedRun", "load_plan"]

MOST_RUNS = 10_000  # without being asked for
Engine = Literal["builtin", "builtin-traces", "astra-sim"]
ENGINES = ("builtin", "builtin-traces", "astra-sim")
_SEEDED = ("recording", "traffic", "placement", "topology", "routing")


class _SweepFile(BaseModel):
    """The schema of a sweep file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    base: Any
    grid: dict[str, Any] = {}
    zip: dict[str, Any] = {}
    engine: list[Engine] = Field(default=["builtin"], min_length=1)
    repeats: int = Field(default=1, ge=1, le=100_000)
    bound: Literal["quick", "best", "none"] = "quick"

    @field_validator("engine", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class PlannedRun:
    """One row to be.

    Parameters
    ----------
    run : str
        Its name: a hash of the configuration, the contents of the files that it names, engine, repeat and
        code.
    config : RunConfig
        Seeds moved by the repeat.
    engine : {"builtin", "builtin-traces", "astra-sim"}
    repeat : int
        From 0 on.
    bound : {"quick", "best", "none"}
        How a lower bound of the busiest link is looked for.
    swept : dict
        Value of each swept column.
    """

    run: str
    config: RunConfig
    engine: str
    repeat: int
    bound: str
    swept: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, in the order of its table.

    Parameters
    ----------
    name : str
        The sweep file's name.
    folder : path
        Where the sweep file lies.
    columns : tuple of str
        Swept columns.
    runs : tuple of PlannedRun
    resolved : dict
        The sweep, ranges spelled out: what ``sweep.json`` holds.
    """

    name: str
    folder: Path
    columns: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    resolved: dict[str, Any]


def load_plan(path: str | Path, overrides: Sequence[str] = (), *, many: bool = False) -> Plan:
    """Read a sweep file and spell its runs out.

    Parameters
    ----------
    path : path
        Paths in it, and in the configuration below ``base``, are relative to its folder; those in a base file
        to the folder of that.
    overrides : sequence of str
        ``key.path=value``: keys of the base, or of the sweep itself (``repeats=3``,
        ``grid.topology.degree=[4, 8]``).
    many : bool
        Accept more than 10,000 runs.

    Raises
    ------
    ConfigError
        When the file, its base or one of its runs cannot be had; the message names file, line and key.
    """
    document = read_document(Path(path), "sweep")
    own, settings = _split(document, [setting_of(text) for text in overrides])
    where = _Where(document, own)
    sweep = _validated(document.value, where)
    base = _base_of(document, sweep)
    axes = axes_of(sweep.grid, sweep.zip, where)
    for setting in settings:
        _refuse_swept(setting, axes)
    count = math.prod(len(axis.points) for axis in axes) * len(sweep.engine) * sweep.repeats
    if count > MOST_RUNS and not many:
        raise ConfigError(f"{path}: {count:,} runs, more than {MOST_RUNS:,}; say --yes if that is meant")
    folder = document.path.resolve().parent
    runs = tuple(_runs(folder, base, settings, axes, sweep))
    _refuse_twins(document.path, runs)
    columns = tuple(dict.fromkeys(key for run in runs for key in run.swept))
    runs = tuple(_filled(run, columns) for run in runs)
    return Plan(document.path.name, folder, columns, runs, _resolved(sweep, axes, base, settings))


# ------------------------------------------------------------------------------------- reading


class _Where:
    """File and line of a path of keys of the sweep file; ``--set`` where that said it."""

    def __init__(self, document: Document, own: set[tuple[str, ...]]) -> None:
        self._document, self._own = document, own

    def __call__(self, at: tuple[str, ...]) -> str:
        return "--set" if at in self._own else self._document.where(at)


def _split(document: Document, settings: Sequence[Setting]) -> tuple[set[tuple[str, ...]], list[Setting]]:
    """Carry out the settings of the sweep itself; returns their paths, and the settings of the base."""
    own: set[tuple[str, ...]] = set()
    rest = []
    for setting in settings:
        head, *below = setting.keys
        if head in ("grid", "zip") and below:
            at: tuple[str, ...] = (head, ".".join(below))
            block = document.value.get(head) or {}
            if not isinstance(block, dict):
                raise ConfigError(f"--set {'.'.join(setting.keys)}: {head} holds {block!r:.40}, not a block")
            document.value[head] = {**block, at[1]: setting.value}
        elif head in _SweepFile.model_fields and not below:
            at = (head,)
            document.value[head] = setting.value
        else:
            rest.append(
                Setting(tuple(below), setting.value, "--set", setting.folder) if head == "base" else setting
            )
            continue
        own.add(at)
    return own, rest


def _validated(value: Mapping[str, Any], where: _Where) -> _SweepFile:
    value = {k: v for k, v in value.items() if v is not None or k not in ("grid", "zip")}
    try:
        return _SweepFile.model_validate(value)
    except ValidationError as failure:
        error = failure.errors(include_url=False)[0]
        loc = tuple(str(part) for part in error["loc"])
        if error["type"] == "missing":
            raise ConfigError(
                f"{where(())}: {'.'.join(loc)}: missing; expected a configuration, or the path of one"
            ) from None
        raise ConfigError(f"{where(loc)}: {'.'.join(loc)}: {explain(error, _SweepFile)}") from None


def _base_of(document: Document, sweep: _SweepFile) -> Document:
    """The base configuration with its lines."""
    if isinstance(sweep.base, dict):
        return document.inside("base")
    if isinstance(sweep.base, str):
        path = document.path.parent / Path(sweep.base).expanduser()
        if not path.is_file():
            raise ConfigError(f"{document.where(('base',))}: base: no file {path}")
        return read_document(path)
    raise ConfigError(
        f"{document.where(('base',))}: base: found {sweep.base!r:.60}; expected a configuration, or "
        "the path of one"
    )


def _refuse_swept(setting: Setting, axes: Sequence[Axis]) -> None:
    name = ".".join(setting.keys)
    for axis in axes:
        for key, line in zip(axis.keys, axis.wheres, strict=True):
            if key == name or key.startswith(f"{name}.") or name.startswith(f"{key}."):
                raise ConfigError(
                    f"--set {name}: the sweep varies {key} ({line}); set its values with "
                    f"--set 'grid.{key}=[...]'"
                )


# ------------------------------------------------------------------------------------- runs


def _runs(
    folder: Path, base: Document, settings: Sequence[Setting], axes: Sequence[Axis], sweep: _SweepFile
) -> Iterator[PlannedRun]:
    """Every run: the last axis varies fastest, then engines, then repeats."""
    for steps in product(*(axis.points for axis in axes)):
        values = [
            Setting(tuple(key.split(".")), value, line, folder)
            for axis, point in zip(axes, steps, strict=True)
            for key, value, line in zip(axis.keys, point, axis.wheres, strict=True)
        ]
        config = resolve(base, [*settings, *values])
        swept = {key: value for setting in values for key, value in _leaves(setting.keys, setting.value)}
        for engine in sweep.engine:
            for repeat in range(sweep.repeats):
                moved = _moved(config, repeat, values)
                name = _name_of(moved, engine, repeat, sweep.bound)
                yield PlannedRun(name, moved, engine, repeat, sweep.bound, swept)


def _leaves(keys: Sequence[str], value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted columns of a value: one, or one for each key of a block; a block's shorthand is spelled out."""
    if len(keys) == 1 and isinstance(value, str):
        value = {"preset" if keys[0] == "model" else "path": value}
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves((*keys, key), below)
    else:
        yield ".".join(keys), value


def _moved(config: RunConfig, repeat: int, values: Sequence[Setting]) -> RunConfig:
    """The configuration of a repeat: seeds that the sweep does not vary itself move by its number."""
    if repeat == 0:
        return config
    swept = {setting.keys for setting in values}
    moved = {}
    for name in _SEEDED:
        if (name, "seed") not in swept:
            block = getattr(config, name)
            moved[name] = block.model_copy(update={"seed": (block.seed + repeat) % 2**63})
    return config.model_copy(update=moved)


@lru_cache(maxsize=4096)
def _content_of(path: str, modified_ns: int, size: int) -> str:
    return sha256_of(Path(path)) + Path(path).suffix


def _content(path: str) -> str:
    """What a named file holds; its name does not count, but readers go by its ending."""
    try:
        facts = os.stat(path)
        return _content_of(path, facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None


def _name_of(config: RunConfig, engine: str, repeat: int, bound: str) -> str:
    """Hash of all that decides a result: 16 hexadecimal digits."""
    value = config.model_dump(mode="json")
    for block, key in PATH_KEYS:
        if value[block][key] is not None:
            value[block][key] = _content(value[block][key])
    text = json.dumps([code_version(), value, engine, repeat, bound], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse_twins(path: Path, runs: Sequence[PlannedRun]) -> None:
    """Two runs of one configuration would be one result under two names."""
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        other = seen.setdefault(run.run, run)
        if other is not run:
            raise ConfigError(
                f"{path}: {_short(other.swept)} and {_short(run.swept)} are the same configuration; take "
                "one away"
            )


def _short(swept: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in swept.items())


def _filled(run: PlannedRun, columns: Sequence[str]) -> PlannedRun:
    """Every column in every run: blocks that are swept need not have the same keys."""
    return replace(run, swept={key: run.swept.get(key) for key in columns})


def _resolved(
    sweep: _SweepFile, axes: Sequence[Axis], base: Document, settings: Sequence[Setting]
) -> dict[str, Any]:
    """The sweep with ranges spelled out, without a place: what ``sweep.json`` holds of the file."""

    def columns(chosen: Sequence[Axis]) -> dict[str, list[Any]]:
        return {key: [p[i] for p in axis.points] for axis in chosen for i, key in enumerate(axis.keys)}

    grid = [axis for axis in axes if axis.keys[0] in sweep.grid]
    return {
        "base": base.value if isinstance(sweep.base, dict) else {"file": base.path.name, **base.value},
        "set": {".".join(setting.keys): setting.value for setting in settings},
        "grid": columns(grid),
        "zip": columns([axis for axis in axes if axis not in grid]),
        "engine": list(sweep.engine),
        "repeats": sweep.repeats,
        "bound": sweep.bound,
    }
