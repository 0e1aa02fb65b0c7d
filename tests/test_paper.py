"""The paper's evaluation: a tiny one from end to end, the table's arithmetic, and what failures leave."""

import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from moxtrace.config import load
from moxtrace.routing import loads
from moxtrace.scenario import block_of, prepare

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.append(SCRIPTS)

import reproduce_paper  # noqa: E402
from paper import bench, work  # noqa: E402
from paper.assumed import single_paths, tokens_per_npu  # noqa: E402
from paper.grid import CONFIGS, Case, Cell, cells_of, merged, read_plan  # noqa: E402
from paper.results import Results, comparisons, number, range_of, read_published, spread  # noqa: E402
from paper.store import Store  # noqa: E402
from paper.table import table_of  # noqa: E402

EVALUATION = CONFIGS / "evaluation.yaml"
TINY = {
    "seeds": [1], "training_tokens": 24, "inference_tokens": 8, "npus": [16], "top_k": [8], "layers": 2,
    "boardfly_seeds": [1], "boardfly_training_tokens": 1, "boardfly_inference_tokens": 1, "sizes": [16],
    "size_top_k": [8], "degrees": [4], "degrees_npus": 16, "sensitivity_npus": 16,
}  # fmt: skip
SMALL = ("2", "4", "6", "sensitivity")  # all but Boardfly, whose weights take minutes


@pytest.fixture
def plan_file(tmp_path):
    """Write an evaluation of few and small cases."""

    def write(sensitivity=(), **full):
        path = tmp_path / "plan.yaml"
        assumptions = {"min_hop": "in-turn", "compute": "pairs"}
        text = {
            "full": TINY | full,
            "quick": {},
            "assumptions": assumptions,
            "sensitivity": list(sensitivity),
        }
        path.write_text(yaml.safe_dump(text))
        return path

    return write


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(work, "new_pool", lambda jobs: ThreadPoolExecutor(1))


def run(plan, folder, *more):
    return reproduce_paper.main(["--plan", str(plan), "-o", str(folder), "--jobs", "1", *more])


def test_a_tiny_evaluation_from_end_to_end(plan_file, tmp_path, in_process, monkeypatch, capsys):
    changes = [
        {"what": "paths", "change": {"paper.min_hop": "single"}, "says": "one path"},
        {"what": "work", "change": {"paper.compute": "tokens"}, "says": "once per NPU"},
    ]
    plan, folder = plan_file(changes), tmp_path / "out"
    assert run(plan, folder, "--only", *SMALL) == 0
    text = (folder / "table.md").read_text()
    for heading in ("Figure 2", "Figure 3", "Figure 4", "Figure 6", "Assumptions", "what is possible"):
        assert f" {heading}" in text or heading in text
    assert "Failed" not in text
    assert "missing" not in text
    names = ("2_training", "2_inference", "3_proxy", "4_skew", "6_sizes", "6_degrees")
    assert {p.name for p in folder.glob("figure_*")} == {
        f"figure_{n}.{e}" for n in names for e in ("png", "pdf")
    }
    assert not list(folder.rglob("*.partial*"))

    def refuse(*_):
        raise AssertionError("a point that is kept was computed again")

    monkeypatch.setattr(work, "Bench", refuse)
    pictures = {p.name: p.read_bytes() for p in folder.glob("figure_*")}
    assert run(plan, folder, "--only", *SMALL) == 0
    assert (folder / "table.md").read_text() == text
    assert {p.name: p.read_bytes() for p in folder.glob("figure_*")} == pictures
    assert capsys.readouterr().out.count("# The MoX paper's evaluation") == 2


def test_a_point_that_fails_says_why_and_stops_nothing(plan_file, tmp_path, in_process, capsys):
    changes = [{"what": "degree", "change": {"topology.degree": 40}, "says": "too many"}]
    folder = tmp_path / "out"
    assert run(plan_file(changes), folder, "--only", "sensitivity") == 1
    text = (folder / "table.md").read_text()
    assert "4 of 8 points" in text
    assert "min-hop: topology expander: degree 40 needs at least 41 NPUs" in text
    assert "| as it stands |" in text
    # a failed point is tried again
    store = Store(folder)
    plan = read_plan(False, tmp_path / "plan.yaml")
    assert sum(not t.weights for t in work.tasks_of(merged(cells_of(plan, ["sensitivity"])), store)) == 1


