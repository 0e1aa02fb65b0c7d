"""Dispatch and combine on GPUs: the kernels behind the interface of ``Halves``.

Examples
--------
Under ``torchrun --nproc-per-node 8``::

    torch.distributed.init_process_group()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    shape = Shape(ranks=8, experts=256, top_k=8, max_tokens=128, hidden=7168, dispatch=torch.float8_e4m3fn)
    moe = AllToAll(shape)
    moe.dispatch_send(x, experts, weights, scales=scales)
    shared = shared_expert(x)  # runs while tokens travel
    got = moe.dispatch_recv()
    moe.combine_send(run_experts(got))
    y = moe.combine_recv() + shared
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from .bootstrap import group_ranks, initialize
from .errors import ArgumentError, Failure, ShapeError
from .halves import Dispatched, Halves, Inputs
from .library import DispatchIn, DispatchOut, Options, load
from .shape import MAX_BLOCKS, MAX_THREADS, Shape

__all__ = ["AllToAll", "dispatch_in", "dispatch_out"]


class AllToAll(Halves):
    """Dispatch and combine over NVSHMEM; arguments, results and errors are those of ``Halves``.

    Collective: every rank of the group makes one, in the same order, and closes it. All memory that the
    kernels need is taken here, so that the halves can be captured into a CUDA graph (with ``out=`` made
    before). Work is queued on torch's current stream; nothing waits for the GPU.

    Parameters
    ----------
    shape : Shape
        The same on every rank; ``shape.ranks`` is the size of the group.
    group : ProcessGroup, optional
        The ranks that take part; None: all of them. One group per process.
    device : torch.device or int, optional
        This rank's GPU; None: the current one.
    timeout_ms : int
        Deadline of every wait on the GPU.
    blocks : int
        Blocks of a launch, at most 65,535; 0: one per multiprocessor. Fewer leave room for work that runs at
        the same time.
    threads : int
        Threads of a block, a multiple of 32 up to 1024.

    Raises
    ------
    ShapeError
        Ranks disagree about the shape, or the kernels refuse it.
    ArgumentError
        A bad ``timeout_ms``, ``blocks`` or ``threads``; torch.distributed is not initialized, or a CUDA graph
        is being captured.
    LibraryError
        No compiled library, no GPU, NVSHMEM did not start, or too little symmetric memory.
    """

    def __init__(
        self,
        shape: Shape,
        group: Any = None,
        device: torch.device | int | None = None,
        *,
        timeout_ms: int = 10_000,
        blocks: int = 0,
        threads: int = 512,
    ) -> None:
        self._handle = 0
        self._library = load()
        self._library.check(shape)
        for name, value, least, most in (
            ("timeout_ms", timeout_ms, 1, 2**32 - 1),
            ("blocks", blocks, 0, MAX_BLOCKS),
            ("threads", threads, 32, MAX_THREADS),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ArgumentError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
        if threads % 32:
            raise ArgumentError(f"threads is {threads}; expected a multiple of 32")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise ArgumentError(
                "AllToAll is made while a CUDA graph is captured; expected before the capture"
            )
        rank = _agree(shape, group)  # before NVSHMEM starts, which takes memory by the shape
        initialize(group, device, self._library.sizes(shape).symmetric)
        super().__init__(shape, rank, torch.device("cuda", torch.cuda.current_device()))
        self._empty = torch.zeros(16, dtype=torch.uint8, device=self.device)
        self._handle = self._library.create(shape, Options(timeout_ms, blocks, threads))

    def failure(self) -> Failure | None:
        """What went wrong on the GPU, if a kernel that has run could not go on; does not wait for the GPU.

        Returns
        -------
        Failure or None
            The first failure.
        """
        return self._library.failure(self._handle) if self._handle else None

    def check(self) -> None:
        """Raise what went wrong on the GPU, as every half does first.

        The last half is looked at only after a synchronisation.

        Raises
        ------
        WaitExpiredError
            A peer did not answer in time.
        DeviceError
            More rows than there is room for, an expert that does not exist, or a broken packet.
        """
        failure = self.failure()
        if failure is not None:
            raise failure.error()

    def close(self) -> None:
        """Give the memory back; collective. The object cannot be used afterwards."""
        handle, self._handle = self._handle, 0
        if handle:
            torch.cuda.synchronize(self.device)
            self._library.destroy(handle)

    def __enter__(self) -> AllToAll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # giving symmetric memory back waits for every rank: after an error some may never come
        if kind is None:
            self.close()

    def _call(self, name: str, argument: Any) -> None:
        if not self._handle:
            raise ArgumentError(f"{name}: this AllToAll has been closed; expected a new one")
        self.check()
        with torch.cuda.device(self.device):  # kernels go to the current device, which may be another by now
            stream = torch.cuda.current_stream().cuda_stream
            self._library.call(name, self._handle, argument, stream)

    def _dispatch_send(self, inputs: Inputs) -> None:
        self._call("mox_dispatch_send", dispatch_in(inputs, self._empty))

    def _dispatch_recv(self, out: Dispatched) -> None:
        self._call("mox_dispatch_recv", dispatch_out(out, self._empty))

    def _combine_send(self, rows: torch.Tensor) -> None:
        self._call("mox_combine_send", _address(rows, self._empty))

    def _combine_recv(self, y: torch.Tensor) -> None:
        self._call("mox_combine_recv", _address(y, self._empty))


def dispatch_in(inputs: Inputs, empty: torch.Tensor) -> DispatchIn:
    """Arguments of ``mox_dispatch_send``.

    Parameters
    ----------
    inputs : Inputs
        Checked tensors.
    empty : Tensor
        What stands for tensors without elements, whose address is null: the kernels take null for absent.

    Returns
    -------
    DispatchIn
        Addresses; the tensors must stay alive until the kernel has run.
    """
    tensors = (inputs.x, inputs.scales, inputs.experts, inputs.weights, inputs.bound_m)
    wide = inputs.experts.dtype == torch.int64
    return DispatchIn(*(_address(tensor, empty) for tensor in tensors), wide, inputs.tokens)


def dispatch_out(out: Dispatched, empty: torch.Tensor) -> DispatchOut:
    """Arguments of ``mox_dispatch_recv``.

    Parameters
    ----------
    out : Dispatched
        Checked tensors.
    empty : Tensor
        What stands for tensors without elements.

    Returns
    -------
    DispatchOut
        Addresses; the tensors must stay alive until the kernel has run.
    """
    tensors = (out.rows, out.scales, out.counts, out.starts, out.row_source)
    return DispatchOut(*(_address(tensor, empty) for tensor in tensors))


def _address(tensor: torch.Tensor | None, empty: torch.Tensor) -> int | None:
    if tensor is None:
        return None
    return tensor.data_ptr() if tensor.numel() else empty.data_ptr()


def _agree(shape: Shape, group: Any) -> int:
    """Rank in the group; refuses shapes that are not the same everywhere."""
    import torch.distributed as dist

    ranks = len(group_ranks(group))
    shapes: list[Any] = [None] * ranks
    dist.all_gather_object(shapes, shape, group=group)
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            raise ShapeError(
                f"rank {rank} has {other}, rank 0 has {shapes[0]}; expected the same on every rank"
            )
    if shape.ranks != ranks:
        raise ShapeError(f"ranks is {shape.ranks}; the group has {ranks}")
    return int(dist.get_rank(group))
