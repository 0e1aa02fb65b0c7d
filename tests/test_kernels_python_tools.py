"""kernels/: the doctor on machines that are made up, floors and bytes of the benchmark, and one run of it."""

import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys

import pytest

from .kernels_cases import KERNELS, torch

# ruff: isort: split
from moxtrace_kernels import Shape, doctor, machine


def states(findings):
    return {finding.name: finding.state for finding in findings}


# ---- doctor
@pytest.mark.parametrize(
    ("headers", "host", "pinned", "state", "advice"),
    [
        ("3.4.5", "3.4.5", "3.4.5", "ok", ""),
        (None, "3.4.5", None, "ok", ""),
        ("3.4.5", "3.8.0", None, "warn", "one version everywhere: nvidia-nvshmem-cu13==3.4.5"),
        ("3.4.5", "3.4.5", "3.3.20", "warn", "one version everywhere: nvidia-nvshmem-cu13==3.3.20"),
        ("3.4.5", "3.3.20", None, "bad", "pip install nvidia-nvshmem-cu13==3.4.5, or build ./kernels again"),
        ("3.4.5", "4.0.0", None, "bad", "pip install nvidia-nvshmem-cu13==3.4.5, or build ./kernels again"),
        (None, None, "3.4.5", "warn", "pip install nvidia-nvshmem-cu13==3.4.5"),
    ],
)
def test_versions_of_nvshmem(headers, host, pinned, state, advice):
    finding = doctor.nvshmem(headers, host, pinned)
    assert (finding.state, finding.advice) == (state, advice)
    assert f"headers {headers or 'none'}" in finding.found


@pytest.mark.parametrize(
    ("requires", "pinned"),
    [
        (["filelock", 'nvidia-nvshmem-cu13==3.4.5; platform_system == "Linux"'], "3.4.5"),
        (["filelock"], None),
        (None, None),
    ],
)
def test_what_torch_pins(monkeypatch, requires, pinned):
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    assert doctor.pinned_nvshmem() == pinned


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
PARAMETERS = 'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n'


def test_a_machine_that_is_ready(tmp_path):
    files = {"version": DRIVER, "params": PARAMETERS}
    write(tmp_path, {f"proc/driver/nvidia/{name}": text for name, text in files.items()})
    write(tmp_path, {"proc/modules": "nvidia_peermem 1 0 - Live", "dev/shm/x": ""})
    found = {f.name: f for f in machine.system(tmp_path)}
    assert found["driver"].found == "580.95.05"
    assert found["driver settings"].state == found["peer memory"].state == "ok"
    assert "/dev/shm" in found


def test_a_machine_that_is_not(tmp_path):
    assert states(machine.system(tmp_path)) == {"driver": "bad"}
    write(
        tmp_path, {"proc/driver/nvidia/version": DRIVER, "proc/driver/nvidia/params": "EnableStreamMemOPs: 1"}
    )
    found = {f.name: f for f in machine.system(tmp_path)}
    assert found["driver settings"].state == "warn"
    assert "PeerMappingOverride=1;" in found["driver settings"].advice
    assert found["peer memory"].advice.endswith("modprobe nvidia-peermem")
    assert found["/dev/shm"].state == "bad"
    write(tmp_path, {"dev/gdrdrv": ""})
    assert {f.name: f.found for f in machine.system(tmp_path)}["driver settings"] == "gdrdrv in their place"


def card(root, name, layer="InfiniBand", state="4: ACTIVE"):
    write(root, {f"sys/class/infiniband/{name}/ports/1/{k}": v for k, v in (
        ("link_layer", layer), ("state", state), ("rate", "400 Gb/sec (4X NDR)"))})  # fmt: skip


def test_network_cards_and_what_nvshmem_is_told(tmp_path):
    card(tmp_path, "mlx5_0")
    card(tmp_path, "mlx5_1", state="1: DOWN")
    cards = machine.network(tmp_path)
    assert [c["state"] for c in cards] == ["ACTIVE", "DOWN"]
    findings = {f.name: f for f in machine.transport(cards, {}, nodes=2)}
    assert findings["transport"].advice == (
        "for several nodes: export NVSHMEM_REMOTE_TRANSPORT=ibrc NVSHMEM_IB_ENABLE_IBGDA=1"
    )
    told = {"NVSHMEM_REMOTE_TRANSPORT": "ibrc", "NVSHMEM_IB_ENABLE_IBGDA": "1"}
    assert states(machine.transport(cards, told, nodes=2)) == {"network cards": "ok", "transport": "ok"}
    assert states(machine.transport(cards, {"NVSHMEM_REMOTE_TRANSPORT": "none"}))["transport"] == "ok"


