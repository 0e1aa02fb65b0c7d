"""The run's tables and numbers against each other: manifest, summary, collectives, ``links.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.trace import Trace
from moxtrace.demand import Demand
from moxtrace.errors import TraceError
from moxtrace.rundir import Run
from moxtrace.topology import Topology
from moxtrace.verify.words import first_of
from moxtrace.verify.workload import expected_sets

__all__ = ["count_problems", "layout_problems", "misfits", "summary_problems", "table_problems"]

_ENDS = ["src", "dst", "gbps", "lanes"]
_COUNTS = ["dispatch_messages", "dispatch_bytes", "combine_messages", "combine_bytes"]


def misfits(run: Run, demand: Demand, network: Topology) -> list[str]:
    """Where demand, topology and manifest speak of different runs: nothing else can be checked then.

    Parameters
    ----------
    run : Run
    demand : Demand
        One row per tree.
    network : Topology
    """
    manifest, found = run.manifest, []
    for name, npus in (("demand.npz", demand.num_npus), ("topology.json", network.num_npus)):
        if npus != manifest["npus"]:
            found.append(f"{name}: {npus} NPUs; the manifest says {manifest['npus']}")
    first_tag = 0
    for phase, facts in manifest["phases"].items():
        if facts["trees"] != demand.num_rows:
            found.append(
                f"demand.npz: {demand.num_rows} {manifest['rows']}; the manifest says {facts['trees']} trees "
                f"of {phase}"
            )
        elif facts["first_tag"] != first_tag:
            found.append(f"manifest: {phase} begins at tag {facts['first_tag']}; expected {first_tag}")
        first_tag += demand.num_rows
    return found


def layout_problems(run: Run) -> list[str]:
    """File sets, their files and their collectives against what form and barrier ask for."""
    manifest, found = run.manifest, []
    expected = expected_sets(manifest["form"], manifest["barrier"])
    what = f"form {manifest['form']!r} with barrier {manifest['barrier']!r}"
    said = {name: facts["phases"] for name, facts in manifest["traces"].items()}
    asked = {name: one.phases for name, one in expected.items()}
    if said != asked:
        found.append(f"manifest: traces are {said}; {what} makes them {asked}")
    for name in said:
        missing = [
            f"manifest: {TRACES}/{name}.{rank}.et, or its number of nodes, is not listed"
            for rank in range(manifest["npus"])
            if manifest["files"].get(f"{TRACES}/{name}.{rank}.et", {}).get("nodes") is None
        ]
        found += first_of(missing, len(missing))
    nodes = {one.node: f"{TRACES}/{name}" for name, one in expected.items() if one.node}
    try:
        collectives = run.collectives()
    except TraceError as error:
        return [*found, str(error)]
    if collectives != nodes:
        found.append(f"collectives.yml: {collectives}; {what} makes it {nodes}")
    if manifest["form"] == "flat" and (run.path / "collectives.yml").exists():
        found.append("collectives.yml: flat traces have no collectives; remove it")
    return found


def count_problems(run: Run, name: str, trace: Trace) -> list[str]:
    """Nodes of a file set against the manifest."""
    found, files = [], run.manifest["files"]
    for rank, count in enumerate(np.diff(trace.rank_ptr).tolist()):
        said = files.get(f"{TRACES}/{name}.{rank}.et", {}).get("nodes")
        if said is not None and said != count:
            found.append(f"{name}: rank {rank} has {count} nodes; the manifest says {said}")
    found = first_of(found, len(found))
    said = run.manifest["traces"].get(name, {}).get("nodes")
    if said != trace.num_nodes:
        found.append(f"{name}: {trace.num_nodes} nodes; the manifest says {said}")
    return found


def summary_problems(run: Run, demand: Demand, messages: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """``summary.json`` and the manifest's numbers against demand and traces.

    Parameters
    ----------
    run : Run
    demand : Demand
    messages : mapping of str to array of int64, shape (links,)
        Messages that each link carries in each phase whose traces could be read.
    """
    manifest, found = run.manifest, []
    try:
        summary = run.json("summary.json")
    except TraceError as error:
        return [str(error)]
    pairs = [
        ("npus", summary["npus"], manifest["npus"], "the manifest"),
        ("tokens", summary["tokens"], demand.num_tokens, "demand.npz"),
        ("max_compute_ns", summary["max_compute_ns"], max(manifest["compute_ns"]), "the manifest"),
    ]
    for phase, facts in manifest["phases"].items():
        for key, says in (("transfers", facts["messages"]), ("message_bytes", facts["message_bytes"])):
            pairs.append((f"{key}.{phase}", summary[key][phase], says, "the manifest"))
        if phase in messages and int(messages[phase].sum()) != facts["messages"]:
            found.append(
                f"{phase}: the traces make {messages[phase].sum()} transfers over links; the manifest says "
                f"{facts['messages']}"
            )
    return found + [
        f"summary.json: {key} is {value}; {who} says {other}"
        for key, value, other, who in pairs
        if value != other
    ]


def _table(run: Run) -> list[list[str]]:
    """Rows of ``links.csv``, its header checked and left out."""
    path, header = run.path / "links.csv", _ENDS + _COUNTS
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise TraceError(f"{path}: cannot read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise TraceError(f"{path}: is no CSV; generate the run again") from None
    if not rows or rows[0] != header:
        found = ",".join(rows[0]) if rows else "nothing"
        raise TraceError(f"{path}: line 1: expected {','.join(header)}; found {found[:80]}")
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise TraceError(f"{path}: line {line}: {len(row)} cells; expected {len(header)}: is it cut?")
    return rows[1:]


def table_problems(
    run: Run,
    network: Topology,
    messages: Mapping[str, NDArray[np.int64]],
    size_bytes: Mapping[str, NDArray[np.int64]],
) -> list[str]:
    """``links.csv`` against the topology and the messages in the traces.

    Parameters
    ----------
    run : Run
    network : Topology
    messages, size_bytes : mapping of str to array of int64, shape (links,)
        What each link carries in each phase whose traces could be read.
    """
    try:
        rows = _table(run)
    except TraceError as error:
        return [str(error)]
    if len(rows) != network.num_links:
        return [f"links.csv: {len(rows)} rows; the topology has {network.num_links} links"]
    names = [network.npu_name(i) for i in range(network.num_npus)] + ["switch"]
    carried = {f"{phase}_messages": count.tolist() for phase, count in messages.items()}
    carried |= {f"{phase}_bytes": count.tolist() for phase, count in size_bytes.items()}
    wrong: dict[str, list[str]] = {}
    for e, row in enumerate(rows):
        ends = [names[network.src[e]], names[network.dst[e]]]
        should = [*ends, f"{network.bandwidth_gbps[e]:g}", str(network.lanes[e])]
        for key, found, expected in zip(_ENDS, row, should, strict=False):
            if found != expected:
                wrong.setdefault(key, []).append(
                    f"links.csv: line {e + 2}: {key} is {found}; the topology says {expected}"
                )
        for key, found in zip(_COUNTS, row[len(_ENDS) :], strict=True):
            if key in carried and found != str(carried[key][e]):
                phase, unit = key.split("_")
                wrong.setdefault(key, []).append(
                    f"{phase}: link {ends[0]} -> {ends[1]}: the traces carry {carried[key][e]} {unit}; "
                    f"links.csv says {found}"
                )
    return [line for lines in wrong.values() for line in first_of(lines, len(lines))]
