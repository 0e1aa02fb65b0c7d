"""Axes of a sweep: the keys that it varies, and the values that they take.

Goes in: the blocks ``grid`` and ``zip`` of a sweep file.  Comes out: :class:`Axis`, each a list of
values that keys take together.  A wrong key or an empty list is found here, with its line.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moxtrace.config import RunConfig
from moxtrace.documents import explain
from moxtrace.errors import ConfigError

__all__ = ["Axis", "axes_of"]

MOST_VALUES = 1_000_000
Where = Callable[[tuple[str, ...]], str]


class _Range(BaseModel):
    """From ``start`` to ``stop``, which is included where it is met, by ``step`` or by ``factor``."""

    model_config = ConfigDict(extra="forbid", strict=True)
    start: int | float
    stop: int | float
    step: int | float | None = None
    factor: int | float | None = None


@dataclass(frozen=True)
class Axis:
    """Keys that move together.

    Parameters
    ----------
    keys : tuple of str
        Dotted, as in ``topology.degree``.
    points : tuple of tuple
        For each step along the axis, the value of each key.
    wheres : tuple of str
        File and line of each key.
    """

    keys: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]
    wheres: tuple[str, ...]


def axes_of(grid: Mapping[str, Any], together: Mapping[str, Any], where: Where) -> list[Axis]:
    """The axes of a sweep: one for each key of ``grid`` in the order of the file, then one for ``zip``.

    Parameters
    ----------
    grid : mapping
        Dotted configuration key to a list or a range; all combinations are taken.
    together : mapping
        Likewise, but the keys move together.
    where : callable
        File and line of a path of keys in the sweep file.

    Raises
    ------
    ConfigError
        For a key that no configuration has, that stands in both or inside another, an empty list, a range
        that never ends, a value given twice, or lists of ``zip`` that differ in length.
    """
    axes = [
        Axis(
            (key,),
            tuple((v,) for v in _values(key, given, where(("grid", key)), "grid")),
            (where(("grid", key)),),
        )
        for key, given in grid.items()
    ]
    if together:
        axes.append(_zipped(together, where))
    _refuse_overlap(axes)
    return axes


def _zipped(together: Mapping[str, Any], where: Where) -> Axis:
    lines = {key: where(("zip", key)) for key in together}
    columns = {key: _values(key, given, lines[key], "zip") for key, given in together.items()}
    first, *others = columns
    for key in others:
        if len(columns[key]) != len(columns[first]):
            raise ConfigError(
                f"{lines[key]}: zip.{key}: {len(columns[key])} values, but {first} has {len(columns[first])};"
                " keys of zip move together and need equally many"
            )
    points = tuple(zip(*columns.values(), strict=True))
    for i, point in enumerate(points):
        if point in points[:i]:
            raise ConfigError(
                f"{lines[first]}: zip: step {i + 1} is the same as step {points.index(point) + 1}"
            )
    return Axis(tuple(columns), points, tuple(lines.values()))


def _values(key: str, given: Any, line: str, block: str) -> list[Any]:
    """The values of a key, once it is known that the key exists."""
    name = f"{line}: {block}.{key}"
    _check_key(key, name)
    if isinstance(given, dict):
        values = list(_stretch(given, name))
    elif isinstance(given, list):
        values = given
    else:
        raise ConfigError(
            f"{name}: found {given!r:.60}; expected a list of values, or a range {{start, stop, step}}"
        )
    if not values:
        raise ConfigError(f"{name}: the list is empty; give at least one value, or leave the key out")
    if block == "grid":
        for i, value in enumerate(values):
            if any(value == other and type(value) is type(other) for other in values[:i]):
                raise ConfigError(f"{name}: {value!r:.60} stands twice; a value counts once")
    return values


def _stretch(given: Mapping[str, Any], name: str) -> Iterator[int | float]:
    """Values of a range; decimal arithmetic, so that steps of 0.1 give 0.3 and not 0.30000000000000004."""
    try:
        span = _Range.model_validate(dict(given))
    except ValidationError as failure:
        error = failure.errors(include_url=False)[0]
        where, kind = error["loc"][0], error["type"]
        known = kind in ("missing", "extra_forbidden")
        what = explain(error, _Range) if known else f"found {error['input']!r:.40}; expected a number"
        raise ConfigError(
            f"{name}.{where}: {what}; a range is {{start, stop, step}} or {{start, stop, factor}}"
        ) from None
    numbers = [span.start, span.stop, *(v for v in (span.step, span.factor) if v is not None)]
    if not all(math.isfinite(v) for v in numbers):
        raise ConfigError(f"{name}: a range of {span.start} to {span.stop}; expected finite numbers")
    if (span.step is None) == (span.factor is None):
        raise ConfigError(f"{name}: a range needs either step or factor")
    whole = all(isinstance(v, int) for v in numbers)
    at, stop = Decimal(str(span.start)), Decimal(str(span.stop))
    by = Decimal(str(span.step if span.factor is None else span.factor))
    grows = by > 0 if span.factor is None else (by > 1) == (at > 0)
    still = by == 0 if span.factor is None else by <= 0 or by == 1 or at == 0
    if still or grows != (stop >= at):
        step = f"step {span.step}" if span.factor is None else f"factor {span.factor}"
        raise ConfigError(f"{name}: a range from {span.start} to {span.stop} by {step} never arrives")
    count = 0
    while at <= stop if grows else at >= stop:
        count += 1
        if count > MOST_VALUES:
            raise ConfigError(f"{name}: a range of more than {MOST_VALUES:,} values; take larger steps")
        yield int(at) if whole else float(at)
        at = at + by if span.factor is None else at * by


def _known_keys(block: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration, blocks included."""
    for key, field in block.model_fields.items():
        yield prefix + key
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _known_keys(inner, f"{prefix}{key}.")


def _check_key(key: str, name: str) -> None:
    known = list(_known_keys())
    if key in known:
        return
    near = difflib.get_close_matches(key, known, 1, cutoff=0.5)
    block = key.partition(".")[0]
    below = [k for k in known if k.startswith(f"{block}.")]
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(below or known)}"
    raise ConfigError(f"{name}: unknown key; {hint}")


def _refuse_overlap(axes: list[Axis]) -> None:
    """A key that two axes set, or that lies in a block which another one sets, has no one value."""
    seen: dict[str, str] = {}
    for axis in axes:
        for key, line in zip(axis.keys, axis.wheres, strict=True):
            for other, its_line in seen.items():
                if key == other:
                    raise ConfigError(
                        f"{line}: zip.{key}: stands in grid too ({its_line}); a key is varied in one of them"
                    )
                if key.startswith(f"{other}.") or other.startswith(f"{key}."):
                    raise ConfigError(
                        f"{line}: {key}: overlaps {other} ({its_line}); vary the block or its keys, not both"
                    )
            seen[key] = line