def test_two_cards_of_roce_want_an_address_and_a_mapping(tmp_path):
    card(tmp_path, "mlx5_0", layer="Ethernet")
    card(tmp_path, "mlx5_1", layer="Ethernet")
    found = states(machine.transport(machine.network(tmp_path), {}, nodes=2))
    assert found == {"network cards": "ok", "transport": "warn", "GID": "warn", "card of a rank": "warn"}


def test_efa_and_no_card_at_all(tmp_path):
    assert states(machine.transport([], {}, nodes=2)) == {"network cards": "bad", "transport": "ok"}
    assert states(machine.transport([], {})) == {"network cards": "none", "transport": "warn"}
    card(tmp_path, "efa_0", layer="Unspecified")
    findings = {f.name: f for f in machine.transport(machine.network(tmp_path), {}, nodes=2)}
    assert "NVSHMEM_LIBFABRIC_PROVIDER=efa" in findings["transport"].advice


@pytest.mark.parametrize(
    ("matrix", "state", "says"),
    [
        ("", "none", "nvidia-smi says nothing"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n", "ok", "between all 2 GPUs"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\t0-31\nGPU1\tSYS\t X \t0-31\n", "warn", "2 of 2 pairs go over SYS"),
    ],
)
def test_nvlink(monkeypatch, tmp_path, matrix, state, says):
    write(tmp_path, {"proc/driver/nvidia/version": DRIVER})
    monkeypatch.setattr(machine, "_run", lambda *_: matrix)
    (finding,) = [f for f in machine.system(tmp_path) if f.name == "NVLink"]
    assert (finding.state, finding.found) == (state, says)


def test_memory_of_a_shape():
    shape = Shape(ranks=8, experts=256, top_k=8, max_tokens=128, hidden=7168, dispatch="fp8")
    assert doctor.memory(shape, None).state == "none"
    assert doctor.memory(shape, 1 << 30).found == (
        "29.9 MiB symmetric, 231.0 MiB for dispatched rows, 1024.0 MiB free"
    )
    assert doctor.memory(shape, 1 << 20).state == "bad"


def test_ranks_are_compared():
    one = {
        "findings": [machine.Finding("driver", "ok", "580"), machine.Finding("torch", "ok", "2.13")],
        "gpu": "a 0",
    }
    other = {
        "findings": [machine.Finding("driver", "ok", "570"), machine.Finding("torch", "ok", "2.13")],
        "gpu": "a 0",
    }
    assert [f.found for f in doctor.compare([one, other])] == [
        "rank 0: 580; rank 1: 570",
        "ranks 0 and 1 share one",
    ]
    assert [f.found for f in doctor.compare([one, one | {"gpu": "a 1"}])] == ["2 agree"]


def run(*arguments, **environment):
    path = os.environ | {"PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=path, capture_output=True, text=True, check=False
    )


def test_the_doctor_runs_here():
    done = run("-m", "moxtrace_kernels.doctor", "--json", "--ranks", "16")
    assert done.returncode in (0, 1), done.stderr
    names = [finding["name"] for finding in json.loads(done.stdout)]
    assert {"library", "torch", "nvshmem", "GPU", "driver", "network cards", "memory"} <= set(names)
    done = run("-m", "moxtrace_kernels.doctor", "--top-k", "17")
    assert done.returncode == 1
    assert done.stderr == "doctor: top_k is 17; expected a whole number from 1 to 16\n"


