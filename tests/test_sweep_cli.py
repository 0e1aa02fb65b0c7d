"""``moxtrace sweep`` as a user runs it: killed, interrupted, started again, in shards, with wrong input."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from tests.sweeps import GRID, table, written
from tests.test_cli import fails, moxtrace

SLOW = GRID.replace("stop: 2", "stop: 40")  # 120 runs


def started(*arguments, cwd):
    """The command, left running, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "moxtrace", *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_rows(folder, count, process):
    """Wait until there are some rows; a row that is there is whole."""
    for _ in range(1200):
        rows = list((folder / "rows").glob("*.json"))
        if len(rows) >= count:
            return len(rows)
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("no rows in a minute")


def test_run_may_be_left_out_and_status_tells(tmp_path):
    written(tmp_path)
    done = moxtrace("sweep", "sweep.yaml", "-o", "out", "--jobs", 1, cwd=tmp_path)
    assert "out: 6 runs: 6 ok, 0 failed; 0 were there, 6 are new" in done.stdout
    again = json.loads(moxtrace("sweep", "run", "sweep.yaml", "-o", "out", "--json", cwd=tmp_path).stdout)
    assert (again["runs"], again["ok"], again["kept"], again["failures"]) == (6, 6, 6, [])
    assert again["tables"][0] == "out/results.csv"
    status = json.loads(moxtrace("sweep", "status", "out", "--json", cwd=tmp_path).stdout)
    assert (status["name"], status["runs"], status["ok"], status["at_work"]) == ("sweep.yaml", 6, 6, None)
    assert "ok 6, failed 0, left 0" in moxtrace("sweep", "status", "out", cwd=tmp_path).stdout


