"""Sweep files: the runs that they spell out, and the one line for each thing that is wrong."""

import re

import pytest

from moxtrace.errors import ConfigError
from moxtrace.sweep import load_plan
from moxtrace.sweep.code import hash_of_code
from tests.sweeps import BASE, GRID, planned, written


def test_a_grid_takes_all_combinations_and_the_last_key_varies_fastest(tmp_path):
    plan = planned(tmp_path)
    assert plan.columns == ("routing.policy", "traffic.seed")
    assert [tuple(run.swept.values()) for run in plan.runs] == [
        (policy, seed) for policy in ("tree", "min-hop", "switch") for seed in (1, 2)
    ]
    for run in plan.runs:
        assert run.config.routing.policy == run.swept["routing.policy"]
        assert run.config.traffic.seed == run.swept["traffic.seed"]
        assert run.config.topology.dims == [2, 4]


def test_zip_moves_keys_together(tmp_path):
    text = "base: base.yaml\nzip:\n  topology.dims: [[2, 4], [4, 4]]\n  traffic.tokens_per_npu: [16, 8]\n"
    runs = planned(tmp_path, text).runs
    assert [(run.config.topology.dims, run.config.traffic.tokens_per_npu) for run in runs] == [
        ([2, 4], 16), ([4, 4], 8),
    ]  # fmt: skip


def test_a_base_may_stand_in_the_sweep(tmp_path):
    inside = "base:\n" + "".join(f"  {line}\n" for line in BASE.splitlines())
    same = planned(tmp_path, GRID.replace("base: base.yaml\n", inside))
    assert [run.run for run in same.runs] == [run.run for run in planned(tmp_path).runs]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("{start: 2, stop: 8, step: 2}", [2, 4, 6, 8]),
        ("{start: 2, stop: 7, step: 2}", [2, 4, 6]),
        ("{start: 8, stop: 2, step: -3}", [8, 5, 2]),
        ("{start: 64, stop: 512, factor: 2}", [64, 128, 256, 512]),
        ("{start: 5, stop: 5, step: 1}", [5]),
    ],
)
def test_a_range_includes_where_it_stops(tmp_path, given, values):
    runs = planned(tmp_path, f"base: base.yaml\ngrid: {{traffic.tokens_per_npu: {given}}}\n").runs
    assert [run.swept["traffic.tokens_per_npu"] for run in runs] == values


def test_steps_of_a_tenth_are_tenths(tmp_path):
    text = "base: base.yaml\ngrid: {compute.efficiency: {start: 0.1, stop: 0.5, step: 0.1}}\n"
    assert [r.swept["compute.efficiency"] for r in planned(tmp_path, text).runs] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_repeats_move_the_seeds_that_are_not_swept(tmp_path):
    plan = planned(tmp_path, GRID + "repeats: 3\n")
    assert len(plan.runs) == 18
    for run in plan.runs:
        seeds = run.config.placement.seed, run.config.topology.seed, run.config.routing.seed
        assert seeds == (1 + run.repeat,) * 3
        assert run.config.traffic.seed == run.swept["traffic.seed"]
    assert len({run.run for run in plan.runs}) == 18


def test_blocks_can_be_swept_and_their_keys_are_columns(tmp_path):
    text = """\
base: base.yaml
grid:
  topology:
  - {kind: torus, dims: [2, 4]}
  - {kind: expander, npus: 8, degree: 3}
  model: [deepseek-v3]
"""
    plan = planned(tmp_path, text)
    assert plan.columns == (
        "topology.kind", "topology.dims", "model.preset", "topology.npus", "topology.degree",
    )  # fmt: skip
    assert [run.swept["topology.npus"] for run in plan.runs] == [None, 8]
    assert plan.runs[1].config.topology.degree == 3


def test_several_engines_are_runs_of_their_own(tmp_path):
    plan = planned(tmp_path, GRID + "engine: [builtin, builtin-traces]\n")
    assert [run.engine for run in plan.runs[:2]] == ["builtin", "builtin-traces"]
    assert plan.runs[0].run != plan.runs[1].run


def test_settings_change_the_base_and_the_sweep(tmp_path):
    path = written(tmp_path)
    plan = load_plan(path, ["traffic.tokens_per_npu=5", "repeats=2", "grid.routing.policy=[tree]"])
    assert len(plan.runs) == 4
    assert {run.config.traffic.tokens_per_npu for run in plan.runs} == {5}
    with pytest.raises(ConfigError, match=r"^--set traffic.seed: the sweep varies traffic.seed \(.*:4\)"):
        load_plan(path, ["traffic.seed=3"])
    with pytest.raises(ConfigError, match=r"^--set: grid.topology.degree: the list is empty"):
        load_plan(path, ["grid.topology.degree=[]"])


# ------------------------------------------------------------------------------------- names


def test_a_name_follows_contents_and_not_places(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    text = "base: base.yaml\nengine: builtin\n"
    base = BASE.replace("torus, dims: [2, 4]", "graph, path: g.csv")
    for folder in (one, other):
        folder.mkdir()
        (folder / "g.csv").write_text("src,dst,gbps\n0,1,100\n1,0,100\n")
    name = planned(one, text, base).runs[0].run
    assert name == planned(other, text, base).runs[0].run
    (other / "g.csv").write_text("src,dst,gbps\n0,1,200\n1,0,100\n")
    assert name != planned(other, text, base).runs[0].run


@pytest.mark.parametrize("change", ["traffic.tokens_per_npu=9", "compute.efficiency=0.5", "bound=quick"])
def test_a_name_changes_with_what_decides_the_result(tmp_path, change):
    path = written(tmp_path)
    before = {run.run for run in load_plan(path).runs}
    assert not before & {run.run for run in load_plan(path, [change]).runs}


def test_a_name_changes_with_the_code(tmp_path, monkeypatch):
    before = planned(tmp_path).runs[0].run
    monkeypatch.setattr("moxtrace.sweep.plan.code_version", lambda: "9.9.9")
    assert planned(tmp_path).runs[0].run != before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("routing/kernels.py", True), ("models/presets.yaml", True), ("sweep/work.py", True),
        ("new.py", True), ("plots/style.py", False), ("cli/sweep.py", False), ("sweep/slurm.py", False),
        ("doctor.py", False),
    ],
)  # fmt: skip
def test_code_counts_where_it_decides_results(tmp_path, file, counts):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a = 1\nb = 2\n")
    before = hash_of_code(tmp_path)
    path.write_bytes(b"a = 1\r\nb = 2\r\n")
    assert hash_of_code(tmp_path) == before
    path.write_bytes(b"a = 1\nb = 3\n")
    assert (hash_of_code(tmp_path) != before) == counts


# ------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {}\n", "sweep.yaml: base: missing; expected a configuration, or the path of one"),
        ("base: none.yaml\n", "sweep.yaml:1: base: no file"),
        (
            "base: base.yaml\ngrid:\n  routing.policy: [tre]\n",
            "yaml:3: routing.policy: unknown policy 'tre'; did",
        ),
        (
            "base: base.yaml\ngrid:\n  model.preset: [mixtrl]\n",
            "yaml:3: model.preset: model 'mixtrl' is no pres",
        ),
        ("base: 3\n", "sweep.yaml:1: base: found 3; expected a configuration"),
        ("base: base.yaml\nrepeat: 3\n", "sweep.yaml:2: repeat: unknown key; did you mean 'repeats'?"),
        ("base: base.yaml\nrepeats: 0\n", "sweep.yaml:2: repeats: found 0; expected a value >= 1"),
        ("base: base.yaml\nengine: fast\n", "sweep.yaml:2: engine.0: found 'fast'; expected 'builtin'"),
        ("base: base.yaml\nengine: []\n", r"sweep.yaml:2: engine: found \[\]; list should have at"),
        ("base: base.yaml\ngrid: 3\n", "sweep.yaml:2: grid: found 3; expected a block of keys"),
        (
            "base: base.yaml\ngrid:\n  topology.degre: [2]\n",
            "sweep.yaml:3: grid.topology.degre: unknown key; did you mean 'topology.degree'?",
        ),
        (
            "base: base.yaml\ngrid:\n  xyz: [2]\n",
            "sweep.yaml:3: grid.xyz: unknown key; known keys: recording",
        ),
        ("base: base.yaml\nzip:\n  traffic.sead: [2]\n", "sweep.yaml:3: zip.traffic.sead: unknown key"),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: []\n",
            "sweep.yaml:3: grid.traffic.seed: the list is empty",
        ),
        ("base: base.yaml\ngrid:\n  traffic.seed: 3\n", "found 3; expected a list of values, or a range"),
        ("base: base.yaml\ngrid:\n  traffic.seed: [1, 2, 1]\n", ":3: grid.traffic.seed: 1 stands twice"),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: [1]\nzip:\n  traffic.seed: [1]\n",
            r"sweep.yaml:5: zip.traffic.seed: stands in grid too \(.*sweep.yaml:3\)",
        ),
        (
            "base: base.yaml\ngrid:\n  traffic: [{tokens_per_npu: 1}]\n  traffic.seed: [1]\n",
            r":4: traffic.seed: overlaps traffic \(.*:3\)",
        ),
        (
            "base: base.yaml\nzip:\n  traffic.seed: [1, 2]\n  topology.seed: [1]\n",
            ":4: zip.topology.seed: 1 values, but traffic.seed has 2",
        ),
        ("base: base.yaml\nzip:\n  traffic.seed: [1, 1]\n", ":3: zip: step 2 is the same as step 1"),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 3}\n",
            "a range needs either step or factor",
        ),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, step: 3}\n",
            "traffic.seed.stop: missing; a range",
        ),
        ("base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 3, by: 1}\n", "seed.by: unknown key"),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: x, step: 1}\n",
            "found 'x'; expected a num",
        ),
        ("base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 3, step: 0}\n", "by step 0 never arrives"),
        ("base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 3, step: -1}\n", "never arrives"),
        ("base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 9, factor: 0.5}\n", "never arrives"),
        ("base: base.yaml\ngrid:\n  traffic.seed: {start: 0, stop: 9, factor: 2}\n", "never arrives"),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: .inf, step: 1}\n",
            "expected finite numbers",
        ),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 9999999, step: 1}\n",
            "more than 1,000,000",
        ),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 10001, step: 1}\n",
            "10,001 runs, .* --yes",
        ),
        (
            "base: base.yaml\ngrid:\n  traffic.seed: [x]\n",
            "sweep.yaml:3: traffic.seed: found 'x'; expected a wh",
        ),
        (
            "base: base.yaml\ngrid:\n  topology.kind: [toros]\n",
            ":3: topology.kind: unknown kind 'toros'; did you",
        ),
        ("base: base.yaml\ngrid:\n  recording.path: [no.npz]\n", "sweep.yaml:3: recording.path: no file"),
        ("base: base.yaml\ngrid: {traffic.seed: [1]}\ngrid: {}\n", "sweep.yaml:3: key grid stands twice"),
        (
            "base:\n  topology: {kind: torus, dims: [2, 4], color: red}\n  traffic: {sampling: uniform}\n",
            "sweep.yaml:2: topology.color: unknown key",
        ),
        ("base: [", "sweep.yaml:1: YAML syntax"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert re.search(message, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def test_an_error_in_the_base_names_the_base(tmp_path):
    with pytest.raises(ConfigError, match=r"base.yaml:2: traffic.tokens: unknown key"):
        planned(tmp_path, base=BASE.replace("tokens_per_npu", "tokens"))


def test_more_than_ten_thousand_runs_can_be_meant(tmp_path):
    text = "base: base.yaml\ngrid:\n  traffic.seed: {start: 1, stop: 10001, step: 1}\n"
    assert len(planned(tmp_path, text, many=True).runs) == 10_001


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml: cannot read the sweep: No such file"):
        load_plan(tmp_path / "none.yaml")


def test_runs_that_are_one_configuration_are_refused(tmp_path):
    text = "base: base.yaml\ngrid:\n  topology.lanes: [1]\n  recording: [{}, {layer: random}]\n"
    with pytest.raises(ConfigError, match=r"are the same configuration; take one away"):
        planned(tmp_path, text)
