"""What runs share in files: as it was computed, whatever happens to the files; and the local workers."""

import os
import signal
import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moxtrace import topology
from moxtrace.config import RunConfig
from moxtrace.errors import OutputError
from moxtrace.kinds import KINDS
from moxtrace.scenario import block_of, prepare
from moxtrace.simulate import simulate_block_of
from moxtrace.sweep import memory, run_sweep
from moxtrace.sweep.cache import Cache, digest
from moxtrace.sweep.locks import Held, held, holder_of
from moxtrace.sweep.pool import InProcess, LocalProcesses, WorkerDiedError
from tests.runs import configured
from tests.sweeps import planned, table
from tests.test_topology_kinds import SIZED

SHELVES = ("topology", "weights", "routes", "switch", "bound")
SHARED = """\
base: base.yaml
grid:
  routing.policy: [tree, mox-paper, mox]
  topology.latency_ns: [100.0, 200.0]
"""


def entries(folder):
    return sorted((folder / "cache").rglob("*.npz"))


@pytest.fixture
def swept(tmp_path):
    """A sweep whose runs share everything, done, with its table as it is without any cache."""
    plan = planned(tmp_path, SHARED)
    run_sweep(plan, tmp_path / "out")
    return plan, tmp_path / "out"


def again(plan, out):
    """Do all runs again with the cache as it is; the table then."""
    for row in (out / "rows").iterdir():
        row.unlink()
    run_sweep(plan, out)
    return table(out)


def test_each_kind_is_kept_once(swept):
    _, out = swept
    kept = {kind: len(list((out / "cache" / kind).glob("*.npz"))) for kind in SHELVES}
    # two latencies are two networks and two switches; weights, routes and the bound do not see latency
    assert kept == {"topology": 2, "weights": 2, "routes": 3, "switch": 2, "bound": 1}
    assert not list((out / "cache").rglob("*.lock"))


def test_the_cache_changes_no_result(swept, tmp_path):
    plan, out = swept
    first = table(out)
    assert again(plan, out) == first
    for run, row in zip(plan.runs, first, strict=True):
        scenario = prepare(run.config)
        result = simulate_block_of(scenario, block_of(scenario))
        assert float(row["completion_ns"]) == result.completion_ns
        assert float(row["max_link_load"]) == result.loads["normalized_max_load"]


def test_what_is_kept_is_not_computed_again(swept, monkeypatch):
    plan, out = swept
    first = table(out)

    def refuse(*_, **__):
        raise AssertionError("computed again")

    for name in (
        "scenario.topology.build", "scenario.compute_weights", "scenario.compute_tables",
        "scenario.routing.route", "simulate.switch_completion_ns", "sweep.work.bounds_of",
    ):  # fmt: skip
        monkeypatch.setattr(f"moxtrace.{name}", refuse)
    assert again(plan, out) == first


@pytest.mark.parametrize("damage", ["delete", "empty", "cut", "flip", "other"])
def test_a_damaged_cache_is_computed_again(swept, damage):
    plan, out = swept
    first = table(out)
    for path in entries(out):
        data = bytearray(path.read_bytes())
        if damage == "delete":
            path.unlink()
            continue
        if damage == "flip":  # a byte of the first array's content
            data[len(data) // 2] ^= 0xFF
        path.write_bytes(
            {"empty": b"", "cut": bytes(data[:-40]), "flip": bytes(data), "other": b"PK\3\4 no"}[damage]
        )
    assert again(plan, out) == first


def test_the_whole_cache_can_go(swept):
    plan, out = swept
    first = table(out)
    for path in entries(out):
        path.unlink()
    for folder in (out / "cache").iterdir():
        folder.rmdir()
    (out / "cache").rmdir()
    assert again(plan, out) == first


def test_a_cache_that_cannot_be_written_costs_only_time(swept, monkeypatch):
    plan, out = swept
    first = table(out)
    for path in entries(out):
        path.unlink()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moxtrace.sweep.cache.np.savez", full)
    monkeypatch.setattr("moxtrace.routing.mox.tables.np.savez_compressed", full)
    assert again(plan, out) == first
    assert entries(out) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "path" not in KINDS[kind].parameters])
def test_every_network_comes_back_as_it_was(tmp_path, kind):
    made = topology.build(kind, **SIZED.get(kind, {"npus": 16}))
    cache = Cache(tmp_path)
    assert cache.take("topology", ("x",), lambda: made) is made
    back = cache.take("topology", ("x",), lambda: pytest.fail("not kept"))
    for name in ("kind", "num_npus", "num_nodes", "names"):
        assert getattr(back, name) == getattr(made, name), name
    for name in ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes"):
        assert getattr(back, name).dtype == getattr(made, name).dtype
        assert np.array_equal(getattr(back, name), getattr(made, name)), name


