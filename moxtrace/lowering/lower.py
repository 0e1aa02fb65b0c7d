"""Lowering: the phases of a block become execution traces.

Goes in: dispatch and combine, the order in which messages start, the compute time of every NPU.  Comes out:
one :class:`~moxtrace.chakra.trace.Trace` per file set, ready for the writer.

Every message is a SEND at one rank and a RECV at another.  Its tag is the row of the demand that it carries
(combine counts on after dispatch): unique on each link, and ``verify`` can follow a token by it.  A SEND
depends on the RECV that brought its data, or on the COMP that reduced it.  Under a window W it depends also
on the W-th SEND before it on its link, and a RECV likewise: ASTRA-sim issues free nodes in an order of its
own and slows down when there are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COLL, COMP, Trace
from moxtrace.config import TraceConfig
from moxtrace.errors import TraceError
from moxtrace.lowering.kernels import emit_combine, emit_compute, emit_dispatch
from moxtrace.transfers import Phase
from moxtrace.units import duration_micros

__all__ = ["ALL_TO_ALL", "Block", "messages_of", "token_order", "traces_of"]

ALL_TO_ALL = 6  # CollectiveCommType of et_def.proto
MAX_TAG = 500_000_000  # ASTRA-sim's tags wrap here


@dataclass(frozen=True, eq=False)
class Block:
    """An MoE layer's communication: dispatch, expert compute, combine.

    Parameters
    ----------
    dispatch, combine : Phase
    compute_ns : array of int64, shape (npus,)
        Expert compute time of each NPU, ns.
    reduce_ns_per_byte : float
        Time to add one received vector to a partial sum, per byte of it.
    """

    dispatch: Phase
    combine: Phase
    compute_ns: NDArray[np.int64]
    reduce_ns_per_byte: float


class Messages(NamedTuple):
    """Messages of a phase; ``near`` is the rank on the source's side, ``far`` the other."""

    near: NDArray[np.int32]
    far: NDArray[np.int32]
    parent: NDArray[np.int32]
    tree: NDArray[np.int32]
    tree_ptr: NDArray[np.int64]
    delivers: NDArray[np.bool_]
    key: NDArray[np.int32]  # messages of one key form one chain of windows


class _Columns(NamedTuple):
    """Columns of a trace that is being filled."""

    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]


class _Cursor(NamedTuple):
    """Next free node and dependency of every rank, and where its nodes start."""

    node: NDArray[np.int64]
    dep: NDArray[np.int64]
    start: NDArray[np.int64]


class _View(NamedTuple):
    """A phase as ranks see it, hops through a switch merged, and where each message's transfers are."""

    messages: Messages
    first: NDArray[np.int64]  # the transfer whose start is the message's start


def messages_of(phase: Phase) -> _View:
    """The messages of a phase: its transfers, with the two hops through a switching node as one message.

    Returns
    -------
    messages : Messages
        ``near`` and ``far`` ranks, seen from the source; ``parent`` among messages.
    first : array of int64, shape (messages,)
        Transfer that the message begins with.
    """
    topology = phase.topology
    near, far = (phase.dst, phase.src) if phase.toward_source else (phase.src, phase.dst)
    parent, tree, key = phase.parent, phase.tree(), phase.link
    kept = np.arange(phase.num_transfers, dtype=np.int64)
    first = kept
    delivers = phase.delivers
    tree_ptr = phase.tree_ptr
    if topology.has_switch:
        n = topology.num_npus
        kept = np.flatnonzero(far < n)
        through = parent[kept]  # the hop between the switching node and the source's side
        message_of = np.full(phase.num_transfers, -1, np.int64)
        message_of[kept] = np.arange(len(kept))
        above = parent[through]
        near, far = near[through], far[kept]
        first = kept if phase.toward_source else through.astype(np.int64)
        parent = np.where(above >= 0, message_of[above], -1).astype(np.int32)
        delivers, tree = delivers[kept], tree[kept]
        tree_ptr = np.searchsorted(tree, np.arange(phase.num_trees + 1)).astype(np.int64)
        # pairs of ranks, numbered as they occur: there may be n * n of them
        key = np.unique(near.astype(np.int64) * n + far, return_inverse=True)[1].astype(np.int32)
    return _View(Messages(near, far, parent, tree, tree_ptr, delivers, key), first)


