"""Any single change to what we generate is a problem, and the kernels see what their slow twin sees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moxtrace import topology
from moxtrace.chakra import reader
from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.config import RunConfig
from moxtrace.demand import read_demand
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.verify import verify_run
from moxtrace.verify.layer import Layer
from moxtrace.verify.verify import trace_problems
from moxtrace.verify.words import Faults, wording
from moxtrace.verify.workload import expected_sets
from tests.editing import Node, pack, unpack
from tests.reference.verify import faults_of

# policy, form, barrier, order, window, time scale
CASES = [
    ("tree", "collective", "phase", "simulated", 4, "ps"),
    ("mox-paper", "collective", "tokens", "simulated", 1, "ps"),
    ("min-hop", "collective", "tokens", "token", 2, "ps"),
    ("min-hop", "collective", "phase", "simulated", 4, "ps"),
    ("switch", "flat", "tokens", "simulated", 4, "ps"),
    ("switch", "collective", "phase", "token", 0, "ps"),
    ("tree", "flat", "phase", "token", 64, "ps"),
    ("tree", "flat", "tokens", "simulated", 0, "ns"),
    ("mox-paper", "flat", "phase", "simulated", 2, "ps"),
]
MANY = 10_000


class Case:
    """A generated run in memory: its file sets as lists of nodes, and what they are checked against."""

    def __init__(self, path, policy, form, barrier, order, window, scale) -> None:
        generate(
            RunConfig.model_validate(
                {
                    "model": {"num_experts": 12, "top_k": 4, "hidden_dim": 4096, "intermediate_dim": 512},
                    "traffic": {"tokens_per_npu": 4, "sampling": "uniform"},
                    "topology": {"kind": "torus", "dims": [2, 3]},
                    "routing": {"policy": policy, "tokens_per_source": 50, "replays": 2},
                    "compute": {"reduce_ns_per_byte": 0.7},
                    "trace": {"form": form, "barrier": barrier, "order": order, "window": window,
                              "time_scale": scale},
                }
            ),
            path,
        )  # fmt: skip
        self.run = Run.open(path)
        self.manifest = self.run.manifest
        demand = read_demand(path / "demand.npz")
        self.demand = demand.unicast() if self.manifest["rows"] == "copies" else demand
        self.network = topology.read(path / "topology.json")
        self.names = list(expected_sets(form, barrier))
        self.sets = {name: unpack(reader.read(path / "traces" / name)) for name in self.names}

    def problems(self, name, ranks):
        return trace_problems(Layer(self.manifest, self.demand, self.network, MANY), name, pack(ranks))

    def has_path(self, src, dst):
        hub = self.network.num_npus
        steps = [(src, hub), (hub, dst)] if self.network.has_switch else [(src, dst)]
        return all(self.network.link_id(a, b) >= 0 for a, b in steps)

    def twin(self, phases, ranks):
        """What the twin finds, in the words of ``verify``."""
        ptr, dest = self.demand.dest_ptr, self.demand.dest
        rows = [(int(s), dest[ptr[t] : ptr[t + 1]].tolist()) for t, s in enumerate(self.demand.source)]
        trace, lines = pack(ranks), []
        for phase, code, *about in faults_of(phases, ranks, rows, self.manifest, self.has_path):
            one = Faults.empty(1)
            one.total[code] = 1
            one.about[code, 0] = about
            size = self.manifest["phases"][phase]["message_bytes"]
            base = self.manifest["phases"][phase]["first_tag"]
            lines += wording(phase, one, trace, self.demand, self.network, size, base)
        return sorted(lines)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return [Case(folder / str(i), *case) for i, case in enumerate(CASES)]


def copied(ranks):
    return [[replace(node, deps=list(node.deps)) for node in rank] for rank in ranks]


def chosen(draw, nodes, what):
    assume(nodes)
    return draw(st.sampled_from(nodes), label=what)


def matters(rank, node, dep):
    """Whether a dependency is there for more than a window."""
    kinds = {node.kind, *(n.kind for n in rank if n.id == dep)}
    return kinds not in ({SEND}, {RECV})


def mutate(draw, ranks):
    """Change one node so that the run is wrong; returns what was done."""
    how = draw(st.sampled_from(["delete", "duplicate", "peer", "tag", "amount", "kind", "drop", "redirect"]))
    rank = draw(st.sampled_from(ranks))
    messages = [n for n in rank if n.kind in (SEND, RECV)]
    peers = messages + [n for n in rank if n.kind == COLL]
    if how in ("delete", "duplicate", "amount", "kind"):
        node = chosen(draw, rank, "node")
        if how == "delete":
            rank.remove(node)
        elif how == "duplicate":
            rank.append(replace(node, id=max(n.id for n in rank) + 1, deps=list(node.deps)))
        elif how == "amount":
            node.amount += draw(st.sampled_from([1, 128]))
        else:
            node.kind = draw(st.sampled_from([k for k in (COMP, SEND, RECV, COLL) if k != node.kind]))
            node.peer = (ranks.index(rank) + 1) % len(ranks)
    elif how == "peer":
        node = chosen(draw, peers, "message")
        others = [p for p in range(len(ranks)) if p not in (node.peer, ranks.index(rank))]
        node.peer = draw(st.sampled_from(others))
    elif how == "tag":
        node = chosen(draw, messages, "message")
        node.tag = draw(st.sampled_from([t for t in (0, 1, 20, 40, 2**31 - 1) if t != node.tag]))
    else:
        node, dep = chosen(draw, [(n, d) for n in rank for d in n.deps if matters(rank, n, d)], "dependency")
        node.deps.remove(dep)
        if how == "redirect":
            others = [n.id for n in rank if n.id not in (dep, node.id, *node.deps)]
            node.deps.append(chosen(draw, others, "instead"))
    return how


def test_unchanged_runs_are_right(cases):
    for case in cases:
        assert verify_run(case.run).problems == []
        for name in case.names:
            assert case.problems(name, case.sets[name]) == []


@settings(max_examples=400)
@given(data=st.data())
def test_one_change_is_at_least_one_problem(cases, data):
    case = data.draw(st.sampled_from(cases))
    name = data.draw(st.sampled_from(case.names))
    ranks = copied(case.sets[name])
    mutate(data.draw, ranks)
    assert case.problems(name, ranks)


def jolt(draw, ranks):
    """Some change, wrong or not: one of the above, a dependency dropped, a COMP or a message changed."""
    how = draw(st.sampled_from(["mutate", "any dependency", "comp", "message"]))
    rank = draw(st.sampled_from(ranks))
    if how == "mutate":
        mutate(draw, ranks)
    elif how == "any dependency":
        node, dep = chosen(draw, [(n, d) for n in rank for d in n.deps], "dependency")
        node.deps.remove(dep)
    elif how == "comp":
        rank, node = chosen(draw, [(r, n) for r in ranks for n in r if n.kind == COMP and n.deps], "comp")
        change = draw(st.sampled_from(["time", "dependency", "delete"]))
        if change == "time":
            node.amount += 1
        elif change == "dependency":
            node.deps.remove(draw(st.sampled_from(node.deps)))
        else:
            rank.remove(node)
    else:
        send = chosen(draw, [n for n in rank if n.kind == SEND], "send")
        src = ranks.index(rank)
        recvs = [n for n in ranks[send.peer] if (n.kind, n.peer, n.tag) == (RECV, src, send.tag)]
        assume(recvs)
        ranks[send.peer].remove(recvs[0])
        dst = draw(st.sampled_from([r for r in range(len(ranks)) if r != src]))
        number = max((n.id for n in ranks[dst]), default=0) + 1
        send.peer = dst
        send.tag = draw(st.sampled_from([send.tag, 0, 5, 30]))
        ranks[dst].append(Node(number, RECV, src, send.tag, send.amount, []))


@settings(max_examples=200)
@given(data=st.data())
def test_kernels_and_twin_agree(cases, data):
    case = data.draw(st.sampled_from(cases))
    name = data.draw(st.sampled_from([n for n in case.names if n != "workload" or len(case.names) == 1]))
    ranks = copied(case.sets[name])
    for _ in range(data.draw(st.integers(1, 3))):
        jolt(data.draw, ranks)
    phases = expected_sets(case.manifest["form"], case.manifest["barrier"])[name].phases
    found = [p for p in case.problems(name, ranks) if p.startswith(tuple(f"{one}: token" for one in phases))]
    assert sorted(found) == case.twin(phases, ranks)


def test_windows_may_be_narrower_than_lowering_makes_them(cases):
    for case in cases:
        if case.manifest["form"] == "flat" and case.manifest["barrier"] == "phase":
            continue  # there expert compute waits for the earlier messages of a link through the window
        for name, ranks in case.sets.items():
            free = copied(ranks)
            for rank in free:
                for node in rank:
                    node.deps = [d for d in node.deps if matters(rank, node, d)]
            assert case.problems(name, free) == []


@pytest.mark.parametrize(("field", "value"), [("peer", -1), ("peer", 6), ("peer", 2**30), ("tag", -5)])
def test_numbers_that_no_reader_lets_pass_are_not_followed(cases, field, value):
    case = cases[0]
    ranks = copied(case.sets["dispatch"])
    setattr(next(n for n in ranks[0] if n.kind == SEND), field, value)
    assert case.problems("dispatch", ranks)


def test_dependencies_that_do_not_exist_are_not_followed(cases):
    case = cases[0]
    for far in (-1, 10**6):
        trace = pack(case.sets["combine"])
        dep = trace.dep.copy()
        dep[0] = far
        broken = replace(trace, dep=dep.astype(np.int32))
        problems = trace_problems(Layer(case.manifest, case.demand, case.network), "combine", broken)
        assert any("depends on position" in p for p in problems)