def test_a_bug_in_one_point_is_named_too(plan_file, tmp_path, in_process, monkeypatch):
    def broken(self, policy):
        raise ZeroDivisionError("in a point")

    monkeypatch.setattr(bench.Bench, "facts", broken)
    assert run(plan_file(), tmp_path / "out", "--only", "sensitivity") == 1
    assert "ZeroDivisionError: in a point" in (tmp_path / "out" / "table.md").read_text()


class Dying(ThreadPoolExecutor):
    """Breaks as a pool does whose process is killed, when it meets a case."""

    def __init__(self, victim):
        super().__init__(1)
        self.victim = victim

    def submit(self, function, task):
        if task.case.name == self.victim or self.victim is None:
            self.victim = None  # and everything after
            future = Future()
            future.set_exception(BrokenProcessPool())
            return future
        return super().submit(function, task)


def test_a_killed_process_costs_only_its_own_case(plan_file, tmp_path):
    plan = read_plan(False, plan_file([{"what": "x", "change": {"paper.min_hop": "single"}, "says": "y"}]))
    cases = [replace(c, policies=("min-hop",)) for c in merged(cells_of(plan, ["sensitivity"]))]
    store = Store(tmp_path)
    work.work(work.tasks_of(cases, store), 1, lambda jobs: Dying(cases[0].name))
    assert "killed" in store.failure(cases[0], "min-hop")
    assert store.facts(cases[1], "min-hop")["slowdown"] > 1


def test_cases_wait_for_weights_that_they_share(plan_file, tmp_path):
    plan = read_plan(False, plan_file())
    tasks = work.tasks_of(merged(cells_of(plan, ["2", "6"])), Store(tmp_path))
    weights = [task.weights for task in tasks if task.weights]
    points = [task for task in tasks if not task.weights]
    assert len(weights) == len(set(weights)) == 4  # two policies, at degree 8 and at degree 4
    assert len(points) == 5
    assert all(len(task.after) == 2 and task.after <= set(weights) for task in points)
    order = []

    class Noting(ThreadPoolExecutor):
        def submit(self, function, task):
            order.append(task)
            future = Future()
            future.set_result(None)
            return future

    work.work(tasks, 1, lambda jobs: Noting(1))
    assert sorted(order, key=str) == sorted(tasks, key=str)
    at = {task.weights: i for i, task in enumerate(order) if task.weights}
    assert all(at[name] < order.index(task) for task in points for name in task.after)


