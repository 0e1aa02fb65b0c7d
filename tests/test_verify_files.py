"""Verify and simulate where tables, numbers or the manifest are wrong: lines, and no tracebacks."""

import json
import re
import shutil

import numpy as np
import pytest

from moxtrace.demand import read_demand
from moxtrace.errors import MoxtraceError, TraceError
from moxtrace.generate import generate
from moxtrace.rundir import Run
from moxtrace.simulate import simulate_run
from moxtrace.verify import verify_run
from tests.runs import configured, vouched


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "run"
    generate(configured(trace={"order": "token"}), path)
    return path


@pytest.fixture
def run(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "run")
    return Run.open(tmp_path / "run")


def demand_file(run, **columns):
    """Rewrite demand.npz with some columns changed."""
    path = run.path / "demand.npz"
    with np.load(path) as file:
        old = {name: file[name] for name in file.files}
    new = {**old, **{name: change(old[name]) for name, change in columns.items()}}
    np.savez(path, **{name: column for name, column in new.items() if column is not None})
    return path


def put(column, at, value):
    column[at] = value
    return column


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"dest": lambda a: put(a, 0, 8)}, r"dest\[0\] is NPU 8; expected 0 to 7"),
        ({"dest": lambda a: put(a, 3, -1)}, r"dest\[3\] is -1; expected 0 or more"),
        ({"dest": lambda a: put(a, 0, 0)}, "token 0 of NPU 0: expected its other NPUs, each once"),
        ({"dest": lambda a: put(a, 1, a[0])}, "token 0 of NPU 0: .* in ascending order"),
        ({"dest": lambda a: a[:-1]}, "destination sets of .* together, but .* are named"),
        ({"dest": lambda a: a.astype(np.int64)}, "dest is int64 of shape .*; expected a vector of int16"),
        ({"dest": lambda a: a[None]}, "dest is int16 of shape"),
        ({"count": lambda a: put(a, 0, -1)}, r"count\[0\] is -1"),
        ({"tokens": lambda a: put(a, 0, 9)}, "NPUs have 65 tokens, but 64 destination sets"),
        ({"tokens": lambda a: put(a, 0, -8)}, r"tokens\[0\] is -8"),
        ({"pairs": lambda a: a[:-1]}, "tokens of 8 NPUs, pairs of 7"),
        ({"pairs": lambda a: put(a, 2, 0)}, "tokens go to NPU 2, which computes 0 token-expert pairs"),
        ({"pairs": lambda a: None}, "pairs.npy"),
    ],
)
def test_a_demand_that_is_none(run, columns, message):
    path = demand_file(run, **columns)
    with pytest.raises(TraceError, match=message):
        read_demand(path)
    assert any("demand.npz" in p for p in verify_run(vouched(run)).problems)
    with pytest.raises(MoxtraceError):
        simulate_run(vouched(run))


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_a_demand_of_another_kind(run, content):
    (run.path / "demand.npz").write_bytes(content)
    with pytest.raises(TraceError, match="demand.npz: cannot read the demand: .*; generate the run again"):
        read_demand(run.path / "demand.npz")


def test_a_demand_of_another_run(run, tmp_path):
    generate(configured(topology={"kind": "torus", "dims": [4, 4]}), tmp_path / "larger")
    generate(configured(traffic={"tokens_per_npu": 9}), tmp_path / "longer")
    for name, message in (
        ("larger", "demand.npz: 16 NPUs; the manifest says 8"),
        ("longer", "demand.npz: 72 tokens; the manifest says 64 trees of dispatch"),
    ):
        shutil.copy(tmp_path / name / "demand.npz", run.path)
        assert message in verify_run(vouched(run)).problems


def test_a_topology_of_another_run(run, tmp_path):
    generate(configured(topology={"kind": "torus", "dims": [4, 4]}), tmp_path / "larger")
    shutil.copy(tmp_path / "larger" / "topology.json", run.path)
    assert "topology.json: 16 NPUs; the manifest says 8" in verify_run(vouched(run)).problems
    with pytest.raises(TraceError, match="topology.json: 16 NPUs; the manifest says 8"):
        simulate_run(vouched(run))


@pytest.mark.parametrize("name", ["topology.json", "summary.json", "collectives.yml", "demand.npz"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"[1, 2]", b"{}", b"\xff\xfe"])
def test_broken_files_are_lines(run, name, content):
    if content is None:
        (run.path / name).unlink()
    else:
        (run.path / name).write_bytes(content)
    for one in (run, vouched(run)):
        assert any(name in p and "\n" not in p for p in verify_run(one).problems)
        with pytest.raises(MoxtraceError, match=name) as caught:
            simulate_run(one)
        assert "\n" not in str(caught.value)


