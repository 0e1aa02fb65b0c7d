"""The traces as an MoE layer: one file set at a time against demand, topology and manifest.

Goes in: the nodes of a file set and the phases that lie in it.  Comes out: its faults in words, and what
every link carries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COLL, COMP, NODE_TYPE_NAMES, RECV, SEND, Trace
from moxtrace.demand import Demand
from moxtrace.topology import Topology
from moxtrace.units import duration_micros
from moxtrace.verify import kernels
from moxtrace.verify.words import SHOWN, Faults, first_of, node_name, wording

__all__ = ["Layer"]


class _Rows(NamedTuple):
    """Rows of the demand."""

    source: NDArray[np.int32]
    dest_ptr: NDArray[np.int64]
    dest: NDArray[np.int32]


class _Sends(NamedTuple):
    """Messages of one phase, row after row; those of row ``t`` are ``ptr[t] : ptr[t + 1]``."""

    ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    node: NDArray[np.int64]  # the SEND, as a global index into the trace


class _Nodes(NamedTuple):
    """What kernels read of a trace."""

    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]


class Layer:
    """Checks file sets and remembers what their links carry.

    Parameters
    ----------
    manifest : dict
    demand : Demand
        One row per tree.
    network : Topology
        Of as many NPUs as demand and manifest.
    shown : int
        Faults of one kind that are spelled out.
    """

    def __init__(
        self, manifest: dict[str, Any], demand: Demand, network: Topology, shown: int = SHOWN
    ) -> None:
        self.manifest, self.demand, self.network, self.shown = manifest, demand, network, shown
        self.messages: dict[str, NDArray[np.int64]] = {}
        self.size_bytes: dict[str, NDArray[np.int64]] = {}
        self.first_tag = {"dispatch": 0, "combine": demand.num_rows}

    def problems(self, phases: list[str], trace: Trace) -> list[str]:
        """Everything that is wrong with a file set that holds ``phases``, one line each."""
        found = self._foreign(phases, trace)
        rows = _Rows(self.demand.source, self.demand.dest_ptr, self.demand.dest)
        nodes = _Nodes(trace.kind, trace.peer, trace.tag, trace.amount, trace.dep_ptr, trace.dep)
        sends: dict[str, _Sends] = {}
        for phase in phases:
            base = self.first_tag[phase]
            sends[phase] = _Sends(*kernels.group_sends(trace.rank_ptr, tuple(nodes), base, len(rows.source)))
            found += self._said(phase, trace, self._links(phase, sends[phase], nodes))
        if "dispatch" in phases:
            faults = Faults.empty(self.shown)
            kernels.check_dispatch(
                tuple(rows), tuple(sends["dispatch"]), tuple(nodes), trace.rank_ptr, 0, tuple(faults)
            )
            found += self._said("dispatch", trace, faults)
        return found + self._comps(phases, trace, rows, nodes, sends)

    def _said(self, phase: str, trace: Trace, faults: Faults) -> list[str]:
        size = self.manifest["phases"][phase]["message_bytes"]
        return wording(phase, faults, trace, self.demand, self.network, size, self.first_tag[phase])

    def _foreign(self, phases: list[str], trace: Trace) -> list[str]:
        """Nodes that belong to no phase of the file set."""
        tags = " or ".join(
            f"{self.first_tag[p]} to {self.first_tag[p] + self.demand.num_rows - 1} ({p})" for p in phases
        )
        is_message = (trace.kind == SEND) | (trace.kind == RECV)
        known = np.zeros(trace.num_nodes, np.bool_)
        for phase in phases:
            base = self.first_tag[phase]
            known |= (trace.tag >= base) & (trace.tag < base + self.demand.num_rows)
        what = "/".join(phases)
        found = first_of(
            (
                f"{what}: {node_name(trace, i)}: {NODE_TYPE_NAMES[int(trace.kind[i])]} with NPU "
                f"{self.network.npu_name(trace.peer[i])} has tag {trace.tag[i]}, which is no token's; "
                f"expected {tags}"
                for i in np.flatnonzero(is_message & ~known)
            ),
            int((is_message & ~known).sum()),
        )
        colls = np.flatnonzero(trace.kind == COLL)
        found += first_of(
            (f"{what}: {node_name(trace, i)}: COMM_COLL; expected SEND, RECV and COMP" for i in colls),
            len(colls),
        )
        return found + first_of(
            (
                f"{what}: {node_name(trace, i)}: COMP with num_ops; expected duration_micros alone"
                for i in trace.ops_node
            ),
            len(trace.ops_node),
        )

    def _links(self, phase: str, sends: _Sends, nodes: _Nodes) -> Faults:
        """Sizes and links of every message, and how many there are."""
        network, faults = self.network, Faults.empty(self.shown)
        hub = network.num_npus if network.has_switch else -1
        messages, size_bytes = (np.zeros(network.num_links, np.int64) for _ in range(2))
        size = self.manifest["phases"][phase]["message_bytes"]
        links = (network.out_ptr, network.dst, hub)
        kernels.check_messages(tuple(sends), tuple(nodes), links, size, messages, size_bytes, tuple(faults))
        self.messages[phase], self.size_bytes[phase] = messages, size_bytes
        return faults

    def _comps(
        self, phases: list[str], trace: Trace, rows: _Rows, nodes: _Nodes, sends: dict[str, _Sends]
    ) -> list[str]:
        """Expert compute and sums: each there, in time, and none besides."""
        npus, base = self.network.num_npus, self.first_tag["combine"]
        compute_at = np.full(npus, -1, np.int64)
        total_at = np.full(len(rows.source), -1, np.int64)
        used = np.zeros(trace.num_nodes, np.bool_)
        found: list[str] = []
        kernels.find_comps(rows.source, tuple(nodes), trace.rank_ptr, base, compute_at, total_at)
        if len(phases) == 2:
            found += self._compute(trace, rows, nodes, compute_at)
            used[compute_at[compute_at >= 0]] = True
            gate = 1 if self.manifest["barrier"] == "phase" else 0
        else:
            _excuse_idle(trace, used)
            compute_at[:], gate = -1, -1
        if "combine" in phases:
            faults = Faults.empty(self.shown)
            sums = (self._reduce_table(sends["combine"]), total_at, used)
            kernels.check_combine(
                tuple(rows), tuple(sends["combine"]), tuple(nodes), trace.rank_ptr, base, (gate, compute_at),
                sums, tuple(faults),
            )  # fmt: skip
            found += self._said("combine", trace, faults)
        odd = np.flatnonzero((trace.kind == COMP) & ~used)
        return found + first_of(
            (
                f"{'/'.join(phases)}: {node_name(trace, i)}: COMP of duration {trace.amount[i]} is neither "
                "expert compute nor a sum that is sent on"
                for i in odd
            ),
            len(odd),
        )

    def _compute(self, trace: Trace, rows: _Rows, nodes: _Nodes, compute_at: NDArray[np.int64]) -> list[str]:
        """Expert compute of every rank, where it lies between the phases of one file set."""
        expected = duration_micros(self.manifest["compute_ns"], self.manifest["time_scale"])
        missing = np.flatnonzero(compute_at < 0)
        found = first_of(
            (f"dispatch/combine: rank {r} has no COMP for its expert compute" for r in missing), len(missing)
        )
        ranks = np.flatnonzero(compute_at >= 0)
        wrong = ranks[trace.amount[compute_at[ranks]] != expected[ranks]]
        found += first_of(
            (
                f"dispatch/combine: {node_name(trace, compute_at[r])}: expert compute of duration "
                f"{trace.amount[compute_at[r]]}; the manifest's compute_ns makes it {expected[r]}"
                for r in wrong
            ),
            len(wrong),
        )
        faults = Faults.empty(self.shown)
        whole_phase = self.manifest["barrier"] == "phase"
        kernels.check_compute(
            tuple(rows), tuple(nodes), trace.rank_ptr, 0, compute_at, whole_phase, tuple(faults)
        )
        return found + self._said("dispatch", trace, faults)

    def _reduce_table(self, sends: _Sends) -> NDArray[np.int64]:
        """Duration of a sum of so many inputs; as long as any row can ask for."""
        inputs = np.arange(int(np.diff(sends.ptr).max(initial=0)) + 2)
        size, rate = self.manifest["phases"]["combine"]["message_bytes"], self.manifest["reduce_ns_per_byte"]
        return duration_micros(np.maximum(inputs - 1, 0) * size * rate, self.manifest["time_scale"])


def _excuse_idle(trace: Trace, used: NDArray[np.bool_]) -> None:
    """Mark the idle COMP of every rank that has nothing else to do: ASTRA-sim wants a node in every file."""
    alone = trace.rank_ptr[:-1][np.diff(trace.rank_ptr) == 1]
    used[alone[(trace.kind[alone] == COMP) & (trace.amount[alone] == 0)]] = True