def test_an_interrupt_is_one_line(plan_file, tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "wait", interrupt)
    monkeypatch.setattr(work, "new_pool", lambda jobs: ThreadPoolExecutor(1))
    assert run(plan_file(), tmp_path / "out", "--only", "sensitivity") == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("full: [", "expected blocks full"),
        ("full: {seeds: [1]}", "'assumptions'"),
        ("{full: {}, quick: {}, assumptions: {}, sensitivity: []}", "unknown or missing"),
        (None, "cannot be read"),
    ],
)
def test_a_plan_that_is_none(tmp_path, capsys, text, message):
    path = tmp_path / "plan.yaml"
    if text is not None:
        path.write_text(text)
    assert run(path, tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error
    assert error.count("\n") == 1


def test_an_assumption_that_is_none(plan_file, tmp_path, in_process):
    changes = [{"what": "paths", "change": {"paper.min_hop": "all"}, "says": ""}]
    assert run(plan_file(changes), tmp_path / "out", "--only", "sensitivity") == 1
    assert (
        "paper.min_hop: found 'all'; expected min_hop: in-turn | single"
        in (tmp_path / "out" / "table.md").read_text()
    )


# ---------------------------------------------------------------------------------------- what is computed


def test_quick_leaves_out_no_kind_of_point():
    quick, full = (cells_of(read_plan(q, EVALUATION)) for q in (True, False))

    def kinds(cells):
        free = {"seed", "npus", "layer", "degree"}
        return {
            (
                c.figure,
                c.case.config,
                c.case.simulated,
                *sorted((k, str(v)) for k, v in c.labels if k not in free),
            )
            for c in cells
        }

    assert kinds(quick) == kinds(full)
    assert len(quick) < len(full) / 2
    assert len(read_plan(False, EVALUATION).seeds) >= 5


def test_figures_share_cases():
    cells = cells_of(read_plan(False, EVALUATION))
    cases = merged(cells)
    assert len({c.name for c in cases}) == len(cases) < len(cells)
    wanted = {c.case.name for c in cells if c.case.simulated}
    assert {c.name for c in cases if c.simulated} == wanted


def test_one_path_for_each_pair_is_a_shortest_one():
    config = load(
        CONFIGS / "training.yaml", ["routing.policy=min-hop", "traffic.tokens_per_npu=8", "topology.degree=4"]
    )
    scenario = prepare(config)
    network, demand = scenario.topology, scenario.demand
    phase = single_paths(network, demand, 1)
    usual = block_of(scenario).dispatch
    assert np.array_equal(np.diff(phase.tree_ptr), np.diff(usual.tree_ptr))
    copies, taken = demand.unicast(), {}
    for row, (source, dest) in enumerate(zip(copies.source, copies.dest, strict=True)):
        span = slice(phase.tree_ptr[row], phase.tree_ptr[row + 1])
        links, at = phase.link[span].tolist(), source
        for link in links:
            assert network.src[link] == at
            at = network.dst[link]
        assert at == dest
        assert phase.delivers[span].tolist() == [False] * (len(links) - 1) + [True]
        assert phase.parent[span].tolist() == [-1, *range(span.start, span.stop - 1)]
        assert taken.setdefault((source, dest), links) == links


def test_tokens_are_counted_once_per_npu():
    config = load(CONFIGS / "training.yaml", ["routing.policy=min-hop", "traffic.tokens_per_npu=16"])
    scenario = prepare(config)
    tokens = tokens_per_npu(config, 16, scenario.host)
    arriving = np.bincount(scenario.demand.dest, minlength=16)
    # what arrives, and the tokens of an NPU's own for its own experts, of which it has 16
    assert ((tokens >= arriving) & (tokens <= arriving + 16) & (tokens <= scenario.demand.pairs)).all()
    one = load(CONFIGS / "training.yaml", ["routing.policy=min-hop", "model.top_k=1"])
    assert np.array_equal(tokens_per_npu(one, 16, scenario.host), prepare(one).demand.pairs)


def test_loads_in_parts_are_those_of_the_whole(tmp_path, monkeypatch):
    settings = json.dumps({"traffic.tokens_per_npu": 20, "paper.min_hop": "in-turn"})
    case = Case("training", settings, simulated=False)
    monkeypatch.setattr(bench, "PART", 50)
    one = bench.Bench(case, Store(tmp_path))
    config = bench.case_config(case, **{"routing.policy": "tree"})
    scenario = prepare(config)
    expected = loads.summary(block_of(scenario).dispatch, scenario.demand)
    found = one.facts("tree")
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert len(list(bench._parts(scenario.demand))) > 3


# ---------------------------------------------------------------------------------------- what is kept


def test_results_of_other_code_do_not_count(tmp_path, monkeypatch):
    store, case = Store(tmp_path), Case("training", "{}", simulated=False)
    store.keep(case, "mox", facts={"normalized_max_load": 1.0})
    store.keep(case, "tree", facts={"normalized_max_load": 1.0})
    assert store.facts(case, "mox") == {"normalized_max_load": 1.0}
    assert not store.is_older(case, "mox")
    assert store.facts(replace(case, simulated=True), "mox") is None  # loads alone are no block time
    monkeypatch.setattr("paper.store._code", lambda policy: "new")
    assert store.facts(case, "mox") is None
    store.keep(case, "mox", facts={"normalized_max_load": 2.0})
    monkeypatch.setattr("paper.store._rest", lambda: "new")
    assert store.is_older(case, "mox")
    next(tmp_path.rglob("mox.json")).write_text("{")
    assert store.facts(case, "mox") is None
    store.forget(case, "tree")
    assert not list(tmp_path.rglob("tree.json"))


# ---------------------------------------------------------------------------------------- the table, by hand


def test_spread():
    assert spread([]) == "-"
    assert spread([2.04]) == "2.0"
    assert spread([-0.01]) == "0.0"
    assert spread([3.0, 1.0, 2.25], 2) == "2.25 [1.00, 3.00]"


@pytest.mark.parametrize(
    ("published", "text"),
    [(0.6, "0.6"), ([2.1, 3.6], "2.1 to 3.6"), ([None, 13.6], "up to 13.6"), (-47, "-47")],
)
def test_published_numbers(published, text):
    assert number(range_of(published)) == text


def by_hand(tmp_path, slowdowns, bounds=()):
    """Cells of figure 2 (training, uniform, 64 NPUs, top-8), two seeds; slowdowns by policy."""
    store, cells = Store(tmp_path), []
    for seed in (1, 2):
        case = Case("training", json.dumps({"seed": seed}))
        labels = {"stage": "training", "traffic": "uniform", "npus": 64, "top_k": 8, "seed": seed}
        cells.append(Cell("2", tuple(labels.items()), case))
        for policy, values in slowdowns.items():
            facts = {
                "slowdown": values[seed - 1], "communication_share": 0.5, "hottest_npu": 1.0,
                "cpu_seconds": 1.0,
                "normalized_max_load": 1 + 2 * (values[seed - 1] - 1),
                "communication_slowdown": 1 + 2 * (values[seed - 1] - 1),
            }  # fmt: skip
            store.keep(case, policy, facts=facts)
    for cell, bound in zip(cells, bounds, strict=False):
        store.keep(cell.case, "bound", facts={"normalized_bound": bound, "kind": "steiner-mean"})
    return Results(cells, store)


SLOW = {"min-hop": (1.9, 2.0), "tree": (1.3, 1.3), "mox-paper": (1.22, 1.24), "mox": (1.18, 1.2)}


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ((), "worse"),
        ((1.31,), "worse; out of reach of any routing here"),  # 15.1 % at a share of 0.5 needs 1.302
        ((1.29, 1.3), "worse; the bound leaves room"),
    ],
)
def test_a_worse_cell_is_held_against_the_bound(tmp_path, bounds, verdict):
    results = by_hand(tmp_path, SLOW, bounds)
    (one,) = comparisons(results, read_published())
    assert one.difference == pytest.approx(19 - 15.1)
    assert one.policy_part == pytest.approx(-4)
    assert one.verdict == verdict
    assert one.needs == pytest.approx([1.302] * len(bounds))
    assert one.allows == pytest.approx([100 * 0.5 * (b - 1) for b in bounds])
    plan = read_plan(False, EVALUATION)
    text = table_of(results, read_published(), [one], (plan, plan))
    assert "| training | uniform | 64 | 8 | 15.1 | **19.0 [18.0, 20.0]** | 23.0 [22.0, 24.0] |" in text
    assert f"| +3.9 | -4.0 | {verdict} |" in text
    assert "1 of 1 cells are worse" in text
    assert "This is a quick run" not in text
    assert "8 of 8 points, 8 CPU seconds" in text


