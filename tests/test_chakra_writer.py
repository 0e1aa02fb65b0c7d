"""The writer's bytes are protobuf's, its files are complete or absent, and its nodes can be run."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moxtrace.chakra import reader, writer
from moxtrace.chakra.trace import COLL, COMP, RECV, SEND, Trace
from moxtrace.errors import OutputError, TraceError
from tests.reference import chakra as twin

FIELDS = list(Trace.__dataclass_fields__)


def make(ranks, ops=()):
    """A trace of ``ranks``: lists of (id, kind, peer, tag, amount, dependencies as positions)."""
    nodes = [node for rank in ranks for node in rank]
    columns = list(zip(*nodes, strict=True)) if nodes else [[]] * 6
    kinds = (np.int64, np.int8, np.int32, np.int32, np.int64)
    ops = np.array(ops, np.int64).reshape(-1, 3)
    return Trace(
        np.cumsum([0, *map(len, ranks)]),
        *(np.array(c, k) for c, k in zip(columns[:5], kinds, strict=True)),
        np.cumsum([0, *map(len, columns[5])]),
        np.array([d for deps in columns[5] for d in deps], np.int32),
        *(np.ascontiguousarray(c) for c in ops.T),
    )


def numbers(top):
    """Numbers of every varint length up to ``top``."""
    return st.one_of(st.integers(0, min(top, 300)), st.integers(0, top)).filter(lambda v: v <= top)


@st.composite
def traces(draw, max_nodes=12):
    num_ranks = draw(st.integers(1, 4))
    ranks, ops = [], []
    for rank in range(num_ranks):
        size = draw(st.integers(1, max_nodes))
        first = draw(numbers(2**63 - 1 - size))
        ids = list(range(first, first + size))
        if draw(st.booleans()):
            ids = draw(st.lists(numbers(2**63 - 1), min_size=size, max_size=size, unique=True))
        nodes = []
        for at, ident in enumerate(ids):
            kind = draw(st.sampled_from([COMP, COLL] if num_ranks == 1 else [COMP, SEND, RECV, COLL]))
            others = [p for p in range(size) if p != at]
            deps = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
            peer, tag = -1, 0
            amount = draw(numbers(2**62 // 1000))
            if kind in (SEND, RECV):
                peer = draw(st.sampled_from([r for r in range(num_ranks) if r != rank]))
                tag, amount = draw(numbers(2**31 - 1)), draw(numbers(2**62 - 1)) + 1
            elif kind == COLL:
                peer = draw(st.integers(0, 9))
            elif draw(st.booleans()):
                at_all = sum(map(len, ranks)) + at
                ops.append((at_all, draw(numbers(2**63 - 1)), draw(numbers(2**63 - 1))))
            nodes.append((ident, kind, peer, tag, amount, deps))
        ranks.append(nodes)
    return make(ranks, ops)


def files(prefix, trace):
    return [prefix.with_name(f"{prefix.name}.{r}.et").read_bytes() for r in range(trace.num_ranks)]


def pair(size=14336, **change):
    """Rank 0 sends to rank 1."""
    send = {"id": 1, "kind": SEND, "peer": 1, "tag": 7, "amount": size, "deps": [], **change}
    return make([[tuple(send.values())], [(1, RECV, 0, 7, size, [])]])


def test_bytes_by_hand(tmp_path):
    trace = make([[(1, COMP, -1, 0, 3, []), (2, SEND, 1, 300, 14336, [0])], [(1, COMP, -1, 0, 0, [])]])
    writer.write(trace, tmp_path / "w")
    count = b"\x0a\x12moxtrace_num_nodes\x68\x02"
    cpu = b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"
    comp = b"\x08\x01" + b"\x12\x04comp" + b"\x18\x04" + b"\x38\x03" + cpu
    send = (
        b"\x08\x02" + b"\x12\x04send" + b"\x18\x05" + b"\x2a\x01\x01" + cpu
        + b"\x52\x0c\x0a\x08comm_src\x58\x00"
        + b"\x52\x0c\x0a\x08comm_dst\x58\x01"
        + b"\x52\x0e\x0a\x09comm_size\x68\x80\x70"
        + b"\x52\x0d\x0a\x08comm_tag\x58\xac\x02"
    )  # fmt: skip
    head = b"\x0a\x050.0.4" + b"\x12" + bytes([len(count)]) + count
    expected = b"".join(bytes([len(m)]) + m for m in (head, comp, send))
    assert (tmp_path / "w.0.et").read_bytes() == expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces())
def test_bytes_are_protobufs_and_the_twins(tmp_path, trace):
    pytest.importorskip("google.protobuf")
    prefix = tmp_path / "w"
    writer.write(trace, prefix)
    for rank, data in enumerate(files(prefix, trace)):
        assert data == twin.protobuf_file(trace, rank)
        assert data == twin.encode(trace, rank)
    back = reader.read(prefix, trace.num_ranks)
    for name in FIELDS:
        assert getattr(back, name).tolist() == getattr(trace, name).tolist(), name
        assert getattr(back, name).dtype == getattr(trace, name).dtype, name


def test_names_of_kinds_and_of_nodes(tmp_path):
    pytest.importorskip("google.protobuf")
    nodes = [
        (1, COLL, 6, 0, 1, []),
        (2, COMP, -1, 0, 5, [0]),
        (3, COLL, 6, 0, 1, [1]),
        (4, COMP, -1, 0, 0, []),
    ]
    trace = make([nodes, nodes], ops=[(3, 10, 20), (5, 7, 9)])
    names, node_names = {COMP: "reduce", COLL: ""}, {1: "dispatch", 2: "experts é", 9: "nobody"}
    writer.write(trace, tmp_path / "w", names=names, node_names=node_names, version="1")
    for rank, data in enumerate(files(tmp_path / "w", trace)):
        assert data == twin.protobuf_file(trace, rank, "1", names, node_names)


def test_chunks_and_threads_do_not_show(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    ranks = []
    for rank in range(3):
        deps = [rng.choice(400, rng.integers(0, 60), replace=False) for _ in range(400)]
        deps = [[int(d) for d in ds if d != i] for i, ds in enumerate(deps)]
        ranks.append([(i * i + 1, SEND, (rank + 1) % 3, i, 99, ds) for i, ds in enumerate(deps)])
    trace = make(ranks)
    records = writer.write(trace, tmp_path / "a", threads=1)
    whole = files(tmp_path / "a", trace)
    assert whole == [twin.encode(trace, r) for r in range(3)]
    assert [r.sha256 for r in records] == [hashlib.sha256(d).hexdigest() for d in whole]
    assert [(r.name, r.nodes, r.bytes) for r in records] == [
        (f"a.{r}.et", 400, len(whole[r])) for r in range(3)
    ]
    for size in (64, 300, 1000):  # smaller than a node, and all kinds of places to break
        monkeypatch.setattr(writer, "CHUNK_BYTES", size)
        assert [r.sha256 for r in writer.write(trace, tmp_path / "b", threads=3)] == [
            r.sha256 for r in records
        ]
        assert files(tmp_path / "b", trace) == whole


def test_progress_counts_nodes(tmp_path):
    seen = []
    trace = make([[(1, COMP, -1, 0, 1, [])] * 1, [(1, COMP, -1, 0, 1, []), (2, COMP, -1, 0, 1, [])]])
    writer.write(trace, tmp_path / "w", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (3, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": 3}, "type is MEM_STORE"),
        ({"kind": 9}, "type is 9"),
        ({"peer": 2}, "peer is 2; expected another of the ranks 0 to 1"),
        ({"peer": -1}, "peer is -1"),
        ({"peer": 0}, "peer is 0"),
        ({"kind": COLL, "peer": -1}, "peer is -1"),
        ({"tag": -1}, "comm_tag is -1"),
        ({"amount": 0}, "comm_size is 0; expected 1 to"),
        ({"amount": 2**62 + 1}, "comm_size is 4611686018427387905"),
        ({"kind": COMP, "amount": -1}, "duration is -1; expected 0"),
        ({"deps": [0]}, "depends on itself"),
        ({"deps": [1]}, "outside its rank's 1 nodes"),
        ({"deps": [-1]}, "outside its rank's 1 nodes"),
    ],
)
def test_nodes_that_cannot_run_are_refused(tmp_path, change, message):
    with pytest.raises(TraceError, match=r"w\.0\.et: node 1: ") as error:
        writer.write(pair(**change), tmp_path / "w")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_rank_without_nodes_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"w\.1\.et: rank 1 has no node"):
        writer.write(make([[(1, COMP, -1, 0, 1, [])], []]), tmp_path / "w")
    assert os.listdir(tmp_path) == []


def test_missing_directory(tmp_path):
    with pytest.raises(OutputError, match=r"no/w\.0\.et: cannot write: No such file or directory"):
        writer.write(pair(), tmp_path / "no" / "w")


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_full_disk_leaves_nothing(tmp_path):
    # a limit on the size of files gives what a full disk gives: a write that fails half-way
    (tmp_path / "other.et").write_text("kept")
    code = f"""
import resource, signal, numpy as np
from moxtrace.chakra import writer
from moxtrace.errors import OutputError
from tests.test_chakra_writer import COMP, make
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
small, large = ([(i + 1, COMP, -1, 0, 1, []) for i in range(n)] for n in (5, 5000))
try:
    writer.write(make([small, large, small]), {str(tmp_path / "w")!r})
except OutputError as error:
    print(error)
"""
    # kernels in the cache were written before; with the limit, numba could not write new ones
    writer.write(make([[(1, COMP, -1, 0, 1, [])]]), tmp_path / "w")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/w.1.et: cannot write: File too large; choose another directory\n"
    assert os.listdir(tmp_path) == ["other.et"]


def test_interruption_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(pair(), tmp_path / "w", progress=stop)
    assert os.listdir(tmp_path) == []
