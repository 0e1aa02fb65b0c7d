"""The ASTRA-sim runner: a stand-in plays each of its failures; the real one runs where it is found."""

import importlib.util
import os
import stat
import sys

import numpy as np
import pytest

import moxtrace.engine.astra_sim
from moxtrace.config import RunConfig
from moxtrace.engine.astra_sim import BINARY, find_binary, run_astra_sim
from moxtrace.errors import ExternalToolError
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.simulate import simulate_run

NPUS = 6


def configuration(**blocks):
    value = {
        "model": {"num_experts": 12, "top_k": 3, "hidden_dim": 64, "intermediate_dim": 64},
        "traffic": {"tokens_per_npu": 16, "sampling": "uniform"},
        "topology": {"kind": "ring", "npus": NPUS},
        "routing": {"policy": "tree"},
    }
    return RunConfig.model_validate(
        {k: {**value.get(k, {}), **blocks.get(k, {})} for k in {**value, **blocks}}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("astra") / "run"
    generate(configuration(), path)
    return Run.open(path)


@pytest.fixture
def stand_in(tmp_path):
    """A program that writes what ASTRA-sim would and ends as it is told."""

    def make(body: str):
        path = tmp_path / BINARY
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def line(rank, cycles=767, exposed=100):
    text = f"[2026-01-01 00:00:00.000] [workload] [info] sys[{rank}] finished, {cycles} cycles"
    return f"{text}, exposed communication {exposed} cycles."


def finished(*ranks):
    return "\n".join(f"echo '{line(r, 1000 + r)}'" for r in ranks)


def test_success_needs_every_npu(run, stand_in):
    got, exposed = run_astra_sim(run, stand_in(finished(3, 0, 1, 5, 4, 2)))
    assert got.tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
    assert exposed.tolist() == [100] * NPUS


def test_it_runs_in_the_run_directory_with_a_log_folder_of_its_own(run, stand_in):
    binary = stand_in(
        f'[ -f traces/workload.0.et ] && [ -f network.yml ] || exit 9\n'
        f'for a in "$@"; do case $a in --logging-folder=*) mkdir "${{a#*=}}" '
        f"&& echo '{line(0)}' > \"${{a#*=}}/log.log\";; esac; done\n{finished(1, 2, 3, 4, 5)}"
    )  # fmt: skip
    got, _ = run_astra_sim(run, binary)
    assert got[0] == 767
    assert not (run.path / "log").exists()


FAILURES = [
    (finished(0, 1, 2, 4, 4), r"exit status 0, but 2 of 6 NPUs never finished \(sys 3, 5\)"),
    ("true", "exit status 0, but 6 of 6 NPUs never finished"),
    (f"{finished(0, 1, 2, 3, 4, 5)}\nexit 3", "exit status 3"),
    ("echo 'cannot open workload.5.et' >&2; exit 1", "exit status 1: cannot open workload.5.et"),
    ("echo 'terminate called' >&2; kill -ABRT $$", "ended with SIGABRT: terminate called"),
    ("kill -KILL $$", r"was killed \(SIGKILL\): most likely out of memory"),
    (finished(0, 1, 2, 3, 4, 5, 6), r"reports sys\[6\], but the run has 6 NPUs"),
]


@pytest.mark.parametrize(("body", "message"), FAILURES)
def test_each_failure_has_a_name(run, stand_in, body, message):
    with pytest.raises(ExternalToolError, match=message) as caught:
        run_astra_sim(run, stand_in(body))
    assert "\n" not in str(caught.value)


def test_the_module_imports_where_there_is_no_resource(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    spec = importlib.util.spec_from_file_location("astra_sim_elsewhere", moxtrace.engine.astra_sim.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.BINARY == BINARY


def test_a_hang_ends(run, stand_in):
    with pytest.raises(ExternalToolError, match="not done after 0.2 s"):
        run_astra_sim(run, stand_in("exec sleep 60"), timeout_s=0.2)


def test_a_changed_run_directory_is_not_run(tmp_path, stand_in):
    generate(configuration(), tmp_path / "run")
    (tmp_path / "run" / "traces" / "dispatch.2.et").write_bytes(b"")
    with pytest.raises(ExternalToolError, match="dispatch.2.et: 0 bytes.*not run"):
        run_astra_sim(Run.open(tmp_path / "run"), stand_in(finished(*range(NPUS))))


def test_what_astra_sim_cannot_express_is_said(tmp_path, stand_in):
    generate(configuration(topology={"lanes": 2}), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert not (run.path / "network.yml").exists()
    with pytest.raises(ExternalToolError, match="the topology has parallel lanes.*--engine builtin"):
        run_astra_sim(run, stand_in(finished(*range(NPUS))))


def test_the_binary_is_looked_for_in_order(stand_in, monkeypatch, tmp_path):
    binary = stand_in("true")
    monkeypatch.delenv("ASTRA_SIM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ExternalToolError, match="no AstraSim_Analytical_Congestion_Aware on the PATH"):
        find_binary()
    assert find_binary(str(binary)) == binary
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    assert find_binary() == binary
    monkeypatch.setenv("ASTRA_SIM", "/none/such")
    with pytest.raises(ExternalToolError, match=r"\$ASTRA_SIM: no program at /none/such"):
        find_binary()
    with pytest.raises(ExternalToolError, match="--astra-sim: no program at /none/such"):
        find_binary("/none/such")


@pytest.mark.parametrize("policy", ["min-hop", "tree", "mox-paper", "switch"])
@pytest.mark.parametrize(
    "trace", [{}, {"form": "flat"}, {"barrier": "tokens"}, {"time_scale": "ns", "window": 0}]
)
def test_the_built_in_engine_equals_the_real_one(tmp_path, policy, trace):
    try:
        binary = find_binary()
    except ExternalToolError as error:
        pytest.skip(str(error))
    generate(configuration(routing={"policy": policy}, trace=trace), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    theirs = simulate_run(run, "astra-sim", astra_sim=str(binary))
    ours = simulate_run(run)
    np.testing.assert_array_equal(ours.finished_ns, theirs.finished_ns)
    np.testing.assert_array_equal(ours.exposed_ns, theirs.exposed_ns)