def test_a_dry_run_lists_the_runs_and_makes_nothing(tmp_path):
    written(tmp_path)
    text = moxtrace("sweep", "sweep.yaml", "--dry-run", cwd=tmp_path).stdout
    assert "6 runs, 6 to do, about" in text
    assert text.count("builtin") == 6
    listed = json.loads(moxtrace("sweep", "sweep.yaml", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert listed["runs"][0]["routing.policy"] == "tree"
    assert listed["runs"][0]["estimated_s"] > 0
    assert listed["runs"][0]["estimated_bytes"] > 1e7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.yaml", "sweep.yaml"]
    moxtrace("sweep", "sweep.yaml", "-o", "out", "--jobs", 1, cwd=tmp_path)
    sorted((tmp_path / "out" / "rows").glob("*.json"))[0].unlink()
    text = moxtrace("sweep", "sweep.yaml", "-o", "out", "--dry-run", cwd=tmp_path).stdout
    assert "6 runs, 1 to do, about" in text


def test_a_failed_run_makes_the_exit_status_1(tmp_path):
    written(
        tmp_path,
        GRID.replace("routing.policy: [tree, min-hop, switch]", "placement.redundant: [0, 1, 1000000]"),
    )
    done = moxtrace("sweep", "sweep.yaml", "-o", "out", "--jobs", 1, status=1, cwd=tmp_path)
    assert "6 runs: 4 ok, 2 failed" in done.stdout
    assert done.stderr.count("failed: ") == 2
    assert "placement.redundant" in done.stderr
    status = moxtrace("sweep", "status", "out", cwd=tmp_path)
    assert "placement.redundant" in status.stderr


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_at_any_time_it_goes_on(tmp_path, ending):
    written(tmp_path, SLOW)
    process = started("sweep", "sweep.yaml", "-o", "out", "--jobs", 2, cwd=tmp_path)
    wait_for_rows(tmp_path / "out", 5, process)
    process.send_signal(signal.SIGSTOP)  # so that it is still at work when we have looked
    busy = json.loads(moxtrace("sweep", "status", "out", "--json", cwd=tmp_path).stdout)
    assert busy["at_work"] == f"process {process.pid} on {os.uname().nodename}"
    assert "works on this sweep; wait for it" in fails("sweep", "sweep.yaml", "-o", "out", cwd=tmp_path)
    process.send_signal(ending)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == (-ending if ending == signal.SIGKILL else 130)
    # a row that was being written when the end came lies aside under a hidden name
    rows = {path.name: path.read_bytes() for path in (tmp_path / "out" / "rows").glob("[!.]*.json")}
    assert all(json.loads(text)["status"] == "ok" for text in rows.values())
    assert 5 <= len(rows) < 120
    done = json.loads(
        moxtrace("sweep", "sweep.yaml", "-o", "out", "--jobs", 1, "--json", cwd=tmp_path).stdout
    )
    assert (done["ok"], done["kept"]) == (120, len(rows))
    for name, text in rows.items():
        assert (tmp_path / "out" / "rows" / name).read_bytes() == text
    if ending == signal.SIGKILL:
        moxtrace("sweep", "sweep.yaml", "-o", "whole", "--jobs", 1, cwd=tmp_path)
        assert table(tmp_path / "out") == table(tmp_path / "whole")


def test_no_worker_outlives_a_killed_sweep(tmp_path):
    written(tmp_path, SLOW)
    process = started("sweep", "sweep.yaml", "-o", "out", "--jobs", 2, cwd=tmp_path)
    wait_for_rows(tmp_path / "out", 3, process)
    process.kill()
    process.communicate(timeout=60)
    for _ in range(200):  # workers see it at once, and leave when the interpreter lets them
        if not in_session(process.pid):
            return
        time.sleep(0.05)
    raise AssertionError(in_session(process.pid))


def in_session(session):
    """Processes of a session, which the one that started it leads."""
    found = subprocess.run(["ps", "-eo", "pid,sid,stat,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in found.stdout.splitlines()[1:]]
    return [row for row in rows if row[1] == str(session) and not row[2].startswith("Z")]


def test_slurm_scripts_run_without_slurm_too(tmp_path):
    written(tmp_path)
    done = moxtrace(
        "sweep", "sweep.yaml", "-o", "a folder", "--emit-slurm", "--tasks", 2,
        "--set", "traffic.tokens_per_npu=7", cwd=tmp_path,
    )  # fmt: skip
    scripts = tmp_path / "a folder" / "slurm"
    assert "submit with: bash" in done.stdout
    array = (scripts / "array.sh").read_text()
    assert "#SBATCH --array=1-2\n" in array
    assert "--set traffic.tokens_per_npu=7" in array
    for task in ("1", "2"):
        subprocess.run(
            ["bash", scripts / "array.sh"],
            env={**os.environ, "SLURM_ARRAY_TASK_ID": task},
            check=True,
            capture_output=True,
        )
    subprocess.run(["bash", scripts / "collect.sh"], check=True, capture_output=True)
    rows = table(tmp_path / "a folder")
    assert [row["status"] for row in rows] == ["ok"] * 6
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text('#!/bin/bash\necho "$@" >> "$0.log"\necho "42;cluster"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", scripts / "submit.sh"], env={**os.environ, "PATH": path}, check=True, capture_output=True
    )
    first, second = (fake.parent / "sbatch.log").read_text().splitlines()
    assert first.endswith("array.sh")
    assert second.startswith("--dependency=afterany:42 ")


def test_collect_says_what_is_missing(tmp_path):
    written(tmp_path)
    moxtrace("sweep", "sweep.yaml", "-o", "out", "--shard", "1/2", cwd=tmp_path)
    done = moxtrace("sweep", "collect", "out", status=1, cwd=tmp_path)
    assert "out: 6 runs: 3 ok, 0 failed, 3 missing" in done.stdout
    assert len(table(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.yaml", "-o", "out"), "none.yaml: cannot read the sweep: No such file"),
        (("sweep.yaml", "-o", "base.yaml"), "base.yaml: is a file; expected a folder"),
        (("sweep.yaml", "-o", "out", "--set", "repeats=9999"), "59,994 runs, more than 10,000; say --yes"),
        (("sweep.yaml", "-o", "out", "--set", "x"), "--set 'x': expected key.path=value"),
        (("sweep.yaml", "-o", "out", "--shard", "3/2"), "--shard '3/2': expected NUMBER/COUNT"),
        (("sweep.yaml", "-o", "out", "--dask", "nowhere"), "--dask nowhere: is no address"),
        (("status", "."), ".: no sweep.json in it; expected a folder of 'moxtrace sweep'"),
        (("collect", "out"), "out: no sweep.json in it"),
        (
            ("sweep.yaml", "-o", "out", "--emit-slurm", "--tasks", 2000, "--set",
             "grid.traffic.seed={start: 1, stop: 1001, step: 1}"),
            "--tasks 2000: expected 1 to 1000",
        ),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(tmp_path, arguments, message):
    written(tmp_path)
    assert message in fails("sweep", *arguments, cwd=tmp_path)
    assert not (tmp_path / "out" / "rows").exists()


def test_what_excludes_each_other_is_a_usage_error(tmp_path):
    written(tmp_path)
    for arguments in (
        ("sweep.yaml",),
        ("sweep.yaml", "-o", "out", "--dask", "x:1", "--jobs", 2),
        ("sweep.yaml", "-o", "out", "--tasks", 2),
        ("sweep.yaml", "-o", "out", "--jobs", 0),
    ):
        moxtrace("sweep", *arguments, status=2, cwd=tmp_path)


def test_a_missing_simulator_fails_its_runs_only(tmp_path):
    written(tmp_path, GRID.replace("[tree, min-hop, switch]", "[tree]") + "engine: [builtin, astra-sim]\n")
    done = moxtrace(
        "sweep", "sweep.yaml", "-o", "out", "--jobs", 1, "--astra-sim", "/no/such", status=1, cwd=tmp_path
    )
    assert "4 runs: 2 ok, 2 failed" in done.stdout
    assert "--astra-sim: no program at /no/such" in done.stderr


def test_what_a_failed_simulator_wrote_is_kept(tmp_path):
    """A stand-in that simulates nothing: its logs lie where the row's reason says."""
    model = "{num_experts: 12, top_k: 2, hidden_dim: 64, intermediate_dim: 64}"
    (tmp_path / "sweep.yaml").write_text(
        f"base: {{model: {model}, traffic: {{tokens_per_npu: 2, sampling: uniform}}, "
        "topology: {kind: ring, npus: 6}}\ngrid: {routing.policy: [tree, min-hop]}\nengine: astra-sim\n"
    )
    program = tmp_path / "stand-in"
    program.write_text(
        "#!/bin/sh\n"
        "if [ $# -gt 0 ]; then echo nothing was done; exit 3; fi\n"
        "echo Error parsing options >&2\nexit 255\n"
    )
    program.chmod(0o755)
    done = moxtrace(
        "sweep", "sweep.yaml", "-o", "out", "--jobs", 1, "--astra-sim", program, status=1, cwd=tmp_path
    )
    assert "scratch" not in done.stderr
    assert not list((tmp_path / "out" / "scratch").glob("*"))
    kept = list((tmp_path / "out" / "logs").glob("*/astra-sim.*/run.json"))
    assert len(kept) == 2, done.stderr
    assert all(str(path.parent.relative_to(tmp_path)) in done.stderr for path in kept)
