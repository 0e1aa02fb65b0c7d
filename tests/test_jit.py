"""Cached kernels are never stale, whichever file changed: tried on a small package, a process each time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moxtrace.jit

RUN = "import moxtrace.caller as c; print(c.outer(1), sum(c.outer.stats.cache_hits.values()))"
FILES = {
    "__init__": "",
    "constants": "STEP = 10\n",
    "more/__init__": "",
    "more/others": "EXTRA = 0\n",
    "callee": "from moxtrace.constants import STEP\nfrom moxtrace.jit import kernel\n"
    "from moxtrace.more import (\n    others,\n)\n\nEXTRA = others.EXTRA\n\n\n"
    "@kernel\ndef inner(x):\n    return x + STEP + EXTRA\n",
    "caller": "from moxtrace.callee import inner\nfrom moxtrace.jit import kernel\n\n\n"
    "@kernel\ndef outer(x):\n    return inner(x)\n",
}


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "moxtrace"
    (folder / "more").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    shutil.copy(moxtrace.jit.__file__, folder / "jit.py")
    return folder


def outcome(package: Path) -> tuple[int, int]:
    """What the caller returns in a process of its own, and how often it came from the cache."""
    own = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(package.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env={**os.environ, **own}, cwd=package.parent, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    value, hits = done.stdout.split()
    return int(value), int(hits)


def test_a_change_in_another_file_is_compiled_in(package):
    assert outcome(package) == (11, 0)
    assert outcome(package) == (11, 1)
    (package / "callee.py").write_text(FILES["callee"].replace("x + STEP", "x + 1 + STEP"))
    assert outcome(package) == (12, 0)
    (package / "constants.py").write_text("STEP = 20\n")
    assert outcome(package) == (22, 0)
    assert outcome(package) == (22, 1)
    (package / "more" / "others.py").write_text("EXTRA = 100\n")
    assert outcome(package) == (122, 0)


def test_a_numba_that_stamps_its_cache_otherwise_caches_nothing(monkeypatch):
    from numba.core import caching

    assert type(moxtrace.jit.kernel(_one_more)._cache).__name__ == "FunctionCache"

    def renamed(self, cache_path, filename_base, source_stamp):
        self._cache_path, self.stamp = cache_path, source_stamp

    monkeypatch.setattr(caching.IndexDataCacheFile, "__init__", renamed)
    compiled = moxtrace.jit.kernel(_one_more)
    assert type(compiled._cache).__name__ == "NullCache"
    assert compiled(1) == 2


def _one_more(x):
    return x + 1
