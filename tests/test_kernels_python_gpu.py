"""moxtrace_kernels.AllToAll without a GPU: a library in its place writes down what it is asked."""

import contextlib

import pytest

from .kernels_cases import torch

# ruff: isort: split
import torch.distributed as dist
from moxtrace_kernels import (
    AllToAll,
    ArgumentError,
    DeviceError,
    Failure,
    LibraryError,
    OrderError,
    Shape,
    ShapeError,
    WaitExpiredError,
    alltoall,
    bootstrap,
)
from moxtrace_kernels.library import Sizes

SHAPE = Shape(ranks=1, experts=2, top_k=1, max_tokens=3, hidden=8)


class Recorder:
    """Stands for the compiled library."""

    def __init__(self):
        self.calls, self.broken, self.closed, self.current = [], None, [], "another"

    def check(self, shape):
        self.calls.append(("check", shape))

    def sizes(self, shape):
        return Sizes(symmetric=1 << 31)

    def unique_id(self):
        return b"id of 11 by"

    def create(self, shape, options):
        self.calls.append(("create", options.timeout_ms, options.blocks, options.threads))
        return 77

    def destroy(self, handle):
        self.closed.append(handle)

    def failure(self, handle):
        return self.broken

    def call(self, name, *arguments):
        self.calls.append((name, *arguments))
        assert name in ("mox_initialize", "mox_finalize") or self.current == torch.empty(0).device

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, device
        yield
        self.current = before


class Stream:
    cuda_stream = 5

    def synchronize(self):
        pass


@pytest.fixture
def alone(tmp_path):
    """torch.distributed with one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recorder(monkeypatch, alone):
    made = Recorder()
    for module in (alltoall, bootstrap):
        monkeypatch.setattr(module, "load", lambda: made)
    monkeypatch.setattr(bootstrap, "_ranks", [])
    monkeypatch.delenv("NVSHMEM_SYMMETRIC_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.calls.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "device", made.device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(alltoall.torch, "device", lambda *_: torch.empty(0).device)  # tensors stay on the CPU
    return made


def one_epoch(kernels):
    x, experts = torch.zeros((3, 8), dtype=torch.bfloat16), torch.zeros((3, 1), dtype=torch.int32)
    got = kernels.dispatch(x, experts)
    return x, got, kernels.combine(got.rows)


def test_the_device_then_nvshmem_then_the_object(recorder):
    AllToAll(SHAPE, timeout_ms=5, blocks=3, threads=64)
    names = [call[0] for call in recorder.calls]
    assert names == ["check", "device", "mox_initialize", "create"]
    assert recorder.calls[2:] == [("mox_initialize", b"id of 11 by", 11, 0, 1), ("create", 5, 3, 64)]


def test_symmetric_memory_is_asked_for_unless_the_user_has(recorder, monkeypatch):
    AllToAll(SHAPE)
    assert int(bootstrap.os.environ["NVSHMEM_SYMMETRIC_SIZE"]) > 1 << 31
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "3G")
    assert bootstrap.set_symmetric_size(1 << 40) == 0
    assert bootstrap.os.environ["NVSHMEM_SYMMETRIC_SIZE"] == "3G"


def test_halves_pass_addresses_and_the_stream(recorder):
    kernels = AllToAll(SHAPE)
    x, got, y = one_epoch(kernels)
    sends, receives, back, sums = recorder.calls[-4:]
    assert sends[:2] == ("mox_dispatch_send", 77)
    assert sends[3] == 5
    assert (sends[2].x, sends[2].tokens, sends[2].experts_are_int64) == (x.data_ptr(), 3, 0)
    assert sends[2].weights is None
    assert sends[2].bound_m is None
    assert (receives[2].rows, receives[2].scales) == (got.rows.data_ptr(), None)
    assert back == ("mox_combine_send", 77, got.rows.data_ptr(), 5)
    assert sums == ("mox_combine_recv", 77, y.data_ptr(), 5)


def test_nothing_to_send_is_no_null(recorder):
    kernels = AllToAll(SHAPE)
    kernels.dispatch(torch.zeros((0, 8), dtype=torch.bfloat16), torch.zeros((0, 1), dtype=torch.int64))
    assert recorder.calls[-2][2].x
    assert kernels.combine(torch.zeros(kernels.rows_shape, dtype=torch.bfloat16)).shape == (0, 8)
    assert recorder.calls[-1][2]


@pytest.mark.parametrize(("is_wait", "kind"), [(True, WaitExpiredError), (False, DeviceError)])
def test_what_went_wrong_on_the_gpu_is_raised_by_the_next_half(recorder, is_wait, kind):
    kernels = AllToAll(SHAPE)
    one_epoch(kernels)
    assert kernels.failure() is None
    recorder.broken = Failure(
        "dispatch packet", 0, 1, 5, 2, 2, 1, is_wait, "rank 0, epoch 2, dispatch packet: ..."
    )
    with pytest.raises(kind, match="rank 0, epoch 2") as caught:
        one_epoch(kernels)
    assert caught.value.failure.peer == 1
    assert isinstance(caught.value, WaitExpiredError) == is_wait


def test_closing(recorder):
    with AllToAll(SHAPE) as kernels:
        one_epoch(kernels)
    kernels.close()
    assert recorder.closed == [77]
    with pytest.raises(ArgumentError, match="this AllToAll has been closed"):
        one_epoch(kernels)
    with pytest.raises(OrderError, match="dispatch_recv was called"), AllToAll(SHAPE) as kernels:
        kernels.dispatch_recv()
    assert recorder.closed == [77]  # after an error other ranks may never come


def test_what_does_not_go_together(recorder, monkeypatch):
    with pytest.raises(ShapeError, match="ranks is 2; the group has 1"):
        AllToAll(Shape(ranks=2, experts=2, top_k=1, max_tokens=3, hidden=8))
    with pytest.raises(ArgumentError, match="timeout_ms is 0; expected a whole number from 1 to 4294967295"):
        AllToAll(SHAPE, timeout_ms=0)
    with pytest.raises(ArgumentError, match=r"blocks is 1\.5; expected a whole number from 0 to 65535"):
        AllToAll(SHAPE, blocks=1.5)
    with pytest.raises(ArgumentError, match="blocks is 65536; expected a whole number from 0 to 65535"):
        AllToAll(SHAPE, blocks=65536)
    with pytest.raises(ArgumentError, match="threads is 1056; expected a whole number from 32 to 1024"):
        AllToAll(SHAPE, threads=1056)
    with pytest.raises(ArgumentError, match="threads is 48; expected a multiple of 32"):
        AllToAll(SHAPE, threads=48)
    monkeypatch.setattr(bootstrap, "_ranks", [0, 1])
    with pytest.raises(ArgumentError, match=r"NVSHMEM runs on ranks \[0, 1\]"):
        AllToAll(SHAPE)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ArgumentError, match="made while a CUDA graph is captured"):
        AllToAll(SHAPE)


def test_finalize_only_what_runs(recorder):
    bootstrap.finalize()
    assert recorder.calls == []
    AllToAll(SHAPE)
    bootstrap.finalize()
    assert recorder.calls[-1] == ("mox_finalize",)


def test_without_torch_distributed_or_gpu(monkeypatch, alone):
    monkeypatch.setattr(bootstrap, "load", Recorder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LibraryError, match="torch sees no GPU; expected one per rank"):
        bootstrap.initialize()
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(ArgumentError, match="torch.distributed is not initialized"):
        bootstrap.initialize()
