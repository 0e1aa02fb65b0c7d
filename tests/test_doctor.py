"""What is installed: each state of each check, the command, versions and shell completion."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import moxtrace
from moxtrace import doctor
from moxtrace.doctor import Check, examine, extra, library, summary, versions
from moxtrace.engine.astra_sim import BINARY


def run(*arguments, status=0, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "moxtrace", *arguments], capture_output=True, text=True,
        env={**os.environ, "ASTRA_SIM": "", **environment},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def named(checks, name):
    return next(check for check in checks if check.name == name)


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """A machine without any program that is looked for."""
    for variable in ("ASTRA_SIM", "CUDA_HOME", "CUDA_PATH", "NVSHMEM_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: which(name, path=str(tmp_path / "bin")))
    installed = doctor.installed
    monkeypatch.setattr(
        doctor, "installed", lambda n: None if n.startswith("nvidia-nvshmem") else installed(n)
    )
    return tmp_path / "bin"


def test_a_bare_machine_is_fine(nothing):
    told = []
    checks = examine(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(checks), len(checks))
    facts = summary(checks)
    assert facts["ok"], facts
    assert facts["moxtrace"] == moxtrace.__version__
    for name in ("ASTRA-sim", "nvcc", "NVSHMEM", "GPU"):
        check = named(checks, name)
        assert check.status == "absent"
        assert check.do
    assert all(check.means for check in checks)
    assert all(check.do for check in checks if check.status != "ok")
    names = [check.name for check in checks]
    assert len(names) == len(set(names))


def test_every_declared_library_is_looked_at():
    path = Path(moxtrace.__file__).parents[1] / "pyproject.toml"
    if not path.is_file():
        pytest.skip("installed without its source tree")
    wanted = tomllib.loads(path.read_text())["project"]["dependencies"]
    assert {line.partition(">")[0] for line in wanted} == set(doctor.NEEDED)


def test_the_programs_are_asked(nothing):
    program(nothing, "nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    program(
        nothing, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 550.1'; echo 'NVIDIA H200, 143771 MiB, 550.1'"
    )
    checks = examine()
    assert named(checks, "nvcc").found.startswith("12.4 at ")
    assert named(checks, "GPU").found == "2 x NVIDIA H200, 143771 MiB, 550.1"
    program(nothing, "nvcc", "exit 1")
    program(nothing, "nvidia-smi", "exit 9")
    checks = examine()
    assert named(checks, "nvcc").status == "warning"
    assert named(checks, "GPU").status == "warning"


def test_nvshmem_is_found_in_both_ways(nothing, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "installed", lambda name: "3.4.5" if name == "nvidia-nvshmem-cu12" else None)
    assert doctor._nvshmem().found == "3.4.5 for CUDA 12"
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    assert doctor._nvshmem().status == "warning"
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nvshmem.h").touch()
    assert doctor._nvshmem().status == "ok"


def test_an_astra_sim_that_is_none_is_a_warning(nothing):
    path = program(nothing, "other", "exit 0")
    check = named(examine(str(path)), "ASTRA-sim")
    assert check.status == "warning"
    assert "is not ASTRA-sim's analytical binary" in check.found
    assert named(examine("/none/such"), "ASTRA-sim").status == "warning"
    library_missing = (
        "echo 'x: error while loading shared libraries: libz.so.9: cannot open shared' >&2; exit 127"
    )
    program(nothing, BINARY, library_missing)
    assert "libz.so.9 is missing" in named(examine(), "ASTRA-sim").found


def test_a_library_is_there_new_enough_and_importable(monkeypatch):
    assert library("numpy", "numpy").status == "ok"
    assert library("no-such-thing", "no_such_thing").status == "broken"
    monkeypatch.setattr(doctor, "installed", lambda name: "1.2.3")
    old = library("numpy", "numpy")
    assert old.status == "broken"
    assert old.found == "1.2.3; 1.26 or newer is needed"
    assert old.do == "pip install -U 'numpy>=1.26'"
    monkeypatch.setattr(doctor, "installed", lambda name: "99.0")

    def fails(name):
        raise ImportError("libblas.so.3: cannot open\nshared object file")

    monkeypatch.setattr(importlib, "import_module", fails)
    broken = library("numpy", "numpy")
    assert broken.found == "99.0, cannot be imported: libblas.so.3: cannot open shared object file"
    assert extra("pyarrow", "pyarrow", "tables", "pip install it").status == "warning"


def test_what_is_broken_fails_the_whole(monkeypatch):
    assert not summary([Check("a", "ok", "", ""), Check("b", "broken", "", "", "mend it")])["ok"]
    assert summary([Check("a", "absent", "", ""), Check("b", "warning", "", "")])["ok"]


def test_the_machine_s_limits_are_judged(monkeypatch):
    monkeypatch.setattr(doctor, "descriptor_limits", lambda: (1024, 1024))
    check = doctor._descriptors()
    assert (check.status, check.found) == (
        "warning",
        "1024, can be raised to 1024: 320 NPUs with three file sets",
    )
    monkeypatch.setattr(doctor, "descriptor_limits", lambda: (1024, None))
    assert doctor._descriptors().status == "ok"
    monkeypatch.setattr(doctor, "available_memory", lambda: 2**29)
    assert doctor._memory().status == "warning"
    monkeypatch.setattr(doctor, "available_memory", lambda: 12 * 10**9)
    assert doctor._memory().found == "12 GB free: ASTRA-sim runs of about 10 million nodes"
    monkeypatch.setattr(doctor, "available_memory", lambda: None)
    assert doctor._memory().status == "ok"


def test_a_cache_that_cannot_be_kept_is_said(monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/none/such")
    assert doctor._kernels().status == "warning"
    assert "NUMBA_CACHE_DIR" in doctor._kernels().do


# --------------------------------------------------------------------------------- commands


def test_the_command_speaks_and_prints_json():
    facts = json.loads(run("doctor", "--json", "-q").stdout)
    assert set(facts) == {"ok", "moxtrace", "checks"}
    assert {"name", "status", "found", "means", "do"} == set(facts["checks"][0])
    text = run("doctor", "-q").stdout
    assert text.endswith("nothing that moxtrace needs is broken\n")
    for check in facts["checks"]:
        assert check["name"] in text


def test_a_broken_installation_ends_with_status_1(tmp_path):
    (tmp_path / "networkx.py").write_text("raise ImportError('half of it is gone')\n")
    done = run("doctor", "-q", status=1, PYTHONPATH=str(tmp_path))
    assert "half of it is gone" in done.stdout
    assert done.stdout.endswith("broken: networkx\n")
    assert not done.stderr


def test_the_version_says_what_is_installed():
    first, *rest = run("--version").stdout.splitlines()
    assert first == f"moxtrace {moxtrace.__version__}"
    assert rest == versions()
    assert f"numpy {metadata.version('numpy')}" in rest[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_syntactically_right(shell, tmp_path):
    script = run("completion", shell).stdout
    assert "_MOXTRACE_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def complete(*words):
    """What a shell would be offered after ``words``."""
    line = ["moxtrace", *words]
    done = subprocess.run(
        [sys.executable, "-c", "from moxtrace.cli import main; main()"], capture_output=True, text=True,
        env={**os.environ, "_MOXTRACE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line),
             "COMP_CWORD": str(len(words))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [one.partition(",")[2] for one in done.stdout.splitlines()]


def test_tab_completes_commands_and_options():
    assert complete("sim") == ["simulate"]
    assert {"generate", "doctor", "completion"} <= set(complete(""))
    assert complete("--vers") == ["--version"]
    assert complete("simulate", "--eng") == ["--engine"]
    assert complete("simulate", "--engine", "a") == ["astra-sim"]
    assert complete("recording", "sh") == ["show"]


def test_completion_wants_a_shell_that_it_knows():
    assert "'tcsh' is not one of" in run("completion", "tcsh", status=2).stderr
