"""Run directories: whole or absent, and every change to a file is found."""

import json
import os

import pytest

from moxtrace.errors import OutputError, TraceError
from moxtrace.rundir import Run, new_directory, sha256_of, write_json, write_manifest

PHASE = {"first_tag": 0, "trees": 1, "messages": 1, "message_bytes": 1}
FACTS = {
    "moxtrace": "0", "npus": 2, "time_scale": "ps", "form": "flat", "barrier": "phase", "window": 4,
    "rows": "tokens", "astra_sim": "expressible", "compute_ns": [5, 6], "reduce_ns_per_byte": 0.1,
    "traces": {"workload": {"nodes": 1, "phases": ["dispatch", "combine"]}},
    "phases": {"dispatch": PHASE, "combine": {**PHASE, "first_tag": 1}}, "inputs": {},
}  # fmt: skip


def make(target, content="x", force=False):
    with new_directory(target, force=force) as folder:
        (folder / "traces").mkdir()
        (folder / "traces" / "workload.0.et").write_text(content)
        write_json(folder / "notes.json", {"a": 1})
        write_manifest(folder, FACTS, {})


def test_a_run_directory_appears_whole(tmp_path):
    make(tmp_path / "deep" / "run")
    run = Run.open(tmp_path / "deep" / "run")
    assert run.problems() == []
    assert run.manifest["npus"] == 2
    assert run.json("notes.json") == {"a": 1}
    assert os.listdir(tmp_path / "deep") == ["run"]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), new_directory(tmp_path / "run") as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_failure_keeps_the_earlier_run(tmp_path):
    make(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "run", force=True):
        raise KeyboardInterrupt
    assert Run.open(tmp_path / "run").problems() == []
    assert os.listdir(tmp_path) == ["run"]


