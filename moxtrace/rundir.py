"""Run directories: written aside and renamed, described by a manifest, read back with it.

``manifest.json`` names every file with its size and SHA-256, so that a cut or swapped file is found before
anything is computed from it.  Nothing in a run directory depends on when or where it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moxtrace.errors import OutputError, TraceError
from moxtrace.outputs import reason

__all__ = ["MANIFEST", "Run", "new_directory", "sha256_of", "write_json", "write_manifest"]

MANIFEST = "manifest.json"
FORMAT = 1


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
    target = Path(os.path.abspath(target))
    _check_target(target, force)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        yield partial
        _replace(partial, target)
    except OSError as error:
        raise OutputError(f"{target}: cannot write the run directory: {reason(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_target(target: Path, force: bool) -> None:
    if not (target.exists() or target.is_symlink()):
        return
    if not target.is_dir():
        raise OutputError(f"{target}: is a file; expected a directory that does not exist yet")
    if not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise OutputError(f"{target}: exists and is no run directory; choose another place for the run")
    if not force:
        raise OutputError(f"{target}: exists; choose another place for the run, or replace it with --force")


def _replace(partial: Path, target: Path) -> None:
    if target.exists():
        old = partial.with_suffix(".old")
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(target)


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
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            what = "no such directory" if not path.exists() else f"no {MANIFEST} in it"
            raise TraceError(f"{path}: {what}; expected a run directory of 'moxtrace generate'") from None
        except NotADirectoryError:
            raise TraceError(f"{path}: is a file; expected a run directory") from None
        except OSError as error:
            raise TraceError(f"{path / MANIFEST}: cannot read: {error.strerror}") from None
        except ValueError:
            raise TraceError(f"{path / MANIFEST}: is cut or no JSON; generate the run again") from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise TraceError(
                f"{path / MANIFEST}: format is not {FORMAT}; it was not written by this moxtrace"
            )
        return cls(path, manifest)

    def json(self, name: str) -> Any:
        """One of the run's JSON files."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise TraceError(f"{self.path / name}: cannot read: {error.strerror}") from None
        except ValueError:
            raise TraceError(f"{self.path / name}: is cut or no JSON; generate the run again") from None

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
