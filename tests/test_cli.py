"""The commands as a user runs them: what they print, what they leave, and how they fail."""

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

CONFIG = """\
model: {num_experts: 16, top_k: 3, hidden_dim: 64, intermediate_dim: 64}
traffic: {tokens_per_npu: 32, sampling: uniform}
topology: {kind: expander, npus: 8, degree: 3}
routing: {policy: mox-paper}
"""


def moxtrace(*arguments, cwd=None, status=0, env=None):
    done = subprocess.run(
        [sys.executable, "-m", "moxtrace", *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, **(env or {})}, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def fails(*arguments, cwd=None):
    """The one line that a command fails with."""
    done = moxtrace(*arguments, cwd=cwd, status=1)
    lines = [line for line in done.stderr.strip().splitlines() if "compiling kernels" not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "run.yaml").write_text(CONFIG)
    done = moxtrace("generate", "run.yaml", "-o", "run", "--json", cwd=folder)
    return folder, json.loads(done.stdout)


def same_tree(one: Path, other: Path):
    names = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(other) for p in other.rglob("*") if p.is_file())
    _, different, errors = filecmp.cmpfiles(one, other, names, shallow=False)
    assert not errors
    return different


def test_generate_prints_the_summary(made):
    folder, summary = made
    assert summary == json.loads((folder / "run" / "summary.json").read_text())
    for key in ("npus", "policy", "tokens", "transfers", "busiest_link_bytes", "mean_link_bytes",
                "bandwidth_tax", "normalized_max_load"):  # fmt: skip
        assert key in summary
    assert summary["tokens"] == 8 * 32
    links = np.genfromtxt(folder / "run" / "links.csv", delimiter=",", names=True)
    assert summary["busiest_link_bytes"] == links["dispatch_bytes"].max()
    assert summary["mean_link_bytes"] == pytest.approx(links["dispatch_bytes"].mean())


def test_a_run_has_all_that_it_takes(made):
    folder, _ = made
    names = {p.name for p in (folder / "run").iterdir()}
    assert names == {
        "config.resolved.yaml", "manifest.json", "summary.json", "links.csv", "topology.json", "demand.npz",
        "traces", "network.yml", "system.json", "memory.json", "collectives.yml", "run_astra_sim.sh",
    }  # fmt: skip
    traces = {p.name for p in (folder / "run" / "traces").iterdir()}
    assert traces == {f"{name}.{r}.et" for name in ("workload", "dispatch", "combine") for r in range(8)}
    system = json.loads((folder / "run" / "system.json").read_text())
    assert system["preferred-dataset-splits"] == 1
    network = yaml.safe_load((folder / "run" / "network.yml").read_text())
    assert (network["topology"], network["npus_count"]) == (["FullyConnected"], [8])


def test_the_same_configuration_gives_the_same_bytes(made):
    folder, _ = made
    moxtrace("generate", "run.yaml", "-o", "again", cwd=folder)
    assert same_tree(folder / "run", folder / "again") == []
    moxtrace("generate", "run/config.resolved.yaml", "-o", "resolved", cwd=folder)
    assert same_tree(folder / "run", folder / "resolved") == []


