"""Run directories: written aside and renamed, described by a manifest, read back with it.

``manifest.json`` names every file with its size and SHA-256, so that a cut or swapped file is found before
anything is computed from it.  Nothing in a run directory depends on when or where it was made.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moxtrace.errors import OutputError, TraceError
from moxtrace.outputs import reason

__all__ = ["MANIFEST", "Run", "new_directory", "sha256_of", "write_json", "write_manifest"]

MANIFEST = "manifest.json"
FORMAT = 1

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Facts(BaseModel):
    """A JSON object of ours: no conversions, and further keys are left alone."""

    model_config = ConfigDict(strict=True)


class _File(_Facts):
    bytes: _Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nodes: _Count | None = None


class _Set(_Facts):
    nodes: _Count
    phases: list[Literal["dispatch", "combine"]]


class _Phase(_Facts):
    first_tag: _Count
    trees: _Count
    messages: _Count
    message_bytes: Annotated[_Count, Field(ge=1)]


class _Phases(_Facts):
    dispatch: _Phase
    combine: _Phase


class _Manifest(_Facts):
    moxtrace: str
    npus: Annotated[int, Field(ge=2)]
    time_scale: Literal["ps", "ns"]
    form: Literal["collective", "flat"]
    barrier: Literal["phase", "tokens"]
    window: _Count
    rows: Literal["tokens", "copies"]
    astra_sim: str
    compute_ns: list[_Count]
    reduce_ns_per_byte: _Time
    traces: dict[str, _Set]
    phases: _Phases
    inputs: dict[str, str]
    files: dict[str, _File]


class _PerPhase(_Facts):
    dispatch: _Count
    combine: _Count


class _Summary(_Facts):
    npus: _Count
    topology: str
    policy: str
    tokens: _Count
    transfers: _PerPhase
    message_bytes: _PerPhase
    normalized_max_load: _Time
    max_compute_ns: _Count
    slowdown: _Time | None = None
    switch_completion_ns: Annotated[_Time, Field(gt=0)] | None = None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinity are refused."""
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