def test_a_better_cell_asks_for_no_bound(tmp_path):
    results = by_hand(tmp_path, SLOW | {"mox": (1.1, 1.1)})
    (one,) = comparisons(results, read_published())
    assert one.difference == pytest.approx(-5.1)
    assert one.verdict == "better"
    plan = read_plan(True, EVALUATION)
    text = table_of(results, read_published(), [one], (plan, read_plan(False, EVALUATION)))
    assert "Nowhere: all 1 cells are as good or better" in text
    assert "| seeds | 1, 2 | 1, 2, 3, 4, 5 |" in text


def test_boardfly_is_relative_to_min_hop(tmp_path):
    store, case = Store(tmp_path), Case("boardfly", "{}", simulated=False)
    for policy, busiest in (("min-hop", 200), ("tree", 140), ("mox-paper", 130), ("mox", 110)):
        facts = {"busiest_link_bytes": busiest, "normalized_max_load": busiest / 25, "busiest_over_mean": 1.4}
        store.keep(case, policy, facts=facts | {"cpu_seconds": 0.0})
    store.keep(case, "bound", facts={"normalized_bound": 4.3, "kind": "cut"})
    results = Results([Cell("5", (("stage", "training"), ("seed", 1)), case)], store)
    (one,) = comparisons(results, read_published())
    assert one.ours == pytest.approx([-45])
    assert one.difference == pytest.approx(2)
    assert one.needs == pytest.approx([0.53 * 8])
    assert one.allows == pytest.approx([100 * (4.3 / 8 - 1)])
    assert one.verdict == "worse; out of reach of any routing here"
    plan = read_plan(False, EVALUATION)
    text = table_of(results, read_published(), [one], (plan, plan))
    assert "| training | tree | -33 | -30.0 | +3.0 |" in text
    assert "the busiest link carries 1.40 x the mean" in text


def test_missing_points_are_counted(tmp_path):
    results = by_hand(tmp_path, {"mox": (1.1, 1.1)})
    plan = read_plan(False, EVALUATION)
    text = table_of(results, read_published(), comparisons(results, read_published()), (plan, plan))
    assert "6 points are missing" in text
