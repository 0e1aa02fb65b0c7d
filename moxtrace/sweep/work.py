"""One run, wherever it is done: a job becomes what its row says.

Goes in: :class:`Job`, plain data that can travel to another process or machine.  Comes out: a dict of plain
data.  A run that cannot be carried out is an answer too, with its reason; only a disk that takes no more and
bugs are raised.
"""

from __future__ import annotations

import contextlib
import csv
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import topology
from moxtrace.bound import bounds_of
from moxtrace.config import RunConfig
from moxtrace.demand import Demand, read_demand
from moxtrace.engine.astra_sim import find_binary
from moxtrace.errors import MoxtraceError, OutputError
from moxtrace.generate import generate
from moxtrace.routing.policies import threads_at_most
from moxtrace.rundir import Run, sha256_of
from moxtrace.scenario import block_of, prepare
from moxtrace.shelf import EMPTY, Shelf
from moxtrace.simulate import Simulation, simulate_block_of, simulate_run
from moxtrace.sweep.cache import Cache
from moxtrace.topology import Topology

__all__ = ["MOST_LINKS", "Job", "run_job"]

MOST_LINKS = 20_000  # a row with more would be megabytes long
_LOADS = ("busiest_link_bytes", "mean_link_bytes", "bandwidth_tax")


@dataclass(frozen=True)
class Job:
    """A run as it travels.

    Parameters
    ----------
    run : str
    config : dict
        The resolved configuration.
    engine : {"builtin", "builtin-traces", "astra-sim"}
    bound : {"quick", "best", "none"}
    folder : str
        The sweep's folder; where it does not exist, nothing is shared and the system's folder for temporary
        files is used.
    keep_routes : bool
        Whether another run may need the same routes.
    astra_sim : str or None
        ASTRA-sim's binary.
    timeout_s : float or None
        For ASTRA-sim.
    anyway : bool
        Start ASTRA-sim although it may not fit into memory.
    threads : int
        That routing may use.
    """

    run: str
    config: dict[str, Any]
    engine: str
    bound: str
    folder: str
    keep_routes: bool = False
    astra_sim: str | None = None
    timeout_s: float | None = None
    anyway: bool = False
    threads: int = 1