def table(run, edit):
    """Change links.csv, a list of lists of cells."""
    path = run.path / "links.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    edit(rows)
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return verify_run(vouched(run)).problems


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows[0].__setitem__(5, "bytes"), "links.csv: line 1: expected src,dst,gbps,lanes,"),
        (lambda rows: rows[3].pop(), "links.csv: line 4: 7 cells; expected 8: is it cut?"),
        (lambda rows: rows.pop(), "links.csv: 23 rows; the topology has 24 links"),
        (lambda rows: rows.clear(), "links.csv: line 1: expected src,dst,.*found nothing"),
        (lambda rows: rows[1].__setitem__(0, "7"), "links.csv: line 2: src is 7; the topology says 0"),
        (lambda rows: rows[1].__setitem__(1, "7"), "links.csv: line 2: dst is 7; the topology says 1"),
        (lambda rows: rows[1].__setitem__(2, "90"), "links.csv: line 2: gbps is 90; the topology says 100"),
        (lambda rows: rows[1].__setitem__(3, "2"), "links.csv: line 2: lanes is 2; the topology says 1"),
        (lambda rows: rows[1].__setitem__(4, "x"), "dispatch: link 0 -> 1: .* messages; links.csv says x"),
        (lambda rows: rows[2].__setitem__(6, "0"), "combine: link 0 -> .* messages; links.csv says 0"),
        (lambda rows: rows[2].__setitem__(7, "1.5"), "combine: link 0 -> .* bytes; links.csv says 1.5"),
    ],
)
def test_a_wrong_table_of_links(run, edit, message):
    problems = table(run, edit)
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_no_table_of_links(run):
    (run.path / "links.csv").unlink()
    assert verify_run(run).problems[0] == "links.csv: missing file"
    assert any("links.csv: cannot read" in p for p in verify_run(vouched(run)).problems)
    (run.path / "links.csv").write_bytes(b"src,\xff\n")
    assert any("links.csv: is no CSV" in p for p in verify_run(run).problems)


def deep(manifest, path, value):
    for key in path[:-1]:
        manifest = manifest[key]
    manifest[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("traces", "dispatch", "nodes"), 5, "nodes; the manifest says 5"),
        (("files", "traces/combine.2.et", "nodes"), 5, "combine: rank 2 has .* nodes; the manifest says 5"),
        (("files", "traces/combine.2.et", "nodes"), None, "traces/combine.2.et, or its number of nodes"),
        (("traces", "block"), {"nodes": 1, "phases": []}, "manifest: traces are"),
        (("traces", "combine", "phases"), [], "manifest: traces are"),
        (("phases", "combine", "messages"), 5, "transfers over links; the manifest says 5"),
        (("phases", "combine", "first_tag"), 5, "combine begins at tag 5; expected 64"),
        (("phases", "combine", "trees"), 5, "64 tokens; the manifest says 5 trees of combine"),
        (("phases", "dispatch", "message_bytes"), 5, "has 128 bytes; expected 5"),
        (("rows",), "copies", "copies; the manifest says 64 trees"),
        (("form",), "flat", "manifest: traces are"),
        (("barrier",), "tokens", "manifest: traces are"),
        (("time_scale",), "ns", "duration"),
        (("reduce_ns_per_byte",), 1.0, "expected .inputs - 1. x message_bytes x reduce_ns_per_byte"),
    ],
)
def test_a_manifest_that_does_not_fit_the_files(run, path, value, message):
    problems = verify_run(vouched(run, lambda manifest: deep(manifest, path, value))).problems
    assert any(re.search(message, p) for p in problems), problems


def test_collectives_of_other_nodes(run):
    (run.path / "collectives.yml").write_text("1: traces/combine\n3: traces/dispatch\n")
    problems = verify_run(vouched(run)).problems
    assert len(problems) == 1
    assert problems[0].startswith("collectives.yml: {1: 'traces/combine', 3: 'traces/dispatch'}; form 'coll")


@pytest.mark.parametrize(
    ("path", "message"),
    [(("npus",), "npus is 1; the manifest says 8"), (("tokens",), "tokens is 1; demand.npz says 64"),
     (("transfers", "dispatch"), "transfers.dispatch is 1; the manifest says"),
     (("message_bytes", "combine"), "message_bytes.combine is 1; the manifest says 128"),
     (("max_compute_ns",), "max_compute_ns is 1; the manifest says")],
)  # fmt: skip
def test_a_summary_of_another_run(run, path, message):
    summary = json.loads((run.path / "summary.json").read_text())
    deep(summary, path, 1)
    (run.path / "summary.json").write_text(json.dumps(summary))
    problems = verify_run(vouched(run)).problems
    assert len(problems) == 1
    assert f"summary.json: {message}" in problems[0]
