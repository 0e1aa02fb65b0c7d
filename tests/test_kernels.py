"""The kernels on a CPU: emulator, fuzz against a plain reference, planted faults, sanitizers, nvcc."""

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
SEEDS_IN_CI, CHUNKS = 2000, 4

# fault -> number, seeds within which it must show, what is fixed of the shape; shares: kernels/README.md
FEW = "--threads 64 --blocks 2 --epochs 2 --objects 1 --experts 9 --top-k 4 --tokens 6 --hidden 16"
GROUPS = "--ranks 8 --dp 4 --experts 8 --top-k 2 --tokens 3 --epochs 8 --slow 40 --lazy 20 --network 50"
PAIRS = "--ranks 4 --dp 2"
PLANTED = {
    "missing_barrier": (1, 10, ""),
    "list_too_early": (2, 120, ""),
    "single_signal": (3, 120, ""),
    "missing_wait": (4, 10, ""),
    "early_reuse": (5, 20, ""),
    "peer_behind": (6, 100, GROUPS),
    "single_manifest": (7, 20, ""),
    "missing_part": (8, 20, ""),
    "missing_result": (9, 5, PAIRS),
}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="session")
def compiler() -> str:
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        pytest.skip(f"no C++ compiler: {name} is not on PATH (CXX names another)")
    return name


@pytest.fixture(scope="session")
def build(compiler):
    """Builds a program of kernels/tests, one at a time so that workers share what is built."""

    def build(program: str, *options: str) -> Path:
        folder = KERNELS / "build"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = run("bash", KERNELS / "tests" / "build.sh", program, *options)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return Path(done.stdout.strip())

    return build


def sanitizer(compiler: str, name: str, tmp_path: Path) -> None:
    """Skips unless a program with this sanitizer can be built and run here."""
    source = tmp_path / "empty.cc"
    source.write_text("int main() { return 0; }\n")
    done = run(compiler, f"-fsanitize={name}", source, "-o", tmp_path / "empty")
    if done.returncode == 0:
        done = run(tmp_path / "empty")
    if done.returncode:
        pytest.skip(f"no -fsanitize={name} here: {(done.stderr.strip().splitlines() or ['it fails'])[0]}")


@pytest.mark.parametrize("program", ["emulator", "library"])
def test_programs_of_many_small_tests(build, program):
    done = run(build(program))
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout
    assert done.stdout.count("ok ") >= 20


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fuzz_against_the_reference(build, chunk):
    each = SEEDS_IN_CI // CHUNKS
    done = run(build("fuzz"), "--seeds", str(each), "--first", str(1 + chunk * each))
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"0 of {each} seeds failed" in done.stdout


def test_a_broken_link_gives_no_wrong_result(build):
    """Every run with a link cut somewhere ends, and each rank has right results or knows that it failed."""
    done = run(build("fuzz"), "--seeds", "400", "--first", "20000", "--break")
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_seed_replays_exactly(build):
    done = run(build("fuzz"), "--seeds", "20", "--first", "9000", "--twice")
    assert done.returncode == 0, done.stdout[-4000:]
    replayed = [
        run(build("fuzz", "--bug", "4"), "--seed", "3").stdout.partition(" seeds failed;")[0]
        for _ in range(2)
    ]
    assert replayed[0] == replayed[1]
    assert "seed 3 FAILED" in replayed[0]
    assert "ranks (dp" in replayed[0]


@pytest.mark.parametrize(
    "options",
    [
        "--ranks 48 --experts 256 --top-k 8 --tokens 4 --hidden 32 --epochs 2 --dp 1 --blocks 1",
        "--ranks 7 --experts 1024 --top-k 16 --tokens 40 --hidden 16 --epochs 2 --dp 1 --blocks 2",
        "--ranks 12 --experts 5 --top-k 5 --tokens 9 --hidden 7168 --epochs 2 --dp 4 --dispatch 3",
    ],
    ids=["many-ranks", "many-experts", "wide"],
)
def test_larger_shapes(build, options):
    done = run(build("fuzz"), "--seeds", "1", "--objects", "1", "--threads", "64", *options.split())
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(build, name):
    bug, within, fixed = PLANTED[name]
    seeds = ["--seeds", str(within), "--first", "5000", "--until-failure"]
    done = run(build("fuzz", "--bug", str(bug)), *seeds, *fixed.split())
    # a fault may also lead a kernel astray so far that it leaves its memory
    assert done.returncode in (1, -signal.SIGSEGV), f"not found within {within} seeds"


