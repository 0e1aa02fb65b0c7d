"""Which NPU hosts which expert.

Goes in: how many experts and NPUs, and a rule or a file.  Comes out: ``host``, the NPU of every expert, or
the NPUs of its replicas.

Rule for sizes: where ``E`` experts do not divide evenly by ``N`` NPUs, the first ``E mod N`` NPUs host one
more than the others.  With fewer experts than NPUs, NPUs ``E`` and up host none; they still send tokens.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError

__all__ = ["add_replicas", "place"]

# spawn key of placement, so that one seed serves the whole configuration
_PLACEMENT_STREAM = 2


def place(
    kind: str,
    num_experts: int,
    num_npus: int,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> NDArray[np.int32]:
    """Decide where experts live.

    Parameters
    ----------
    kind : {"random", "contiguous", "file"}
        ``random``: experts shuffled by ``seed`` and dealt out evenly.  ``contiguous``: NPU 0 hosts the first
        experts, and so on.  ``file``: as ``path`` says, a JSON list with the NPU of each expert, or a CSV
        with the header ``expert,npu``; any number of experts per NPU.  An expert with replicas has a list of
        NPUs in the JSON list, or several lines in the CSV.
    num_experts, num_npus : int
        At least 1.
    seed : int
        Used by ``random`` only.
    path : path, optional
        Used by ``file`` only.

    Returns
    -------
    array of int32, shape (experts,) or (experts, most replicas)
        NPU of each expert; where a file gives some expert several, a row for each, filled up with -1.

    Raises
    ------
    ConfigError
        For an unknown kind, sizes of 0, or a file that leaves out an expert, puts one on the same NPU twice,
        or names an NPU or an expert that does not exist.
    """
    if num_experts < 1 or num_npus < 1:
        raise ConfigError(f"placement: {num_experts} experts on {num_npus} NPUs; expected at least 1 of both")
    if kind == "file":
        if path is None:
            raise ConfigError("placement: kind file without a path; add path: FILE")
        return _from_file(os.fspath(path), num_experts, num_npus)
    each, more = divmod(num_experts, num_npus)
    sizes = np.full(num_npus, each)
    sizes[:more] += 1
    host = np.repeat(np.arange(num_npus, dtype=np.int32), sizes)
    if kind == "contiguous":
        return host
    if kind == "random":
        stream = np.random.SeedSequence(seed, spawn_key=(_PLACEMENT_STREAM,))
        return np.random.Generator(np.random.Philox(stream)).permutation(host)
    raise ConfigError(f"placement: kind {kind!r}; expected random, contiguous or file")


def _from_file(path: str, num_experts: int, num_npus: int) -> NDArray[np.int32]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: placement cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: placement is not text; expected a JSON list or CSV expert,npu") from None
    pairs = _json_pairs(path, text) if text.lstrip()[:1] in ("[", "{") else _csv_pairs(path, text)
    homes: list[list[int]] = [[] for _ in range(num_experts)]
    for where, expert, npu in pairs:
        if not 0 <= expert < num_experts:
            raise ConfigError(f"{path}: {where}: expert {expert}; expected 0 to {num_experts - 1}")
        if not 0 <= npu < num_npus:
            raise ConfigError(
                f"{path}: {where}: expert {expert} on NPU {npu}; expected NPU 0 to {num_npus - 1}"
            )
        if npu in homes[expert]:
            raise ConfigError(
                f"{path}: {where}: expert {expert} is on NPU {npu} twice; expected replicas on different NPUs"
            )
        homes[expert].append(npu)
    missing = [expert for expert, home in enumerate(homes) if not home]
    if missing:
        raise ConfigError(
            f"{path}: expert {missing[0]} has no NPU ({len(missing)} of {num_experts} are missing); "
            "expected every expert of the model"
        )
    return _rows(homes)


def _rows(homes: list[list[int]]) -> NDArray[np.int32]:
    """One NPU per expert where no expert has more, else a row for each expert."""
    most = max(map(len, homes))
    rows = np.array([home + [-1] * (most - len(home)) for home in homes], np.int32)
    return rows[:, 0].copy() if most == 1 else rows


def add_replicas(
    host: NDArray[np.int32], redundant: int, weight: NDArray[np.floating], num_npus: int
) -> NDArray[np.int32]:
    """Give replicas to the experts in greatest demand.

    One after the other, each goes to the expert with the most demand for each replica that it has, on the
    NPU that hosts the fewest experts, of those the one with the least demand, that does not host it yet.
    Ties: the lowest expert, the lowest NPU.

    Parameters
    ----------
    host : array of int32, shape (experts,) or (experts, most replicas)
        As :func:`place` returns it.
    redundant : int
        Replicas to add.
    weight : array of float, shape (experts,)
        Demand for each expert, on any scale.
    num_npus : int

    Returns
    -------
    array of int32, shape (experts,) or (experts, most replicas)

    Raises
    ------
    ConfigError
        When so many replicas do not fit, each on an NPU of its own.

    References
    ----------
    Which expert gets the next replica is the rule of EPLB (deepseek-ai/EPLB, ``replicate_experts``).
    """
    homes = [[int(npu) for npu in np.atleast_1d(row) if npu >= 0] for row in host]
    free = len(homes) * num_npus - sum(map(len, homes))
    if redundant > free:
        raise ConfigError(
            f"placement.redundant: {redundant} more replicas of {len(homes)} experts on {num_npus} NPUs; at "
            f"most {free} have an NPU of their own"
        )
    for _ in range(redundant):
        count = np.array([len(home) for home in homes])
        expert = int(np.argmax(np.where(count < num_npus, weight / count, -1.0)))
        size, load = np.zeros(num_npus, np.int64), np.zeros(num_npus)
        for one, home in enumerate(homes):
            size[home] += 1
            load[home] += weight[one] / len(home)
        open_to = [npu for npu in range(num_npus) if npu not in homes[expert]]
        homes[expert].append(min(open_to, key=lambda npu: (size[npu], load[npu], npu)))
    return _rows(homes)


def _json_pairs(path: str, text: str) -> list[tuple[str, int, int]]:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}; is the file cut?") from None
    homes = (
        [home if isinstance(home, list) else [home] for home in document]
        if isinstance(document, list)
        else [[""]]
    )
    if any(type(npu) is not int for home in homes for npu in home):
        raise ConfigError(
            f"{path}: expected a JSON list of integers, the NPU of each expert, or lists of them"
        )
    return [(f"entry {expert}", expert, npu) for expert, home in enumerate(homes) for npu in home]


def _csv_pairs(path: str, text: str) -> list[tuple[str, int, int]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    pairs: list[tuple[str, int, int]] = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        where, values = f"line {reader.line_num}", [cell.strip() for cell in cells]
        if not pairs and [v.lower() for v in values] == ["expert", "npu"]:
            continue
        if len(values) != 2 or not all(v.removeprefix("-").isdecimal() for v in values):
            raise ConfigError(f"{path}: {where}: found {','.join(cells)[:40]!r}; expected expert,npu")
        pairs.append((where, int(values[0]), int(values[1])))
    return pairs
