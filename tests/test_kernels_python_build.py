"""pip makes moxtrace-kernels: for GPUs where nvcc is, without a compiler where none is asked for."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
NVSHMEM = "nvidia-nvshmem-cu13==3.4.5"
if not KERNELS.is_dir():
    pytest.skip("installed without its source tree", allow_module_level=True)


def run(*command, **environment):
    known = {k: v for k, v in os.environ.items() if not k.startswith("MOXTRACE_") and k != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), env=known | environment, capture_output=True, text=True, check=False
    )


def pip(*arguments, **environment):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, **environment)


def reached(done):
    """The run, unless it failed for want of the package index."""
    said = done.stdout + done.stderr
    if done.returncode and ("No matching distribution" in said or "NewConnectionError" in said):
        pytest.skip("pip reaches no package index from here")
    return done


def wheel(folder, **environment):
    done = reached(pip("wheel", "--no-deps", "--wheel-dir", folder, KERNELS, **environment))
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


LOOK = """
import json
from moxtrace_kernels import Shape
from moxtrace_kernels.library import load
from moxtrace_kernels.wire import wire_of
shape = Shape(ranks=8, experts=256, top_k=8, max_tokens=128, hidden=7168, dispatch="fp8")
library = load()
print(json.dumps([library.build, library.sizes(shape).symmetric, wire_of(shape).symmetric]))
"""


def test_the_library_for_gpus(tmp_path):
    """Compiled and linked for both architectures, warnings being errors; loads without GPU and torch."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on PATH")
    made, site = wheel(tmp_path), tmp_path / "site"
    done = reached(pip("install", "--quiet", "--no-deps", "--target", site, NVSHMEM))
    assert done.returncode == 0, done.stderr
    assert made.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")  # any Python, any torch
    zipfile.ZipFile(made).extractall(site)
    done = run(sys.executable, "-c", LOOK, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    build, symmetric, in_python = json.loads(done.stdout)
    assert build["nvshmem"] == "3.4.5"
    assert build["architectures"] == "90-real 100-real"
    assert symmetric == in_python
    if shutil.which("nm"):
        lines = run("nm", "-D", "--defined-only", site / "moxtrace_kernels" / "libmoxtrace_kernels.so").stdout
        names = {line.split()[-1] for line in lines.splitlines()}
        assert {name for name in names if not name.startswith("mox_")} == set()
        assert {"mox_create", "mox_initialize", "mox_get_failure"} <= names


def test_python_alone(tmp_path):
    made = wheel(tmp_path, MOXTRACE_CUDA="0", PATH="/usr/bin:/bin")
    assert made.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(made).namelist()
    assert "moxtrace_kernels/reference.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_no_compiler_is_one_line(tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("cmake", "ninja", "g++", "c++", "cc", "ld", "as", "ar", "make"):
        found = shutil.which(tool)
        if found is not None:
            (tmp_path / "bin" / tool).symlink_to(found)
    hidden = "-Ccmake.define.CMAKE_IGNORE_PATH=/usr/local/bin;/usr/local/cuda/bin"
    command = ["wheel", "--no-deps", "--wheel-dir", tmp_path, hidden, KERNELS]
    done = reached(pip(*command, PATH=str(tmp_path / "bin")))
    assert done.returncode == 1
    (line,) = [s.strip() for s in (done.stdout + done.stderr).splitlines() if "no nvcc" in s]
    assert line == (
        "moxtrace-kernels: no nvcc on PATH, in CUDACXX or in CUDA_HOME; expected CUDA 12.8 or newer. From "
        "the package index: MOXTRACE_NVCC=wheel pip install ./kernels. The reference alone, without a "
        "compiler: MOXTRACE_CUDA=0 pip install ./kernels"
    )
