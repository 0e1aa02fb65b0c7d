"""Results on disk: one file for each case and policy, whole or absent.

Goes in: facts, or the reason why there are none.  Comes out: the same.  A result that another state of the
policy's code made does not count, so that a change of a policy costs that policy's points and no others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import moxtrace
from moxtrace.outputs import written_aside
from paper.grid import Case

__all__ = ["Store", "digest"]

ROOT = Path(moxtrace.__file__).resolve().parent
UNRELATED = {"cli", "plots", "verify", "chakra", "lowering"}  # change no number


def digest(content: str | bytes) -> str:
    """Short SHA-256."""
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()[:16]


def _source(paths: Iterable[Path]) -> str:
    return digest(b"".join(path.read_bytes() for path in sorted(paths)))


@cache
def _code(policy: str) -> str:
    """Hash of a policy's own code."""
    if policy == "bound":
        return _source((ROOT / "bound").rglob("*.py"))
    below = (ROOT / "routing").rglob("*.py") if policy == "mox" else (ROOT / "routing").glob("*.py")
    return _source(below)


@cache
def _rest() -> str:
    """Hash of all other code that decides a number."""
    apart = UNRELATED | {"routing", "bound"}
    return _source(p for p in ROOT.rglob("*.py") if p.relative_to(ROOT).parts[0] not in apart)


@dataclass(frozen=True)
class Store:
    """The output folder.

    Parameters
    ----------
    folder : Path
    """

    folder: Path

    @staticmethod
    def code(policy: str) -> str:
        """Hash of a policy's own code."""
        return _code(policy)

    def _path(self, case: Case, policy: str) -> Path:
        return self.folder / "points" / case.name / f"{policy}.json"

    def kept(self, case: Case, policy: str) -> dict[str, Any] | None:
        """What is kept of a point, failed ones too; None where it must be computed."""
        try:
            found = json.loads(self._path(case, policy).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("code") != _code(policy):
            return None
        lacks = policy != "bound" and case.simulated and "slowdown" not in found.get("facts", {})
        return None if lacks and "failed" not in found else found

    def facts(self, case: Case, policy: str) -> dict[str, Any] | None:
        """The numbers of a point; None where there are none."""
        found = self.kept(case, policy)
        return None if found is None else found.get("facts")

    def failure(self, case: Case, policy: str) -> str | None:
        """Why a point has no numbers; None where it has, or was not tried."""
        found = self.kept(case, policy)
        return None if found is None else found.get("failed")

    def is_older(self, case: Case, policy: str) -> bool:
        """Whether code other than the policy's own has changed since."""
        found = self.kept(case, policy)
        return found is not None and found.get("rest") != _rest()

    def keep(self, case: Case, policy: str, **what: Any) -> None:
        """Keep ``facts=...`` or ``failed=...``."""
        path = self._path(case, policy)
        path.parent.mkdir(parents=True, exist_ok=True)
        stamp = {"code": _code(policy), "rest": _rest(), "moxtrace": moxtrace.__version__}
        about = {"config": case.config, "settings": case.keys, "policy": policy}
        with written_aside(path) as aside:
            aside.write_text(json.dumps(about | what | stamp, indent=1) + "\n", encoding="utf-8")

    def forget(self, case: Case, policy: str) -> None:
        """Compute a point again."""
        self._path(case, policy).unlink(missing_ok=True)
