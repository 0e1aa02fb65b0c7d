"""ASTRA-sim's own input files, whoever wrote them, made ready for the built-in engine.

Goes in: the prefix of the workload's traces, the system, network and memory files.  Comes out:
:class:`SimulationInput`.  Keys that change nothing in what the engine models are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moxtrace.chakra import reader
from moxtrace.chakra.trace import COLL, Trace
from moxtrace.engine.network import Network, read_yaml
from moxtrace.engine.result import ComputeModel, TraceResult
from moxtrace.engine.traces import simulate
from moxtrace.errors import ConfigError

__all__ = ["SimulationInput", "load", "simulate_inputs"]

NODE_MAP = "per-node-custom-implementation"
SPLITS = "preferred-dataset-splits"
# by comm_type: the collectives that system.json can implement for all nodes of the type at once
BY_TYPE = {
    0: "all-reduce-implementation-custom",
    2: "all-gather-implementation-custom",
    6: "all-to-all-implementation-custom",
    7: "reduce-scatter-implementation-custom",
}


@dataclass(frozen=True, eq=False)
class SimulationInput:
    """What ASTRA-sim's command line names.

    Parameters
    ----------
    workload : Trace
    collectives : dict of int to Trace
        What each COLL node of the workload runs, by its id.
    compute : ComputeModel
    network : Network
    """

    workload: Trace
    collectives: dict[int, Trace]
    compute: ComputeModel
    network: Network


def load(
    workload_prefix: str | Path,
    system_json: str | Path,
    network_yml: str | Path,
    memory_json: str | Path | None = None,
) -> SimulationInput:
    """Read ASTRA-sim's input files.

    Parameters
    ----------
    workload_prefix : path
        The traces are ``PREFIX.{rank}.et``.
    system_json, network_yml : path
    memory_json : path, optional
        Checked only: traces with memory nodes are refused.

    Raises
    ------
    ConfigError
        If a file cannot be read or says something that ASTRA-sim, or the engine, cannot carry out.
    TraceError
        If a trace is malformed.

    Notes
    -----
    ASTRA-sim takes the paths in ``system.json`` and in the map relative to the directory that it is run in.
    So does this; where nothing is found there, they are taken relative to the folder of ``system.json``.
    """
    system = _read_json(system_json)
    if memory_json is not None:
        _read_json(memory_json)
    network = Network.from_astra(network_yml)
    workload = _read_trace(workload_prefix, network, network_yml)
    _refuse_what_changes_results(system, system_json)
    prefixes = _collective_prefixes(system, Path(system_json), workload)
    if prefixes:
        _check_splits(system, system_json)
    read = {prefix: _read_trace(prefix, network, network_yml) for prefix in dict.fromkeys(prefixes.values())}
    compute = ComputeModel(
        bool(_number(system, "roofline-enabled", system_json)),
        _number(system, "local-mem-bw", system_json),
        _number(system, "peak-perf", system_json),
    )
    return SimulationInput(workload, {i: read[p] for i, p in prefixes.items()}, compute, network)


def simulate_inputs(
    inputs: SimulationInput, progress: Callable[[int, int], None] | None = None
) -> TraceResult:
    """Run what :func:`load` read; see :func:`moxtrace.engine.traces.simulate`."""
    return simulate(inputs.workload, inputs.collectives, inputs.network, inputs.compute, progress)


def _read_json(path: str | Path) -> dict[str, Any]:
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: expected an object of settings")
    return read


def _number(system: dict[str, Any], key: str, path: str | Path) -> float:
    value = system.get(key, 0)
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{path}: {key}: {value!r} is no number")
    return float(value)


def _read_trace(prefix: str | Path, network: Network, network_yml: str | Path) -> Trace:
    trace = reader.read(prefix)
    if trace.num_ranks != network.num_npus:
        raise ConfigError(
            f"{prefix}.RANK.et: {trace.num_ranks} ranks, but npus_count in {network_yml} is "
            f"{network.num_npus}; they must be equal"
        )
    return trace


def _refuse_what_changes_results(system: dict[str, Any], path: str | Path) -> None:
    """``replay-only`` ignores the network, which is all that the engine is about."""
    if _number(system, "replay-only", path):
        raise ConfigError(f"{path}: replay-only is set: ASTRA-sim would simulate no network; set it to 0")


def _check_splits(system: dict[str, Any], path: str | Path) -> None:
    splits = system.get(SPLITS, 0)
    if splits != 1:
        found = splits if SPLITS in system else "missing"
        raise ConfigError(
            f'{path}: "{SPLITS}" is {found}; custom collectives need 1: ASTRA-sim divides by it, '
            "and waits for as many streams as it says although it starts one"
        )


def _beside(path: str, system_json: Path, suffix: str = "") -> Path:
    """``path`` from the working directory as ASTRA-sim takes it, else from the folder of ``system.json``."""
    if Path(path + suffix).exists() or Path(path).is_absolute():
        return Path(path)
    return system_json.parent / path


def _collective_prefixes(system: dict[str, Any], system_json: Path, workload: Trace) -> dict[int, Path]:
    """Prefix of the traces that implement each COLL node; nodes without one are left out."""
    by_node: dict[int, str] = {}
    if NODE_MAP in system:
        if not isinstance(system[NODE_MAP], str):
            raise ConfigError(f"{system_json}: {NODE_MAP}: {system[NODE_MAP]!r}; expected the path of a map")
        path = _beside(system[NODE_MAP], system_json)
        for node, prefix in read_yaml(path, "a map of workload node id to trace prefix").items():
            if isinstance(node, bool) or not isinstance(node, int) or not isinstance(prefix, str):
                raise ConfigError(f"{path}: {node!r}: {prefix!r}; expected 'workload node id: trace prefix'")
            by_node[node] = prefix
    prefixes = {}
    for i in (workload.kind == COLL).nonzero()[0]:
        node, kind = int(workload.node_id[i]), int(workload.peer[i])
        prefix = by_node.get(node, _for_all(system, system_json, kind))
        if prefix is not None:
            prefixes[node] = _beside(prefix, system_json, ".0.et")
    return prefixes


def _for_all(system: dict[str, Any], system_json: Path, comm_type: int) -> str | None:
    """The custom implementation of all collectives of a type, if there is one."""
    key = BY_TYPE.get(comm_type, "")
    if key not in system:
        return None
    value = system[key]
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
        raise ConfigError(f"{system_json}: {key}: {value!r}; expected a list of one trace prefix")
    return str(value[0])
