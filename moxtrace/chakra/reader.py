"""Read traces: any ``PREFIX.{rank}.et``, ours or another tool's, into one :class:`Trace`.

Goes in: a varint length and a ``GlobalMetadata``, then a varint length and a ``Node`` for every node, as
mlcommons/chakra defines them.  Comes out: the arrays, or the first thing in the lowest rank's file that no
simulation could run, in one line.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import NODE_TYPE_NAMES, Trace
from moxtrace.chakra.wire import decode
from moxtrace.chakra.wire.decode import ATTRIBUTES, PADDING, Columns, count, fill
from moxtrace.chakra.wire.messages import read_metadata
from moxtrace.chakra.wire.resolve import DEP_SELF, RESOLVED, UNORDERED, order_of, resolve
from moxtrace.errors import TraceError

__all__ = ["find_ranks", "read"]

GZIP_MAGIC = b"\x1f\x8b"
_FRAMING = {
    decode.CUT: "a field runs past the end of its message; the file is damaged",
    decode.CUT_FILE: "the file ends inside this message; it is cut",
    decode.BAD_VARINT: "a number is longer than 64 bits; the file is damaged",
    decode.BAD_WIRE: "a field number or wire type that no Chakra file has; the file is damaged",
}
# what ASTRA-sim does with node types that cannot be simulated here
_FATE = {
    "INVALID": "ASTRA-sim skips it",
    "METADATA": "ASTRA-sim reads process groups from it and goes on",
    "MEM_LOAD": "ASTRA-sim needs a remote memory for it",
    "MEM_STORE": "ASTRA-sim needs a remote memory for it",
}


def _wrong(status: int, detail: int, kind: str, rank: int, ranks: int) -> str:
    """What is wrong with a node that decodes, and what was expected."""
    own, other = ("comm_dst", "comm_src") if kind == "COMM_RECV" else ("comm_src", "comm_dst")
    attribute = ATTRIBUTES[detail] if 0 <= detail < len(ATTRIBUTES) else ""
    if status == decode.BAD_KIND:
        name = NODE_TYPE_NAMES.get(detail, str(detail))
        fate = _FATE.get(name, "no schema has it")
        return f"its type is {name} ({fate}); expected COMP, COMM_SEND, COMM_RECV or COMM_COLL"
    return {
        decode.BAD_ID: "its id is above 2**63 - 1; number nodes from 1",
        decode.BAD_CPU_OP: "is_cpu_op is true; expected false: only work of the NPU is simulated",
        decode.MISSING: f"it has no integer {attribute}, which ASTRA-sim needs",
        decode.BAD_OWN: f"{own} is {detail}; expected {rank}, the file's own rank: are files swapped?",
        decode.BAD_SELF: f"{other} is {detail}, the file's own rank; expected another rank",
        decode.BAD_PEER: f"{other} is {detail}; expected a rank from 0 to {ranks - 1}",
        decode.BAD_SIZE: f"comm_size is {detail}; expected 1 to 2**62 bytes",
        decode.BAD_TAG: f"comm_tag is {detail}; expected 0 to 2**31 - 1, as ASTRA-sim does",
        decode.BAD_COMM_TYPE: f"comm_type is {detail}; expected 0 (ALL_REDUCE) to 9 (BARRIER)",
        decode.BAD_DURATION: "duration_micros is above 2**62 / 1000; expected a time in microseconds",
        decode.BAD_OPS: f"{attribute} is no integer from 0 to 2**63 - 1",
    }[status]


def find_ranks(prefix: Path | str) -> int:
    """Number of ranks of ``PREFIX.{rank}.et``.

    Raises
    ------
    TraceError
        There is no such file, or a rank is missing: ASTRA-sim would stop.
    """
    prefix = Path(prefix)
    pattern = re.compile(re.escape(prefix.name) + r"\.(0|[1-9][0-9]*)\.et")
    try:
        names = [pattern.fullmatch(path.name) for path in prefix.parent.iterdir()]
    except OSError as error:
        raise TraceError(f"{prefix.parent}: cannot list the directory: {error.strerror}") from error
    ranks = {int(match[1]) for match in names if match}
    if not ranks:
        raise TraceError(f"{prefix}.0.et: no such file; expected one {prefix.name}.RANK.et for every rank")
    missing = next((rank for rank in range(max(ranks)) if rank not in ranks), None)
    if missing is not None:
        raise TraceError(
            f"{prefix}.{missing}.et: no such file, but rank {max(ranks)} has one; every rank needs its own"
        )
    return len(ranks)


def _load(path: Path) -> NDArray[np.uint8]:
    """Bytes of a file and ``PADDING`` more."""
    at = 0
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = np.zeros(size + PADDING, np.uint8)
            while at < size and (got := file.readinto(data[at:size].data)):
                at += got
    except OSError as error:
        raise TraceError(f"{path}: cannot read: {error.strerror or error}") from error
    if at == 0:
        raise TraceError(f"{path}: empty file; expected a GlobalMetadata and at least one node")
    if data[:2].tobytes() == GZIP_MAGIC:
        raise TraceError(f"{path}: compressed with gzip, which ASTRA-sim does not read; gunzip it first")
    return data[: at + PADDING]


def _room(length: int, dtype: Any) -> NDArray[Any]:
    """An array in pages of its own: given back when it goes, where malloc might keep what held a rank."""
    size = length * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype, length)


def _grown(columns: Columns) -> Columns:
    """The same with room for twice as many dependencies and COMP nodes with ``num_ops``."""

    def longer(column: NDArray[np.int64]) -> NDArray[np.int64]:
        more = np.empty(2 * len(column) + 16, np.int64)
        more[: len(column)] = column
        return more

    return columns._replace(
        dep_id=longer(columns.dep_id),
        ops_node=longer(columns.ops_node),
        num_ops=longer(columns.num_ops),
        tensor_size=longer(columns.tensor_size),
    )


def _decode(path: Path, rank: int, ranks: int) -> Columns:
    """Columns of one file, with ids for dependencies."""
    data = _load(path)
    try:
        start, expected = read_metadata(data[:-PADDING].data)
    except ValueError as error:
        raise TraceError(f"{path}: byte 0: {error}") from None
    nodes, file_at, file_status = count(data, start)
    empty = np.empty(0, np.int64)
    columns = Columns(
        _room(nodes, np.int64), _room(nodes, np.int8), _room(nodes, np.int32), _room(nodes, np.int32),
        _room(nodes, np.int64), _room(nodes + 1, np.int64), np.empty(2 * nodes, np.int64),
        empty, empty, empty,
    )  # fmt: skip
    at, node, deps, ops, status, detail = fill(data, start, 0, 0, 0, rank, ranks, columns)
    while status == decode.GROW:
        columns = _grown(columns)
        at, node, deps, ops, status, detail = fill(data, at, node, deps, ops, rank, ranks, columns)
    if status == decode.OK and file_status != decode.OK:
        at, status = file_at, file_status
    if status in _FRAMING:
        raise TraceError(f"{path}: node number {node + 1} at byte {at}: {_FRAMING[status]}")
    if status != decode.OK:
        kind = NODE_TYPE_NAMES[int(columns.kind[node])]
        raise TraceError(
            f"{path}: node number {node + 1} (id {columns.node_id[node]}) at byte {at}: "
            + _wrong(status, detail, kind, rank, ranks)
        )
    if nodes == 0:
        raise TraceError(f"{path}: no node; ASTRA-sim needs at least one: add an idle COMP")
    if expected not in (None, nodes):
        raise TraceError(f"{path}: {nodes} nodes, but its metadata says {expected}: the file is cut")
    return columns._replace(
        dep_id=columns.dep_id[:deps],
        ops_node=columns.ops_node[:ops].copy(),
        num_ops=columns.num_ops[:ops].copy(),
        tensor_size=columns.tensor_size[:ops].copy(),
    )


def _positions(path: Path, columns: Columns) -> NDArray[np.int32]:
    """Positions of the dependencies; ``dep_ptr`` shrinks where a node names one twice."""
    ids = columns.node_id
    order = np.empty(0, np.int64)
    sorted_id = ids
    if order_of(ids) == UNORDERED:
        order = np.argsort(ids, kind="stable")
        sorted_id = ids[order]
        again = order[1:][sorted_id[1:] == sorted_id[:-1]]
        if len(again):
            node = int(again.min())
            first = int(np.argmax(ids == ids[node]))
            raise TraceError(
                f"{path}: node number {node + 1}: its id {ids[node]} is that of node number {first + 1}; "
                "expected unique ids"
            )
    dep = _room(len(columns.dep_id), np.int32)
    status, node, kept = resolve(sorted_id, order, ids, columns.dep_ptr, columns.dep_id, dep)
    if status != RESOLVED:
        what = "itself" if status == DEP_SELF else f"{kept % 2**64}, which is not in the file"
        raise TraceError(f"{path}: node number {node + 1} (id {ids[node]}): it depends on {what}")
    return dep[:kept]


class _Parts:
    """Columns of the files so far, by field: joined one field at a time, so that nothing is held twice."""

    def __init__(self) -> None:
        self.fields: dict[str, list[NDArray[Any]]] = {}
        self.nodes, self.deps = 0, 0
        self.rank_ptr = [0]

    def add(self, columns: Columns, dep: NDArray[np.int32]) -> None:
        """Append a rank; its offsets become those of the whole."""
        dep_ptr = columns.dep_ptr[1:]
        dep_ptr += self.deps
        fields = columns._replace(ops_node=columns.ops_node + self.nodes, dep_ptr=dep_ptr)._asdict()
        del fields["dep_id"]
        for name, column in {**fields, "dep": dep}.items():
            self.fields.setdefault(name, []).append(column)
        self.nodes += len(columns.node_id)
        self.deps += len(dep)
        self.rank_ptr.append(self.nodes)

    def trace(self) -> Trace:
        """The whole; the parts are given up."""
        self.fields["dep_ptr"].insert(0, np.zeros(1, np.int64))
        whole = {name: np.concatenate(self.fields.pop(name)) for name in list(self.fields)}
        return Trace(rank_ptr=np.array(self.rank_ptr, np.int64), **whole)


def read(
    prefix: Path | str,
    ranks: int | None = None,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read ``PREFIX.{rank}.et`` of every rank.

    Parameters
    ----------
    prefix : path
    ranks : int, optional
        How many; found by :func:`find_ranks` if left out.
    threads : int
        Files that are read at once.
    progress : function of (files done, files in all), optional
        Called after every file, in this thread.

    Returns
    -------
    Trace
        Nodes in file order.  Data and control dependencies are joined, each once, in the order in which the
        file names them.  Names, inputs, outputs and other attributes are left behind.

    Raises
    ------
    TraceError
        The first of these in the lowest rank that has one: a missing, empty, compressed, cut or damaged
        file; no metadata; no node; a node type other than COMP, SEND, RECV, COLL; a node of the CPU; a
        missing or impossible number; a message to itself, to a rank that is not there, or of another rank;
        an id that is used twice; a dependency on itself or on nothing.  ASTRA-sim aborts on some of them
        and prints a wrong time with status 0 on others.
    """
    prefix = Path(prefix)
    if ranks is None:
        ranks = find_ranks(prefix)
    if ranks < 1:
        raise TraceError(f"{prefix}: {ranks} ranks; expected at least 1")
    parts = _Parts()

    def read_rank(rank: int) -> tuple[Columns, NDArray[np.int32]]:
        path = prefix.parent / f"{prefix.name}.{rank}.et"
        columns = _decode(path, rank, ranks)
        dep = _positions(path, columns)
        return columns._replace(dep_id=np.empty(0, np.int64)), dep

    pool = ThreadPoolExecutor(max(1, threads))
    try:
        for rank, (columns, dep) in enumerate(pool.map(read_rank, range(ranks))):
            parts.add(columns, dep)
            if progress:
                progress(rank + 1, ranks)
    finally:
        pool.shutdown(cancel_futures=True)
    return parts.trace()
