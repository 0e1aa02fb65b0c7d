"""Sweeps that are run: the table, what is kept and done again, and what goes wrong on the way."""

import errno
import json
import os
from pathlib import Path

import pytest

from moxtrace.config import RunConfig
from moxtrace.errors import ConfigError, OutputError
from moxtrace.routing import policies
from moxtrace.sweep import Given, Local, load_plan, run_sweep
from moxtrace.sweep.estimate import cost_of
from moxtrace.sweep.folder import Shard, open_folder
from moxtrace.sweep.order import sharing_routes, start_order
from moxtrace.sweep.pool import InProcess
from moxtrace.sweep.rows import COLUMNS, MEASURED
from moxtrace.sweep.status import collect, status_of
from tests.runs import CONFIG, configured
from tests.sweeps import BASE, GRID, Spoiled, die, planned, row_of, table, written

# one policy alone has too many copies: an NPU of its own is no more than a row that fails
FAILING = """\
base: base.yaml
grid:
  placement.redundant: [0, 1000000]
bound: none
"""


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_sweep_makes_a_row_for_each_run(tmp_path, out):
    plan = planned(tmp_path, GRID.replace("bound: none", "bound: quick"))
    outcome = run_sweep(plan, out)
    assert (outcome.total, outcome.ok, outcome.failed, outcome.kept) == (6, 6, 0, 0)
    rows = table(out, timings=True)
    assert list(rows[0]) == ["run", "routing.policy", "traffic.seed", *COLUMNS[1:]]
    assert [row["run"] for row in rows] == [run.run for run in plan.runs]
    for row in rows:
        assert (row["status"], row["reason"], row["npus"], row["topology"]) == ("ok", "", "8", "torus")
        assert row["policy"] == row["routing.policy"]
        parts = [float(row[f"{phase}_ns"]) for phase in ("dispatch", "compute", "combine")]
        assert sum(parts) == pytest.approx(float(row["completion_ns"]))
        assert float(row["slowdown"]) == pytest.approx(
            float(row["completion_ns"]) / float(row["switch_completion_ns"])
        )
        assert float(row["mean_link_load"]) <= float(row["max_link_load"])
        assert float(row["bound"]) <= float(row["max_link_load"]) * (1 + 1e-9)
        assert row["bound_kind"]
    assert {row["slowdown"] for row in rows if row["policy"] == "switch"} == {"1.0"}


def test_a_row_holds_its_configuration_and_its_links(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    row = row_of(out, plan.runs[0].run)
    assert row["config"] == plan.runs[0].config.model_dump(mode="json")
    links = row["links"]
    assert {len(column) for column in links.values()} == {8 * 3}
    assert max(links["dispatch_bytes"]) == row["busiest_link_bytes"]
    assert sum(links["dispatch_bytes"]) / 24 == pytest.approx(row["mean_link_bytes"])
    assert set(links["capacity_gbps"]) == {100.0, 200.0}  # a dimension of two has doubled cables
    star = row_of(out, plan.runs[4].run)["links"]
    assert "switch" in star["src"]
    assert "switch" in star["dst"]


def test_two_engines_agree_on_what_they_route(tmp_path, out):
    plan = planned(
        tmp_path, GRID.replace("[tree, min-hop, switch]", "[tree]") + "engine: [builtin, builtin-traces]\n"
    )
    run_sweep(plan, out)
    for one, other in zip(plan.runs[::2], plan.runs[1::2], strict=True):
        one, other = row_of(out, one.run), row_of(out, other.run)
        for name in ("max_link_load", "mean_link_load", "busiest_link_bytes", "bandwidth_tax", "links"):
            assert one[name] == other[name], name
        assert one["completion_ns"] == pytest.approx(other["completion_ns"], rel=0.05)
    assert not (out / "scratch").exists() or not any((out / "scratch").iterdir())


def test_the_table_is_the_same_for_any_number_of_workers(tmp_path):
    plan = planned(tmp_path)
    run_sweep(plan, tmp_path / "one")
    run_sweep(plan, tmp_path / "two", Local(2))
    assert table(tmp_path / "one") == table(tmp_path / "two")
    for run in plan.runs:
        one, two = row_of(tmp_path / "one", run.run), row_of(tmp_path / "two", run.run)
        for row in (one, two):
            del row["wall_s"], row["peak_memory_bytes"]
        assert list(one.items()) == list(two.items())


def test_any_executor_will_do(tmp_path, out):
    assert run_sweep(planned(tmp_path), out, Given(InProcess(), 3)).ok == 6


def test_parquet_has_the_same_rows(tmp_path, out):
    parquet = pytest.importorskip("pyarrow.parquet")
    plan = planned(tmp_path, FAILING)
    run_sweep(plan, out)
    frame = parquet.read_table(out / "results.parquet")
    rows = table(out, timings=True)
    assert frame.column_names == list(rows[0])
    assert str(frame.schema.field("completion_ns").type) == "double"
    assert str(frame.schema.field("npus").type) == "int64"
    for column in frame.column_names:
        values = ["" if v is None else str(v) for v in frame[column].to_pylist()]
        assert values == [row[column] for row in rows], column


def test_without_pyarrow_there_is_still_a_table(tmp_path, out, monkeypatch, caplog):
    real = __import__("importlib.util").util.find_spec
    run_sweep(planned(tmp_path), out)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "pyarrow" else real(name, *rest)
    )
    outcome = run_sweep(planned(tmp_path), out)
    assert [path.name for path in outcome.tables] == ["results.csv"]
    assert not (out / "results.parquet").exists()
    assert "pip install 'moxtrace[parquet]'" in caplog.text


