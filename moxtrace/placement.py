"""Which NPU hosts which expert.

Goes in: how many experts and NPUs, and a rule or a file.  Comes out: ``host``, the NPU of every expert.

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

__all__ = ["place"]

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
        with the header ``expert,npu``; any number of experts per NPU.
    num_experts, num_npus : int
        At least 1.
    seed : int
        Used by ``random`` only.
    path : path, optional
        Used by ``file`` only.

    Returns
    -------
    array of int32, shape (experts,)
        NPU of each expert.

    Raises
    ------
    ConfigError
        For an unknown kind, sizes of 0, or a file that leaves out an expert, names one twice, or names an
        NPU or an expert that does not exist.
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
    host = np.full(num_experts, -1, np.int32)
    for where, expert, npu in pairs:
        if not 0 <= expert < num_experts:
            raise ConfigError(f"{path}: {where}: expert {expert}; expected 0 to {num_experts - 1}")
        if not 0 <= npu < num_npus:
            raise ConfigError(
                f"{path}: {where}: expert {expert} on NPU {npu}; expected NPU 0 to {num_npus - 1}"
            )
        if host[expert] >= 0:
            raise ConfigError(
                f"{path}: {where}: expert {expert} is placed twice; expected one NPU per expert"
            )
        host[expert] = npu
    if host.min() < 0:
        missing = np.flatnonzero(host < 0)
        raise ConfigError(
            f"{path}: expert {missing[0]} has no NPU ({len(missing)} of {num_experts} are missing); "
            "expected every expert of the model"
        )
    return host


def _json_pairs(path: str, text: str) -> list[tuple[str, int, int]]:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}; is the file cut?") from None
    if not isinstance(document, list) or any(type(npu) is not int for npu in document):
        raise ConfigError(f"{path}: expected a JSON list of integers, the NPU of each expert")
    return [(f"entry {expert}", expert, npu) for expert, npu in enumerate(document)]


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
