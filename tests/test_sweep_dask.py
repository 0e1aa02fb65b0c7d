"""Sweeps on Dask: a real scheduler and two workers on this machine, one of which is killed on the way."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from moxtrace.errors import ConfigError, ExternalToolError
from moxtrace.sweep import run_sweep
from moxtrace.sweep.cluster import Dask
from tests.sweeps import GRID, planned, row_of, table

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
# what Dask and its dependencies warn about when they start and when a worker is killed is not ours to mend
pytestmark = pytest.mark.filterwarnings("default")
MANY = GRID.replace("stop: 2", "stop: 8")


@contextmanager
def cluster(**options):
    usual = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(host="127.0.0.1", **{**usual, **options}) as started,
        distributed.Client(started, set_as_default=False),
    ):
        yield started


def test_a_killed_worker_loses_nothing(tmp_path):
    plan = planned(tmp_path, MANY)
    killed = []
    with cluster() as started:

        def kill_one(done, total, what):
            if done == 3 and not killed:
                killed.append(next(iter(started.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        outcome = run_sweep(plan, tmp_path / "dask", Dask(started.scheduler_address), progress=kill_one)
    assert killed
    assert (outcome.ok, outcome.failed, outcome.missing) == (24, 0, 0)
    run_sweep(plan, tmp_path / "here")
    assert table(tmp_path / "dask") == table(tmp_path / "here")
    for run in plan.runs[::7]:
        one, two = row_of(tmp_path / "dask", run.run), row_of(tmp_path / "here", run.run)
        assert one["links"] == two["links"]


def die(job):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_kills_every_worker_is_a_failed_row(tmp_path):
    plan = planned(tmp_path)

    class Deadly(Dask):
        @contextmanager
        def executor(self):
            with super().executor() as executor:
                real = executor.submit

                def submit(function, job):
                    return real(die if job.run == plan.runs[2].run else function, job)

                executor.submit = submit
                yield executor

    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), cluster(n_workers=1) as started:
        outcome = run_sweep(plan, tmp_path / "out", Deadly(started.scheduler_address))
    assert (outcome.ok, outcome.failed) == (5, 1)
    assert outcome.failures[0]["reason"].startswith(
        "every Dask worker that tried it died, most likely out of"
    )


def test_a_scheduler_that_goes_away_leaves_the_rows(tmp_path):
    plan, file = planned(tmp_path, MANY), tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
               "--no-dashboard", "--scheduler-file", str(file)]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as scheduler:
        while not file.is_file():
            assert scheduler.poll() is None
            time.sleep(0.1)
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file),
                  "--no-dashboard", "--no-nanny", "--nthreads", "1"]  # fmt: skip
        with subprocess.Popen(worker, **quiet) as only:
            try:
                place = Dask(str(file))

                def leave(done, total, what):
                    if done == 4:
                        scheduler.kill()

                with pytest.raises(
                    ExternalToolError, match="the scheduler went away; finished rows are kept"
                ):
                    run_sweep(plan, tmp_path / "out", place, progress=leave)
            finally:
                only.kill()
                scheduler.kill()
    assert run_sweep(plan, tmp_path / "out").kept >= 4


def test_a_scheduler_that_does_not_answer_is_said_in_time(tmp_path):
    with socket.socket() as silent:  # listens and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(
            ExternalToolError, match=rf"--dask {address}: no scheduler answered within 1 s; start"
        ):
            run_sweep(planned(tmp_path), tmp_path / "out", Dask(address, 1.0))
        assert time.monotonic() - start < 30
    assert run_sweep(planned(tmp_path), tmp_path / "out").ok == 6


def test_a_scheduler_without_workers_is_said(tmp_path):
    with (
        cluster(n_workers=0) as started,
        pytest.raises(ExternalToolError, match="the scheduler has no workers after 0.5 s; start some with"),
    ):
        run_sweep(planned(tmp_path), tmp_path / "out", Dask(started.scheduler_address, 0.5))


def test_workers_of_another_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("moxtrace.sweep.cluster.code_version", lambda: "9.9.9")
    with (
        cluster(n_workers=1) as started,
        pytest.raises(ExternalToolError, match="worker tcp://.* has moxtrace .*; install 9.9.9 there"),
    ):
        run_sweep(planned(tmp_path), tmp_path / "out", Dask(started.scheduler_address))


@pytest.mark.parametrize(
    "address", ["", "host", "tcp://host", "host:port", "http://host:80", "a b:1", "x:123456"]
)
def test_what_is_no_address_is_said(address):
    with pytest.raises(ConfigError, match="is no address; expected one such as tcp://host:8786"):
        Dask(address)


@pytest.mark.parametrize("address", ["host:1", "tcp://10.0.0.1:8786", "tls://h:2", "tcp://[::1]:8786"])
def test_addresses(address):
    Dask(address)


def test_a_scheduler_file_names_the_address(tmp_path):
    file = tmp_path / "scheduler.json"
    with pytest.raises(ConfigError, match="cannot read the scheduler file: No such file"):
        Dask(str(file))
    file.write_text("[]")
    with pytest.raises(ConfigError, match="is no scheduler file of Dask"):
        Dask(str(file))
    file.write_text(json.dumps({"address": "tcp://127.0.0.1:8786"}))
    Dask(str(file))


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_to_wait_is_above_0(timeout):
    with pytest.raises(ConfigError, match="--dask-timeout: .* s; expected a time above 0"):
        Dask("host:1", timeout)


def test_dask_jobqueue_writes_jobs_whose_workers_join_such_a_scheduler():
    """Dry run: the script that it would submit; no batch system is needed."""
    jobqueue = pytest.importorskip("dask_jobqueue")
    queue = jobqueue.SLURMCluster(
        cores=8, processes=8, memory="32GB", walltime="08:00:00", interface="lo",
        scheduler_options={"dashboard_address": None},
    )  # fmt: skip
    with queue:
        script = queue.job_script()
        assert "distributed.cli.dask_worker" in script
        assert queue.scheduler_address in script
        assert "#SBATCH -t 08:00:00" in script
        Dask(queue.scheduler_address)