# ------------------------------------------------------------------------------------- going on


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted((folder / "rows").iterdir())}


def test_started_again_it_does_what_is_missing(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    (out / "rows" / f"{plan.runs[3].run}.json").unlink()
    before, first = times(out), table(out)
    outcome = run_sweep(plan, out)
    after = times(out)
    assert outcome.kept == 5
    assert set(after) - set(before) == {f"{plan.runs[3].run}.json"}
    assert before.items() <= after.items()
    assert table(out) == first


def test_a_finished_sweep_is_left_alone(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    assert run_sweep(plan, out).kept == 6
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}


def test_a_changed_configuration_runs_anew(tmp_path, out):
    run_sweep(planned(tmp_path), out)
    before = table(out)
    outcome = run_sweep(planned(tmp_path, base=BASE.replace("tokens_per_npu: 8", "tokens_per_npu: 9")), out)
    assert outcome.kept == 0
    after = table(out)
    assert not {row["run"] for row in before} & {row["run"] for row in after}
    assert status_of(out).earlier == 6
    assert run_sweep(planned(tmp_path), out).kept == 6
    assert table(out) == before


def test_a_longer_list_does_only_what_is_new(tmp_path, out):
    run_sweep(planned(tmp_path), out)
    outcome = run_sweep(planned(tmp_path, GRID.replace("stop: 2", "stop: 3")), out)
    assert (outcome.total, outcome.kept) == (9, 6)


def test_another_sweep_in_the_folder_is_refused(tmp_path, out):
    run_sweep(planned(tmp_path), out)
    before = table(out)
    text = "base: base.yaml\ngrid: {traffic.tokens_per_npu: [3, 4]}\n"
    other = load_plan(written(tmp_path, text, name="other.yaml"))
    with pytest.raises(
        OutputError,
        match=r"out: holds another sweep, sweep.yaml, which varies routing.policy, traffic.seed; choose ",
    ):
        run_sweep(other, out)
    assert table(out) == before
    with pytest.raises(OutputError, match="holds another sweep"):  # the same file, with nothing in common
        run_sweep(load_plan(written(tmp_path, text)), out)


def test_a_renamed_sweep_goes_on(tmp_path, out):
    run_sweep(planned(tmp_path), out)
    assert run_sweep(load_plan(written(tmp_path, name="renamed.yaml")), out).kept == 6


@pytest.mark.parametrize("name", ["results.csv", "manifest.json", "notes.txt"])
def test_a_folder_with_something_else_is_refused(tmp_path, out, name):
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(OutputError, match=rf"out: holds {name} and no sweep; choose a folder of its own"):
        run_sweep(planned(tmp_path), out)
    assert [path.name for path in out.iterdir()] == [name]


def test_a_file_is_no_folder(tmp_path, out):
    out.write_text("")
    with pytest.raises(OutputError, match="out: is a file; expected a folder for the sweep"):
        run_sweep(planned(tmp_path), out)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "run": "x"}', "\0", '{"format": 9}'])