@contextmanager
def new_directory(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Fill a directory aside and rename it to ``target`` when the body succeeds.

    Whatever happens in the body, ``target`` is either untouched or complete.

    Parameters
    ----------
    target : path
    force : bool
        Replace an earlier run directory; anything else is never removed.

    Yields
    ------
    path
        The folder to write into.

    Raises
    ------
    OutputError
        When ``target`` exists, is not a run directory, or cannot be written.
    """
    target = Path(os.path.realpath(target))
    try:
        _check_target(target, force)
        _remove_leftovers(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        partial.mkdir()
        try:
            yield partial
            _replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{target}: cannot write the run directory: {reason(error)}") from None


def _check_target(target: Path, force: bool) -> None:
    around = next((p for p in target.parents if (p / MANIFEST).is_file()), None)
    if around is not None:
        raise OutputError(f"{target}: lies in the run directory {around}; choose another place for the run")
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target}: is a file; expected a directory that does not exist yet")
    if not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise OutputError(f"{target}: exists and is no run directory; choose another place for the run")
    if not force:
        raise OutputError(f"{target}: exists; choose another place for the run, or replace it with --force")
    foreign = _foreign_files(target)
    if foreign:
        raise OutputError(
            f"{target}: holds {foreign[0]}, which the run did not write; move it away before --force"
        )


def _foreign_files(target: Path) -> list[str]:
    """Files in a run directory that are not in its manifest; ASTRA-sim's own logs do not count."""
    try:
        listed = _json_object(target / MANIFEST).get("files")  # by whatever version
    except TraceError:
        listed = None  # a broken manifest vouches for nothing else
    known = {MANIFEST, *(listed if isinstance(listed, dict) else ())}
    names = (p.relative_to(target).as_posix() for p in sorted(target.rglob("*")) if not p.is_dir())
    return [name for name in names if name not in known and not name.startswith("log/")]


def _remove_leftovers(target: Path) -> None:
    """Remove what a run that was killed left beside ``target``."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _replace(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_manifest(folder: Path, facts: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the manifest of all files that lie in ``folder``.

    Parameters
    ----------
    folder : path
    facts : mapping
        What else to say: version, inputs, phases, ...
    known : mapping of str to mapping
        Size, SHA-256 and further facts of files that were hashed while they were written.
    """
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        files[name] = dict(known.get(name) or {"bytes": path.stat().st_size, "sha256": sha256_of(path)})
    write_json(folder / MANIFEST, {"format": FORMAT, **facts, "files": files})


@dataclass(frozen=True)
class Run:
    """A run directory that has been opened.

    Parameters
    ----------
    path : Path
    manifest : dict
    """

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a run directory.

        Raises
        ------
        TraceError
            When there is no manifest, or it is not one of ours.
        """
        path = Path(path)
        if path.is_file():
            raise TraceError(f"{path}: is a file; expected a run directory")
        if not (path / MANIFEST).exists():
            what = f"no {MANIFEST} in it" if path.exists() else "no such directory"
            raise TraceError(f"{path}: {what}; expected a run directory of 'moxtrace generate'")
        manifest = _json_object(path / MANIFEST)
        if manifest.get("format") != FORMAT:
            raise TraceError(
                f"{path / MANIFEST}: format is not {FORMAT}; it was not written by this moxtrace"
            )
        _check(path / MANIFEST, _Manifest, manifest)
        if len(manifest["compute_ns"]) != manifest["npus"]:
            raise TraceError(
                f"{path / MANIFEST}: compute_ns of {len(manifest['compute_ns'])} NPUs, but npus is "
                f"{manifest['npus']}; generate the run again"
            )
        for name in manifest["files"]:
            inside = PurePosixPath(name)
            if inside.is_absolute() or ".." in inside.parts or not inside.parts or "\0" in name:
                raise TraceError(f"{path / MANIFEST}: file {name!r} lies outside the run directory")
        return cls(path, manifest)

    def json(self, name: str) -> dict[str, Any]:
        """One of the run's JSON files, an object.

        Raises
        ------
        TraceError
            When it is missing, cut or something else.
        """
        value = _json_object(self.path / name)
        if name == "summary.json":
            _check(self.path / name, _Summary, value)
        return value

    def collectives(self) -> dict[int, str]:
        """Workload node to the traces that implement it, a prefix in the run directory; none of flat traces.

        Raises
        ------
        TraceError
            When ``collectives.yml`` is missing or does not say so.
        """
        if self.manifest["form"] == "flat":
            return {}
        import yaml

        path = self.path / "collectives.yml"
        try:
            value = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TraceError(f"{path}: cannot read: {error.strerror}") from None
        except (ValueError, RecursionError, yaml.YAMLError):
            raise TraceError(f"{path}: is cut or no YAML; generate the run again") from None
        if (
            not value
            or not isinstance(value, dict)
            or not all(
                type(node) is int and isinstance(prefix, str) and "\0" not in prefix
                for node, prefix in value.items()
            )
        ):
            raise TraceError(f"{path}: expected lines 'NODE: traces/NAME'; generate the run again")
        return value

    def problems(self, *, hashes: bool = True) -> list[str]:
        """Files that are missing, of another size or (with ``hashes``) of another content, and strays."""
        found = []
        files = self.manifest["files"]
        for name, facts in files.items():
            path = self.path / name
            if not path.is_file():
                found.append(f"{name}: missing file")
            elif path.stat().st_size != facts["bytes"]:
                found.append(
                    f"{name}: {path.stat().st_size} bytes; the manifest says {facts['bytes']}: cut file"
                )
            elif hashes and sha256_of(path) != facts["sha256"]:
                found.append(f"{name}: content differs from the manifest (SHA-256): changed or swapped file")
        for path in sorted(self.path.rglob("*.et")):
            name = path.relative_to(self.path).as_posix()
            if name not in files:
                found.append(f"{name}: not in the manifest: a stray trace file")
        return found


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path}: is cut or no JSON; generate the run again") from None
    if not isinstance(value, dict):
        raise TraceError(f"{path}: is no JSON object; generate the run again")
    return value


def _check(path: Path, model: type[BaseModel], value: dict[str, Any]) -> None:
    """Raise TraceError about the first key that is missing or of another kind."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        found = "" if first["type"] == "missing" else f"; found {_short(first['input'])}"
        raise TraceError(f"{path}: {where}: {first['msg']}{found}: generate the run again") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
