"""The ASTRA-sim runner: a stand-in plays each of its failures; the real one runs where it is found."""

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from moxtrace import machine
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.chakra.schema_check import _frames
from moxtrace.chakra.wire.messages import varint
from moxtrace.engine.astra_sim import (
    BINARY,
    Estimate,
    check_fits,
    check_starts,
    estimate_of,
    execute,
    find_binary,
    probe,
    run_astra_sim,
)
from moxtrace.engine.astra_sim.binary import why_not_started
from moxtrace.engine.astra_sim.outcome import judge
from moxtrace.engine.astra_sim.process import Ended
from moxtrace.errors import ConfigError, ExternalToolError, MoxtraceError, SimulationError, TraceError
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.simulate import simulate_run
from tests.runs import configured, edited, vouched

NPUS = 6
SEND, RECV = 5, 6

STAND_IN = '''#!{python}
"""Writes what ASTRA-sim would, after the script that the test left beside it."""
import os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
given = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
if not given:
    sys.stderr.write("[Error] Error parsing options\\n")
    sys.exit(255)
os.makedirs(given["logging-folder"])
def say(rank, cycles=767, exposed=100):
    print(f"[2026-01-01] [workload] [info] sys[{{rank}}] finished, {{cycles}} cycles, exposed communication "
          f"{{exposed}} cycles.", flush=True)
exec(open(os.path.join(folder, "script")).read())
'''


def ring(path, **blocks):
    """A generated run directory on a ring, which ASTRA-sim can be told."""
    topology = {"kind": "ring", "npus": NPUS, "dims": None, **blocks.pop("topology", {})}
    generate(configured(topology={k: v for k, v in topology.items() if v is not None}, **blocks), path)
    return Run.open(path)


@pytest.fixture(autouse=True)
def ring_configuration(monkeypatch):
    monkeypatch.setitem(configured.__globals__["CONFIG"], "topology", {"kind": "ring", "npus": NPUS})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("astra") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(configured.__globals__["CONFIG"], "topology", {"kind": "ring", "npus": NPUS})
        return ring(path)


@pytest.fixture(scope="module")
def right(run):
    """Cycles of every NPU, from the built-in engine."""
    return np.rint(simulate_run(run).finished_ns * 1000).astype(int)


@pytest.fixture
def stand_in(tmp_path):
    """A program that does what ASTRA-sim would, and ends as it is told by a few lines of Python."""

    def make(script: str) -> Path:
        folder = tmp_path / "stand-in"
        folder.mkdir(exist_ok=True)
        (folder / "script").write_text(script)
        path = folder / BINARY
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def finished(*ranks):
    return "".join(f"say({r}, {1000 + r})\n" for r in ranks)


ALL = finished(*range(NPUS))


def files_of(run):
    """Every file of a run directory but the logs, and its bytes."""
    return {
        p.relative_to(run.path).as_posix(): p.read_bytes()
        for p in sorted(run.path.rglob("*"))
        if p.is_file() and p.relative_to(run.path).parts[0] != "logs"
    }


# ------------------------------------------------------------------------------------------ success


def test_success_needs_every_npu(run, stand_in):
    got, exposed = run_astra_sim(run, stand_in(finished(3, 0, 1, 5, 4, 2)))
    assert got.tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
    assert exposed.tolist() == [100] * NPUS


def test_working_and_log_folders_are_its_own(run, stand_in):
    before = files_of(run)
    script = (
        'assert os.path.isfile("traces/workload.0.et") and os.path.isfile("collectives.yml")\n'
        'assert os.path.samefile("network.yml", NETWORK)\n'
        'open("left behind", "w").write("x")\nsys.stderr.write("a note")\n'
        'open(given["logging-folder"] + "/log.log", "w").write('
        '"sys[0] finished, 767 cycles, exposed communication 1 cycles")\n' + finished(1, 2, 3, 4, 5)
    ).replace("NETWORK", repr(str(run.path / "network.yml")))
    one, other = execute(run, stand_in(script)), execute(run, stand_in(script))
    assert one.finished[0] == 767  # from its log, where it is not on standard output
    assert one.logs != other.logs
    assert one.logs.parent == run.path / "logs"
    assert (one.logs / "stderr.txt").read_text() == "a note"
    assert "sys[1] finished" in (one.logs / "stdout.txt").read_text()
    record = json.loads((one.logs / "run.json").read_text())
    assert (record["status"], record["exit_status"]) == ("ok", 0)
    assert record["nodes"] == sum(s["nodes"] for s in run.manifest["traces"].values())
    assert files_of(run) == before