def test_a_corrupt_row_is_set_aside_and_done_again(tmp_path, out, text, caplog):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    first = table(out)
    name = plan.runs[2].run
    (out / "rows" / f"{name}.json").write_text(text)
    assert status_of(out).corrupt == (name,)
    outcome = run_sweep(plan, out)
    assert outcome.kept == 5
    assert table(out) == first
    assert (out / "rows" / f"{name}.json.corrupt").read_text() == text
    assert f"{name}.json: is no row; kept as {name}.json.corrupt, the run is done again" in caplog.text


def test_a_row_of_another_run_is_no_row_of_this_one(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    one, other = (out / "rows" / f"{plan.runs[i].run}.json" for i in (0, 1))
    one.write_text(other.read_text())
    assert run_sweep(plan, out).kept == 5


def test_a_damaged_description_is_said(tmp_path, out):
    run_sweep(planned(tmp_path), out)
    (out / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match="sweep.json: is cut, or not of this moxtrace; delete it and start"):
        run_sweep(planned(tmp_path), out)
    (out / "sweep.json").unlink()
    with pytest.raises(ConfigError, match=r"no sweep.json in it; expected a folder of 'moxtrace sweep'"):
        status_of(out)


# ------------------------------------------------------------------------------------- failures


def test_a_failed_run_is_a_row_and_stops_nothing(tmp_path, out):
    plan = planned(tmp_path, FAILING)
    outcome = run_sweep(plan, out)
    assert (outcome.ok, outcome.failed) == (1, 1)
    good, bad = table(out)
    assert (good["status"], bad["status"]) == ("ok", "failed")
    assert bad["reason"].startswith("placement")
    assert all(bad[name] == "" for name in MEASURED)
    assert (bad["policy"], bad["topology"], bad["engine"]) == ("tree", "torus", "builtin")
    assert outcome.to_json()["failures"] == [{"run": plan.runs[1].run, "reason": bad["reason"]}]


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ("topology.dims: [[2, 4], [128, 64]]", "topology torus: "),
        ("topology.npus: [8, 9]", "topology torus: dims [2, 4]"),
        ("placement.redundant: [0, 1000000]", "placement"),
    ],
)
def test_what_only_a_run_finds_wrong_is_its_row(tmp_path, out, grid, reason):
    outcome = run_sweep(planned(tmp_path, f"base: base.yaml\ngrid:\n  {grid}\nbound: none\n"), out)
    assert (outcome.ok, outcome.failed) == (1, 1)
    assert reason in outcome.failures[0]["reason"]
    assert "bug" not in outcome.failures[0]["reason"]


def test_failed_runs_are_done_again_on_request(tmp_path, out):
    plan = planned(tmp_path, FAILING)
    run_sweep(plan, out)
    before = times(out)
    assert run_sweep(plan, out).kept == 2
    assert times(out) == before
    outcome = run_sweep(plan, out, retry_failed=True)
    assert (outcome.kept, outcome.failed) == (1, 1)
    assert times(out)[f"{plan.runs[0].run}.json"] == before[f"{plan.runs[0].run}.json"]
    assert times(out)[f"{plan.runs[1].run}.json"] > before[f"{plan.runs[1].run}.json"]


def test_a_bug_in_a_run_is_a_row_with_its_traceback(tmp_path, out, monkeypatch):
    plan = planned(tmp_path)
    monkeypatch.setattr("moxtrace.sweep.work.simulate_block_of", lambda *_: 1 / 0)
    outcome = run_sweep(plan, out)
    assert outcome.failed == 6
    row = row_of(out, plan.runs[0].run)
    assert row["reason"] == "a bug in moxtrace, please report it: ZeroDivisionError: division by zero"
    assert row["traceback"].startswith("Traceback")