@pytest.mark.parametrize("fixed", sorted({fixed for _, _, fixed in PLANTED.values()}))
def test_the_seeds_that_show_a_fault_are_sound(build, fixed):
    """Or a fault would be found where none is planted."""
    seeds = max(within for _, within, shape in PLANTED.values() if shape == fixed)
    done = run(build("fuzz"), "--seeds", str(seeds), "--first", "5000", *fixed.split())
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_fault_has_its_test():
    listed = re.findall(r"^  (\w+),\s+// (\d+):", (KERNELS / "src" / "bugs.h").read_text(), re.M)
    assert {name: int(number) for name, number in listed} == {
        name: bug for name, (bug, *_) in PLANTED.items()
    }


def test_thread_sanitizer(build, compiler, tmp_path):
    sanitizer(compiler, "thread", tmp_path)
    for ranks, dp in (3, 1), (4, 2):
        shape = ["--ranks", str(ranks), "--dp", str(dp)]
        done = run(build("fuzz", "--tsan"), "--seeds", "8", *shape, *FEW.split())
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    raced = run(
        build("fuzz", "--tsan", "--bug", "2"), "--seeds", "1", "--ranks", "3", "--dp", "1", *FEW.split()
    )
    assert "data race" in raced.stderr
    assert "dispatch_send.cuh" in raced.stderr


def test_address_sanitizer(build, compiler, tmp_path):
    sanitizer(compiler, "address", tmp_path)
    quiet = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = run(build("fuzz", "--asan"), "--seeds", "40", **quiet)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    done = run(build("library", "--asan"), **quiet)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_fibers_without_assembly(build):
    done = run(build("fuzz", "--ucontext"), "--seeds", "20")
    assert done.returncode == 0, done.stdout[-4000:]


def test_usage_errors_are_one_line(build):
    program = build("fuzz")
    for words, message in [
        (["--seeds", "many"], "fuzz: --seeds is many, expected a number"),
        (["--nonsense", "1"], "fuzz: --nonsense is not an option"),
        (["--hidden", "3", "--dispatch", "0"], "expected a multiple of 16"),
        (["--ranks", "4294967297"], "fuzz: --ranks is 4294967297, expected a smaller number"),
        (["--epochs", "0"], "fuzz: nothing to run, expected --epochs and --objects from 1"),
    ]:
        done = run(program, *words)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_only_two_primitives():
    """What the kernels ask of NVSHMEM on the device: a put with a signal, and a test; no signal alone."""
    used = set()
    for source in [*(KERNELS / "src").glob("*.cuh"), KERNELS / "src" / "alltoall.cu"]:
        used |= set(re.findall(r"\bnvshmemx?_\w+(?=\()", re.sub(r"//.*", "", source.read_text())))
    host = {"nvshmem_n_pes", "nvshmem_my_pe", "nvshmem_malloc", "nvshmem_free", "nvshmem_barrier_all"}
    assert used - host == {"nvshmemx_putmem_signal_nbi_warp", "nvshmem_uint64_test"}


def nvshmem() -> Path | None:
    """NVSHMEM's folder: $NVSHMEM_HOME, or the wheel that this Python would import."""
    if home := os.environ.get("NVSHMEM_HOME"):
        return Path(home)
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.nvshmem")
        if spec and spec.submodule_search_locations:
            return Path(spec.submodule_search_locations[0])
    return None


def test_nvcc_compiles_and_links(tmp_path):
    compiler = shutil.which("nvcc") or shutil.which(
        "nvcc", path=os.path.join(os.environ.get("CUDA_HOME", ""), "bin")
    )
    if compiler is None:
        pytest.skip("no nvcc on PATH or in $CUDA_HOME/bin")
    home = nvshmem()
    if home is None or not (home / "include" / "nvshmem.h").is_file():
        pytest.skip("no NVSHMEM: pip install nvidia-nvshmem-cu13, or set NVSHMEM_HOME")
    architectures = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (90, 100)]
    sources = [
        KERNELS / name for name in ("src/alltoall.cu", "src/bootstrap.cu", "src/shape.cc", "tests/link.cu")
    ]
    done = run(
        compiler, "-std=c++17", "-O2", "-rdc=true", "-Xcompiler", "-Wall,-Wextra,-Werror", "--Werror",
        "all-warnings", *architectures, f"-I{KERNELS / 'include'}", "-isystem", home / "include", *sources,
        "-o", tmp_path / "link", f"-L{home / 'lib'}", "-lnvshmem_device", "-l:libnvshmem_host.so.3",
        "-Xlinker", f"-rpath={home / 'lib'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "of symmetric memory on every rank" in run(tmp_path / "link").stdout
