"""A shelf in files: what one run computed, others take, in this sweep or when it is started again.

Everything is named by a hash of all that it depends on, written aside and renamed.  Files can be deleted at
any time; one that is damaged is computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import MoxtraceError, OutputError
from moxtrace.outputs import written_aside
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.weights import Weights
from moxtrace.shelf import Kind, Shelf
from moxtrace.sweep.code import code_version
from moxtrace.sweep.locks import held
from moxtrace.topology import Topology

__all__ = ["Cache", "digest"]

log = logging.getLogger(__name__)
T = TypeVar("T")


def digest(*parts: Any) -> str:
    """SHA-256 of numbers, text, arrays, and tuples, lists and dicts of them; each kind is told apart."""
    sha = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, np.ndarray):
            sha.update(f"array {part.dtype.str} {part.shape} ".encode())
            sha.update(np.ascontiguousarray(part).tobytes())
        elif isinstance(part, tuple | list):
            sha.update(f"list {len(part)} ".encode())
            for one in part:
                add(one)
        elif isinstance(part, dict):
            sha.update(b"dict ")
            add(sorted(part.items()))
        elif part is None or isinstance(part, bool | int | float | str):
            text = repr(part).encode()
            sha.update(f"{type(part).__name__} {len(text)} ".encode() + text)
        else:
            raise TypeError(f"no digest of {type(part).__name__}")

    add(parts)
    return sha.hexdigest()


# ------------------------------------------------------------------------------------- how each kind is kept


class _Codec(NamedTuple):
    """How a kind is written to a file and read back; ``load`` raises when the file is damaged.

    All are zip archives of arrays, whose checksums find damage.
    """

    save: Callable[[Any, Path], None]
    load: Callable[[Path], Any]


_DAMAGED = (
    OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, MoxtraceError,
)  # fmt: skip
_LINKS = ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes")


def _save_arrays(path: Path, about: Any, **arrays: NDArray[Any]) -> None:
    text = json.dumps(about, sort_keys=True, allow_nan=False)
    with path.open("wb") as file:
        np.savez(file, **{"about": np.frombuffer(text.encode(), np.uint8), **arrays})  # type: ignore[arg-type]


def _load_arrays(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        return json.loads(file["about"].tobytes()), {
            name: file[name] for name in file.files if name != "about"
        }


def _save_topology(one: Topology, path: Path) -> None:
    about = [one.kind, one.num_npus, list(one.names), one.parameters, one.num_nodes]
    _save_arrays(path, about, **{name: getattr(one, name) for name in _LINKS})


def _load_topology(path: Path) -> Topology:
    (kind, num_npus, names, parameters, num_nodes), links = _load_arrays(path)
    src, dst, rate, latency, lanes = (links[name] for name in _LINKS)
    return Topology(kind, num_npus, src, dst, rate, latency, lanes, tuple(names), parameters, num_nodes)


def _save_weights(one: Weights | MoxTables, path: Path) -> None:
    if isinstance(one, MoxTables):
        one.save(path)
        return
    about = {f.name: getattr(one, f.name) for f in fields(one) if f.name != "weight"}
    _save_arrays(path, ["weights", about], weight=one.weight)


def _load_weights(path: Path) -> Weights | MoxTables:
    about, arrays = _load_arrays(path)
    if not isinstance(about, list):
        return MoxTables.load(path)
    return Weights(arrays["weight"], **about[1] | {"history": tuple(about[1]["history"])})


def _save_routes(forest: Any, path: Path) -> None:
    _save_arrays(path, None, **dict(zip(_FOREST, forest, strict=True)))


def _load_routes(path: Path) -> Any:
    _, arrays = _load_arrays(path)
    return tuple(arrays[name] for name in _FOREST)


def _load_value(path: Path) -> Any:
    return _load_arrays(path)[0]


_FOREST = ("link", "parent", "tree_ptr", "delivers")
_CODECS: dict[str, _Codec] = {
    "topology": _Codec(_save_topology, _load_topology),
    "weights": _Codec(_save_weights, _load_weights),
    "routes": _Codec(_save_routes, _load_routes),
    "switch": _Codec(lambda value, path: _save_arrays(path, value), _load_value),
    "bound": _Codec(lambda value, path: _save_arrays(path, value), _load_value),
}
_ABSENT = object()


class Cache(Shelf):
    """A shelf in a folder.

    Parameters
    ----------
    folder : path
        Made when it is needed.
    keep_routes : bool
        Whether routes are kept too: they are large, and of use only where runs share them.
    """

    def __init__(self, folder: Path, *, keep_routes: bool = False) -> None:
        self._folder, self._keep_routes = folder, keep_routes

    def take(self, kind: Kind, parts: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What is kept under these parts; else what ``make`` returns, which is kept then.

        Of several processes that need the same thing at once, one makes it and the others wait.

        Parameters
        ----------
        kind : str
        parts : tuple
        make : callable
        """
        if kind == "routes" and not self._keep_routes:
            return make()
        path = self._folder / kind / f"{digest(code_version(), kind, parts)}.npz"
        found = self._read(kind, path)
        if found is not _ABSENT:
            return cast(T, found)
        with _alone(path.with_suffix(".lock")):
            found = self._read(kind, path)  # somebody may have made it while this one waited
            if found is not _ABSENT:
                return cast(T, found)
            made = make()
            self._write(kind, path, made)
        return made

    def _read(self, kind: Kind, path: Path) -> Any:
        try:
            return _CODECS[kind].load(path)
        except FileNotFoundError:
            return _ABSENT
        except _DAMAGED as error:
            log.info("%s: damaged (%s); computed again", path, " ".join(str(error).split())[:100])
            return _ABSENT

    def _write(self, kind: Kind, path: Path, made: Any) -> None:
        """Keep it if that works: a cache that cannot be written costs time, not results."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside:
                _CODECS[kind].save(made, aside)
        except (OSError, OutputError) as error:
            log.info("%s: not kept: %s", path, error)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, and take its file away afterwards; without one if there can be none."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(path, wait=True))
            stack.callback(path.unlink, missing_ok=True)
        except (OSError, OutputError) as error:
            log.info("%s: no lock: %s", path, error)
        yield