def test_too_little_memory_is_a_reason(tmp_path, out, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr("moxtrace.sweep.work.block_of", full)
    outcome = run_sweep(planned(tmp_path), out)
    assert {row["reason"] for row in outcome.failures} == {
        "not enough memory; use fewer tokens per NPU or fewer NPUs"
    }


def test_a_killed_worker_takes_only_its_run_with_it(tmp_path, out):
    plan = planned(tmp_path)
    place = Spoiled(2, lambda call, job: die if job.run == plan.runs[1].run else None)
    outcome = run_sweep(plan, out, place)
    assert (outcome.ok, outcome.failed) == (5, 1)
    assert outcome.failures[0]["run"] == plan.runs[1].run
    assert outcome.failures[0]["reason"].startswith(
        "killed by the system (SIGKILL), most likely out of memory"
    )
    assert outcome.failures[0]["wall_s"] is None
    assert run_sweep(plan, out, retry_failed=True).ok == 6


def test_a_full_disk_stops_the_sweep_and_keeps_its_rows(tmp_path, out, monkeypatch):
    plan, real = planned(tmp_path), Path.write_text
    written_rows = []

    def write(self, text, *rest, **named):
        if '"status"' in text[:2000]:
            written_rows.append(self)
            if len(written_rows) == 4:
                real(self, text[:10])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(
        OutputError,
        match=r"the disk is full.*; the sweep has stopped, its 3 finished rows are kept: start it again",
    ):
        run_sweep(plan, out)
    monkeypatch.setattr(Path, "write_text", real)
    assert sorted(path.suffix for path in (out / "rows").iterdir()) == [".json"] * 3
    assert run_sweep(plan, out).kept == 3


def test_a_full_disk_under_traces_stops_it_too(tmp_path, out, monkeypatch):
    def full(*_, **__):
        raise OutputError("run: cannot write the run directory: the disk is full")

    monkeypatch.setattr("moxtrace.sweep.work.generate", full)
    with pytest.raises(OutputError, match="the disk is full; the sweep has stopped, its 0 finished rows"):
        run_sweep(planned(tmp_path, GRID + "engine: builtin-traces\n"), out)


def test_an_interruption_leaves_a_folder_to_go_on_with(tmp_path, out):
    plan = planned(tmp_path)

    def interrupt(call, job):
        if call == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, out, Spoiled(2, interrupt))
    assert run_sweep(plan, out).ok == 6


def test_two_processes_do_not_work_in_one_folder(tmp_path, out):
    plan = planned(tmp_path)
    with (
        open_folder(out, plan),
        pytest.raises(
            OutputError, match=rf"out: process {os.getpid()} on .* works on this sweep; wait for it"
        ),
    ):
        run_sweep(plan, out)
    assert run_sweep(plan, out).ok == 6