def test_progress_counts_the_lines_as_they_come(run, stand_in):
    told = []
    script = "say(0)\nsay(1)\nsay(2)\ntime.sleep(0.6)\n" + finished(3, 4, 5)
    execute(run, stand_in(script), None, lambda *now: told.append(now))
    assert any(words.startswith("ASTRA-sim: 3/6 NPUs, 0 s of about 1 s") for words, _, _ in told)
    shares = [done / total for _, done, total in told]
    assert shares == sorted(shares)
    assert 0.5 <= shares[-1] <= 1


# ----------------------------------------------------------------------------------------- failures

FAILURES = [
    (finished(0, 1, 2, 4, 4), r"exit status 0, but 2 of 6 NPUs never finished \(sys 3, 5\): a deadlock"),
    ("", "exit status 0, but 6 of 6 NPUs never finished"),
    (f"{ALL}\nsys.exit(3)", "exit status 3: .*exposed communication"),
    ("sys.stderr.write('no more paper\\n'); sys.exit(1)", "exit status 1: no more paper"),
    ("print('workload file: traces/workload.5.et does not exist'); sys.exit(1)",
     "exit status 1: fewer .et files than NPUs: traces/workload.5.et does not exist"),
    ("print(\"Cannot access et file for collective algorithm: \\n'traces/dispatch.3.et'.\"); sys.exit(1)",
     "exit status 1: cannot use traces/dispatch.3.et: missing, empty, without metadata, .*one cycle"),
    ("sys.stderr.write('what():  Node 0 is not dependancy free or already taken'); "
     "os.kill(os.getpid(), 6)", "ended with SIGABRT: .*a cut or damaged .et file"),
    ("sys.stderr.write(\"x: Assertion `dest < npus_count' failed.\"); os.kill(os.getpid(), 6)",
     "ended with SIGABRT: its assertion dest < npus_count failed"),
    ("sys.stderr.write('std::bad_alloc'); os.kill(os.getpid(), 6)", "ended with SIGABRT: out of memory"),
    ("sys.stderr.write('Too many open files'); sys.exit(1)", "too many open files: raise 'ulimit -n'"),
    ("sys.stderr.write('terminate called'); os.kill(os.getpid(), 6)", "with SIGABRT: terminate called"),
    (finished(*range(NPUS + 1)), r"reports sys\[6\], but the run has 6 NPUs: more .et files than NPUs"),
    (ALL + "say(2, 10**19)", r"sys\[2\] took 10000000000000000000 cycles: a negative size"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "message"), FAILURES)
