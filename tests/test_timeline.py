"""The timeline: its bytes read back the slow way, its times by hand, its sampling said."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moxtrace import topology
from moxtrace.cli.timeline import command
from moxtrace.demand import Demand
from moxtrace.engine.blocks import simulate_block
from moxtrace.engine.network import Network
from moxtrace.errors import ConfigError, TraceError
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.timeline import config_of, timeline_of
from moxtrace.timeline.messages import lanes_of, messages_of, queues_of, stride_of
from moxtrace.timeline.packets import Digits, Number, Template, message
from moxtrace.topology import Topology
from moxtrace.transfers import Phase
from tests.reference.timeline import fields, one, read, waiting
from tests.runs import configured


def line(npus=3, lanes=1):
    """A path of NPUs, 8 Gbit/s and 10 ns: a message of 100 bytes takes 100 ns and arrives after 110."""
    a = np.arange(npus - 1)
    return Topology("graph", npus, np.append(a, a + 1), np.append(a + 1, a), 8.0, 10.0, lanes)


def relays(network, tokens):
    """Dispatch and combine of tokens from NPU 0 to the last over all others, and their demand."""
    n = network.num_npus
    hops = n - 1
    there = network.link_id(np.arange(hops), np.arange(hops) + 1)
    back = network.link_id(np.arange(hops) + 1, np.arange(hops))
    parent = np.arange(tokens * hops) - 1
    parent[::hops] = -1
    ptr = np.arange(tokens + 1) * hops
    delivers = np.tile(np.arange(hops) == hops - 1, tokens)
    phases = tuple(
        Phase(
            name, network, np.tile(link, tokens).astype(np.int32), parent.astype(np.int32), ptr,
            delivers.copy(), 100,
        )
        for name, link in (("dispatch", there), ("combine", back))
    )  # fmt: skip
    demand = Demand(
        n, np.zeros(tokens, np.int32), np.arange(tokens + 1), np.full(tokens, n - 1, np.int32),
        np.arange(tokens, dtype=np.int32), np.array([0] * hops + [tokens]),
    )  # fmt: skip
    return phases, demand


def timed(network, tokens, scale=1):
    phases, demand = relays(network, tokens)
    wires = Network.from_topology(network, scale)
    result = simulate_block(
        *phases, [0] * network.num_npus, wires, barrier="tokens", reduce_ns_per_byte=0.0, times=True
    )
    return phases, demand, wires, result


@pytest.mark.parametrize("scale", [1, 1000])
def test_the_times_of_a_relay_by_hand(scale):
    phases, demand, wires, result = timed(line(), 2, scale)
    found = messages_of(phases, result, demand, wires, 1)
    first = found.phase == 0
    rows = zip(
        found.token[first], found.queued[first], found.start[first], found.released[first],
        found.arrived[first], strict=True,
    )  # fmt: skip
    # over 0 -> 1 one after the other; over 1 -> 2 each when it has arrived, and the link is free by then
    assert [tuple(map(int, row)) for row in rows] == [
        (0, 0, 0, 100, 110), (1, 0, 100, 200, 210),
        (0, 110, 110, 210, 220), (1, 210, 210, 310, 320),
    ]  # fmt: skip
    queues = queues_of(phases, result, wires, 100)
    assert list(zip(queues.link, queues.at, queues.length, strict=True))[:2] == [(0, 0, 1), (0, 100, 0)]


def test_lanes_do_not_overlap():
    network = line(2, lanes=3)
    phases, demand, wires, result = timed(network, 10)
    found = messages_of(phases, result, demand, wires, 1)
    lane = lanes_of(found, network.lanes)
    assert set(lane) == {0, 1, 2}
    for link in set(found.link):
        for k in range(3):
            mine = (found.link == link) & (lane == k)
            assert (found.start[mine][1:] >= found.released[mine][:-1]).all()


@given(st.integers(1, 12), st.integers(1, 3), st.integers(2, 4))
def test_queues_are_those_counted_one_by_one(tokens, lanes, npus):
    phases, demand, wires, result = timed(line(npus, lanes), tokens)
    found = messages_of(phases, result, demand, wires, 1)
    queues = queues_of(phases, result, wires, 10**6)
    got = {}
    for link, at, length in zip(*(a.tolist() for a in (queues.link, queues.at, queues.length)), strict=True):
        got.setdefault(link, []).append((at, length))
    slow = waiting(list(zip(found.link.tolist(), found.queued.tolist(), found.start.tolist(), strict=True)))
    assert got == slow


def in_effect(changes, time):
    """Value of a step function that is 0 before its first change."""
    return next((value for at, value in reversed(changes) if at <= time), 0)


@given(st.integers(3, 12), st.integers(2, 4), st.integers(1, 6))
def test_peaks_are_the_most_in_each_window(tokens, npus, windows):
    phases, _, wires, result = timed(line(npus), tokens)
    whole = queues_of(phases, result, wires, 10**6)
    peaks = queues_of(phases, result, wires, 2 * windows * wires.num_links)
    assert len(peaks.at) <= 2 * windows * wires.num_links
    width = peaks.window_ns
    if not width:
        assert len(whole.at) <= 2 * windows * wires.num_links
        return
    for link in range(wires.num_links):
        mine, shown = (
            list(zip(q.at[q.link == link].tolist(), q.length[q.link == link].tolist(), strict=True))
            for q in (whole, peaks)
        )
        for begin in range(0, result.completion + 1, width):
            inside = [value for at, value in mine if begin <= at < begin + width]
            assert in_effect(shown, begin) == max([in_effect(mine, begin), *inside])


# ------------------------------------------------------------------------------------ the bytes


@given(
    st.lists(
        st.tuples(st.integers(0, 2**56 - 1), st.integers(0, 2**35 - 1), st.integers(0, 999)),
        min_size=1,
        max_size=20,
    )  # fmt: skip
)
def test_rows_read_back(values):
    inner = [(4, Number("b", 5)), (23, Digits("token ", "c", 3)), (7, "x"), (6, b"\x00")]
    template = Template([(8, Number("a", 8)), (10, 1), (11, inner)])
    columns = {name: np.array(column) for name, column in zip("abc", zip(*values, strict=True), strict=True)}
    rows = template.rows(columns)
    assert rows.shape == (len(values), template.width)
    for (a, b, c), (number, body) in zip(values, fields(rows.tobytes()), strict=True):
        assert number == 1
        got = one(body)
        assert (got[8], got[10]) == (a, 1)
        assert one(got[11]) == {4: b, 23: f"token {c:03}".encode(), 7: b"x", 6: b"\x00"}


def test_a_message_is_protobuf_s():
    assert message([(1, 300), (2, [(3, "é")])]) == b"\x08\xac\x02\x12\x04\x1a\x02\xc3\xa9"


CONFIG = configured(topology={"kind": "torus", "dims": [2, 4]})


@pytest.fixture(scope="module")
def whole():
    return timeline_of(CONFIG, 10**6)


@pytest.fixture(scope="module")
def seen(whole):
    return read(b"".join(whole.chunks()))


def test_every_message_is_on_its_link(whole, seen):
    tracks, notes = seen
    slices = [
        s for t in tracks.values() for s in t.slices if s["name"].split()[0] != "compute" and "bytes" in s
    ]
    assert len(slices) == len(whole.messages.link)
    assert notes["messages"] == f"{len(slices)} of {len(slices)}: all"
    names = {t.name for t in tracks.values()}
    network = topology.build("torus", dims=[2, 4])
    for link in range(network.num_links):
        ends = f"{network.src[link]} → {network.dst[link]}"
        assert f"{ends} waiting" in names
        assert any(name.startswith(f"{ends} (100 Gbit/s") for name in names)
    for s in slices:
        phase, token = s["name"].split()
        assert s["category"] == phase
        assert int(token) == s["token"]
        assert s["bytes"] == 128
        assert s["arrives_ns"] >= s["end"] >= s["start"] >= s["waited_ns"]
    assert sum(s["token"] == 0 for s in slices) == (whole.messages.token == 0).sum()


def test_tracks_have_parents_and_an_order(seen):
    tracks, _ = seen
    groups = {u for u, t in tracks.items() if t.parent == 0}
    assert [tracks[u].name for u in sorted(groups)] == [
        "about: all messages",
        *(f"NPU {i}" for i in range(8)),
    ]
    for uuid, track in tracks.items():
        assert uuid in groups or track.parent in groups
    for group in groups:
        ranks = [t.rank for t in tracks.values() if t.parent == group]
        assert len(ranks) == len(set(ranks))


def test_phases_follow_each_other(seen):
    tracks, notes = seen
    phases = [t for t in tracks.values() if t.name == "phases"]
    assert len(phases) == 8
    for track in phases:
        assert [s["name"] for s in track.slices] == ["dispatch", "compute", "combine"]
        assert all(a["end"] == b["start"] for a, b in zip(track.slices, track.slices[1:], strict=False))
    last = max(s["end"] for t in phases for s in t.slices)
    assert last == int(float(notes["completion_ns"]))


def test_queues_are_counters_that_end_empty(whole, seen):
    counters = [t for t in seen[0].values() if t.unit]
    assert all(t.unit == "messages" for t in counters)
    assert sum(len(t.samples) for t in counters) == len(whole.queues.at) > 0
    assert all(t.samples[-1][1] == 0 for t in counters if t.samples)


def test_the_same_bytes_each_time(whole):
    again = timeline_of(CONFIG, 10**6)
    assert b"".join(again.chunks()) == b"".join(whole.chunks())
    assert not whole.is_sampled


@pytest.mark.parametrize("most", [1, 2, 30, 100, 300])
def test_a_limit_keeps_whole_tokens_and_says_so(whole, most):
    some = timeline_of(CONFIG, most)
    tracks, notes = read(b"".join(some.chunks()))
    assert some.events <= most
    assert some.is_sampled
    kept = set(some.messages.token.tolist())
    for token in kept:
        assert (some.messages.token == token).sum() == (whole.messages.token == token).sum()
    assert f"{len(some.messages.link)} of {len(whole.messages.link)}" in notes["messages"]
    assert f"one token in {some.stride}" in notes["messages"]
    assert f"one token in {some.stride}" in next(t.name for t in tracks.values() if "about" in t.name)
    assert "windows of" in notes["waiting"] or notes["waiting"] == "not shown"
    assert f"one token in {some.stride}" in some.sampling()


def test_the_stride_is_the_least_that_fits():
    phases, demand = relays(line(), 10)  # four messages of each token
    assert [stride_of(phases, demand, most) for most in (40, 39, 20, 12, 4, 3, 0)] == [1, 2, 2, 4, 10, 11, 11]


@pytest.mark.parametrize("policy", ["switch", "min-hop"])
def test_copies_belong_to_their_token(policy):
    timeline = timeline_of(configured(routing={"policy": policy}), 10**6)
    tracks, _ = read(b"".join(timeline.chunks()))
    assert timeline.messages.token.max() == 8 * 8 - 1
    assert ("switch" in {t.name for t in tracks.values()}) == (policy == "switch")
    some = timeline_of(configured(routing={"policy": policy}), 100).messages.token
    for token in set(some.tolist()):
        assert (some == token).sum() == (timeline.messages.token == token).sum()


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="--max-events: 0; expected at least 1"):
        timeline_of(CONFIG, 0)


# ---------------------------------------------------------------------------------- the command


def invoke(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], prog_name="timeline")


def test_run_and_configuration_give_the_same(tmp_path):
    run = tmp_path / "run"
    generate(CONFIG, run)
    size = timeline_of(config_of(Run.open(run)), 10**6).write(tmp_path / "one")
    program = [sys.executable, "-m", "moxtrace", "timeline", run / "config.resolved.yaml"]
    done = subprocess.run([*program, "-o", tmp_path / "other"], capture_output=True, text=True, check=True)
    assert "events" in done.stdout
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert size == (tmp_path / "one").stat().st_size


def test_the_command_says_what_it_left_out(tmp_path):
    run, some = tmp_path / "run", tmp_path / "some"
    generate(CONFIG, run)
    told = invoke(run, "-o", some, "--max-events", "50", "--json", "-q")
    facts = json.loads(told.stdout)
    assert facts["events"] <= 50
    assert facts["bytes"] == some.stat().st_size
    assert f"moxtrace: sampled: messages {facts['notes']['messages']}" in told.stderr
    assert "some: exists; choose another name" in str(invoke(run, "-o", some).exception)
    assert invoke(run, "-o", some, "--force", "-q").exit_code == 0
    assert "no such directory" in str(invoke(run, "-o", tmp_path / "none" / "such", "-q").exception)
    assert "--set changes a configuration" in invoke(run, "-o", "new", "--set", "topology.npus=4").stderr
    assert "no such directory; expected a run" in str(invoke(tmp_path / "none", "-o", "new").exception)


def test_a_changed_configuration_is_found(tmp_path):
    generate(CONFIG, tmp_path / "run")
    path = tmp_path / "run" / "config.resolved.yaml"
    path.write_text(path.read_text().replace("seed: 1", "seed: 2"))
    with pytest.raises(TraceError, match="config.resolved.yaml: is missing or was changed"):
        config_of(Run.open(tmp_path / "run"))


def test_what_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("moxtrace.timeline.timeline.available_memory", lambda: 1000)
    with pytest.raises(
        ConfigError, match="timeline: .* messages need about .* 1 kB are free: use fewer tokens"
    ):
        timeline_of(CONFIG, 100)
