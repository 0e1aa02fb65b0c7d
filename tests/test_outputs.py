"""Single files appear whole or not at all."""

import os

import pytest

from moxtrace.errors import OutputError
from moxtrace.outputs import written_aside


def test_a_file_appears_when_the_body_succeeds(tmp_path):
    with written_aside(tmp_path / "a.png") as aside:
        assert aside.suffix == ".png"
        aside.write_text("new")
        assert not (tmp_path / "a.png").exists()
    assert (tmp_path / "a.png").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.png"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_the_earlier_file_outlives_a_failure(tmp_path, failure):
    (tmp_path / "a").write_text("old")
    with pytest.raises(failure), written_aside(tmp_path / "a") as aside:
        aside.write_text("half")
        raise failure
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_reason_is_named(tmp_path):
    nowhere = tmp_path / "none" / "a"
    with (
        pytest.raises(OutputError, match="a: cannot be written: no such dir"),
        written_aside(nowhere) as aside,
    ):
        aside.write_text("x")


def test_a_link_is_followed_and_a_device_refused(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with written_aside(tmp_path / "link") as aside:
        aside.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    with pytest.raises(OutputError, match="/dev/null: is no regular file"), written_aside("/dev/null"):
        pass


def test_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_text("x")
    with written_aside(tmp_path / "a") as aside:
        aside.write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode
