"""Verify finds every planted fault and names it, and finds nothing in what we generate."""

import shutil

import numpy as np
import pytest

from moxtrace.chakra import reader
from moxtrace.chakra.trace import COMP, RECV, SEND
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.verify import verify_run
from tests.runs import configured, edited


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "run"
    generate(configured(), path)
    return path


@pytest.fixture
def run(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "run")
    return Run.open(tmp_path / "run")


@pytest.mark.parametrize("policy", ["min-hop", "tree", "mox-paper", "switch"])
@pytest.mark.parametrize("form", ["collective", "flat"])
@pytest.mark.parametrize("barrier", ["phase", "tokens"])
def test_what_we_generate_is_right(tmp_path, policy, form, barrier):
    generate(
        configured(routing={"policy": policy}, trace={"form": form, "barrier": barrier}), tmp_path / "run"
    )
    assert verify_run(Run.open(tmp_path / "run")).problems == []


@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize("order", ["simulated", "token"])
def test_orders_and_windows_are_right(tmp_path, order, window):
    generate(configured(trace={"order": order, "window": window}), tmp_path / "run")
    assert verify_run(Run.open(tmp_path / "run")).problems == []


def first(rank, kind):
    return next(node for node in rank if node.kind == kind)


def test_a_deleted_recv(run):
    def edit(ranks):
        ranks[3].remove(first(ranks[3], RECV))

    assert any("send to rank 3" in p and "has no recv" in p for p in edited(run, "dispatch", edit))


def test_a_deleted_send(run):
    def edit(ranks):
        ranks[2].remove(first(ranks[2], SEND))

    problems = edited(run, "dispatch", edit)
    assert any("recv from rank 2" in p and "has no send" in p for p in problems)
    assert any("never reached" in p for p in problems)


def test_a_cut_file(run):
    path = run.path / "traces" / "combine.1.et"
    path.write_bytes(path.read_bytes()[:-3])
    problems = verify_run(run).problems
    assert any("combine.1.et" in p and "cut file" in p for p in problems)
    assert any("combine.1.et" in p and "cut" in p and "manifest" not in p for p in problems)


def test_swapped_rank_files(run):
    a, b = (run.path / "traces" / f"dispatch.{r}.et" for r in (0, 5))
    one, other = a.read_bytes(), b.read_bytes()
    a.write_bytes(other)
    b.write_bytes(one)
    problems = verify_run(run).problems
    assert sum("swapped file" in p or "cut file" in p for p in problems) == 2


def test_a_duplicated_id(run):
    def edit(ranks):
        ranks[4][1].id = ranks[4][0].id

    assert any("dispatch.4.et" in p and "id" in p for p in edited(run, "dispatch", edit))


def test_a_cycle(run):
    def edit(ranks):
        relay = next(n for n in ranks[1] if n.kind == SEND and n.deps)
        before = next(n for n in ranks[1] if n.id == relay.deps[0])
        before.deps.append(relay.id)

    assert any("cycle" in p for p in edited(run, "dispatch", edit))


def test_a_transfer_over_no_link(run):
    def edit(ranks):
        send = first(ranks[0], SEND)
        recv = next(n for n in ranks[send.peer] if n.kind == RECV and n.tag == send.tag and n.peer == 0)
        far = 6  # (1, 2), two hops from (0, 0) on the 2 x 4 torus
        assert send.peer != far
        ranks[send.peer].remove(recv)
        ranks[far].append(type(recv)(max(n.id for n in ranks[far]) + 1, RECV, 0, recv.tag, recv.amount, []))
        send.peer = far

    assert any("goes to NPU 6 over no link" in p for p in edited(run, "dispatch", edit))


def test_a_destination_reached_twice(run):
    def edit(ranks):
        send = first(ranks[0], SEND)
        other = next(p for p in (1, 2, 3, 4, 5, 6, 7) if p != send.peer and any(
            n.kind == SEND and n.peer == send.peer for n in ranks[p]))  # fmt: skip
        ranks[other].append(type(send)(10_000, SEND, send.peer, send.tag, send.amount, []))
        ranks[send.peer].append(type(send)(10_000, RECV, other, send.tag, send.amount, []))

    assert any("is reached twice" in p for p in edited(run, "dispatch", edit))


def test_a_destination_never_reached(run):
    def edit(ranks):
        sends = {(n.tag, r): n for r, rank in enumerate(ranks) for n in rank if n.kind == SEND}
        send = next(n for (tag, r), n in sends.items() if (tag, n.peer) not in sends)  # to a leaf
        source = next(r for (tag, r), n in sends.items() if n is send)
        ranks[source].remove(send)
        rank = ranks[send.peer]
        rank.remove(next(n for n in rank if n.kind == RECV and n.tag == send.tag))

    assert any("is never reached" in p for p in edited(run, "dispatch", edit))


def test_an_expert_output_reduced_twice(run):
    def edit(ranks):
        rank = next(r for r in range(8) if ranks[r])
        send = first(ranks[rank], SEND)
        ranks[rank].append(type(send)(10_000, SEND, send.peer, send.tag, send.amount, list(send.deps)))
        ranks[send.peer].append(type(send)(10_000, RECV, rank, send.tag, send.amount, []))

    assert any("is reduced twice" in p for p in edited(run, "combine", edit))


def test_an_expert_output_never_reduced(run):
    def edit(ranks):
        for rank in ranks:
            total = next((n for n in rank if n.kind == COMP and len(n.deps) == 2), None)
            follower = total and next((n for n in rank if total.id in n.deps), None)
            if follower is not None:
                total.deps.pop()
                return
        raise AssertionError("no reduction of two inputs in this case")

    assert any("does not wait for every partial sum" in p for p in edited(run, "combine", edit))


def test_a_relay_that_does_not_wait(run):
    def edit(ranks):
        for rank in ranks:
            recvs = {n.id: n for n in rank if n.kind == RECV}
            for node in rank:
                if node.kind == SEND and any(d in recvs and recvs[d].tag == node.tag for d in node.deps):
                    node.deps = [d for d in node.deps if d not in recvs]
                    return

    assert any("does not wait for the RECV of the token" in p for p in edited(run, "dispatch", edit))


def test_a_message_of_another_size(run):
    def edit(ranks):
        send = first(ranks[0], SEND)
        recv = next(n for n in ranks[send.peer] if n.kind == RECV and n.tag == send.tag and n.peer == 0)
        send.amount = recv.amount = 5

    problems = edited(run, "combine", edit)
    assert any("has 5 bytes; expected 128" in p for p in problems)
    assert any("links.csv says" in p for p in problems)


def test_links_csv_that_disagrees(run):
    path = run.path / "links.csv"
    lines = path.read_text().splitlines()
    row = lines[1].split(",")
    row[5] = str(int(row[5]) + 128)
    path.write_text("\n".join([lines[0], ",".join(row), *lines[2:]]) + "\n")
    assert any("links.csv says" in p for p in verify_run(run).problems)


def test_links_csv_sums_to_the_bytes_of_the_traces(run):
    table = np.genfromtxt(run.path / "links.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    for phase in ("dispatch", "combine"):
        trace = reader.read(run.path / "traces" / phase)
        assert table[f"{phase}_bytes"].sum() == trace.amount[trace.kind == SEND].sum()
