"""What is installed here, what it means, and what to do: the checks behind ``moxtrace doctor``.

Every check looks at one thing and says how it stands: ``ok``; ``absent``, which only closes a door that
``means`` names; ``warning``, which will hurt some runs; ``broken``, without which moxtrace does not work.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from moxtrace import __version__
from moxtrace.errors import MoxtraceError
from moxtrace.machine import available_memory, cores, descriptor_limits
from moxtrace.units import format_bytes

__all__ = ["Check", "examine", "extra", "installed", "library", "summary", "versions"]

OLDEST = (3, 11)
TIMEOUT_S = 20.0
# libraries that a plain installation brings, by the name that they are imported by
NEEDED = {
    "numpy": "numpy", "numba": "numba", "scipy": "scipy", "networkx": "networkx", "pydantic": "pydantic",
    "PyYAML": "yaml", "click": "click", "rich": "rich", "matplotlib": "matplotlib",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """How one thing stands.

    Parameters
    ----------
    name : str
    status : {"ok", "absent", "warning", "broken"}
    found : str
        Its version, or what is there instead.
    means : str
        What it is for.
    do : str
        What to do about it; empty where nothing.
    """

    name: str
    status: str
    found: str
    means: str
    do: str = ""

    def to_json(self) -> dict[str, str]:
        """As an object of strings."""
        return asdict(self)


def installed(distribution: str) -> str | None:
    """Version of an installed distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions() -> list[str]:
    """What ``moxtrace --version`` adds: versions of Python, of libraries, and of what is optional."""
    wanted = [*NEEDED, "distributed", "pyarrow", "protobuf"]
    found = [f"{name} {version}" for name in wanted if (version := installed(name))]
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return [python, ", ".join(found)]


def _python() -> Check:
    ok = sys.version_info >= OLDEST
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    oldest = ".".join(map(str, OLDEST))
    do = "" if ok else f"use {oldest} or newer"
    return Check("Python", "ok" if ok else "broken", found, "runs moxtrace", do)


def _minimum(distribution: str) -> str | None:
    """The oldest version of a library that moxtrace declares."""
    for line in metadata.requires("moxtrace") or ():
        match = re.match(rf"{re.escape(distribution)}\s*>=\s*([\d.]+)", line, re.I)
        if match:
            return match[1]
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def library(distribution: str, module: str, means: str = "part of every installation") -> Check:
    """A library that moxtrace needs: there, new enough, and importable.

    Parameters
    ----------
    distribution, module : str
        Its name in an index, and the one it is imported by.
    means : str
    """
    reinstall = "reinstall: pip install --force-reinstall moxtrace"
    version, oldest = installed(distribution), _minimum(distribution)
    if version is None:
        return Check(distribution, "broken", "not installed", means, reinstall)
    if oldest and _numbers(version) < _numbers(oldest):
        do = f"pip install -U '{distribution}>={oldest}'"
        return Check(distribution, "broken", f"{version}; {oldest} or newer is needed", means, do)
    try:
        importlib.import_module(module)
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        return Check(distribution, "broken", f"{version}, cannot be imported: {why}", means, reinstall)
    return Check(distribution, "ok", version, means)


def extra(distribution: str, module: str, means: str, install: str) -> Check:
    """A library that opens a door.

    Parameters
    ----------
    distribution, module : str
    means, install : str
        What it is for, and how to get it.
    """
    if installed(distribution) is None:
        return Check(distribution, "absent", "not installed", means, install)
    check = library(distribution, module, means)
    return check if check.status == "ok" else Check(distribution, "warning", check.found, means, install)


def _kernels() -> Check:
    """Whether compiled kernels can be kept beside the package."""
    means = "compiled kernels are kept, so that only the first run waits for them"
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else Path(__file__).resolve().parent
    if not os.access(folder, os.W_OK):
        do = "set NUMBA_CACHE_DIR to a folder that you may write"
        return Check("kernel cache", "warning", f"{folder} cannot be written", means, do)
    return Check("kernel cache", "ok", str(folder), means)


def _templates() -> Check:
    from moxtrace import topology
    from moxtrace.chakra.astra_inputs import write_inputs

    means = "ASTRA-sim's input files are filled in from them"
    try:
        with tempfile.TemporaryDirectory(prefix="moxtrace-doctor-") as folder:
            pair = topology.build("fully-connected", 2)
            files = write_inputs(Path(folder), pair, {1: "dispatch"}, "ps", "a pair")
    except MoxtraceError as error:
        return Check("templates", "broken", str(error), means, "reinstall moxtrace")
    except OSError as error:
        do = "free the disk, or set TMPDIR to a folder that you may write"
        return Check("templates", "warning", f"no temporary file: {error.strerror}", means, do)
    return Check("templates", "ok", f"{len(files)} files", means)


def _astra_sim(named: str | None) -> Check:
    from moxtrace.engine.astra_sim import find_binary, probe

    means = "simulate --engine astra-sim; the built-in engine gives the same times without it"
    try:
        binary = find_binary(named)
    except MoxtraceError as error:
        asked = bool(named or os.environ.get("ASTRA_SIM"))
        do = "build it as its documentation says, and name it with --astra-sim, $ASTRA_SIM or on the PATH"
        found = str(error).removeprefix("ASTRA-sim: ").partition(";")[0]
        return Check("ASTRA-sim", "warning" if asked else "absent", found, means, do)
    answer = probe(binary)
    if answer.ok:
        return Check("ASTRA-sim", "ok", f"{binary}: {answer.words}", means)
    do = "build AstraSim_Analytical_Congestion_Aware on this machine, in Release mode"
    return Check("ASTRA-sim", "warning", f"{binary}: {answer.words}", means, do)