def test_threads_and_hash_seed_change_no_byte(made):
    folder, _ = made
    environment = {"NUMBA_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    moxtrace("generate", "run.yaml", "-o", "other", cwd=folder, env=environment)
    assert same_tree(folder / "run", folder / "other") == []


def test_simulate_prints_times(made):
    folder, summary = made
    result = json.loads(moxtrace("simulate", "run", "--json", cwd=folder).stdout)
    assert result["engine"] == "builtin"
    assert len(result["finished_ns"]) == 8
    assert result["completion_ns"] == max(result["finished_ns"])
    assert result["slowdown"] == pytest.approx(result["completion_ns"] / result["switch_completion_ns"])
    assert result["switch_completion_ns"] == summary["switch_completion_ns"]
    assert set(result["phases"]) == {"dispatch", "compute", "combine"}
    ends = [result["phases"][p]["end_ns"] for p in ("dispatch", "compute", "combine")]
    assert ends == sorted(ends)
    assert ends[-1] == result["completion_ns"]
    text = moxtrace("simulate", "run", cwd=folder).stdout
    assert "slowdown" in text
    assert "dispatch" in text


def test_simulate_takes_somebody_elses_files(made):
    folder, _ = made
    run = folder / "run"
    arguments = ("--workload", run / "traces" / "workload", "--system", run / "system.json",
                 "--network", run / "network.yml", "--memory", run / "memory.json", "--json")  # fmt: skip
    cycles = json.loads(moxtrace("simulate", *arguments, cwd=run).stdout)
    ours = json.loads(moxtrace("simulate", "run", "--json", cwd=folder).stdout)
    assert [c / 1000 for c in cycles["finished_cycles"]] == ours["finished_ns"]
    assert [c / 1000 for c in cycles["exposed_communication_cycles"]] == ours["exposed_ns"]


def test_simulate_takes_a_configuration_without_traces(made):
    folder, summary = made
    result = json.loads(moxtrace("simulate", "run.yaml", "--json", cwd=folder).stdout)
    assert result["completion_ns"] == summary["completion_ns"]
    assert result["switch_completion_ns"] == summary["switch_completion_ns"]
    assert result["phases"]["dispatch"]["end_ns"] == summary["dispatch_done_ns"]
    one = json.loads(
        moxtrace("simulate", "run.yaml", "--set", "routing.policy=switch", "--json", cwd=folder).stdout
    )
    assert one["slowdown"] == 1.0
    moxtrace("simulate", "run.yaml", "--engine", "astra-sim", cwd=folder, status=2)
    moxtrace("simulate", "run", "--set", "topology.npus=4", cwd=folder, status=2)


def test_the_switch_is_its_own_baseline(made):
    folder, _ = made
    moxtrace("generate", "run.yaml", "-o", "switch", "--set", "routing.policy=switch", cwd=folder)
    summary = json.loads((folder / "switch" / "summary.json").read_text())
    assert summary["slowdown"] == 1.0
    assert summary["normalized_max_load"] == 1.0


def test_token_order_needs_no_simulation_and_is_compared_all_the_same(made):
    folder, summary = made
    moxtrace("generate", "run.yaml", "-o", "token", "--set", "trace.order=token", cwd=folder)
    assert "completion_ns" not in json.loads((folder / "token" / "summary.json").read_text())
    result = json.loads(moxtrace("simulate", "token", "--json", cwd=folder).stdout)
    assert result["switch_completion_ns"] == summary["switch_completion_ns"]


def test_verify(made):
    folder, _ = made
    answer = json.loads(moxtrace("verify", "run", "--json", cwd=folder).stdout)
    assert answer["ok"] is True
    assert answer["problems"] == []
    moxtrace("generate", "run.yaml", "-o", "broken", cwd=folder)
    (folder / "broken" / "traces" / "dispatch.3.et").unlink()
    done = moxtrace("verify", "broken", "--json", cwd=folder, status=1)
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert any("dispatch.3.et" in p for p in answer["problems"])


def test_weights_are_used_and_refused_elsewhere(made):
    folder, _ = made
    answer = json.loads(moxtrace("weights", "run.yaml", "-o", "w.json", "--json", cwd=folder).stdout)
    assert answer["kept"] == min(answer["max_over_mean_load"])
    moxtrace("generate", "run.yaml", "-o", "given", "--set", "routing.weights=w.json", cwd=folder)
    different = {str(p) for p in same_tree(folder / "run", folder / "given")}
    assert different == {"config.resolved.yaml", "manifest.json"}
    assert "exists" in fails("weights", "run.yaml", "-o", "w.json", cwd=folder)
    other = ("--set", "routing.weights=w.json", "--set", "topology.seed=9")
    assert "topology" in fails("generate", "run.yaml", "-o", "x", *other, cwd=folder)


def test_plot(made):
    folder, _ = made
    for name in ("loads.png", "loads.svg"):
        moxtrace("plot", "run", "-o", name, cwd=folder)
        first = (folder / name).read_bytes()
        moxtrace("plot", "run", "-o", name, cwd=folder)
        assert (folder / name).read_bytes() == first
    assert first.count(b"<svg") == 1
    assert "use .png, .svg or .pdf" in fails("plot", "run", "-o", "loads.doc", cwd=folder)


def test_unequal_links_are_routed_and_simulated(made):
    folder, _ = made
    (folder / "net.csv").write_text(
        "src,dst,gbps,latency_ns,lanes\n"
        "a,b,400,300,1\nb,a,200,300,1\nb,c,100,500,2\nc,b,100,500,2\nc,a,400,0,1\na,c,50,0,1\n"
    )
    settings = ("--set", "topology={kind: graph, path: net.csv}")
    moxtrace("generate", "run.yaml", "-o", "own", *settings, cwd=folder)
    assert not (folder / "own" / "network.yml").exists()
    assert json.loads(moxtrace("verify", "own", "--json", cwd=folder).stdout)["ok"]
    assert json.loads(moxtrace("simulate", "own", "--json", cwd=folder).stdout)["slowdown"] > 0


def test_one_way_links_get_a_combine_of_their_own(made):
    folder, _ = made
    (folder / "oneway.csv").write_text("src,dst,gbps\n0,1,100\n1,2,100\n2,3,100\n3,0,100\n0,2,100\n")
    settings = ("--set", "topology={kind: graph, path: oneway.csv}")
    for policy in ("min-hop", "tree", "mox-paper"):
        name = f"oneway-{policy}"
        moxtrace(
            "generate", "run.yaml", "-o", name, *settings, "--set", f"routing.policy={policy}", cwd=folder
        )
        assert json.loads(moxtrace("verify", name, "--json", cwd=folder).stdout)["ok"]


BAD_SETTINGS = [
    ("topology.npus=1", "expected 2 to 4096"),
    ("topology.npus=7", "odd"),
    ("topology.degree=9", "degree"),
    ("topology.kind=rings", "ring"),
    ("topology={kind: graph, path: run.yaml}", "run.yaml"),
    ("routing.policy=mox9000", "min-hop"),
    ("model.top_k=17", "17"),
    ("model=deepsek-v3", "deepseek-v3"),
    ("traffic.sampling=exact", "recording.path"),
    ("recording.path=none.npz", "no file"),
    ("traffic.tokens_per_npu=0", "> 0"),
    ("routing.polcy=tree", "did you mean 'policy'"),
]


@pytest.mark.parametrize(("setting", "message"), BAD_SETTINGS)
def test_bad_settings_are_one_line_and_leave_nothing(made, setting, message):
    folder, _ = made
    line = fails("generate", "run.yaml", "-o", "bad", "--set", setting, cwd=folder)
    assert line.startswith("moxtrace: error: ")
    assert message in line
    assert not [p for p in folder.iterdir() if "bad" in p.name]


def test_an_existing_output_is_kept(made):
    folder, _ = made
    assert "exists; choose another place" in fails("generate", "run.yaml", "-o", "run", cwd=folder)
    assert json.loads(moxtrace("verify", "run", "--json", cwd=folder).stdout)["ok"]


def test_usage_errors_exit_with_2(made):
    folder, _ = made
    assert "no such command 'simulat'; did you mean 'simulate'" in moxtrace("simulat", status=2).stderr
    moxtrace("generate", status=2)
    moxtrace("simulate", status=2)
    moxtrace("simulate", "run", "--workload", "x", cwd=folder, status=2)


def test_help_and_version():
    for arguments in (["-h"], ["--help"], ["generate", "-h"], []):
        assert "Usage: moxtrace" in moxtrace(*arguments).stdout
    assert moxtrace("--version").stdout.startswith("moxtrace ")


def test_a_command_starts_without_heavy_imports():
    heavy = "{'numpy', 'numba', 'matplotlib', 'networkx', 'pydantic'}"
    code = f"import sys, moxtrace.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
