"""Execution traces as arrays: the nodes of every rank, one rank after another.

The reader makes a :class:`Trace` of any ``PREFIX.{rank}.et`` files, lowering makes one of phases, the writer
encodes it, the built-in engine runs it and ``verify`` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import TraceError

__all__ = ["COLL", "COMP", "NODE_TYPE_NAMES", "RECV", "SEND", "Trace"]

# NodeType of et_def.proto, mlcommons/chakra 1.0
COMP, SEND, RECV, COLL = 4, 5, 6, 7
NODE_TYPE_NAMES = {
    0: "INVALID", 1: "METADATA", 2: "MEM_LOAD", 3: "MEM_STORE", 4: "COMP", 5: "COMM_SEND", 6: "COMM_RECV",
    7: "COMM_COLL",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trace:
    """Nodes of all ranks in file order; nodes of rank ``r`` are ``rank_ptr[r] : rank_ptr[r + 1]``.

    Parameters
    ----------
    rank_ptr : array of int64, shape (ranks + 1,)
    node_id : array of int64, shape (nodes,)
        Chakra's id, unique in its rank.
    kind : array of int8, shape (nodes,)
        Chakra's NodeType.
    peer : array of int32, shape (nodes,)
        ``comm_dst`` of a SEND, ``comm_src`` of a RECV, ``comm_type`` of a COLL, -1 on a COMP.
    tag : array of int32, shape (nodes,)
        ``comm_tag`` of SEND and RECV, else 0.
    amount : array of int64, shape (nodes,)
        ``comm_size`` in bytes of SEND, RECV and COLL; ``duration_micros`` of COMP.
    dep_ptr : array of int64, shape (nodes + 1,)
    dep : array of int32
        Data and control dependencies of node ``i``: ``dep[dep_ptr[i] : dep_ptr[i + 1]]``, as positions in
        the file of its rank (0-based).
    ops_node, num_ops, tensor_size : arrays of int64, shape (roofline nodes,)
        COMP nodes (global index) that carry ``num_ops``, with it and their ``tensor_size`` in bytes.
    """

    rank_ptr: NDArray[np.int64]
    node_id: NDArray[np.int64]
    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]
    ops_node: NDArray[np.int64]
    num_ops: NDArray[np.int64]
    tensor_size: NDArray[np.int64]

    def __post_init__(self) -> None:
        nodes = self.num_nodes
        columns = (self.node_id, self.kind, self.peer, self.tag, self.amount)
        if any(len(c) != nodes for c in columns) or len(self.dep_ptr) != nodes + 1:
            raise TraceError("trace: columns disagree about the number of nodes")

    @property
    def num_ranks(self) -> int:
        """Ranks, with or without nodes."""
        return len(self.rank_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return int(self.rank_ptr[-1])

    def rank_of(self, node: int) -> int:
        """Rank of a node's global index."""
        return int(np.searchsorted(self.rank_ptr, node, side="right")) - 1
