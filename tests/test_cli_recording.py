"""``moxtrace recording``."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from moxtrace import recordings
from moxtrace.cli import main

SHIPPED = str(Path(__file__).resolve().parents[1] / "configs" / "recordings" / "deepseek_v3_like.npz")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; gives (exit status, stdout, stderr)."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["moxtrace", "recording", *map(str, args)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_show_json(run):
    status, out, err = run("show", SHIPPED, "--model", "deepseek-r1", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    known = {k: result[k] for k in ("format", "kind", "num_layers", "num_experts", "top_k")}
    assert known == {
        "format": "canonical",
        "kind": "totals",
        "num_layers": 61,
        "num_experts": 256,
        "top_k": 8,
    }
    assert result["layers"][0] == {"layer": 0, "total": 0.0, "max_over_mean": None, "cv": None, "gini": None}
    assert result["layers"][3]["total"] == 8 * 2**20
    assert result["warnings"] == ["without counts (dense): layers 0-2; 58 of 61 layers are MoE layers"]


def test_show_for_people(run, tmp_path):
    path = tmp_path / "r.npz"
    np.savez(path, topk_ids=np.array([[[0, 1]], [[0, 2]]]), layer_ids=[5])
    status, out, _ = run("show", path)
    assert status == 0
    assert out.splitlines() == [
        f"{path}: token-routes, the experts of every token",
        "1 layers (1 MoE) x 3 experts, 2 tokens, top-2",
        "layer  total  max/mean     cv   gini",
        "-----  -----  --------  -----  -----",
        "    5      4      1.50  0.354  0.167",
    ]


def test_model_that_does_not_fit(run):
    status, out, err = run("show", SHIPPED, "--model", "mixtral-8x7b")
    assert (status, out) == (1, "")
    assert err == (
        f"moxtrace: error: {SHIPPED}: 256 experts, but the model has 8; "
        "choose the model that was recorded, or set num_experts\n"
    )


def test_convert(run, tmp_path):
    source, target = tmp_path / "c.json", tmp_path / "out.npz"
    source.write_text('{"logical_count": [[0.0, 0.0], [3.0, 1.0]]}')
    status, out, err = run("convert", source, "-o", target)
    assert (status, out) == (0, "")
    assert err.splitlines() == [
        f"moxtrace: {source}: counts are floats, all of them whole",
        f"moxtrace: {source}: without counts (dense): layer 0; 1 of 2 layers are MoE layers",
    ]
    assert recordings.read(target).counts.tolist() == [[0, 0], [3, 1]]
    before = target.read_bytes()
    status, _, err = run("convert", SHIPPED, "-o", target)
    assert (status, target.read_bytes()) == (1, before)
    assert err == f"moxtrace: error: {target}: exists already; choose another name or add --force\n"
    assert run("convert", SHIPPED, "-o", target, "--force")[0] == 0
    assert target.read_bytes() == Path(SHIPPED).read_bytes()


@pytest.mark.parametrize("args", [(), ("show",), ("convert",)])
def test_help_has_an_example(run, args):
    status, out, _ = run(*args, "-h")
    assert status == 0
    assert "Example: moxtrace recording " in out


def test_errors_are_one_line(run, tmp_path):
    (tmp_path / "empty.npz").touch()
    status, _, err = run("show", tmp_path / "empty.npz")
    assert (status, err) == (1, f"moxtrace: error: {tmp_path}/empty.npz: is empty; expected a recording\n")
    assert run("show")[0] == 2
    assert run("convert", SHIPPED)[0] == 2
    status, _, err = run("convert", SHIPPED, "-o", tmp_path / "no" / "x.npz")
    assert (status, len(err.splitlines())) == (1, 1)