def test_leftovers_of_a_killed_sweep_are_removed(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    (out / "scratch" / "x").mkdir(parents=True)
    left = [
        out / "rows" / ".a.1.partial.json",
        out / ".sweep.2.partial.json",
        out / "cache" / "switch" / ".b.3.partial.npz",
    ]
    for path in left:
        path.write_text("half")
    run_sweep(plan, out)
    assert not any(path.exists() for path in [*left, out / "scratch"])


# ------------------------------------------------------------------------------------- shards


def test_shards_share_a_folder_and_the_table_is_collected(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, tmp_path / "whole")
    with open_folder(out, plan, Shard(2, 2)):  # while another works
        first = run_sweep(plan, out, shard=Shard(1, 2))
        with pytest.raises(OutputError, match="works on this sweep"):
            run_sweep(plan, out)
        with pytest.raises(OutputError, match="works on this sweep"):
            run_sweep(plan, out, shard=Shard(2, 2))
        assert status_of(out).at_work == "another process"
    assert (first.total, first.ok, first.tables) == (3, 3, ())
    assert not (out / "results.csv").exists()
    assert collect(out).missing == 3
    assert len(table(out)) == 3
    run_sweep(plan, out, shard=Shard(2, 2))
    assert collect(out).missing == 0
    assert table(out) == table(tmp_path / "whole")


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/", "-1/3", "1/0"])
def test_a_shard_is_a_number_of_a_count(text):
    with pytest.raises(ConfigError, match="expected NUMBER/COUNT"):
        Shard.of(text)


def test_a_shard_can_be_read():
    assert Shard.of("3/8") == Shard(3, 8)


# ------------------------------------------------------------------------------------- order


def test_runs_that_need_the_same_weights_do_not_start_together(tmp_path):
    text = "base: base.yaml\ngrid:\n  traffic.seed: [1, 2]\n  topology.seed: [1, 2]\n"
    text += "  routing.policy: [tree, mox]\n"
    runs = start_order(planned(tmp_path, text).runs)
    first = [(run.config.topology.seed, run.config.routing.policy) for run in runs[:4]]
    assert sorted(first) == [(1, "mox"), (1, "tree"), (2, "mox"), (2, "tree")]
    assert first[0][0] != first[1][0]
    assert len({run.run for run in runs}) == 8


def test_routes_are_shared_where_only_what_they_do_not_see_differs(tmp_path):
    text = "base: base.yaml\ngrid:\n  topology.latency_ns: [100, 200]\n  traffic.seed: [1, 2]\n"
    plan = planned(tmp_path, text)
    assert sharing_routes(plan.runs) == {run.run for run in plan.runs}
    assert not sharing_routes(planned(tmp_path).runs)


def test_memory_decides_how_many_run_at_once(tmp_path, out):
    plan = planned(tmp_path)
    at_once, most = [], []

    class Place(Spoiled):
        def submit(self, function, job):
            at_once.append(job)
            most.append(len(at_once))
            future = super().submit(function, job)
            future.add_done_callback(lambda _: at_once.remove(job))
            return future

    place = Place(2, lambda *_: None)
    place.memory_bytes = 1.0
    assert run_sweep(plan, out, place).ok == 6
    assert set(most) == {1}


def test_cores_are_shared_among_the_runs_that_fit():
    place = Local(8)
    place.memory_bytes = 100.0
    assert [place.threads(size, 50) for size in (1, 30, 60, 1000)] == [1, 2, 8, 8]
    assert [place.threads(1, runs) for runs in (1, 3, 8)] == [8, 2, 1]
    assert Given(InProcess(), 8).threads(1, 1) == 1


def test_routing_uses_no_more_threads_than_it_may():
    with policies.threads_at_most(1):
        assert policies._default_threads() == 1
        with policies.threads_at_most(3):
            assert policies._default_threads() <= 3
    assert policies._default_threads() >= 1


def test_estimates_grow_with_what_is_asked():
    def cost(engine="builtin", **blocks):
        return cost_of(configured(**blocks), engine)

    few, many = (cost(traffic={"tokens_per_npu": n}) for n in (10_000, 100_000))
    assert few.seconds < many.seconds
    assert few.size_bytes < many.size_bytes
    assert cost("astra-sim").seconds > cost("builtin-traces").seconds > cost().seconds
    assert cost(routing={"policy": "mox"}).seconds > cost().seconds
    assert cost(topology={"dims": [8, 8]}).seconds > cost().seconds
    for block in (
        {"kind": "graph", "path": "x.csv"},
        {"kind": "boardfly", "groups": 32},
        {"kind": "de-bruijn", "symbols": 2, "word_length": 5},
        {"kind": "slim-fly", "prime_power": 5},
    ):
        blocks = {**CONFIG, "topology": block}
        assert cost_of(RunConfig.model_validate(blocks), "builtin").seconds > 0


def test_sweep_json_spells_the_sweep_out(tmp_path, out):
    plan = planned(tmp_path)
    run_sweep(plan, out)
    said = json.loads((out / "sweep.json").read_text())
    assert said["grid"] == {"routing.policy": ["tree", "min-hop", "switch"], "traffic.seed": [1, 2]}
    assert said["runs"] == [run.run for run in plan.runs]
    assert (said["name"], said["repeats"], said["engine"], said["columns"]) == (
        "sweep.yaml", 1, ["builtin"], ["routing.policy", "traffic.seed"],
    )  # fmt: skip
