"""Verify finds what is wrong with the MoE layer in files that the manifest vouches for."""

import shutil

import pytest

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.verify import verify_run
from tests.editing import Node
from tests.runs import configured, edited, vouched

FORMS = [("collective", "phase"), ("collective", "tokens"), ("flat", "phase"), ("flat", "tokens")]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layer")
    for form, barrier in FORMS:
        generate(configured(trace={"form": form, "barrier": barrier}), folder / f"{form}-{barrier}")
    return folder


@pytest.fixture
def run(pristine, tmp_path):
    return opened(pristine, tmp_path, "collective", "phase")


def opened(pristine, tmp_path, form, barrier):
    shutil.copytree(pristine / f"{form}-{barrier}", tmp_path / "run")
    return Run.open(tmp_path / "run")


def fresh(rank):
    return max(node.id for node in rank) + 1


def message(ranks, src, dst, tag, size=128):
    ranks[src].append(Node(fresh(ranks[src]), SEND, dst, tag, size, []))
    ranks[dst].append(Node(fresh(ranks[dst]), RECV, src, tag, size, []))


@pytest.mark.parametrize("dst", [6, 1])  # over no link, and over one that is there
def test_messages_that_are_no_tokens(run, dst):
    problems = edited(run, "dispatch", lambda ranks: message(ranks, 0, dst, 1000))
    expected = f"COMM_SEND with NPU {dst} has tag 1000, which is no token's; expected 0 to 63 (dispatch)"
    assert any("of rank 0" in p and expected in p for p in problems)
    assert any(f"of rank {dst}" in p and "COMM_RECV with NPU 0 has tag 1000" in p for p in problems)


def test_tags_of_the_other_phase(run):
    problems = edited(run, "dispatch", lambda ranks: message(ranks, 0, 1, 64))
    assert any("has tag 64, which is no token's" in p for p in problems)


def sums(ranks):
    """COMPs that wait for a RECV of combine, with their rank."""
    for rank in ranks:
        tags = {n.id: n.tag for n in rank if n.kind == RECV}
        for node in list(rank):
            if node.kind == COMP and any(tags.get(d, -1) >= 64 for d in node.deps):
                yield rank, node


@pytest.mark.parametrize(("form", "barrier"), FORMS)
def test_no_sums_at_all(pristine, tmp_path, form, barrier):
    def edit(ranks):
        for rank, total in list(sums(ranks)):
            for node in rank:
                if total.id in node.deps:
                    node.deps = [d for d in node.deps if d != total.id] + total.deps
            rank.remove(total)

    name = "workload" if form == "flat" else {"phase": "combine", "tokens": "block"}[barrier]
    problems = edited(opened(pristine, tmp_path, form, barrier), name, edit)
    assert any("waits for no COMP that adds what it sends" in p for p in problems)
    assert any("source NPU" in p and "has no COMP that adds what it receives" in p for p in problems)


def test_sums_of_another_duration(run):
    def edit(ranks):
        for _, total in sums(ranks):
            total.amount += 1

    problems = edited(run, "combine", edit)
    assert any("combine: token" in p and "the sum of NPU" in p and "has duration" in p for p in problems)
    assert any("the last sum" in p and "has duration" in p for p in problems)


def test_a_last_sum_that_misses_a_partial_sum(run):
    def edit(ranks):
        for rank, total in sums(ranks):
            if not any(total.id in node.deps for node in rank):
                total.deps.pop()
                return

    problems = edited(run, "combine", edit)
    assert len(problems) == 1
    assert "the last sum" in problems[0]
    assert "does not wait for every partial sum it must add" in problems[0]


def test_a_sum_too_many(run):
    def edit(ranks):
        ranks[3].append(Node(fresh(ranks[3]), COMP, -1, 0, 7, []))

    problems = edited(run, "combine", edit)
    assert len(problems) == 1
    assert "of rank 3: COMP of duration 7 is neither expert compute nor a sum" in problems[0]


