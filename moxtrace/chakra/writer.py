"""Write a trace: every rank's nodes to ``PREFIX.{rank}.et``.

Goes in: a :class:`~moxtrace.chakra.trace.Trace`.  Comes out: one file per rank, as ASTRA-sim's feeder and
mlcommons/chakra read them (a varint length and a ``GlobalMetadata``, then a varint length and a ``Node`` for
every node), byte for byte what protobuf would write.  Nothing of protobuf is needed for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moxtrace.chakra.trace import NODE_TYPE_NAMES, Trace
from moxtrace.chakra.wire import encode as wire
from moxtrace.chakra.wire.encode import DONE, FULL, Columns, encode
from moxtrace.chakra.wire.messages import metadata
from moxtrace.chakra.wire.templates import Rows, templates_of
from moxtrace.errors import OutputError, TraceError

__all__ = ["VERSION", "FileRecord", "write"]

VERSION = "0.0.4"  # Chakra's schema version, as its own converters write it
CHUNK_BYTES = 1 << 20  # stays in the second-level cache between encoding, hashing and writing

_WRONG = {
    wire.BAD_KIND: "its type is {kind}; expected COMP, COMM_SEND, COMM_RECV or COMM_COLL",
    wire.BAD_PEER: "its peer is {peer}; expected another of the ranks 0 to {last}, or a comm_type >= 0",
    wire.BAD_TAG: "its comm_tag is {tag}; expected 0 or more",
    wire.BAD_AMOUNT: "its {what} is {amount}; expected {range}",
    wire.BAD_DEP: "it depends on itself, or on a position outside its rank's {nodes} nodes",
}


@dataclass(frozen=True)
class FileRecord:
    """One file written: its name without the directory, its nodes and bytes, and the bytes' SHA-256."""

    name: str
    nodes: int
    bytes: int
    sha256: str


def _columns_of(trace: Trace, rank: int) -> Columns:
    a, b = int(trace.rank_ptr[rank]), int(trace.rank_ptr[rank + 1])
    c, d = np.searchsorted(trace.ops_node, (a, b))
    return Columns(
        trace.node_id[a:b], trace.kind[a:b], trace.peer[a:b], trace.tag[a:b], trace.amount[a:b],
        trace.dep_ptr[a : b + 1], trace.dep, trace.ops_node[c:d] - a,
        trace.num_ops[c:d], trace.tensor_size[c:d],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of :func:`write`, as its threads see it."""

    trace: Trace
    rows: Rows
    version: str
    stop: threading.Event
    opened: list[Path]

    def write_rank(self, rank: int, path: Path) -> FileRecord:
        """Write one file, hashing on the way."""
        columns = _columns_of(self.trace, rank)
        nodes = len(columns.node_id)
        if nodes == 0:
            raise TraceError(f"{path}: rank {rank} has no node; ASTRA-sim needs one: add an idle COMP")
        digest, written = hashlib.sha256(), 0
        try:
            with open(path, "wb", buffering=0) as file:
                self.opened.append(path)
                for chunk in self._chunks(columns, rank, path):
                    digest.update(chunk)
                    written += len(chunk)
                    while len(chunk):  # an unbuffered write may take a part only
                        chunk = chunk[file.write(chunk) :]
        except OSError as error:
            why = error.strerror or error
            raise OutputError(f"{path}: cannot write: {why}; choose another directory") from error
        return FileRecord(path.name, nodes, written, digest.hexdigest())

    def _chunks(self, columns: Columns, rank: int, path: Path) -> Iterator[memoryview]:
        yield memoryview(metadata(self.version, len(columns.node_id)))
        templates = templates_of(self.rows, columns, rank)
        buffer = np.empty(CHUNK_BYTES, np.uint8)
        node, next_op, status, ranks = 0, 0, FULL, self.trace.num_ranks
        while status == FULL and not self.stop.is_set():
            node, used, next_op, status = encode(columns, templates, node, rank, ranks, next_op, buffer)
            if status not in (DONE, FULL):
                raise TraceError(f"{path}: {_complaint(columns, node, status, ranks)}")
            if status == FULL and used == 0:
                buffer = np.empty(2 * len(buffer), np.uint8)
            yield buffer[:used].data


def _complaint(columns: Columns, node: int, status: int, ranks: int) -> str:
    """Why a node cannot be written, in one line."""
    kind = NODE_TYPE_NAMES.get(int(columns.kind[node]), str(columns.kind[node]))
    size = kind != "COMP"
    what = _WRONG[status].format(
        kind=kind,
        peer=columns.peer[node],
        tag=columns.tag[node],
        amount=columns.amount[node],
        what="comm_size" if size else "duration",
        range="1 to 2**62 bytes" if size else "0 or more",
        last=ranks - 1,
        nodes=len(columns.node_id),
    )
    return f"node {columns.node_id[node]}: {what}"


def write(
    trace: Trace,
    prefix: Path | str,
    *,
    names: Mapping[int, str] | None = None,
    node_names: Mapping[int, str] | None = None,
    version: str = VERSION,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> list[FileRecord]:
    """Write ``PREFIX.{rank}.et`` for every rank; the same trace gives the same bytes, whatever the threads.

    Parameters
    ----------
    trace : Trace
    prefix : path
        Its directory exists.  Files of these names are replaced.
    names : mapping from kind to str, optional
        Names of nodes by their kind, instead of ``comp``, ``send``, ``recv``, ``coll``.
    node_names : mapping from node id to str, optional
        Names of single nodes, the same on every rank.
    version : str
        Schema version in the ``GlobalMetadata``.
    threads : int
        Ranks that are written at once.
    progress : function of (nodes done, nodes in all), optional
        Called after every file, in this thread.

    Returns
    -------
    list of FileRecord
        By rank.

    Raises
    ------
    OutputError
        A file cannot be written: a full disk, a read-only or missing directory.
    TraceError
        A node that no simulator could run, or a rank without nodes.
        Either way no file of this call is left behind.
    """
    prefix = Path(prefix)
    paths = [prefix.parent / f"{prefix.name}.{rank}.et" for rank in range(trace.num_ranks)]
    job = _Job(trace, Rows(names or {}, node_names or {}), version, threading.Event(), [])
    pool = ThreadPoolExecutor(max(1, threads))
    records = []
    nodes = 0
    try:
        # in rank order: of several failures, the lowest rank's is reported
        for record in pool.map(job.write_rank, range(len(paths)), paths):
            records.append(record)
            nodes += record.nodes
            if progress:
                progress(nodes, trace.num_nodes)
    except BaseException:
        job.stop.set()
        pool.shutdown(cancel_futures=True)
        for path in job.opened:
            path.unlink(missing_ok=True)
        raise
    pool.shutdown()
    return records
