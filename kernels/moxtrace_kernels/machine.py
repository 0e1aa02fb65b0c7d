"""The machine that the kernels are to run on: driver, settings, network cards, NVSHMEM's environment.

References
----------
NVSHMEM's installation guide and environment variables; the files under /proc and /sys that they name.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "network", "system", "transport"]

_LOCKED_BYTES = 1 << 34  # memory that registration wants to lock: as much as a large symmetric heap


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What.
    state : str
        ``ok``; ``warn``: works, slower or not everywhere; ``bad``: will not work; ``none``: nothing to look
        at.
    found : str
        What is there.
    advice : str
        What to do; empty when nothing.
    """

    name: str
    state: str
    found: str
    advice: str = ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


def system(root: Path = Path("/")) -> Iterator[Finding]:
    """Driver, its settings, peer memory, locked and shared memory, NVLink.

    Parameters
    ----------
    root : Path
        Where /proc, /sys and /dev are.

    Yields
    ------
    Finding
        One for each.
    """
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _read(root / "proc/driver/nvidia/version"))
    if driver is None:
        yield Finding("driver", "bad", "no NVIDIA driver", "the reference works; the kernels need a GPU")
        return
    yield Finding("driver", "ok", driver.group(1))
    yield _driver_settings(root)
    modules = _read(root / "proc/modules")
    peer = "nvidia_peermem" in modules
    yield Finding(
        "peer memory", "ok" if peer else "warn", "nvidia_peermem" if peer else "nvidia_peermem is not loaded",
        "" if peer else "needed for InfiniBand unless the driver offers DMA-BUF: modprobe nvidia-peermem",
    )  # fmt: skip
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    enough = locked == resource.RLIM_INFINITY or locked >= _LOCKED_BYTES
    yield Finding(
        "locked memory", "ok" if enough else "warn", "unlimited" if locked < 0 else f"{locked} bytes",
        "" if enough else "ulimit -l unlimited, or registering memory with the network card fails",
    )  # fmt: skip
    yield _shared_memory(root)
    yield _nvlink(_run("nvidia-smi", "topo", "-m"))


def _driver_settings(root: Path) -> Finding:
    settings = _read(root / "proc/driver/nvidia/params")
    wanted = {"EnableStreamMemOPs: 1": "NVreg_EnableStreamMemOPs=1"}
    wanted["PeerMappingOverride=1"] = 'NVreg_RegistryDwords="PeerMappingOverride=1;"'
    missing = [option for text, option in wanted.items() if text not in settings]
    if not missing:
        return Finding("driver settings", "ok", "EnableStreamMemOPs, PeerMappingOverride")
    if (root / "dev/gdrdrv").exists():
        return Finding("driver settings", "ok", "gdrdrv in their place")
    return Finding(
        "driver settings", "warn", f"{len(missing)} of 2 missing",
        f"IBGDA wants, in /etc/modprobe.d: options nvidia {' '.join(missing)} (or gdrdrv), then a restart",
    )  # fmt: skip


def _shared_memory(root: Path) -> Finding:
    try:
        size = shutil.disk_usage(root / "dev/shm").total
    except OSError:
        return Finding("/dev/shm", "bad", "absent", "mount it; in a container: --ipc=host")
    small = size < 1 << 30
    advice = "1 GiB or more; in a container: --shm-size or --ipc=host" if small else ""
    return Finding("/dev/shm", "warn" if small else "ok", f"{size / 2**30:.1f} GiB", advice)


def _nvlink(matrix: str) -> Finding:
    """From the table of ``nvidia-smi topo -m``: whether NVLink joins all pairs of GPUs."""
    rows = [line.split() for line in matrix.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if len(row) > 1 and not row[1].startswith("GPU")]
    gpus = len(rows)
    if gpus < 2:
        return Finding("NVLink", "none", f"{gpus} GPU" if gpus else "nvidia-smi says nothing")
    links = [cell for row in rows for cell in row[1 : gpus + 1] if cell != "X"]
    slow = [cell for cell in links if not cell.startswith("NV")]
    if not slow:
        return Finding("NVLink", "ok", f"between all {gpus} GPUs")
    return Finding(
        "NVLink", "warn", f"{len(slow)} of {len(links)} pairs go over {slow[0]}", "those pairs are slower"
    )


