"""Run directories: whole or absent, and every change to a file is found."""

import json
import os

import pytest

from moxtrace.errors import OutputError, TraceError
from moxtrace.rundir import Run, new_directory, sha256_of, write_json, write_manifest


def make(target, content="x", force=False):
    with new_directory(target, force=force) as folder:
        (folder / "traces").mkdir()
        (folder / "traces" / "workload.0.et").write_text(content)
        write_json(folder / "summary.json", {"a": 1})
        write_manifest(folder, {"npus": 1}, {})


def test_a_run_directory_appears_whole(tmp_path):
    make(tmp_path / "deep" / "run")
    run = Run.open(tmp_path / "deep" / "run")
    assert run.problems() == []
    assert run.manifest["npus"] == 1
    assert run.json("summary.json") == {"a": 1}
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
     ("[]", "format is not 1")],
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
