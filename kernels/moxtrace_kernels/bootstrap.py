"""Starting NVSHMEM over torch.distributed: one rank makes an id, every rank initializes with it."""

from __future__ import annotations

import os
from typing import Any

import torch

from .errors import ArgumentError, LibraryError
from .library import load

__all__ = ["finalize", "group_ranks", "initialize", "set_symmetric_size"]

_DEFAULT_SYMMETRIC_BYTES = 1 << 30  # NVSHMEM's own
_ranks: list[int] = []  # global ranks of the group that NVSHMEM runs on; empty before initialize


def set_symmetric_size(needed_bytes: int) -> int:
    """Ask NVSHMEM for enough symmetric memory, unless the user has named a size; before ``initialize``.

    Parameters
    ----------
    needed_bytes : int
        Sum over all objects to come.

    Returns
    -------
    int
        Bytes that NVSHMEM will reserve, or 0 when the user's own setting was kept.
    """
    if "NVSHMEM_SYMMETRIC_SIZE" in os.environ:
        return 0
    # NVSHMEM keeps some for itself
    size = max(_DEFAULT_SYMMETRIC_BYTES, needed_bytes + needed_bytes // 16 + (64 << 20))
    os.environ["NVSHMEM_SYMMETRIC_SIZE"] = str(size)
    return size


def group_ranks(group: Any = None) -> list[int]:
    """Global ranks of a group.

    Parameters
    ----------
    group : ProcessGroup, optional
        None: all ranks.

    Returns
    -------
    list of int
        In the order of the group.

    Raises
    ------
    ArgumentError
        torch.distributed is not initialized.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ArgumentError(
            "torch.distributed is not initialized; expected torch.distributed.init_process_group() before, "
            "under torchrun for several ranks"
        )
    return list(dist.get_process_group_ranks(group or dist.group.WORLD))


def initialize(group: Any = None, device: torch.device | int | None = None, symmetric_bytes: int = 0) -> None:
    """Start NVSHMEM on the ranks of a group; every rank calls this, and a second call does nothing.

    ``AllToAll`` calls it with what its own shape needs. Call it before, with the sum, when several objects
    are made.

    Parameters
    ----------
    group : ProcessGroup, optional
        The ranks that take part; None: all of them.
    device : torch.device or int, optional
        This rank's GPU, one per rank; None: the current one.
    symmetric_bytes : int
        Symmetric memory that all objects together need; sets NVSHMEM_SYMMETRIC_SIZE unless it is set.

    Raises
    ------
    ArgumentError
        torch.distributed is not initialized, or NVSHMEM runs on another group.
    LibraryError
        The compiled library is absent, there is no GPU, or NVSHMEM did not start.
    """
    ranks = group_ranks(group)
    if _ranks:
        if _ranks != ranks:
            raise ArgumentError(
                f"NVSHMEM runs on ranks {_ranks} of this process; expected the same group, not {ranks}"
            )
        return
    import torch.distributed as dist

    library = load()
    if not torch.cuda.is_available():
        raise LibraryError("torch sees no GPU; expected one per rank. Without a GPU: ReferenceAllToAll")
    # NVSHMEM takes the current device for good
    torch.cuda.set_device(torch.cuda.current_device() if device is None else device)
    torch.cuda.current_stream().synchronize()  # makes the context
    set_symmetric_size(symmetric_bytes)
    ids = [library.unique_id() if dist.get_rank(group) == 0 else b""]
    dist.broadcast_object_list(ids, src=ranks[0], group=group)
    library.call("mox_initialize", ids[0], len(ids[0]), dist.get_rank(group), len(ranks))
    _ranks.extend(ranks)


def finalize() -> None:
    """Stop NVSHMEM, if it runs, after the last object is closed; every rank calls this."""
    if _ranks:
        load().call("mox_finalize")
        _ranks.clear()