def network(root: Path = Path("/")) -> list[dict[str, str]]:
    """Network cards that RDMA can use.

    Parameters
    ----------
    root : Path
        Where /sys is.

    Returns
    -------
    list of dict
        ``name``, ``kind`` (``InfiniBand``, ``Ethernet`` or ``EFA``), ``state`` and ``rate`` of every port,
        sorted.
    """
    cards = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        card = port.parent.parent
        efa = card.name.startswith(("efa", "rdmap"))
        cards.append(
            {
                "name": card.name if port.name == "1" else f"{card.name}:{port.name}",
                "kind": "EFA" if efa else _read(port / "link_layer") or "unknown",
                "state": _read(port / "state").partition(": ")[2] or "unknown",
                "rate": _read(port / "rate"),
            }
        )
    return cards


def transport(
    cards: Sequence[dict[str, str]], environment: Mapping[str, str], nodes: int = 1
) -> Iterator[Finding]:
    """Judge NVSHMEM's settings by the network cards.

    Parameters
    ----------
    cards : sequence of dict
        As ``network`` lists them.
    environment : mapping
        Of the process.
    nodes : int
        Machines that take part.

    Yields
    ------
    Finding
        Cards, transport, and the settings that go with it.
    """
    active = [card for card in cards if card["state"] == "ACTIVE"]
    names = ", ".join(
        f"{c['name']} ({c['kind']}, {c['state'].lower()}, {c['rate'] or 'rate unknown'})" for c in cards
    )
    asked = environment.get("NVSHMEM_REMOTE_TRANSPORT", "")
    if not active:
        state = "bad" if nodes > 1 else "none"
        yield Finding(
            "network cards", state, names or "none", "another node cannot be reached" if nodes > 1 else ""
        )
        fine = asked == "none" or nodes > 1
        advice = (
            "" if fine else "on one node set NVSHMEM_REMOTE_TRANSPORT=none: it starts faster and says less"
        )
        yield Finding("transport", "ok" if fine else "warn", asked or "not set", advice)
        return
    yield Finding("network cards", "ok", names)
    yield _settings(active, environment, nodes)
    yield from _addresses(active, environment)


def _settings(active: Sequence[dict[str, str]], environment: Mapping[str, str], nodes: int) -> Finding:
    asked = environment.get("NVSHMEM_REMOTE_TRANSPORT", "")
    wanted = {"NVSHMEM_REMOTE_TRANSPORT": "ibrc", "NVSHMEM_IB_ENABLE_IBGDA": "1"}
    if any(card["kind"] == "EFA" for card in active):
        wanted = {"NVSHMEM_REMOTE_TRANSPORT": "libfabric", "NVSHMEM_LIBFABRIC_PROVIDER": "efa"}
    if nodes == 1 and asked == "none":
        wanted = {}
    missing = [f"{name}={value}" for name, value in wanted.items() if environment.get(name) != value]
    advice = f"for several nodes: export {' '.join(missing)}" if missing else ""
    return Finding("transport", "warn" if missing else "ok", asked or "not set", advice)


def _addresses(active: Sequence[dict[str, str]], environment: Mapping[str, str]) -> Iterator[Finding]:
    if any(card["kind"] == "Ethernet" for card in active) and "NVSHMEM_IB_GID_INDEX" not in environment:
        advice = "RoCE: the index of a RoCE v2 address, 3 as a rule (show_gids lists them)"
        yield Finding("GID", "warn", "NVSHMEM_IB_GID_INDEX is not set", advice)
    if len(active) > 1 and not {"NVSHMEM_ENABLE_NIC_PE_MAPPING", "NVSHMEM_HCA_PE_MAPPING"} & set(environment):
        advice = "NVSHMEM_ENABLE_NIC_PE_MAPPING=1 gives each rank a card, NVSHMEM_HCA_PE_MAPPING names them"
        yield Finding("card of a rank", "warn", f"{len(active)} cards, no mapping", advice)
