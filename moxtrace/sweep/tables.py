"""The table of a sweep: ``results.csv`` and ``results.parquet``, one row per run.

Rows stand in the order of the plan, whoever finished first.  All columns but the last two (``wall_s``,
``peak_memory_bytes``) are the same each time.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moxtrace.outputs import written_aside
from moxtrace.sweep.rows import MEASURED, TIMINGS, row_columns

__all__ = ["CSV", "PARQUET", "write_tables"]

log = logging.getLogger(__name__)
CSV, PARQUET = "results.csv", "results.parquet"
_WHOLE = ("npus", "repeat", "busiest_link_bytes", "peak_memory_bytes")


def write_tables(
    folder: Path, swept: Sequence[str], runs: Sequence[str], rows: Mapping[str, Mapping[str, Any]]
) -> list[Path]:
    """Write both tables of the rows that are there; untouched if they say the same already.

    Parameters
    ----------
    folder : path
    swept : sequence of str
        Swept columns.
    runs : sequence of str
        Order of the rows.
    rows : mapping
        Rows by run.

    Returns
    -------
    list of path
        The tables that there are.  Without pyarrow there is no parquet, and a warning says so.

    Raises
    ------
    OutputError
        When the system refuses to write.
    """
    columns = row_columns(swept)
    table = [[rows[run].get(column) for column in columns] for run in runs if run in rows]
    text = _csv(columns, table)
    target, parquet = folder / CSV, folder / PARQUET
    able = importlib.util.find_spec("pyarrow") is not None
    same = target.is_file() and target.read_bytes() == text.encode()
    if not able:
        parquet.unlink(missing_ok=True)  # of earlier rows, perhaps
        log.warning(
            "%s: not written, pyarrow is not installed: pip install 'moxtrace[parquet]'; %s has all rows",
            PARQUET, CSV,
        )  # fmt: skip
    elif not same or not parquet.is_file():
        _write_parquet(parquet, columns, table)
    if not same:  # last: it says that the other is done too
        with written_aside(target) as aside:
            aside.write_text(text, encoding="utf-8", newline="")
    return [target, parquet] if able else [target]


def _csv(columns: Sequence[str], table: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in table)
    return buffer.getvalue()


def _cell(value: Any) -> str:
    """A value as text: nothing for None, JSON for lists, numbers in full."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return repr(value) if isinstance(value, float) else str(value)


def _write_parquet(path: Path, columns: Sequence[str], table: Sequence[Sequence[Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {}
    for i, column in enumerate(columns):
        values = [row[i] for row in table]
        if column in _WHOLE:
            kind = pyarrow.int64()
        elif column in MEASURED or column in TIMINGS:
            kind = pyarrow.float64()
        else:
            kind, values = _typed(values, pyarrow)
        arrays[column] = pyarrow.array(values, type=kind)
    with written_aside(path) as aside:
        pyarrow.parquet.write_table(pyarrow.table(arrays), aside, compression="zstd")


def _typed(values: list[Any], pyarrow: Any) -> tuple[Any, list[Any]]:
    """One type for a swept column; where its values have several, their text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pyarrow.bool_(), values
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in values if v is not None):
        return pyarrow.int64(), values
    if kinds and kinds <= {int, float}:
        return pyarrow.float64(), values
    return pyarrow.string(), [None if value is None else _cell(value) for value in values]