def test_of_two_that_need_the_same_thing_one_makes_it(tmp_path):
    made = []

    def make():
        made.append(1)
        time.sleep(0.2)
        return 5.0

    found = []
    threads = [
        threading.Thread(target=lambda: found.append(Cache(tmp_path).take("switch", (1,), make)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5.0] * 4
    assert made == [1]


def test_routes_are_kept_only_where_they_are_shared(tmp_path):
    forest = block_of(prepare(RunConfig.model_validate(configured().model_dump()))).dispatch.forest
    for keep, count in ((False, 2), (True, 1)):
        calls = []
        for _ in range(2):
            got = Cache(tmp_path, keep_routes=keep).take(
                "routes", (1,), lambda calls=calls: calls.append(1) or forest
            )
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(got, forest, strict=True))
        assert len(calls) == count


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, width=16)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(PLAIN, PLAIN)
def test_different_things_have_different_digests(one, other):
    assert (digest(one) == digest(other)) == (repr(norm(one)) == repr(norm(other)))


def norm(value):
    if isinstance(value, tuple):
        return tuple(map(norm, value))
    return sorted((k, norm(v)) for k, v in value.items()) if isinstance(value, dict) else value


def test_a_digest_tells_arrays_apart():
    one = np.arange(6, dtype=np.int32)
    many = [one, one.astype(np.int64), one.reshape(2, 3), one[::-1], one[:5], one.tolist()]
    assert len({digest(x) for x in many}) == len(many)
    with pytest.raises(TypeError, match="no digest of set"):
        digest({1})


# ------------------------------------------------------------------------------------- workers and locks


def echo(value, more=0):
    return value + more, os.getpid()


def broken(_):
    raise OutputError("no room")


def leave(code):
    os._exit(code)


def end(number):
    os.kill(os.getpid(), number)


def test_workers_answer_and_are_replaced_when_they_die():
    with LocalProcesses(2) as pool:
        futures = [pool.submit(echo, i, more=1) for i in range(6)]
        killed, left = pool.submit(end, signal.SIGKILL), pool.submit(leave, 3)
        ended, refused = pool.submit(end, signal.SIGTERM), pool.submit(broken, 0)
        after = [pool.submit(echo, i) for i in range(4)]
        wait([*futures, *after])
        assert [f.result()[0] for f in futures] == [1, 2, 3, 4, 5, 6]
        assert [f.result()[0] for f in after] == [0, 1, 2, 3]
        assert os.getpid() not in {f.result()[1] for f in futures}
        with pytest.raises(WorkerDiedError, match=r"killed by the system \(SIGKILL\), most likely out"):
            killed.result()
        with pytest.raises(WorkerDiedError, match="ended with exit status 3 in the middle of the run"):
            left.result()
        with pytest.raises(WorkerDiedError, match="ended with SIGTERM"):
            ended.result()
        with pytest.raises(OutputError, match="no room"):
            refused.result()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(echo, 1)


def test_shutting_down_at_once_ends_what_runs():
    pool = LocalProcesses(1)
    running, queued = pool.submit(time.sleep, 600), pool.submit(echo, 1)
    while not running.running():
        time.sleep(0.01)
    start = time.monotonic()
    pool.shutdown(cancel_futures=True)
    assert time.monotonic() - start < 60
    assert queued.cancelled()


def test_in_process_an_interruption_is_everybodys():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InProcess().submit(interrupt)
    assert isinstance(InProcess().submit(broken, 0).exception(), OutputError)
    assert InProcess().submit(echo, 1, more=2).result()[0] == 3


def test_a_lock_is_held_by_one_or_shared_by_many(tmp_path):
    path = tmp_path / "lock"
    assert holder_of(path) is None
    with held(path):
        assert holder_of(path).startswith(f"process {os.getpid()} on ")
        with pytest.raises(Held, match=f"process {os.getpid()}"), held(path):
            pass
        with pytest.raises(Held), held(path, shared=True):
            pass
    with held(path, shared=True), held(path, shared=True), pytest.raises(Held), held(path):
        pass
    assert holder_of(path) is None
    with pytest.raises(OutputError, match="no such directory"), held(tmp_path / "none" / "lock"):
        pass


def test_a_container_limits_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    free = memory.available_bytes()
    assert free > 0
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory.available_bytes() == 600
    (tmp_path / "memory.current").write_text("4000\n")
    assert memory.available_bytes() == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 4000