def _chakra() -> Check:
    from moxtrace.chakra.schema_check import schema

    means = "verify --chakra reads the traces back through the schema's own code; nothing else needs it"
    try:
        schema()
    except MoxtraceError as error:
        words = str(error).removeprefix("verify --chakra: ").partition(";")[0]
        do = "git clone https://github.com/mlcommons/chakra && pip install ./chakra"
        return Check("Chakra", "absent", words, means, do)
    return Check("Chakra", "ok", installed("chakra") or "its schema can be imported", means)


def _said(command: list[str]) -> str | None:
    """What a program prints; None where it does not run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _nvcc() -> Check:
    means = "compiles kernels/, the dispatch and combine that the traces model"
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [str(Path(home) / "bin") for home in homes if home] + ["/usr/local/cuda/bin"]
    found = shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(places))
    if found is None:
        do = "install the CUDA toolkit; see kernels/README.md"
        return Check("nvcc", "absent", "not on the PATH", means, do)
    release = re.search(r"release ([\d.]+)", _said([found, "--version"]) or "")
    if release is None:
        return Check("nvcc", "warning", f"{found} does not run", means, "reinstall the CUDA toolkit")
    return Check("nvcc", "ok", f"{release[1]} at {found}", means)


def _nvshmem() -> Check:
    means = "lets the kernels of kernels/ write into each other's memory"
    home = os.environ.get("NVSHMEM_HOME")
    if home:
        if (Path(home) / "include" / "nvshmem.h").is_file():
            return Check("NVSHMEM", "ok", home, means)
        found = f"NVSHMEM_HOME={home}: no include/nvshmem.h there"
        return Check("NVSHMEM", "warning", found, means, "correct or unset NVSHMEM_HOME")
    for version in ("13", "12"):
        there = installed(f"nvidia-nvshmem-cu{version}")
        if there:
            return Check("NVSHMEM", "ok", f"{there} for CUDA {version}", means)
    return Check("NVSHMEM", "absent", "no wheel, no NVSHMEM_HOME", means, "pip install nvidia-nvshmem-cu12")


def _gpu() -> Check:
    means = "runs the kernels of kernels/; nothing else needs one"
    if shutil.which("nvidia-smi") is None:
        return Check("GPU", "absent", "no nvidia-smi", means, "install NVIDIA's driver, where there is a GPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    lines = [line.strip() for line in (_said(query) or "").splitlines() if line.strip()]
    if not lines:
        return Check("GPU", "warning", "nvidia-smi finds none", means, "see what nvidia-smi says")
    kinds = {line: lines.count(line) for line in lines}
    return Check("GPU", "ok", "; ".join(f"{count} x {line}" for line, count in kinds.items()), means)


def _descriptors() -> Check:
    soft, hard = descriptor_limits()
    means = "ASTRA-sim has a file open for each rank and file set"
    if hard is None:
        return Check("open files", "ok", "no limit", means)
    most = (hard - 64) // 3
    now = "no limit" if soft is None else str(soft)
    found = f"{now}, can be raised to {hard}: {most:,} NPUs with three file sets"
    do = "" if most >= 1024 else "raise 'nofile' in /etc/security/limits.conf for 1,024 NPUs"
    return Check("open files", "ok" if most >= 1024 else "warning", found, means, do)


def _memory() -> Check:
    there = available_memory()
    means = "the built-in engine needs about 70 bytes per trace node, ASTRA-sim about 1 kB"
    if there is None:
        return Check("memory", "ok", "the system does not say", means)
    found = f"{format_bytes(there)} free: ASTRA-sim runs of about {there // 1200 / 1e6:.2g} million nodes"
    few = there < 2**30
    do = "free some, or use small runs" if few else ""
    return Check("memory", "warning" if few else "ok", found, means, do)


def _cores() -> Check:
    return Check("cores", "ok", str(cores()), "sweeps run so many configurations at once")


def _checks(astra_sim: str | None) -> list[Callable[[], Check]]:
    """All checks: ours first, then what is optional, then the machine."""
    extras = [
        ("protobuf", "google.protobuf", "only for Chakra's own code", "pip install protobuf"),
        ("distributed", "distributed", "sweep --dask: many machines", "pip install 'moxtrace[dask]'"),
        ("pyarrow", "pyarrow", "a sweep's table as Parquet", "pip install 'moxtrace[parquet]'"),
    ]
    return [
        _python, *(partial(library, *names) for names in NEEDED.items()), _kernels, _templates,
        partial(_astra_sim, astra_sim), _chakra, *(partial(extra, *one) for one in extras),
        _nvcc, _nvshmem, _gpu, _descriptors, _memory, _cores,
    ]  # fmt: skip


def examine(astra_sim: str | None = None, progress: Callable[[int, int], None] | None = None) -> list[Check]:
    """Carry out all checks.

    Parameters
    ----------
    astra_sim : str, optional
        The binary to look at, instead of the one that is found.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of Check
        Ours first, then what is optional, then the machine.
    """
    checks, done = _checks(astra_sim), []
    for number, check in enumerate(checks, 1):
        done.append(check())
        if progress:
            progress(number, len(checks))
    return done


def summary(checks: list[Check]) -> dict[str, Any]:
    """What ``doctor --json`` prints.

    Parameters
    ----------
    checks : list of Check
    """
    ok = all(check.status != "broken" for check in checks)
    return {"ok": ok, "moxtrace": __version__, "checks": [check.to_json() for check in checks]}