def test_force_replaces_an_earlier_run_and_nothing_else(tmp_path):
    make(tmp_path / "run")
    with pytest.raises(OutputError, match="exists; .*--force"):
        make(tmp_path / "run")
    make(tmp_path / "run", "other", force=True)
    assert (tmp_path / "run" / "traces" / "workload.0.et").read_text() == "other"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with pytest.raises(OutputError, match="exists and is no run directory"):
        make(tmp_path / "thesis", force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        make(tmp_path / "file", force=True)
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")


def test_force_takes_nothing_that_the_run_did_not_write(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="holds notes.txt, which the run did not write"):
        make(tmp_path / "run", force=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    with pytest.raises(OutputError, match="lies in the run directory"):
        make(tmp_path / "run" / "inner")


def test_a_link_to_a_run_stays_a_link(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    make(tmp_path / "link", "other", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "run" / "traces" / "workload.0.et").read_text() == "other"
    assert sorted(os.listdir(tmp_path)) == ["link", "run"]


def test_what_a_killed_run_left_is_removed(tmp_path):
    (tmp_path / ".run.999999999.partial").mkdir()
    (tmp_path / f".run.{os.getppid()}.partial").mkdir()  # somebody is still at it
    make(tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == [f".run.{os.getppid()}.partial", "run"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    full = open("/dev/full", "w")  # noqa: SIM115
    full.write("x")
    with pytest.raises(OutputError, match="the disk is full"), new_directory(tmp_path / "run"):
        full.close()
    assert os.listdir(tmp_path) == []


def test_a_directory_below_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write the run directory"):
        make(tmp_path / "file" / "run")


def test_changed_cut_missing_and_stray_files_are_named(tmp_path):
    make(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    trace = run.path / "traces" / "workload.0.et"
    trace.write_text("y")
    assert run.problems() == [
        "traces/workload.0.et: content differs from the manifest (SHA-256): changed or swapped file"
    ]
    assert run.problems(hashes=False) == []
    trace.write_text("")
    assert run.problems() == ["traces/workload.0.et: 0 bytes; the manifest says 1: cut file"]
    trace.rename(run.path / "traces" / "workload.1.et")
    assert run.problems() == [
        "traces/workload.0.et: missing file",
        "traces/workload.1.et: not in the manifest: a stray trace file",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no manifest.json in it"), ("{", "is cut or no JSON"), ('{"format": 99}', "format is not 1"),
     ("[]", "is no JSON object"), ("[" * 100_000, "is cut or no JSON"),
     ('{"format": 1}', r"manifest.json: moxtrace: Field required: generate the run again")],
)  # fmt: skip
def test_what_is_no_run_directory_says_so(tmp_path, content, message):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(TraceError, match=message):
        Run.open(tmp_path)


def test_what_does_not_exist(tmp_path):
    with pytest.raises(TraceError, match="no such directory"):
        Run.open(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="is a file"):
        Run.open(tmp_path / "file")


def test_known_hashes_are_those_of_the_files(tmp_path):
    make(tmp_path / "run", "content")
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text())["files"]
    for name, said in facts.items():
        assert said["sha256"] == sha256_of(tmp_path / "run" / name)


def changed(run, **facts):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, **facts}))
    return run


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"npus": "2"}, 'npus: Input should be a valid integer; found "2": generate the run again'),
        ({"npus": 3}, "compute_ns of 2 NPUs, but npus is 3"),
        ({"npus": True}, "npus: Input should be a valid integer; found true"),
        ({"form": "flit"}, "form: Input should be 'collective' or 'flat'; found \"flit\""),
        ({"compute_ns": [1, -1]}, "compute_ns.1: .* greater than or equal to 0"),
        ({"reduce_ns_per_byte": float("nan")}, "reduce_ns_per_byte: .* finite number"),
        ({"phases": {"dispatch": PHASE}}, "phases.combine: Field required"),
        ({"phases": {"dispatch": {**PHASE, "message_bytes": 0}, "combine": PHASE}}, "dispatch.message_bytes"),
        ({"traces": {"workload": {"nodes": 1, "phases": ["gather"]}}}, "traces.workload.phases.0"),
        ({"files": ["summary.json"]}, "files: Input should be a valid dictionary"),
        ({"files": {"a": {"bytes": 1, "sha256": "x"}}}, "files.a.sha256"),
        ({"files": {"../a": {"bytes": 1, "sha256": "0" * 64}}}, "'../a' lies outside the run directory"),
        ({"files": {"/a": {"bytes": 1, "sha256": "0" * 64}}}, "'/a' lies outside the run directory"),
    ],
)
def test_a_manifest_that_is_wrong_is_one_line(tmp_path, facts, message):
    make(tmp_path / "run")
    with pytest.raises(TraceError, match=message) as caught:
        Run.open(changed(tmp_path / "run", **facts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list(FACTS))
def test_a_manifest_without_a_key_names_it(tmp_path, name):
    make(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[name]
    path.write_text(json.dumps(manifest))
    with pytest.raises(TraceError, match=f"manifest.json: {name}: Field required"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "is cut or no JSON"),
        ("[1]", "is no JSON object"),
        ('{"npus": 2}', "summary.json: topology: Field required"),
        (b"\xff", "is cut or no JSON"),
    ],
)
def test_a_broken_summary_is_one_line(tmp_path, content, message):
    make(tmp_path / "run")
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "run" / "summary.json").write_bytes(data)
    with pytest.raises(TraceError, match=message):
        Run.open(tmp_path / "run").json("summary.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("1: [", "is cut or no YAML"),
        ("- 1", "expected lines 'NODE: traces/NAME'"),
        ("x: traces/dispatch", "expected lines"),
        ("1: 2", "expected lines"),
        ("", "expected lines"),
    ],
)
def test_broken_collectives_are_one_line(tmp_path, content, message):
    make(tmp_path / "run")
    if content is not None:
        (tmp_path / "run" / "collectives.yml").write_text(content)
    assert Run.open(tmp_path / "run").collectives() == {}  # flat traces have none, whatever lies there
    with pytest.raises(TraceError, match=message):
        Run.open(changed(tmp_path / "run", form="collective")).collectives()


def test_collectives(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "run" / "collectives.yml").write_text("# note\n1: traces/dispatch\n3: traces/combine\n")
    run = Run.open(changed(tmp_path / "run", form="collective"))
    assert run.collectives() == {1: "traces/dispatch", 3: "traces/combine"}


def test_a_run_of_another_version_can_be_replaced(tmp_path):
    make(tmp_path / "run")
    changed(tmp_path / "run", reduce_ns_per_byte=None)
    make(tmp_path / "run", force=True)
    assert Run.open(tmp_path / "run").problems() == []
