"""Every configuration and sweep that is shipped can be read, says how to use it, and the small ones run."""

import re
from pathlib import Path

import pytest

from moxtrace import config
from moxtrace.simulate import simulate_config
from moxtrace.sweep import load_plan, run_sweep
from moxtrace.sweep.estimate import cost_of

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
if not CONFIGS.is_dir():
    pytest.skip("installed without its source tree", allow_module_level=True)
SINGLE = sorted(CONFIGS.glob("*.yaml"))
PAPER = sorted((CONFIGS / "paper").glob("*.yaml"))
SWEEPS = sorted((CONFIGS / "sweeps").glob("*.yaml"))
QUICK = ("tiny.yaml", "own_recordings.yaml")  # seconds as they are


def name(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


def test_there_are_a_dozen():
    assert len(SINGLE) + len(SWEEPS) >= 12


def whole(path: Path) -> bool:
    """Whether a file of the paper's is a configuration of its own; others say what to take together."""
    return bool(re.search(r"^topology:", path.read_text(), re.M))


@pytest.mark.parametrize("path", [*SINGLE, *filter(whole, PAPER)], ids=name)
def test_a_configuration_can_be_read(path):
    read = config.load(path)
    assert cost_of(read, "builtin").seconds < 3600


@pytest.mark.parametrize("path", [*SINGLE, *SWEEPS], ids=name)
def test_a_comment_says_how_to_use_it(path):
    text = path.read_text()
    assert text.startswith("# ")
    commands = re.findall(r"^#   (moxtrace .*)$", text, re.M)
    assert any(name(path) in command for command in commands), commands


@pytest.mark.parametrize("path", SINGLE, ids=name)
def test_a_configuration_runs(path):
    """With few tokens, and a policy that needs no weights."""
    given = config.load(path)
    few = given.traffic.model_copy(update={"tokens_per_npu": 8})
    routing = given.routing.model_copy(update={"policy": "tree"})
    result = simulate_config(given.model_copy(update={"traffic": few, "routing": routing}))
    assert result.completion_ns > 0


@pytest.mark.parametrize("path", SWEEPS, ids=name)
def test_a_sweep_can_be_read(path):
    plan = load_plan(path)
    assert len(plan.runs) > 1
    assert sum(cost_of(run.config, run.engine).seconds for run in plan.runs) < 7200


@pytest.mark.parametrize("path", [path for path in SWEEPS if path.name in QUICK], ids=name)
def test_a_small_sweep_runs(path, tmp_path):
    outcome = run_sweep(
        load_plan(path, ["routing.policy=tree"] if path.name != "tiny.yaml" else []), tmp_path / "out"
    )
    assert outcome.failures == ()
    assert outcome.ok == outcome.total


@pytest.mark.parametrize("path", [path for path in SWEEPS if path.name not in QUICK], ids=name)
def test_some_of_a_large_sweep_runs(path, tmp_path):
    """The first and the last run, with few tokens and the policy tree where weights would take long."""
    plan = load_plan(path)
    for run in (plan.runs[0], plan.runs[-1]):
        policy = run.config.routing.policy if run.config.routing.policy != "mox" else "tree"
        few = run.config.traffic.model_copy(update={"tokens_per_npu": 4})
        routing = run.config.routing.model_copy(update={"policy": policy, "tokens_per_source": 10})
        result = simulate_config(run.config.model_copy(update={"traffic": few, "routing": routing}))
        assert result.slowdown > 0