def run_job(job: Job) -> dict[str, Any]:
    """Carry out a run.

    Returns
    -------
    dict
        ``status`` and ``reason``; of a run that succeeded also its measured columns, ``links`` and what the
        recording should be known for; always ``wall_s`` and ``peak_memory_bytes``.

    Raises
    ------
    OutputError
        When the disk takes no more: no other run would fare better.
    """
    start = time.perf_counter()
    folder = Path(job.folder)
    shelf = Cache(folder / "cache", keep_routes=job.keep_routes) if folder.is_dir() else EMPTY
    with _peak_memory() as peak, threads_at_most(job.threads):
        try:
            config = RunConfig.model_validate(job.config)
            facts = {"status": "ok", "reason": "", **_ENGINES[job.engine](config, job, shelf)}
        except OutputError:
            raise
        except MoxtraceError as error:
            facts = {"status": "failed", "reason": " ".join(str(error).split())}
        except MemoryError:
            why = "not enough memory; use fewer tokens per NPU or fewer NPUs"
            facts = {"status": "failed", "reason": why}
        except BaseException as error:
            if not isinstance(error, Exception):
                raise  # an interruption
            # a bug in one run must not end a night of others: it becomes a row that says so
            facts = {
                "status": "failed",
                "reason": f"a bug in moxtrace, please report it: {type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
    return {**facts, "wall_s": round(time.perf_counter() - start, 3), "peak_memory_bytes": peak()}


# ------------------------------------------------------------------------------------- engines


def _by_transfers(config: RunConfig, job: Job, shelf: Shelf) -> dict[str, Any]:
    """The built-in engine, transfer by transfer: no files."""
    scenario = prepare(config, shelf)
    block = block_of(scenario)
    result = simulate_block_of(scenario, block)
    network, dispatch = scenario.topology, block.dispatch.link_bytes()
    return {
        "npus": network.num_npus,
        **_times(result),
        **_link_loads(result.loads["normalized_max_load"], dispatch, network),
        **{name: result.loads[name] for name in _LOADS},
        **_bound(job.bound, config, network, scenario.demand, shelf),
        "astra_sim_version": "",
        "stands_on": scenario.stands_on,
        "warnings": list(scenario.warnings),
        "inputs": dict(scenario.inputs),
        "links": _links(network, dispatch, block.combine.link_bytes()),
    }


def _by_traces(config: RunConfig, job: Job, shelf: Shelf) -> dict[str, Any]:
    """An engine that runs traces: a run directory is made for it, and taken away afterwards."""
    outside = job.engine == "astra-sim"
    version = f"sha256:{sha256_of(find_binary(job.astra_sim))[:12]}" if outside else ""
    with _scratch(job) as scratch:
        summary = generate(config, scratch / "run", shelf=shelf)
        run = Run.open(scratch / "run")
        engine = "astra-sim" if outside else "builtin"
        try:
            result = simulate_run(
                run, engine, astra_sim=job.astra_sim, timeout_s=job.timeout_s, anyway=job.anyway
            )
        except MoxtraceError as error:
            raise type(error)(_with_logs_kept(str(error), run, job)) from None
        network = topology.read(run.path / "topology.json")
        demand = read_demand(run.path / "demand.npz")
        dispatch, combine = _link_bytes(run.path / "links.csv")
    return {
        "npus": network.num_npus,
        **_times(result),
        **_link_loads(summary["normalized_max_load"], dispatch, network),
        **{name: summary[name] for name in _LOADS},
        **_bound(job.bound, config, network, demand, shelf),
        "astra_sim_version": version,
        "stands_on": summary["stands_on"],
        "warnings": summary["warnings"],
        "inputs": run.manifest["inputs"],
        **({"agreement": result.agreement.to_json()} if result.agreement else {}),
        "links": _links(network, dispatch, combine),
    }


_ENGINES: dict[str, Callable[[RunConfig, Job, Shelf], dict[str, Any]]] = {
    "builtin": _by_transfers,
    "builtin-traces": _by_traces,
    "astra-sim": _by_traces,
}


@contextmanager
def _scratch(job: Job) -> Iterator[Path]:
    """A folder for a run directory, gone afterwards."""
    folder = Path(job.folder) / "scratch"
    inside = folder if folder.parent.is_dir() else None
    try:
        if inside is not None:
            inside.mkdir(exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f"{job.run}.", dir=inside)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from None
    with made as name:
        yield Path(name)


def _with_logs_kept(reason: str, run: Run, job: Job) -> str:
    """Keep what a simulator wrote before the run directory goes; the reason with no name of what is gone."""
    logs, kept = run.path / "logs", Path(job.folder) / "logs" / job.run
    if logs.is_dir() and kept.parent.parent.is_dir():
        with contextlib.suppress(OSError):  # the reason counts more than the logs
            shutil.copytree(logs, kept, dirs_exist_ok=True)
            reason = reason.replace(str(logs), str(kept))
    return reason.replace(str(run.path), "its run directory")


def _link_bytes(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes of each link in dispatch and in combine."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    dispatch, combine = (
        np.array([int(r[f"{phase}_bytes"]) for r in rows], np.int64) for phase in ("dispatch", "combine")
    )
    return dispatch, combine


# ------------------------------------------------------------------------------------- columns


def _times(result: Simulation) -> dict[str, Any]:
    """Completion and its parts, which add up to it.

    Dispatch lasts until the last NPU has all that it needs, compute from there until the last one has
    computed, combine from there to the end.
    """
    times = {
        "completion_ns": result.completion_ns,
        "switch_completion_ns": result.switch_completion_ns,
        "slowdown": result.slowdown,
        "exposed_communication_ns": float(result.exposed_ns.max()),
    }
    if {"dispatch", "compute"} <= result.phases.keys():
        ends = [result.phases[name]["end_ns"] for name in ("dispatch", "compute")]
        times["dispatch_ns"] = ends[0]
        times["compute_ns"] = round(ends[1] - ends[0], 3)  # ps are the engines' finest cycle
        times["combine_ns"] = round(result.completion_ns - ends[1], 3)
    return times


def _link_loads(busiest: float, dispatch: NDArray[np.int64], network: Topology) -> dict[str, float]:
    """Busiest and mean link per unit of capacity, both over the ideal switch's busiest port."""
    load = dispatch / network.capacity_gbps
    most = float(load.max())
    return {"max_link_load": busiest, "mean_link_load": float(load.mean()) * busiest / most if most else 0.0}


def _bound(how: str, config: RunConfig, network: Topology, demand: Demand, shelf: Shelf) -> dict[str, Any]:
    """A certified lower bound of ``max_link_load``, and the argument behind it."""
    if how == "none":
        return {"bound": None, "bound_kind": ""}

    def compute() -> list[Any]:
        bounds = bounds_of(network, demand, search=how == "best", seed=config.traffic.seed)
        return [bounds.normalized(bounds.load), bounds.kind] if bounds.loads else [None, ""]

    links = (network.num_npus, network.src, network.dst, network.capacity_gbps)
    rows = (demand.source, demand.dest_ptr, demand.dest)
    value, kind = shelf.take("bound", (how, config.traffic.seed, links, rows), compute)
    return {"bound": value, "bound_kind": kind}


def _links(
    network: Topology, dispatch: NDArray[np.int64], combine: NDArray[np.int64]
) -> dict[str, list[Any]] | None:
    """What each link carries; None where there are too many links for a row."""
    if network.num_links > MOST_LINKS:
        return None

    def ends(nodes: NDArray[np.int32]) -> Sequence[int | str]:
        named = bool(network.names)
        return [
            "switch" if v >= network.num_npus else network.npu_name(v) if named else v for v in nodes.tolist()
        ]

    return {
        "src": list(ends(network.src)),
        "dst": list(ends(network.dst)),
        "dispatch_bytes": dispatch.tolist(),
        "combine_bytes": combine.tolist(),
        "capacity_gbps": network.capacity_gbps.tolist(),
    }


# ------------------------------------------------------------------------------------- memory


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak memory of this process since the body began, bytes.

    Where the system cannot forget an earlier peak, it is that of the process.  A program that was started,
    ASTRA-sim, counts if it was larger.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    yield _peak


def _peak() -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = Path("/proc/self/status").read_text().splitlines()
        here = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
        return max(here, _maxrss(resource.RUSAGE_CHILDREN))
    return max(_maxrss(resource.RUSAGE_SELF), _maxrss(resource.RUSAGE_CHILDREN))


def _maxrss(whose: int) -> int:
    return resource.getrusage(whose).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
