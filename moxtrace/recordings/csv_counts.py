"""Counts in CSV: ``layer,expert,count``, or SGLang's older ``layer_id,expert_id,count``.

One line per pair, in any order; a pair that is left out counts 0.  Layers between the first and the last
that have no line at all are not made up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moxtrace.errors import RecordingError
from moxtrace.recordings.draft import Draft, Reader

__all__ = ["READERS"]

_HEADERS = (["layer", "expert", "count"], ["layer_id", "expert_id", "count"])
_MOST_EXPERTS = 2**20


def _matches(rows: Any) -> bool:
    return sorted(cell.strip().lower() for cell in rows[0][1]) in [sorted(h) for h in _HEADERS]


def _read(path: str, rows: list[tuple[int, list[str]]]) -> Draft:
    header = [cell.strip().lower() for cell in rows[0][1]]
    order = [header.index(name) for names in _HEADERS if sorted(names) == sorted(header) for name in names]
    seen: dict[tuple[int, int], tuple[int, float]] = {}
    for line, cells in rows[1:]:
        if len(cells) != 3:
            raise RecordingError(
                f"{path}: line {line}: {len(cells)} cells; expected {','.join(header)} (is the file cut?)"
            )
        layer, expert = (_index(path, line, header[order[i]], cells[order[i]]) for i in (0, 1))
        if (layer, expert) in seen:
            before = seen[layer, expert][0]
            raise RecordingError(
                f"{path}: line {line}: layer {layer}, expert {expert} is on line {before} already"
            )
        seen[layer, expert] = line, _count(path, line, cells[order[2]])
    if not seen:
        raise RecordingError(f"{path}: no line after the header; expected {','.join(header)}")
    layers = sorted({layer for layer, _ in seen})
    row = {layer: i for i, layer in enumerate(layers)}
    counts = np.zeros((len(layers), 1 + max(expert for _, expert in seen)))
    for (layer, expert), (_, count) in seen.items():
        counts[row[layer], expert] = count
    if (counts == np.rint(counts)).all() and counts.max() < 2**53:
        counts = counts.astype(np.int64)
    return Draft(counts=counts, layer_ids=np.array(layers))


def _index(path: str, line: int, name: str, cell: str) -> int:
    try:
        value = int(cell)
    except ValueError:
        value = -1
    if not 0 <= value < _MOST_EXPERTS:
        raise RecordingError(f"{path}: line {line}: {name} {cell.strip()!r}; expected an integer >= 0")
    return value


def _count(path: str, line: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not 0 <= value < np.inf:
        raise RecordingError(f"{path}: line {line}: count {cell.strip()!r}; expected a finite number >= 0")
    return value


READERS = (Reader("counts-csv", "csv", _matches, _read),)
