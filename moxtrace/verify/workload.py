"""The workload of custom collectives: the same short chain at every rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from moxtrace.chakra.trace import COLL, COMP, NODE_TYPE_NAMES, Trace
from moxtrace.units import duration_micros
from moxtrace.verify.words import first_of

__all__ = ["ExpectedSet", "chain_problems", "expected_sets"]

ALL_TO_ALL = 6  # CollectiveCommType of et_def.proto
# what the chain is made of, by barrier: node 1, node 2, ...
_CHAINS = {"phase": (COLL, COMP, COLL), "tokens": (COLL,)}


class ExpectedSet(NamedTuple):
    """A file set that form and barrier ask for."""

    phases: list[str]
    node: int  # of the workload, which the set implements; 0 for the workload


def expected_sets(form: str, barrier: str) -> dict[str, ExpectedSet]:
    """File sets of a run directory by name."""
    both = ["dispatch", "combine"]
    if form == "flat":
        return {"workload": ExpectedSet(both, 0)}
    sets = {"workload": ExpectedSet([], 0)}
    if barrier == "tokens":
        return {**sets, "block": ExpectedSet(both, 1)}
    return {**sets, "dispatch": ExpectedSet(["dispatch"], 1), "combine": ExpectedSet(["combine"], 3)}


def chain_problems(manifest: dict[str, Any], trace: Trace) -> list[str]:
    """What is wrong with the workload of a run of the form ``collective``, one line each.

    Every rank has the nodes 1, 2, ... of its barrier's chain, each waiting for the one before it: a
    collective is an all-to-all, and compute takes as long as the manifest says.
    """
    found: list[str] = []
    kinds = _CHAINS[manifest["barrier"]]
    durations = duration_micros(manifest["compute_ns"], manifest["time_scale"]).tolist()
    for rank in range(trace.num_ranks):
        first, last = trace.rank_ptr[rank], trace.rank_ptr[rank + 1]
        if last - first != len(kinds):
            found.append(
                f"workload: rank {rank} has {last - first} nodes; barrier {manifest['barrier']!r} makes it "
                f"{len(kinds)}: {', '.join(NODE_TYPE_NAMES[kind] for kind in kinds)}"
            )
            continue
        for at, kind in enumerate(kinds):
            what = _wrong_node(trace, first + at, at, kind, durations[rank])
            if what:
                found.append(f"workload: node {trace.node_id[first + at]} of rank {rank}: {what}")
    with_ops = [f"workload: rank {trace.rank_of(i)}: COMP with num_ops" for i in trace.ops_node]
    return first_of(found, len(found)) + first_of(with_ops, len(with_ops))


def _wrong_node(trace: Trace, node: int, at: int, kind: int, duration: int) -> str:
    """What is wrong with the node at position ``at`` of a rank; empty where nothing is."""
    found = int(trace.kind[node])
    if trace.node_id[node] != at + 1:
        return f"expected id {at + 1} at position {at + 1}"
    if found != kind:
        return f"is {NODE_TYPE_NAMES[found]}; expected {NODE_TYPE_NAMES[kind]}"
    waits = trace.dep[trace.dep_ptr[node] : trace.dep_ptr[node + 1]].tolist()
    if waits != ([at - 1] if at else []):
        return f"depends on nodes {[w + 1 for w in waits]}; expected {[at] if at else 'none'}"
    if kind == COLL and trace.peer[node] != ALL_TO_ALL:
        return f"comm_type is {trace.peer[node]}; expected {ALL_TO_ALL} (ALL_TO_ALL)"
    if kind == COLL and trace.amount[node] != 1:
        return f"comm_size is {trace.amount[node]}; expected 1: its own traces say what it sends"
    if kind == COMP and trace.amount[node] != duration:
        return f"duration_micros is {trace.amount[node]}; the manifest's compute_ns makes it {duration}"
    return ""