def token_order(phase: Phase, source: NDArray[np.int32]) -> NDArray[np.int64]:
    """Transfers in token order: the k-th row of every source before its k+1-th.

    In dispatch a row's transfers leave the source first, in combine they reach it last.

    Parameters
    ----------
    phase : Phase
    source : array of int32, shape (rows,)
        Source NPU of each row, ascending.
    """
    rank_in_source = np.arange(len(source)) - np.searchsorted(source, source)
    turn = np.repeat(rank_in_source, np.diff(phase.tree_ptr))
    index = np.arange(phase.num_transfers, dtype=np.int64)
    within = -index if phase.toward_source else index
    return np.lexsort((within, phase.tree(), turn))


def _message_order(view: _View, order: NDArray[np.integer]) -> NDArray[np.int64]:
    """The order of transfers, restricted to the transfers that begin a message."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return np.argsort(position[view.first], kind="stable")


def _columns(nodes: NDArray[np.int64], deps: NDArray[np.int64]) -> tuple[_Columns, _Cursor]:
    """Empty columns for so many nodes and dependencies per rank."""
    node_ptr = np.concatenate(([0], np.cumsum(nodes)))
    dep_start = np.concatenate(([0], np.cumsum(deps)))
    total = int(node_ptr[-1])
    columns = _Columns(
        np.empty(total, np.int8),
        np.empty(total, np.int32),
        np.empty(total, np.int32),
        np.empty(total, np.int64),
        np.zeros(total + 1, np.int64),
        np.empty(int(dep_start[-1]), np.int32),
    )
    return columns, _Cursor(node_ptr[:-1].copy(), dep_start[:-1].copy(), node_ptr[:-1].copy())


class _Program:
    """Emission of some phases into one file set: once to count, once to fill."""

    def __init__(self, num_npus: int, window: int, time_scale: str, reduce_ns_per_byte: float) -> None:
        self.num_npus, self.window, self.time_scale = num_npus, window, time_scale
        self.reduce_ns_per_byte = reduce_ns_per_byte
        self.steps: list[tuple[str, _View, NDArray[np.int64], int, int]] = []
        self.gated = -1
        self.compute = np.zeros(0, np.int64)

    def add(self, phase: Phase, order: NDArray[np.integer], tag_base: int) -> None:
        view = messages_of(phase)
        self.steps.append((phase.name, view, _message_order(view, order), phase.size_bytes, tag_base))

    def gate(self, compute: NDArray[np.int64], barrier: str) -> None:
        """Put expert compute between the phases of this file set."""
        self.compute, self.gated = compute, 1 if barrier == "phase" else 0

    def _reduce_table(self, view: _View, size_bytes: int) -> NDArray[np.int64]:
        """``duration_micros`` of a sum of so many inputs."""
        most = int(np.diff(view.messages.tree_ptr).max(initial=0)) + 2
        inputs = np.arange(most)
        return duration_micros(
            np.maximum(inputs - 1, 0) * size_bytes * self.reduce_ns_per_byte, self.time_scale
        )

    def _emit(self, fill: bool, columns: _Columns, cursor: _Cursor) -> None:
        out = (tuple(columns), tuple(cursor))
        compute_at = np.full(self.num_npus, -1, np.int32)
        for name, view, order, size, tag in self.steps:
            messages, count = tuple(view.messages), len(view.messages.near)
            links = int(view.messages.key.max(initial=0)) + 1
            recv_at = np.full(count, -1, np.int32)
            if name == "dispatch":
                placed = (np.full(count, -1, np.int32), recv_at, np.zeros((count, 2), np.uint8))
                emit_dispatch(fill, messages, order, size, tag, self.window, links, placed, *out)
                if self.gated >= 0:
                    emit_compute(fill, messages, self.gated == 1, self.compute, placed, compute_at, *out)
            else:
                table = self._reduce_table(view, size)
                gate = self.gated if compute_at[0] >= 0 else -1
                bad = emit_combine(
                    fill,
                    messages,
                    order,
                    size,
                    tag,
                    self.window,
                    links,
                    table,
                    gate,
                    recv_at,
                    compute_at,
                    *out,
                )
                if bad >= 0:
                    raise TraceError(f"lowering: combine message {bad} starts before its inputs have arrived")

    def trace(self) -> Trace:
        n = self.num_npus
        nothing, counts = _columns(np.zeros(n, np.int64), np.zeros(n, np.int64))
        self._emit(False, nothing, counts)
        idle = counts.node == 0
        columns, cursor = _columns(counts.node + idle, counts.dep)
        self._emit(True, columns, cursor)
        for rank in np.flatnonzero(idle):  # ASTRA-sim wants a node in every file
            at = cursor.node[rank]
            columns.kind[at], columns.peer[at], columns.tag[at], columns.amount[at] = COMP, -1, 0, 0
            columns.dep_ptr[at + 1] = cursor.dep[rank]
        return _trace(np.append(cursor.start, len(columns.kind)), columns)


def _trace(rank_ptr: NDArray[np.int64], columns: _Columns) -> Trace:
    count = np.diff(rank_ptr)
    node_id = np.arange(1, len(columns.kind) + 1, dtype=np.int64) - np.repeat(rank_ptr[:-1], count)
    none = np.zeros(0, np.int64)
    return Trace(
        rank_ptr, node_id, columns.kind, columns.peer, columns.tag, columns.amount, columns.dep_ptr,
        columns.dep, none, none, none,
    )  # fmt: skip


def _workload(durations: list[NDArray[np.int64] | None], num_npus: int) -> Trace:
    """A chain of nodes at every rank: a collective where there is no duration, else compute."""
    steps = len(durations)
    kind = np.array([COLL if d is None else COMP for d in durations], np.int8)
    amount = np.stack([np.ones(num_npus, np.int64) if d is None else d for d in durations], axis=1)
    peer = np.where(kind == COLL, ALL_TO_ALL, -1).astype(np.int32)
    has_dep = np.tile(np.arange(steps) > 0, num_npus)
    columns = _Columns(
        np.tile(kind, num_npus),
        np.tile(peer, num_npus),
        np.zeros(steps * num_npus, np.int32),
        np.ascontiguousarray(amount.ravel()),
        np.concatenate(([0], np.cumsum(has_dep))).astype(np.int64),
        np.tile(np.arange(steps - 1, dtype=np.int32), num_npus),
    )
    return _trace(np.arange(num_npus + 1, dtype=np.int64) * steps, columns)


def traces_of(
    block: Block,
    dispatch_order: NDArray[np.integer],
    combine_order: NDArray[np.integer],
    options: TraceConfig,
    window: int,
) -> Iterator[tuple[str, int, Trace]]:
    """Lower a block, one file set at a time.

    Parameters
    ----------
    block : Block
    dispatch_order, combine_order : array of int, shape (transfers,)
        Transfers in the order in which they start.
    options : TraceConfig
        ``form``, ``barrier`` and ``time_scale`` are read.
    window : int
        Messages in flight per link; 0 for no limit.

    Yields
    ------
    name : str
        ``workload``, or the name of a custom collective.
    node_id : int
        Workload node that the collective implements; 0 for the workload itself.
    trace : Trace

    Raises
    ------
    TraceError
        When there are more tags than ASTRA-sim tells apart, or the orders are not those of a run.
    """
    n = block.dispatch.topology.num_npus
    rows = block.dispatch.num_trees + block.combine.num_trees
    if rows >= MAX_TAG:
        raise TraceError(
            f"trace: {rows:,} message tags; ASTRA-sim tells {MAX_TAG:,} apart: use fewer tokens per NPU"
        )
    compute = duration_micros(block.compute_ns, options.time_scale)

    def program() -> _Program:
        return _Program(n, window, options.time_scale, block.reduce_ns_per_byte)

    if options.form == "collective" and options.barrier == "phase":
        yield "workload", 0, _workload([None, compute, None], n)
        for name, node_id, phase, order, tag in (
            ("dispatch", 1, block.dispatch, dispatch_order, 0),
            ("combine", 3, block.combine, combine_order, block.dispatch.num_trees),
        ):
            one = program()
            one.add(phase, order, tag)
            yield name, node_id, one.trace()
        return
    both = program()
    both.add(block.dispatch, dispatch_order, 0)
    both.gate(compute, options.barrier)
    both.add(block.combine, combine_order, block.dispatch.num_trees)
    if options.form == "flat":
        yield "workload", 0, both.trace()
    else:
        yield "workload", 0, _workload([None], n)
        yield "block", 1, both.trace()
