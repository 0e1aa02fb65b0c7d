"""Token routes in text: JSON lines, a JSON list of steps, and a CSV of activated experts.

``jsonl``
    ``{"layer", "token_idx", "topk_ids", "req_id"}`` per line, ``type`` "route" where there is a type; a line
    of ``type`` "meta" may give ``num_experts``.  A last line that is cut is left out with a warning: such
    logs end when the server does.
``json``
    A list of steps, the first prefill, each ``{"LAYER": null or [[expert, ...] per token]}``.
``csv``
    ``Layer ID,Batch Number,Token,Activated Expert IDs``, the last a list in quotes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from moxtrace.errors import RecordingError
from moxtrace.recordings.container import CUT_LINE
from moxtrace.recordings.draft import Draft, Reader

__all__ = ["READERS"]

_CSV_HEADER = ["layer id", "batch number", "token", "activated expert ids"]


def _draft(path: str, routes: dict[int, list[Any]], **known: Any) -> Draft:
    """Routes per layer, each [tokens][top_k], as one array; layers must agree."""
    if not routes:
        raise RecordingError(f"{path}: no token routes in it; expected the experts of at least one token")
    layers = sorted(routes)
    first = layers[0]
    for layer in layers:
        if len(routes[layer]) != len(routes[first]):
            raise RecordingError(
                f"{path}: layer {layer} has {len(routes[layer])} tokens, layer {first} has "
                f"{len(routes[first])}; expected the same tokens in every layer (is the file cut?)"
            )
    width = max(len(ids) for rows in routes.values() for ids in rows)
    topk_ids = np.full((len(routes[first]), len(layers), width), -1, np.int64)
    for i, layer in enumerate(layers):
        for t, ids in enumerate(routes[layer]):
            topk_ids[t, i, : len(ids)] = ids
    return Draft(topk_ids=topk_ids, layer_ids=np.array(layers), **known)


def _experts(path: str, where: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(x) is int and -1 <= x < 2**31 for x in value):
        raise RecordingError(f"{path}: {where}: found {str(value)[:40]!r}; expected a list of expert ids")
    return value


def _layer(path: str, where: str, value: Any) -> int:
    if not str(value).strip().isdecimal():
        raise RecordingError(f"{path}: {where}: layer {str(value)[:40]!r}; expected an integer >= 0")
    return int(value)


def _is_log(lines: Any) -> bool:
    return any(isinstance(line, dict) and "topk_ids" in line for _, line in lines[:8])


def _read_log(path: str, lines: list[tuple[int, Any]]) -> Draft:
    routes: dict[int, list[Any]] = {}
    num_experts, warnings = None, []
    for number, line in lines:
        if line is CUT_LINE:
            warnings.append(f"line {number} is cut and was left out")
            continue
        if not isinstance(line, dict):
            raise RecordingError(f"{path}: line {number}: found {str(line)[:40]!r}; expected an object")
        if line.get("type", "route") == "meta":
            num_experts = line.get("num_experts")
        elif line.get("type", "route") == "route":
            layer = _layer(path, f"line {number}", line.get("layer"))
            routes.setdefault(layer, []).append(_experts(path, f"line {number}", line.get("topk_ids")))
    return _draft(
        path, routes, num_experts=num_experts if type(num_experts) is int else None, warnings=warnings
    )


def _is_steps(document: Any) -> bool:
    return isinstance(document, list) and bool(document) and isinstance(document[0], dict)


def _read_steps(path: str, document: Any) -> Draft:
    routes: dict[int, list[Any]] = {}
    for i, step in enumerate(document):
        if not isinstance(step, dict):
            raise RecordingError(f"{path}: step {i}: found {str(step)[:40]!r}; expected an object of layers")
        for key, rows in step.items():
            if rows is None:  # a dense layer
                continue
            layer = _layer(path, f"step {i}", key)
            if not isinstance(rows, list):
                raise RecordingError(f"{path}: step {i}, layer {layer}: expected a list of tokens or null")
            routes.setdefault(layer, []).extend(
                _experts(path, f"step {i}, layer {layer}", row) for row in rows
            )
    return _draft(path, routes)


def _is_activated(rows: Any) -> bool:
    return [cell.strip().lower() for cell in rows[0][1]] == _CSV_HEADER


def _read_activated(path: str, rows: list[tuple[int, list[str]]]) -> Draft:
    routes: dict[int, list[Any]] = {}
    for line, cells in rows[1:]:
        where = f"line {line}"
        if len(cells) != len(_CSV_HEADER):
            raise RecordingError(f"{path}: {where}: {len(cells)} cells; expected 4 (is the file cut?)")
        try:
            ids = json.loads(cells[3])
        except json.JSONDecodeError:
            ids = cells[3]
        routes.setdefault(_layer(path, where, cells[0]), []).append(_experts(path, where, ids))
    return _draft(path, routes)


READERS = (
    Reader("routes-jsonl", "jsonl", _is_log, _read_log),
    Reader("routes-json", "json", _is_steps, _read_steps),
    Reader("routes-csv", "csv", _is_activated, _read_activated),
)
