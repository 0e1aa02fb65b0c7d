"""The reader takes every encoding of a node, and refuses damage with one line; it never crashes."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moxtrace.chakra import reader, writer
from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.errors import TraceError
from tests.reference import chakra as twin
from tests.reference.chakra import chunk, frame, varint
from tests.test_chakra_writer import FIELDS, files, make, traces

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEAD = frame(chunk(1, b"0.0.4"))
CPU = chunk(10, chunk(1, b"is_cpu_op") + varint(27 << 3) + b"\0")


def number(name, value, field=9):
    """An integer attribute."""
    return chunk(10, chunk(1, name.encode()) + varint(field << 3) + varint(value))


def node(ident, kind, *parts):
    return varint(1 << 3) + varint(ident) + varint(3 << 3) + varint(kind) + b"".join(parts)


def send(ident=1, src=0, dst=1, size=100, tag=5, more=b""):
    return node(
        ident, SEND, number("comm_src", src), number("comm_dst", dst), number("comm_size", size),
        number("comm_tag", tag), more,
    )  # fmt: skip


def comp(ident=1, *parts):
    return node(ident, COMP, *parts)


def put(directory: Path, *nodes, rank=0, head=HEAD, tail=b"", name="w"):
    """Write a file of these nodes; returns the prefix."""
    data = head + b"".join(frame(n) for n in nodes) + tail
    (directory / f"{name}.{rank}.et").write_bytes(data)
    return directory / name


def read_two(directory, *nodes):
    """Read these nodes as rank 0 of 2."""
    put(directory, comp(), rank=1)
    return reader.read(put(directory, *nodes))


def check_like_twin(prefix, data):
    """Reader and twin agree on files: the same columns, or both refuse."""
    for rank, bytes_ in enumerate(data):
        prefix.with_name(f"{prefix.name}.{rank}.et").write_bytes(bytes_)
    try:
        expected = twin.decode(data)
    except twin.BadFileError:
        expected = None
    try:
        trace = reader.read(prefix, len(data), threads=1)
    except TraceError as error:
        trace, message = None, str(error)
    if trace is None:
        assert expected is None, message
        assert "\n" not in message
    else:
        assert expected is not None
        assert twin.same(trace, expected)


def prefixes(shared_data):
    found = sorted(shared_data.glob("astra_sim_cases/*/*/*.0.et"))
    return [path.with_name(path.name.removesuffix(".0.et")) for path in found]


def test_real_traces_equal_the_twin_and_survive_writing(shared_data, tmp_path):
    found = prefixes(shared_data)
    assert len(found) > 50
    for prefix in found:
        trace = reader.read(prefix)
        assert twin.same(trace, twin.decode(files(prefix, trace))), prefix
        writer.write(trace, tmp_path / "w")
        again = reader.read(tmp_path / "w", trace.num_ranks)
        for name in FIELDS:
            assert getattr(again, name).tolist() == getattr(trace, name).tolist()


def test_file_by_hand(tmp_path):
    after = chunk(4, varint(10))
    trace = read_two(
        tmp_path,
        comp(10, varint(7 << 3) + varint(2000), number("num_ops", 8), number("tensor_size", 4)),
        send(3, more=chunk(5, varint(20) + varint(10))),
        node(
            20,
            RECV,
            number("comm_src", 1),
            number("comm_size", 7),
            number("comm_tag", 0),
            after,
        ),
        node(2, COLL, number("comm_type", 6), number("comm_size", 1), varint(5 << 3) + varint(3)),
    )
    assert trace.rank_ptr.tolist() == [0, 4, 5]
    assert trace.node_id.tolist() == [10, 3, 20, 2, 1]
    assert trace.kind.tolist() == [COMP, SEND, RECV, COLL, COMP]
    assert trace.peer.tolist() == [-1, 1, 1, 6, -1]
    assert trace.tag.tolist() == [0, 5, 0, 0, 0]
    assert trace.amount.tolist() == [2000, 100, 7, 1, 0]
    assert trace.dep_ptr.tolist() == [0, 0, 2, 3, 4, 4]
    assert trace.dep.tolist() == [2, 0, 0, 1]
    assert [trace.ops_node.tolist(), trace.num_ops.tolist(), trace.tensor_size.tolist()] == [[0], [8], [4]]


@pytest.mark.parametrize("field", [7, 9, 11, 13, 15, 17, 19, 21, 23, 25])
def test_any_integer_field(tmp_path, field):
    value = 1000
    if field in (19, 21, 23, 25):
        wire, data = (5, struct.pack("<I", value)) if field in (19, 23) else (1, struct.pack("<Q", value))
    else:
        wire, data = 0, varint(2 * value if field in (15, 17) else value)
    size = chunk(10, chunk(1, b"comm_size") + varint(field << 3 | wire) + data)
    body = [number("comm_dst", 1, 11), number("comm_tag", 3, 7), size, CPU]
    assert read_two(tmp_path, node(1, SEND, *body)).amount[0] == value


def test_negative_numbers_of_every_field_are_refused(tmp_path):
    for field, data in ((7, varint(-5)), (9, varint(-5)), (15, varint(9)), (17, varint(9))):
        size = chunk(10, chunk(1, b"comm_size") + varint(field << 3) + data)
        with pytest.raises(TraceError, match="comm_size is -5; expected 1 to"):
            read_two(tmp_path, node(1, SEND, number("comm_dst", 1), number("comm_tag", 3), size))


def test_the_first_of_two_attributes_counts(tmp_path):
    assert read_two(tmp_path, send(size=3, more=number("comm_size", 8))).amount[0] == 3
    first_text = chunk(10, chunk(1, b"comm_size") + chunk(29, b"3"))
    with pytest.raises(TraceError, match="no integer comm_size"):
        read_two(tmp_path, node(1, SEND, first_text, number("comm_size", 8)))


@pytest.mark.parametrize(
    "other",
    [
        varint(3 << 3 | 1) + bytes(8),
        varint(5 << 3 | 5) + bytes(4),
        chunk(29, b""),
        chunk(31, b""),
        chunk(32, b""),
    ],
)
def test_the_last_member_of_a_oneof_counts(tmp_path, other):
    name, value = chunk(1, b"comm_size"), varint(9 << 3) + varint(8)
    rest = number("comm_dst", 1) + number("comm_tag", 3)
    assert read_two(tmp_path, node(1, SEND, rest, chunk(10, other + name + value))).amount[0] == 8
    with pytest.raises(TraceError, match="no integer comm_size"):
        read_two(tmp_path, node(1, SEND, rest, chunk(10, name + value + other)))


def test_dependencies_named_twice_and_both_ways(tmp_path):
    both = chunk(4, varint(9) + varint(8) + varint(9)) + varint(5 << 3) + varint(8) + chunk(5, varint(7))
    trace = reader.read(put(tmp_path, comp(1, both), comp(7), comp(8, chunk(5, varint(7))), comp(9)))
    assert trace.dep.tolist() == [3, 2, 1, 1]
    assert trace.dep_ptr.tolist() == [0, 3, 3, 4, 4]


def test_many_dependencies_and_many_operations_make_room(tmp_path):
    nodes = [
        comp(i, number("num_ops", i), chunk(5, b"".join(map(varint, range(1, i))))) for i in range(1, 150)
    ]
    trace = reader.read(put(tmp_path, *nodes))
    assert len(trace.dep) == 149 * 148 // 2
    assert trace.num_ops.tolist() == list(range(1, 150))
    assert twin.same(trace, twin.decode(files(tmp_path / "w", trace)))


def shuffled_nodes():
    """Nodes as nobody writes them: any order of fields, any integer field, unknown ones between."""

    @st.composite
    def attribute(draw, name, value):
        numbers = [7, 9, 11, 13, 15, 17, 19, 21, 23, 25]
        field = draw(st.sampled_from(3 * numbers + [27, 3, 5, 29, 8]))
        if field in (3, 5, 19, 21, 23, 25):
            wide = field in (3, 21, 25)
            body = varint(field << 3 | (1 if wide else 5)) + struct.pack("<Q" if wide else "<I", value)
        elif field in (29, 8):
            body = chunk(field, b"text")
        else:
            body = varint(field << 3) + varint(2 * value if field in (15, 17) else value)
        parts = [chunk(1, name.encode()), body]
        parts += draw(st.lists(st.sampled_from([chunk(2, b"doc"), varint(40 << 3) + b"\x07"]), max_size=1))
        return chunk(10, b"".join(draw(st.permutations(parts))))

    @st.composite
    def nodes(draw):
        kind = draw(st.sampled_from([COMP, SEND, RECV, COLL, SEND, RECV]))
        names = {
            SEND: ["comm_dst", "comm_size", "comm_tag", "comm_src"],
            RECV: ["comm_src", "comm_size", "comm_tag", "comm_dst"],
            COLL: ["comm_type", "comm_size"],
            COMP: ["num_ops", "tensor_size"],
        }[kind]
        names = names[: len(names) - draw(st.sampled_from([0] * 7 + [1]))]
        small = {"comm_size": 3, "comm_tag": 2, "comm_src": int(kind == RECV), "comm_dst": int(kind == SEND)}
        parts = [varint(1 << 3) + varint(draw(st.integers(0, 5))), varint(3 << 3) + varint(kind)]
        parts += [draw(attribute(name, small.get(name, 1))) for name in names]
        parts += draw(
            st.lists(
                st.sampled_from([
                    CPU, chunk(2, b"a name"), varint(6 << 3) + b"\x01", varint(7 << 3) + b"\x05",
                    chunk(8, chunk(1, b"[]")), varint(99 << 3 | 5) + b"abcd",
                    varint(98 << 3 | 1) + b"abcdefgh",
                    chunk(5, varint(1) + varint(2)), varint(5 << 3) + varint(3), chunk(4, varint(0)),
                    number("comm_priority", 3), number("comm_size", 77), chunk(10, chunk(1, b"pg_name")),
                ]),
                max_size=3,
            )
        )  # fmt: skip
        return b"".join(draw(st.permutations(parts)))

    return nodes()


@settings(FEW, max_examples=150)
@given(st.lists(shuffled_nodes(), min_size=1, max_size=4))
def test_any_encoding_reads_like_the_twin(tmp_path, nodes):
    check_like_twin(tmp_path / "w", [HEAD + b"".join(map(frame, nodes)), HEAD + frame(comp())])


@settings(FEW, max_examples=5)
@given(traces(max_nodes=3), st.data())
def test_cut_files_are_refused(tmp_path, trace, data):
    writer.write(trace, tmp_path / "w")
    rank = data.draw(st.integers(0, trace.num_ranks - 1))
    path = tmp_path / f"w.{rank}.et"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=rf"w\.{rank}\.et: "):
            reader.read(tmp_path / "w", trace.num_ranks, threads=1)


@settings(FEW, max_examples=100)
@given(traces(max_nodes=5), st.data())
def test_damaged_files_read_like_the_twin(tmp_path, trace, data):
    writer.write(trace, tmp_path / "w")
    whole = [bytearray(d) for d in files(tmp_path / "w", trace)]
    for _ in range(data.draw(st.integers(1, 4))):
        victim = data.draw(st.sampled_from(whole))
        at = data.draw(st.integers(0, len(victim) - 1))
        victim[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([victim[at] ^ 1, 0x80, 0xFF])))
    check_like_twin(tmp_path / "w", [bytes(d) for d in whole])


@FEW
@given(st.binary(max_size=60))
def test_garbage_reads_like_the_twin(tmp_path, data):
    for bytes_ in (data, HEAD + data, HEAD + frame(data), HEAD + frame(comp()) + frame(chunk(10, data))):
        if bytes_:
            check_like_twin(tmp_path / "w", [bytes_])


LONG = b"\xff" * 9 + b"\x02"  # one bit more than 64


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(1, 0)], "node number 1 (id 1) at byte 8: its type is INVALID (ASTRA-sim skips it); expected"),
        ([comp(5), node(6, 1)], "node number 2 (id 6) at byte 13: its type is METADATA (ASTRA-sim reads"),
        ([node(1, 2)], "type is MEM_LOAD (ASTRA-sim needs a remote memory"),
        ([node(1, 3)], "type is MEM_STORE"),
        ([node(1, 12)], "type is 12 (no schema has it)"),
        ([b""], "type is INVALID"),
        ([send(src=1)], "comm_src is 1; expected 0, the file's own rank: are files swapped?"),
        ([node(1, RECV, number("comm_src", 1), number("comm_dst", 1), number("comm_size", 7),
               number("comm_tag", 1))], "comm_dst is 1; expected 0, the file's own rank"),
        ([send(dst=0)], "comm_dst is 0, the file's own rank; expected another rank"),
        ([send(dst=2)], "comm_dst is 2; expected a rank from 0 to 1"),
        ([send(dst=-1)], "comm_dst is -1; expected a rank from 0 to 1"),
        ([send(size=0)], "comm_size is 0; expected 1 to 2**62 bytes"),
        ([send(size=-4)], "comm_size is -4"),
        ([send(size=2**62 + 1)], "comm_size is 4611686018427387905"),
        ([send(tag=2**31)], "comm_tag is 2147483648; expected 0 to 2**31 - 1"),
        ([send(tag=-1)], "comm_tag is -1"),
        ([node(1, SEND, number("comm_dst", 1), number("comm_size", 7))], "no integer comm_tag"),
        ([node(1, SEND, number("comm_dst", 1), number("comm_tag", 7))], "no integer comm_size"),
        ([node(1, SEND, number("comm_size", 1), number("comm_tag", 7))], "no integer comm_dst"),
        ([node(1, RECV, number("comm_size", 1), number("comm_tag", 7))], "no integer comm_src"),
        ([node(1, SEND, chunk(10, chunk(1, b"comm_src") + chunk(29, b"0")), number("comm_dst", 1),
               number("comm_size", 1), number("comm_tag", 7))], "no integer comm_src"),
        ([node(1, COLL, number("comm_size", 1))], "no integer comm_type"),
        ([node(1, COLL, number("comm_type", 10), number("comm_size", 1))], "comm_type is 10; expected 0"),
        ([node(1, COLL, number("comm_type", 6), number("comm_size", -1))], "comm_size is -1"),
        ([send(more=chunk(10, chunk(1, b"is_cpu_op") + varint(27 << 3) + b"\1"))], "is_cpu_op is true"),
        ([comp(1, number("is_cpu_op", 1, 27))], "is_cpu_op is true"),
        ([comp(1, chunk(10, chunk(1, b"num_ops") + chunk(29, b"many")))], "num_ops is no integer from 0"),
        ([comp(1, number("num_ops", 3), number("tensor_size", -1))], "tensor_size is no integer from 0"),
        ([comp(1, varint(7 << 3) + varint(2**62))], "duration_micros is above"),
        ([comp(2**63)], "its id is above 2**63 - 1"),
        ([comp(4), comp(5), comp(4)], "node number 3: its id 4 is that of node number 1; expected unique"),
        ([comp(4, chunk(5, varint(4)))], "node number 1 (id 4): it depends on itself"),
        ([comp(4), comp(5, chunk(4, varint(6)))], "node number 2 (id 5): it depends on 6, which is not in"),
        ([comp(9), comp(5, chunk(5, varint(2**64 - 1)))], "depends on 18446744073709551615, which is not"),
        ([comp(4, varint(1 << 3 | 3))], "a field number or wire type that no Chakra file has"),
        ([comp(4, varint(0))], "a field number or wire type that no Chakra file has"),
        ([comp(4, varint(7 << 3) + LONG)], "a number is longer than 64 bits; the file is damaged"),
        ([comp(4, chunk(5, LONG))], "a number is longer than 64 bits"),
        ([comp(4, varint(2 << 3 | 2) + varint(9) + b"short")], "a field runs past the end of its message"),
        ([comp(4, chunk(5, b"\x80"))], "a field runs past the end of its message"),
        ([comp(4, b"\x80")], "a field runs past the end of its message"),
        ([comp(4, varint(99 << 3 | 5) + b"abc")], "a field runs past the end of its message"),
        ([comp(4, chunk(10, chunk(1, b"num_ops") + b"\x48"))], "a field runs past the end of its message"),
        ([], "no node; ASTRA-sim needs at least one"),
    ],
)  # fmt: skip
def test_bad_nodes_are_named(tmp_path, nodes, message):
    with pytest.raises(TraceError) as error:
        read_two(tmp_path, *nodes)
    assert str(error.value).startswith(f"{tmp_path}/w.0.et: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file; expected a GlobalMetadata and at least one node"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip, which ASTRA-sim does not read"),
        (frame(comp()) * 2, "byte 0: the first message is a Node; expected a GlobalMetadata"),
        (frame(varint(3 << 3) + b"\4"), "byte 0: the first message is a Node"),
        (b"\x80" * 12, "byte 0: a number is longer than 64 bits"),
        (b"hello, this is not a trace", "byte 0: a message of 104 bytes in a file of 26; expected a GlobalM"),
        (frame(b"\x07"), "byte 0: found field number 0"),
        (frame(b"\x0f"), "byte 0: found wire type 7"),
        (frame(b"\x8a\x80\x80\x80\x80\x00\x00"), "byte 0: found field number 1"),
        (HEAD[:-1], "byte 0: a message of 7 bytes in a file of 7"),
        (HEAD + b"\x80", "node number 1 at byte 8: the file ends inside this message; it is cut"),
        (HEAD + frame(comp()) + b"\x09\x08", "node number 2 at byte 13: the file ends inside this message"),
        (HEAD + frame(send(size=0)) + b"\x09\x08", "node number 1 (id 1) at byte 8: comm_size is 0"),
    ],
)
def test_bad_files_are_named(tmp_path, data, message):
    put(tmp_path, comp(), rank=1)
    (tmp_path / "w.0.et").write_bytes(data)
    with pytest.raises(TraceError) as error:
        reader.read(tmp_path / "w")
    assert str(error.value).startswith(f"{tmp_path}/w.0.et: {message}")


def test_a_cut_between_nodes_is_noticed(tmp_path):
    writer.write(make([[(i, COMP, -1, 0, 1, []) for i in range(3)]]), tmp_path / "w")
    data = (tmp_path / "w.0.et").read_bytes()
    (tmp_path / "w.0.et").write_bytes(data[: len(data) - last(data)])
    with pytest.raises(TraceError, match="2 nodes, but its metadata says 3: the file is cut"):
        reader.read(tmp_path / "w")


def last(data):
    """Bytes of the last message and its length."""
    at = size = 0
    while at < len(data):
        size = data[at] + 1
        at += size
    return size


def test_ranks_are_found_and_gaps_named(tmp_path):
    for rank in (0, 1, 2, 10):
        put(tmp_path, comp(), rank=rank)
    put(tmp_path, comp(), rank=0, name="w.0")
    (tmp_path / "w.03.et").touch()
    with pytest.raises(TraceError, match=r"w\.3\.et: no such file, but rank 10 has one"):
        reader.read(tmp_path / "w")
    assert reader.read(tmp_path / "w", 3).num_ranks == 3
    assert reader.find_ranks(tmp_path / "w.0") == 1
    with pytest.raises(TraceError, match=r"x\.0\.et: no such file; expected one x\.RANK\.et for every rank"):
        reader.read(tmp_path / "x")
    with pytest.raises(TraceError, match="no: cannot list the directory: No such file"):
        reader.read(tmp_path / "no" / "w")
    with pytest.raises(TraceError, match=r"w\.3\.et: cannot read: No such file"):
        reader.read(tmp_path / "w", 4)
    with pytest.raises(TraceError, match="0 ranks; expected at least 1"):
        reader.read(tmp_path / "w", 0)


def test_the_lowest_rank_that_fails_is_reported(tmp_path):
    for rank in range(8):
        put(tmp_path, *([comp()] * (2 if rank in (3, 5) else 1)), rank=rank)
    for _ in range(5):
        with pytest.raises(TraceError, match=r"w\.3\.et"):
            reader.read(tmp_path / "w", threads=4)


def test_progress_counts_files(tmp_path):
    seen = []
    put(tmp_path, comp(), rank=1)
    reader.read(put(tmp_path, comp()), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
