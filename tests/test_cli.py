"""The commands as a user runs them: what they print, what they leave, and how they fail."""

import filecmp
import json
import os
import subprocess
import sys
import time
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


def test_a_run_is_the_same_wherever_it_lies_and_goes(made):
    """With files of its own, in two places, and again from where it was moved to."""
    folder, _ = made
    np.save(folder / "counts.npy", np.random.default_rng(1).integers(1, 50, (3, 16)))
    (folder / "hosts.json").write_text(json.dumps([e % 4 for e in range(16)]))
    cables = "".join(f"{a},{(a + s) % 4},100\n" for a in range(4) for s in (1, 3))
    (folder / "square.csv").write_text("src,dst,gbps\n" + cables)
    text = CONFIG.replace("sampling: uniform", "sampling: exact")
    text = text.replace("{kind: expander, npus: 8, degree: 3}", "{kind: graph, path: square.csv}")
    text += "recording: {path: counts.npy, layer: 1}\nplacement: {kind: file, path: hosts.json}\n"
    (folder / "files.yaml").write_text(text)
    moxtrace("generate", "files.yaml", "-o", "here", cwd=folder)
    moxtrace("generate", folder / "files.yaml", "-o", folder / "deep" / "down" / "there")
    assert same_tree(folder / "here", folder / "deep" / "down" / "there") == []
    (folder / "moved").mkdir()
    (folder / "here").rename(folder / "moved" / "away")
    moxtrace("generate", folder / "moved" / "away" / "config.resolved.yaml", "-o", folder / "again2")
    assert same_tree(folder / "moved" / "away", folder / "again2") == []


def test_threads_and_hash_seed_change_no_byte(made):
    folder, _ = made
    many = ("--set", "traffic.tokens_per_npu=1500")  # three runs of rows for the routing threads
    moxtrace("generate", "run.yaml", "-o", "all-cpus", *many, cwd=folder)
    code = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "sys.argv = ['moxtrace', 'generate', 'run.yaml', '-o', 'one-cpu', *sys.argv[1:]]\n"
        "from moxtrace.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, *many], cwd=folder, env=environment, check=True)
    assert same_tree(folder / "all-cpus", folder / "one-cpu") == []


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
    assert json.loads((folder / "given" / "manifest.json").read_text())["inputs"].keys() == {"routing"}
    for name in ("summary.json", "links.csv", "traces/dispatch.0.et", "traces/combine.7.et"):
        assert (folder / "given" / name).read_bytes() == (folder / "run" / name).read_bytes()
    assert "takes no weights" in fails(
        "generate", "run.yaml", "-o", "x", "--set", "routing={policy: tree, weights: w.json}", cwd=folder
    )
    assert "exists" in fails("weights", "run.yaml", "-o", "w.json", cwd=folder)
    other = ("--set", "routing.weights=w.json", "--set", "topology.seed=9")
    assert "topology" in fails("generate", "run.yaml", "-o", "x", *other, cwd=folder)


def test_plot(made):
    folder, _ = made
    for name in ("loads.png", "loads.svg"):
        moxtrace("plot", "run", "-o", name, cwd=folder)
        first = (folder / name).read_bytes()
        assert "exists" in fails("plot", "run", "-o", name, cwd=folder)
        moxtrace("plot", "run", "-o", name, "--force", cwd=folder)
        assert (folder / name).read_bytes() == first
    assert first.count(b"<svg") == 1
    assert "expected .png, .svg, .pdf" in fails("plot", "run", "-o", "loads.doc", cwd=folder)


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


def test_flat_traces_are_timed_only_by_running_them(made):
    folder, _ = made
    moxtrace("generate", "run.yaml", "-o", "flat", "--set", "trace.form=flat", cwd=folder)
    summary = json.loads((folder / "flat" / "summary.json").read_text())
    assert "slowdown" not in summary
    assert json.loads(moxtrace("simulate", "flat", "--json", cwd=folder).stdout)["slowdown"] > 1


def test_a_window_that_was_asked_for_is_kept(made):
    folder, _ = made
    settings = ("--set", "trace.window=1", "--set", "topology.latency_ns=5000")
    done = moxtrace("generate", "run.yaml", "-o", "w1", *settings, cwd=folder)
    assert "trace.window: 1 messages in flight leave links idle" in done.stderr
    assert json.loads((folder / "w1" / "manifest.json").read_text())["window"] == 1


def test_what_is_wrong_with_a_recording_is_said(made):
    folder, _ = made
    np.save(folder / "narrow.npy", np.ones((2, 12)))
    settings = ("--set", "recording={path: narrow.npy, layer: 0}", "--set", "traffic.sampling=exact")
    done = moxtrace("generate", "run.yaml", "-o", "narrow", *settings, "--json", cwd=folder)
    assert any("the others were never chosen" in w for w in json.loads(done.stdout)["warnings"])


def test_what_cannot_fit_is_refused_before_it_is_tried(made):
    folder, _ = made
    huge = ("--set", "traffic.tokens_per_npu=10000000", "--set", "topology={kind: hypercube, npus: 4096}")
    assert "this machine has" in fails("generate", "run.yaml", "-o", "huge", *huge, cwd=folder)


def test_a_termination_leaves_nothing(made):
    folder, _ = made
    child = subprocess.Popen(
        [sys.executable, "-m", "moxtrace", "generate", "run.yaml", "-o", "killed",
         "--set", "traffic.tokens_per_npu=400000"], cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(folder.glob(".killed.*.partial")) and child.poll() is None:
        time.sleep(0.01)
    child.terminate()
    assert "interrupted" in child.communicate()[1]
    assert child.returncode == 130
    assert not [p for p in folder.iterdir() if "killed" in p.name]


def test_a_full_standard_output_is_one_line(made):
    folder, _ = made
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "moxtrace", "simulate", "run", "--json"], cwd=folder, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "moxtrace: error: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


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