@pytest.mark.parametrize(("form", "barrier"), FORMS)
def test_expert_compute_of_another_duration(pristine, tmp_path, form, barrier):
    run = opened(pristine, tmp_path, form, barrier)
    name = "workload" if form == "flat" or barrier == "phase" else "block"

    def edit(ranks):
        of_experts = [n for n in ranks[2] if n.kind == COMP and not any(n is s for _, s in sums(ranks))]
        assert len(of_experts) == 1
        of_experts[0].amount += 1

    problems = edited(run, name, edit)
    assert len(problems) == 1
    assert "of rank 2" in problems[0]
    assert "the manifest's compute_ns makes it" in problems[0]


def test_a_manifest_with_other_compute_times(run):
    def change(manifest):
        manifest["compute_ns"][5] += 1000

    problems = verify_run(vouched(run, change)).problems
    assert any("node 2 of rank 5: duration_micros is" in p for p in problems)


def chain(*kinds):
    """Replace every rank's workload by such a chain."""

    def edit(ranks):
        for rank in ranks:
            rank[:] = [
                Node(i + 1, kind, 6 if kind == COLL else -1, 0, 1, [i] if i else [])
                for i, kind in enumerate(kinds)
            ]

    return edit


def test_a_workload_without_its_dependencies(run):
    def edit(ranks):
        for rank in ranks:
            rank[2].deps = []

    assert any("node 3 of rank 0: depends on nodes []; expected [2]" in p
               for p in edited(run, "workload", edit))  # fmt: skip


def test_a_workload_that_is_cut(run):
    problems = edited(run, "workload", chain(COLL))
    assert any("workload: rank 0 has 1 nodes; barrier 'phase' makes it 3" in p for p in problems)
    assert problems[-1].startswith("... and 3 more")


def test_a_workload_of_other_kinds(run):
    problems = edited(run, "workload", chain(COLL, COLL, COMP))
    assert any("node 2 of rank 0: is COMM_COLL; expected COMP" in p for p in problems)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("peer", 0, "comm_type is 0; expected 6"), ("amount", 9, "comm_size is 9"), ("id", 7, "expected id 1")],
)
def test_a_workload_of_other_collectives(run, field, value, message):
    def edit(ranks):
        setattr(ranks[4][0], field, value)
        ranks[4][1].deps = [ranks[4][0].id]

    assert any(p.startswith("workload: node") and "of rank 4" in p and message in p
               for p in edited(run, "workload", edit))  # fmt: skip


def compute_of(rank):
    tags = {n.id: n.tag for n in rank if n.kind == RECV}
    return next(n for n in rank if n.kind == COMP and all(tags.get(d, 0) < 64 for d in n.deps))


@pytest.mark.parametrize(("form", "barrier"), FORMS[1:])
def test_combine_that_does_not_wait_for_expert_compute(pristine, tmp_path, form, barrier):
    def edit(ranks):
        for rank in ranks:
            compute = compute_of(rank).id
            for node in rank:
                node.deps = [d for d in node.deps if d != compute]

    name = "workload" if form == "flat" else "block"
    problems = edited(opened(pristine, tmp_path, form, barrier), name, edit)
    assert any("combine: token" in p and "does not wait for its expert compute" in p for p in problems)


@pytest.mark.parametrize(("form", "barrier"), FORMS[1:])
def test_expert_compute_that_does_not_wait_for_dispatch(pristine, tmp_path, form, barrier):
    lost = []

    def edit(ranks):
        lost.append(compute_of(ranks[1]).deps.pop())

    name = "workload" if form == "flat" else "block"
    problems = edited(opened(pristine, tmp_path, form, barrier), name, edit)
    expected = "expert compute of NPU 1 does not wait for"
    assert any(expected in p and f"node {lost[0]} of rank 1" in p for p in problems)
    assert len(problems) == 1


def test_no_expert_compute(pristine, tmp_path):
    run = opened(pristine, tmp_path, "flat", "tokens")
    problems = edited(run, "workload", lambda ranks: ranks[1].remove(compute_of(ranks[1])))
    assert "dispatch/combine: rank 1 has no COMP for its expert compute" in problems


def test_a_collective_within_a_phase(run):
    def edit(ranks):
        ranks[0].append(Node(fresh(ranks[0]), COLL, 6, 0, 1, []))

    assert any("COMM_COLL; expected SEND, RECV and COMP" in p for p in edited(run, "dispatch", edit))