def test_each_failure_has_a_name(run, stand_in, script, message):
    with pytest.raises(ExternalToolError, match=message) as caught:
        run_astra_sim(run, stand_in(script))
    assert "\n" not in str(caught.value)
    logs = Path(str(caught.value).rpartition("its output is in ")[2])
    record = json.loads((logs / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["reason"] in str(caught.value)


KILLED = [
    (True, "was killed by the system: out of memory; it held 2 GB"),
    (None, r"was killed \(SIGKILL\): most likely out of memory"),
    (False, r"was killed \(SIGKILL\), and the kernel counts no kill for want of memory"),
]


@pytest.mark.parametrize(("out_of_memory", "message"), KILLED)
def test_a_kill_is_told_apart(out_of_memory, message):
    ended = Ended(-signal.SIGKILL, 1.0, False, 2 * 10**9, out_of_memory)
    with pytest.raises(ExternalToolError, match=message):
        judge(ended, NPUS, Path("x"), None, "", "")


def test_a_killed_process_is_told(run, stand_in, monkeypatch):
    counts = iter([3, 4])
    monkeypatch.setattr("moxtrace.engine.astra_sim.process.oom_kills", lambda: next(counts))
    with pytest.raises(ExternalToolError, match="killed by the system: out of memory"):
        run_astra_sim(run, stand_in("import time; time.sleep(0.05); os.kill(os.getpid(), 9)"))


def test_a_hang_ends_with_all_that_it_started(run, stand_in, tmp_path):
    script = (
        f"import subprocess\np = subprocess.Popen(['sleep', '60'])\nopen({str(tmp_path / 'pid')!r}, 'w')"
        ".write(str(p.pid))\nsay(0)\ntime.sleep(60)"
    )
    with pytest.raises(ExternalToolError, match=r"not done after 1.5 s, 1 of 6 NPUs finished; raise --time"):
        run_astra_sim(run, stand_in(script), timeout_s=1.5)
    assert is_gone(int((tmp_path / "pid").read_text()))


def is_gone(process: int) -> bool:
    """Whether a process has ended, or does so soon."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_what_ends_us_ends_astra_sim_and_leaves_the_run_intact(tmp_path, stand_in, number, status):
    run = ring(tmp_path / "run")
    before, pid = files_of(run), tmp_path / "pid"
    binary = stand_in(
        f"open({f'{pid}.new'!r}, 'w').write(str(os.getpid()))\nos.replace({f'{pid}.new'!r}, {str(pid)!r})\n"
        "time.sleep(60)"
    )
    command = [sys.executable, "-m", "moxtrace", "simulate", str(run.path), "--engine", "astra-sim"]
    with subprocess.Popen([*command, "--astra-sim", str(binary)], stderr=subprocess.PIPE) as process:
        for _ in range(600):
            if pid.exists():
                break
            time.sleep(0.1)
        process.send_signal(number)
        stderr = process.communicate(timeout=30)[1]
    assert process.returncode == status, stderr
    assert is_gone(int(pid.read_text()))
    assert files_of(run) == before
    record = run.path / "logs" / "astra-sim.1" / "run.json"
    if number != signal.SIGKILL:
        assert json.loads(record.read_text())["status"] == "interrupted"
    assert not Run.open(run.path).problems()


def test_the_command_says_whether_the_engines_agree(run, right, stand_in):
    def told(script):
        command = [sys.executable, "-m", "moxtrace", "simulate", str(run.path), "--engine", "astra-sim", "-v"]
        done = subprocess.run(
            [*command, "--astra-sim", str(stand_in(script))], capture_output=True, text=True, check=True
        )
        assert "nodes: about 1 s, " in done.stderr
        return done.stdout

    script = "".join(f"say({r}, {c})\n" for r, c in enumerate(right))
    assert "agrees        the built-in engine has the same time for every NPU" in told(script)
    text = told(script + f"say(0, {right[0] + 2000})")
    assert "disagrees     astra-sim " in text
    assert "an NPU differs by up to 2 ns" in text
    assert "logs/astra-sim." in text


def test_a_run_directory_that_changes_meanwhile_does_not_count(tmp_path, stand_in):
    run = ring(tmp_path / "run")
    script = f"{ALL}\nopen('traces/dispatch.1.et', 'r+b').write(b'x')"
    with pytest.raises(
        ExternalToolError, match="changed while it ran: traces/dispatch.1.et: content differs"
    ):
        run_astra_sim(run, stand_in(script))


def test_logs_that_cannot_be_written_are_said(tmp_path, stand_in):
    run = ring(tmp_path / "run")
    (run.path / "logs").write_text("a file")
    with pytest.raises(MoxtraceError, match="logs: logs cannot be written there"):
        run_astra_sim(run, stand_in(ALL))


# ----------------------------------------------------------------------------- before the start


def drop(kind):
    def edit(ranks):
        nodes = next(rank for rank in ranks if any(n.kind == kind for n in rank))
        nodes.remove(next(n for n in nodes if n.kind == kind))

    return edit


def change(**facts):
    def edit(ranks):
        node = next(n for rank in ranks for n in rank if n.kind == RECV)
        for name, by in facts.items():
            setattr(node, name, getattr(node, name) + by)

    return edit


def partial_cycle(ranks):
    one, other = [n for n in ranks[0] if n.kind == SEND][:2]
    one.deps, other.deps = [other.id], [one.id]


def full_cycle(ranks):
    for rank in ranks:
        for i, node in enumerate(rank):
            node.deps = [rank[i - 1].id]


EDITS = [
    (drop(SEND), r"dispatch: rank \d node \d+: recv from rank \d, tag \d+, 128 bytes, has no send"),
    (drop(RECV), r"dispatch: rank \d node \d+: send to rank \d, tag \d+, 128 bytes, has no recv"),
    (change(amount=1), r"dispatch: .* but its recv, .* expects 129 bytes"),
    (change(tag=1000), r"dispatch: rank \d node \d+: send to rank \d, tag \d+, 128 bytes, has no recv"),
    (partial_cycle, "dispatch: dependency cycle of 2 nodes: rank 0 node"),
    (full_cycle, r"dispatch: dependency cycle of \d+ nodes"),
]


@pytest.mark.parametrize(("edit", "message"), EDITS, ids=[
    "unmatched recv", "unmatched send", "size", "tag", "partial cycle", "full cycle",
])  # fmt: skip
def test_what_astra_sim_would_hide_is_found_before(tmp_path, stand_in, edit, message):
    run = ring(tmp_path / "run")
    edited(run, "dispatch", edit)
    with pytest.raises(TraceError, match=f"{message}.*: not run"):
        simulate_run(Run.open(run.path), "astra-sim", astra_sim=str(stand_in(ALL)))
    assert not (run.path / "logs").exists()


def replaced(old, new):
    def damage(data):
        at = data.index(old)
        return data[:at] + new + data[at + len(old) :]

    return damage


SIZE, DST, ID = b"\n\tcomm_sizeh\x80\x01", b"\n\x08comm_dstX", b"\x08\x02"
DAMAGES = [
    ("empty", lambda data: b"", "empty file"),
    (
        "no metadata",
        lambda data: data[data[0] + 1 :],
        "the first message is a Node; expected a GlobalMetadata",
    ),
    ("garbage", lambda data: bytes(range(255, 0, -1)) * 9, "longer than 64 bits"),
    ("cut", lambda data: data[: len(data) // 2], "the file ends inside this message; it is cut|it is cut"),
    ("size 0", replaced(SIZE, b"\n\tcomm_sizeh\x80\x00"), "comm_size is 0"),
    ("self-send", replaced(DST + b"\x01", DST + b"\x00"), "comm_dst is 0, the file's own rank"),
    ("dst >= N", replaced(DST + b"\x01", DST + b"\x06"), "comm_dst is 6; expected a rank from 0 to 5"),
    ("ids used twice", replaced(b"\x08\x02", b"\x08\x01"), "its id 1 is that of node number 1"),
]


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
@pytest.mark.parametrize("vouch", [False, True], ids=["changed", "vouched for"])
def test_damaged_files_are_named_before(tmp_path, stand_in, damage, message, vouch):
    run = ring(tmp_path / "run")
    path = run.path / TRACES / "dispatch.0.et"
    path.write_bytes(damage(path.read_bytes()))
    run = vouched(run) if vouch else run
    changed = "" if vouch else r".*dispatch\.0\.et: (content differs|\d+ bytes; the manifest)"
    with pytest.raises(TraceError, match=rf"dispatch\.0\.et: (.*{message}){changed}.*: not run"):
        simulate_run(run, "astra-sim", astra_sim=str(stand_in(ALL)))


def test_a_negative_size_is_named(tmp_path, stand_in):
    run = ring(tmp_path / "run")
    path = run.path / TRACES / "dispatch.0.et"
    negative = b"R\x0f\n\tcomm_size\x88\x01\xff\x01"  # a sint64 of -128
    messages = [m.replace(b"R\x0e" + SIZE, negative) for m in _frames(path.read_bytes())]
    path.write_bytes(b"".join(varint(len(m)) + m for m in messages))
    with pytest.raises(TraceError, match=r"dispatch\.0\.et: node number .* comm_size is -128; expected 1"):
        simulate_run(vouched(run), "astra-sim", astra_sim=str(stand_in(ALL)))


def test_file_counts_are_checked_against_npus_count(tmp_path, stand_in):
    run, binary = ring(tmp_path / "run"), str(stand_in(ALL))
    extra, last = (run.path / TRACES / f"dispatch.{r}.et" for r in (NPUS, NPUS - 1))
    extra.write_bytes(last.read_bytes())
    with pytest.raises(
        TraceError, match="dispatch: 7 .et files, but npus_count in network.yml is 6; traces/dis"
    ):
        simulate_run(run, "astra-sim", astra_sim=binary)
    extra.unlink()
    last.unlink()
    with pytest.raises(TraceError, match="dispatch: 5 .et files, but npus_count .* is 6; .*5.et is missing"):
        simulate_run(run, "astra-sim", astra_sim=binary)


def test_read_only_traces_are_said(tmp_path, stand_in, monkeypatch):
    run = ring(tmp_path / "run")
    locked = run.path / TRACES / "combine.2.et"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)  # root may write anything
    with pytest.raises(TraceError, match=r"combine.2.et: cannot be written.*chmod u\+w"):
        run_astra_sim(run, stand_in(ALL))


def test_a_changed_run_directory_is_not_run(tmp_path, stand_in):
    run = ring(tmp_path / "run")
    (run.path / TRACES / "dispatch.2.et").write_bytes(b"")
    with pytest.raises(ExternalToolError, match="dispatch.2.et: 0 bytes.*not run"):
        run_astra_sim(run, stand_in(ALL))


def test_what_astra_sim_cannot_express_is_said(tmp_path, stand_in):
    run = ring(tmp_path / "run", topology={"lanes": 2})
    assert not (run.path / "network.yml").exists()
    with pytest.raises(ExternalToolError, match="the topology has parallel lanes.*--engine builtin"):
        simulate_run(run, "astra-sim", astra_sim=str(stand_in(ALL)))


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_is_a_time(run, stand_in, seconds):
    with pytest.raises(ConfigError, match="--timeout: .* expected a time above 0"):
        simulate_run(run, "astra-sim", astra_sim=str(stand_in(ALL)), timeout_s=seconds)


# -------------------------------------------------------------------------------- two engines


def test_equal_results_agree(run, right, stand_in):
    script = "".join(f"say({r}, {c})\n" for r, c in enumerate(right))
    result = simulate_run(run, "astra-sim", astra_sim=str(stand_in(script)))
    ours = simulate_run(run)
    value = result.to_json()
    assert value["agrees"] is True
    assert value["largest_difference_ns"] == 0
    completion = ours.completion_ns
    assert value["engines_completion_ns"] == {"astra-sim": completion, "builtin": completion}
    assert (value["engine"], value["phases"]) == ("astra-sim", ours.phases)
    assert Path(value["logs"]).is_dir()
    assert "agrees" not in ours.to_json()


def test_unequal_results_are_both_shown(run, right, stand_in):
    script = "".join(f"say({r}, {c + 5000 * (r == 3)})\n" for r, c in enumerate(right))
    value = simulate_run(run, "astra-sim", astra_sim=str(stand_in(script))).to_json()
    assert value["agrees"] is False
    assert value["largest_difference_ns"] == pytest.approx(5.0)
    assert value["phases"] == {}


def test_the_built_in_engine_speaks_first(run, stand_in, monkeypatch):
    def stuck(*_):
        raise SimulationError("cannot finish: 2 nodes are left")

    monkeypatch.setattr("moxtrace.simulate.simulate", stuck)
    with pytest.raises(SimulationError, match="cannot finish"):
        simulate_run(run, "astra-sim", astra_sim=str(stand_in(ALL)))


@pytest.mark.parametrize("policy", ["min-hop", "tree", "mox-paper", "switch"])
@pytest.mark.parametrize(
    "trace", [{}, {"form": "flat"}, {"barrier": "tokens"}, {"time_scale": "ns", "window": 0}]
)
def test_the_built_in_engine_equals_the_real_one(tmp_path, policy, trace):
    result = simulate_run(
        ring(tmp_path / "run", routing={"policy": policy}, trace=trace), "astra-sim", astra_sim=real()
    )
    assert result.agreement.agrees
    np.testing.assert_array_equal(result.exposed_ns, simulate_run(Run.open(tmp_path / "run")).exposed_ns)


def real() -> str:
    try:
        return str(find_binary())
    except ExternalToolError as error:
        pytest.skip(str(error))


# ------------------------------------------------------------------------------- the binary


def test_the_binary_is_looked_for_in_order(stand_in, monkeypatch, tmp_path):
    binary = stand_in("")
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


def test_what_is_named_but_is_no_program_is_said(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(ExternalToolError, match=f"{plain} is not executable: 'chmod"):
        find_binary(str(plain))
    with pytest.raises(ExternalToolError, match="is a directory"):
        find_binary(str(tmp_path))


def test_a_binary_that_cannot_start_is_named(tmp_path):
    foreign = tmp_path / "foreign"  # the head of a program for another processor
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(60))
    foreign.chmod(0o755)
    with pytest.raises(ExternalToolError, match="cannot start: it is no program for this machine"):
        check_starts(foreign)
    loader = tmp_path / "loader"
    loader.write_text("#!/none/such/loader\n")
    loader.chmod(0o755)
    with pytest.raises(
        ExternalToolError, match="cannot start: it, or the loader that it names, is not there"
    ):
        check_starts(loader)


def test_a_missing_library_is_named(tmp_path):
    binary = tmp_path / "binary"
    text = (
        "binary: error while loading shared libraries: libfmt.so.9: cannot open shared object file: No such"
    )
    binary.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 127\n")
    binary.chmod(0o755)
    with pytest.raises(ExternalToolError, match=r"cannot start: libfmt\.so\.9 is missing: install it"):
        check_starts(binary)
    newer = why_not_started(binary, code=1, stderr="x: /lib/libc.so.6: version `GLIBC_2.99' not found")
    assert "it needs GLIBC_2.99" in newer
    assert "instructions" in why_not_started(binary, code=-signal.SIGILL)
    assert why_not_started(binary, code=-signal.SIGABRT) is None


def test_the_probe_knows_astra_sim():
    assert probe(Path(real())).ok


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("say(0, 2345)\nsay(1, 2345)", "expected"),
        ("say(0, 1646)\nsay(1, 1646)", "congestion-unaware"),
        ("", "is not ASTRA-sim's analytical binary"),
    ],
)
def test_the_probe_knows_what_is_not(stand_in, script, words):
    found = probe(stand_in(script))
    assert not found.ok
    assert words in found.words


def test_the_probe_takes_the_right_answer(stand_in):
    # three messages of 14,336 bytes at 12.5 bytes/ns (1,146 ns each in whole cycles), 500 ns of latency
    assert probe(stand_in("say(0, 3938)\nsay(1, 3938)")).ok


# ------------------------------------------------------------------- what it needs, what there is


def test_the_estimate_is_of_the_nodes(run):
    estimate = estimate_of(run)
    assert estimate.nodes == sum(s["nodes"] for s in run.manifest["traces"].values())
    assert estimate.descriptors == NPUS * 3 + 64
    assert estimate.fits
    million = Estimate(10**6, (1e6 / 6e4, 1e6 / 2e4), (850 * 10**6, 1200 * 10**6), 112, 2**40)
    assert million.describe() == "1,000,000 nodes: about 17 to 50 s, 850 MB to 1.2 GB, 112 open files"


def test_a_run_that_cannot_fit_needs_a_yes(caplog):
    huge = Estimate(10**8, (1700, 5000), (85 * 10**9, 120 * 10**9), 112, 16 * 10**9)
    with pytest.raises(ExternalToolError, match="28 to 83 min.* 16 GB are there: it does not fit.*--yes"):
        check_fits(huge)
    check_fits(huge, anyway=True)
    assert "the system may kill it" in caplog.text
    caplog.clear()
    check_fits(Estimate(10**7, (170, 500), (9 * 10**9, 12 * 10**9), 112, 10**10))
    assert "the system may kill it" in caplog.text
    caplog.clear()
    check_fits(Estimate(10, (0, 0), (1, 2), 112, None))
    assert not caplog.text


def test_too_large_a_run_is_refused_before_it_starts(run, stand_in, monkeypatch):
    module = importlib.import_module("moxtrace.engine.astra_sim.estimate")
    monkeypatch.setattr(module, "available_memory", lambda: 1000)
    binary = str(stand_in(ALL))
    with pytest.raises(ExternalToolError, match="does not fit into memory"):
        simulate_run(run, "astra-sim", astra_sim=binary)
    assert simulate_run(run, "astra-sim", astra_sim=binary, anyway=True).engine == "astra-sim"


def test_the_descriptor_limit_is_raised_or_said():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        machine.raise_descriptor_limit(300, "ASTRA-sim")
        assert machine.descriptor_limits()[0] == 300
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(ExternalToolError, match=f"needs {hard + 1} open files.*hard limit is {hard}"):
                machine.raise_descriptor_limit(hard + 1, "ASTRA-sim")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_module_works_where_there_is_no_resource(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert machine.descriptor_limits() == (None, None)
    machine.raise_descriptor_limit(10**9, "ASTRA-sim")


def kernel_files(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_memory_is_what_the_innermost_limit_leaves(tmp_path):
    assert machine.available_memory(tmp_path) is None
    kernel_files(tmp_path, proc__meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert machine.available_memory(tmp_path) == 8000 * 1024
    kernel_files(
        tmp_path, proc__self__cgroup="0::/job/step\n",
        sys__fs__cgroup__job__memory_dot_max="4000000\n",
        sys__fs__cgroup__job__memory_dot_current="3000000\n",
        sys__fs__cgroup__job__memory_dot_stat="inactive_file 500000\n",
        sys__fs__cgroup__job__step__memory_dot_max="max\n",
        sys__fs__cgroup__job__step__memory_dot_current="1\n",
    )  # fmt: skip
    assert machine.available_memory(tmp_path) == 1_500_000
    kernel_files(
        tmp_path, proc__self__cgroup="4:memory:/box\n",
        sys__fs__cgroup__memory__box__memory_dot_limit_in_bytes="2000000\n",
        sys__fs__cgroup__memory__box__memory_dot_usage_in_bytes="1900000\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712\n",
        sys__fs__cgroup__memory__memory_dot_usage_in_bytes="5\n",
    )  # fmt: skip
    assert machine.available_memory(tmp_path) == 100_000


def test_kills_for_want_of_memory_are_counted(tmp_path):
    assert machine.oom_kills(tmp_path) is None
    kernel_files(tmp_path, proc__vmstat="pgfault 7\noom_kill 2\n")
    assert machine.oom_kills(tmp_path) == 2
    kernel_files(
        tmp_path,
        proc__self__cgroup="0::/job\n",
        sys__fs__cgroup__job__memory_dot_events="oom 1\noom_kill 3\n",
    )
    assert machine.oom_kills(tmp_path) == 5


def test_cores_follow_the_quota(tmp_path):
    have = machine.cores(tmp_path)
    assert have >= 1
    kernel_files(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__cpu_dot_max="100000 100000\n")
    assert machine.cores(tmp_path) == 1
