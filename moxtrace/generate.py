"""The main job: a configuration becomes a run directory.

Goes in: a :class:`~moxtrace.config.RunConfig`.  Comes out: a directory with the execution traces, ASTRA-sim's
input files, ``links.csv``, ``summary.json`` and what it takes to verify, simulate and repeat it.
"""

from __future__ import annotations

import csv
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import __version__, config, topology
from moxtrace.baseline import network_of, switch_completion_ns
from moxtrace.chakra import writer
from moxtrace.chakra.astra_inputs import TRACES, cannot_express, write_inputs
from moxtrace.config import RunConfig, TraceConfig
from moxtrace.demand import write_demand
from moxtrace.engine.blocks import simulate_block
from moxtrace.lowering import Block, token_order, traces_of
from moxtrace.routing import loads
from moxtrace.rundir import new_directory, write_json, write_manifest
from moxtrace.scenario import Scenario, block_of, prepare
from moxtrace.shelf import EMPTY, Shelf
from moxtrace.units import cycles_per_ns

__all__ = ["generate", "window_of"]

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

# names of the workload's nodes, by barrier and node id
WORKLOAD_NAMES = {"phase": {1: "dispatch", 2: "experts", 3: "combine"}, "tokens": {1: "block"}}


def _orders(
    scenario: Scenario, block: Block, summary: dict[str, Any]
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Start orders of both phases; the simulation that they come from fills in the summary."""
    trace, network = scenario.config.trace, scenario.topology
    source = scenario.demand.source
    if trace.order == "token":
        rows = scenario.demand.unicast().source if scenario.sends_copies else source
        return token_order(block.dispatch, rows), token_order(block.combine, rows)
    scale = cycles_per_ns(trace.time_scale)
    result = simulate_block(
        block.dispatch, block.combine, block.compute_ns, network_of(network, trace.time_scale),
        barrier=trace.barrier, reduce_ns_per_byte=block.reduce_ns_per_byte,
    )  # fmt: skip
    switch = switch_completion_ns(
        scenario.demand, network, block.compute_ns, (block.dispatch.size_bytes, block.combine.size_bytes),
        trace.time_scale, trace.barrier,
    )  # fmt: skip
    summary["switch_completion_ns"] = switch
    if trace.form == "collective":  # flat traces are executed send by send, which is not what was simulated
        summary.update(
            completion_ns=result.completion / scale,
            slowdown=result.completion / scale / switch,
            dispatch_done_ns=int(result.dispatch_done.max()) / scale,
            compute_done_ns=int(result.compute_done.max()) / scale,
        )
    return result.dispatch_order, result.combine_order


def window_of(block: Block, options: TraceConfig) -> int:
    """Messages in flight per link: what the configuration says, else enough to keep every link busy.

    A send ends when its message arrives, so a link needs ``ceil((latency + serialization) / serialization)``
    messages in flight, and one more that waits.  The default is 4 in simulated order and 64 in token order,
    raised to that; a smaller window that was asked for is kept, with a warning.
    """
    network = block.dispatch.topology
    size = min(block.dispatch.size_bytes, block.combine.size_bytes)
    hops = 2 if network.has_switch else 1
    serialization = size * 8.0 / network.bandwidth_gbps
    in_flight = network.lanes * np.ceil(hops * (network.latency_ns + serialization) / serialization)
    enough = int(in_flight.max()) + 1
    if options.window is None:
        return max(options.usual_window, enough)
    if 0 < options.window < enough:
        log.warning(
            "trace.window: %d messages in flight leave links idle; %d keep them busy", options.window, enough
        )
    return options.window


def write_links(path: Path, block: Block) -> None:
    """``links.csv``: bytes and messages of each link in each phase."""
    network = block.dispatch.topology
    phases = (block.dispatch, block.combine)
    columns = [network.npu_name(i) for i in range(network.num_npus)] + ["switch"]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["src", "dst", "gbps", "lanes"]
            + [f"{phase.name}_{what}" for phase in phases for what in ("messages", "bytes")]
        )
        counts = [values for phase in phases for values in (phase.link_messages(), phase.link_bytes())]
        for e in range(network.num_links):
            ends = [columns[network.src[e]], columns[network.dst[e]]]
            rate = f"{network.bandwidth_gbps[e]:g}"
            table.writerow([*ends, rate, int(network.lanes[e]), *(int(c[e]) for c in counts)])


def summarise(scenario: Scenario, block: Block) -> dict[str, Any]:
    """``summary.json``: what was routed and how the links share it."""
    network = scenario.topology
    return {
        "npus": network.num_npus,
        "topology": network.kind,
        "policy": scenario.config.routing.policy,
        "tokens": scenario.demand.num_tokens,
        "transfers": {p.name: p.num_transfers for p in (block.dispatch, block.combine)},
        "message_bytes": {p.name: p.size_bytes for p in (block.dispatch, block.combine)},
        **loads.summary(block.dispatch, scenario.demand),
        "max_compute_ns": int(scenario.compute_ns.max()),
        "stands_on": scenario.stands_on,
        "warnings": list(scenario.warnings),
        **({"placement_gain": asdict(scenario.placement_gain)} if scenario.placement_gain else {}),
    }


def generate(
    run_config: RunConfig,
    target: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    shelf: Shelf = EMPTY,
) -> dict[str, Any]:
    """Make a run directory.

    Parameters
    ----------
    run_config : RunConfig
    target : path
    force : bool
        Replace an earlier run directory.
    progress : callable, optional
        Called with (step, done, total).
    shelf : Shelf
        Where network, weights and routes are kept for other runs.

    Returns
    -------
    dict
        What ``summary.json`` holds.

    Raises
    ------
    MoxtraceError
        When the configuration cannot be carried out or the directory cannot be written; ``target`` is then
        as it was.
    """
    tell = progress or (lambda step, done, total: None)
    with new_directory(target, force=force) as folder:
        tell("tokens and topology", 0, 1)
        scenario = prepare(run_config, shelf)
        block = block_of(scenario, lambda done, total: tell("routes", done, total))
        summary = summarise(scenario, block)
        tell("start order", 0, 1)
        orders = _orders(scenario, block, summary)
        _write_run(folder, scenario, block, orders, summary, tell)
    return summary


def _write_traces(
    folder: Path,
    scenario: Scenario,
    block: Block,
    orders: tuple[NDArray[np.integer], NDArray[np.integer]],
    window: int,
    tell: Progress,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], dict[int, str]]:
    """Write every file set; returns the facts of the files, of the sets, and what implements which node."""
    options = scenario.config.trace
    files: dict[str, dict[str, Any]] = {}
    sets: dict[str, dict[str, Any]] = {}
    collectives: dict[int, str] = {}
    (folder / TRACES).mkdir()
    for name, node_id, trace in traces_of(block, *orders, options, window):
        step = partial(tell, f"{name} traces")
        is_chain = name == "workload" and options.form == "collective"
        node_names = WORKLOAD_NAMES[options.barrier] if is_chain else None
        for file in writer.write(trace, folder / TRACES / name, node_names=node_names, progress=step):
            facts = {"bytes": file.bytes, "sha256": file.sha256, "nodes": file.nodes}
            files[f"{TRACES}/{file.name}"] = facts
        sets[name] = {"nodes": trace.num_nodes, "phases": _phases_in(name, options.form)}
        if node_id:
            collectives[node_id] = name
    return files, sets, collectives


def _facts(scenario: Scenario, block: Block, window: int, sets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says besides the files."""
    options, why_not = scenario.config.trace, cannot_express(scenario.topology)
    first_tags = (0, block.dispatch.num_trees)
    return {
        "moxtrace": __version__,
        "npus": scenario.topology.num_npus,
        "time_scale": options.time_scale,
        "form": options.form,
        "barrier": options.barrier,
        "window": window,
        "rows": "copies" if scenario.sends_copies else "tokens",
        "astra_sim": f"the topology {why_not}" if why_not else "expressible",
        "compute_ns": block.compute_ns.tolist(),
        "reduce_ns_per_byte": block.reduce_ns_per_byte,
        "traces": sets,
        "phases": {
            phase.name: {
                "first_tag": first_tag,
                "trees": phase.num_trees,
                "messages": phase.num_transfers,
                "message_bytes": phase.size_bytes,
            }
            for phase, first_tag in zip((block.dispatch, block.combine), first_tags, strict=True)
        },
        "inputs": scenario.inputs,
    }


def _write_config(folder: Path, run_config: RunConfig) -> None:
    """Write ``config.resolved.yaml`` and, under ``inputs/``, the files that it names.

    So a run directory can be generated again wherever it goes, and its bytes do not depend on where it lies.
    """
    inside = {}
    for block, key in config.PATH_KEYS:
        named = getattr(getattr(run_config, block), key)
        if named is not None:
            (folder / "inputs").mkdir(exist_ok=True)
            inside[block] = f"inputs/{block}{Path(named).suffix}"
            shutil.copyfile(named, folder / inside[block])
    (folder / "config.resolved.yaml").write_text(config.dump(run_config, inside), encoding="utf-8")


def _write_run(
    folder: Path,
    scenario: Scenario,
    block: Block,
    orders: tuple[NDArray[np.integer], NDArray[np.integer]],
    summary: dict[str, Any],
    tell: Progress,
) -> None:
    options, network = scenario.config.trace, scenario.topology
    window = window_of(block, options)
    files, sets, collectives = _write_traces(folder, scenario, block, orders, window, tell)
    description = f"{network.num_npus} NPUs, {network.kind}, {summary['policy']}"
    write_inputs(folder, network, collectives, options.time_scale, description)
    topology.write(network, folder / "topology.json")
    write_demand(folder / "demand.npz", scenario.demand)
    write_links(folder / "links.csv", block)
    write_json(folder / "summary.json", summary)
    _write_config(folder, scenario.config)
    write_manifest(folder, _facts(scenario, block, window, sets), files)


def _phases_in(name: str, form: str) -> list[str]:
    """Phases whose messages lie in a file set."""
    if name in ("dispatch", "combine"):
        return [name]
    return ["dispatch", "combine"] if name == "block" or form == "flat" else []