# ---- benchmark
@pytest.fixture(scope="module")
def floors():
    spec = importlib.util.spec_from_file_location("kernels_floors", KERNELS / "bench" / "floors.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# microseconds of dispatch and combine for 128 tokens x 7168, top-8 of 256, fp8 out and bf16 back
WORKED_OUT = {
    "per expert": {8: (14.8, 28.6), 16: (76, 147), 32: (114, 220), 64: (133, 257), 128: (142, 276)},
    "per rank": {8: (9.8, 18.9), 16: (62, 120), 32: (103, 200), 64: (127, 247), 128: (140, 272)},
    "per node": {16: (19, 37), 32: (51, 100), 64: (88, 170), 128: (116, 225)},
}


@pytest.mark.parametrize(
    ("way", "ranks"), [(way, ranks) for way, times in WORKED_OUT.items() for ranks in times]
)
def test_floors_are_those_worked_out_before(floors, way, ranks):
    fabric = floors.Fabric(8, 450e9, 50e9)
    copies = floors.expected_copies(way, ranks, 256, 8, fabric)
    packets = (7168 + 7168 // 128 * 4 + 16, 7168 * 2 + 16)  # a header of 16 bytes, as in that table
    for size, want in zip(packets, WORKED_OUT[way][ranks], strict=True):
        assert floors.floor_us(128, copies, size, fabric) == pytest.approx(
            want, abs=0.06 if isinstance(want, float) else 0.51
        )


def test_expected_copies_are_the_mean_of_counted_ones(floors):
    """Over every set of experts that there is."""
    shape = Shape(ranks=6, experts=12, top_k=3, max_tokens=1, hidden=8)
    fabric = floors.Fabric(gpus_per_node=2)
    sets = itertools.combinations(range(12), 3)
    hosts = [[shape.host(expert) for expert in chosen] for chosen in sets]
    for way in floors.WAYS:
        counted = floors.counted_copies(way, 3, hosts, fabric)
        expected = floors.expected_copies(way, 6, 12, 3, fabric)
        assert (counted.nvlink, counted.network) == pytest.approx((expected.nvlink, expected.network))


def test_copies_counted_by_hand(floors):
    fabric = floors.Fabric(gpus_per_node=2)
    hosts = [[0, 1, 2, 3, 3]]  # rank 0 itself, its neighbour, and both ranks of the other node
    assert floors.counted_copies("per expert", 0, hosts, fabric) == floors.Copies(1, 3)
    assert floors.counted_copies("per rank", 0, hosts, fabric) == floors.Copies(1, 2)
    assert floors.counted_copies("per node", 0, hosts, fabric) == floors.Copies(2, 1)
    assert floors.counted_copies("per node", 0, [], fabric) == floors.Copies(0, 0)


def test_the_benchmark_on_two_ranks_of_the_reference(tmp_path):
    """Verified, timed, printed and written; over gloo, so the reference travels as well."""
    result = tmp_path / "result.json"
    shape = ["--tokens", 5, 0, "--hidden", 256, "--experts", 9, "--top-k", 3, "--row-align", 4]
    few = ["--repeat", 3, "--warmup", 1, "--backend", "reference", "--json", result]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone"]
    done = run(*launch, KERNELS / "bench" / "alltoall.py", *shape, *few)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 5 tokens x 256, top-3 of 9, fp8 out, bf16 back: verified" in done.stdout
    first, empty = json.loads(result.read_text())["shapes"]
    rows = {row["name"]: row for row in first["rows"]}
    assert list(rows) == [
        "dispatch send", "dispatch recv", "dispatch", "combine send", "combine recv", "combine",
        "torch dispatch", "torch combine",
    ]  # fmt: skip
    packet, manifest = 48 + 256 + 8, 32  # 16 + 3 x 8 bytes of header in 16s; 6 bitmaps of a word
    copies = float(rows["dispatch"]["formula"].split()[0])
    assert rows["dispatch"]["formula"] == f"{copies} copies x 320 B + 2 manifests x {manifest} B"
    assert rows["dispatch"]["bytes"] == copies * -(-packet // 16) * 16 + 2 * manifest
    assert rows["combine"]["bytes"] == copies * 512
    assert rows["torch dispatch"]["bytes"] == copies * (256 + 8)
    for row in rows.values():
        assert row["p99_us"] >= row["p50_us"] > 0
        assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["p50_us"] / 1e3)
    assert [row["bytes"] for row in empty["rows"] if row["name"] == "dispatch"] == [2 * manifest]


def test_without_a_gpu_the_benchmarks_say_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run(KERNELS / "bench" / "alltoall.py")
    assert (done.returncode, done.stderr) == (
        1,
        "bench: torch sees no GPU; expected one per rank, or --backend reference\n",
    )
    done = run(KERNELS / "bench" / "one_gpu.py")
    assert (done.returncode, done.stderr) == (77, "one_gpu: torch sees no GPU\n")
    check = KERNELS.parent / "scripts" / "gpu_check.sh"
    done = subprocess.run(["bash", str(check)], capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stderr.startswith("gpu_check: no GPU")
