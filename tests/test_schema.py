"""Traces read back by mlcommons/chakra's own schema, and nothing of protobuf in the way."""

import subprocess
import sys

import pytest

from moxtrace.chakra.schema_check import read_back, schema
from moxtrace.config import RunConfig
from moxtrace.errors import ExternalToolError
from moxtrace.generate import generate
from moxtrace.rundir import Run

CONFIG = {
    "model": {"num_experts": 8, "top_k": 2, "hidden_dim": 64, "intermediate_dim": 64},
    "traffic": {"tokens_per_npu": 4, "sampling": "uniform"},
    "topology": {"kind": "ring", "npus": 4},
    "routing": {"policy": "tree"},
}


@pytest.fixture
def run(tmp_path):
    generate(RunConfig.model_validate(CONFIG), tmp_path / "run")
    return Run.open(tmp_path / "run")


@pytest.fixture
def chakra():
    try:
        return schema()
    except ExternalToolError as error:
        pytest.skip(str(error))


def test_chakra_reads_every_file(run, chakra):
    assert read_back(run) == []


def test_chakra_notices_a_cut_file_and_a_missing_node(run, chakra):
    path = run.path / "traces" / "dispatch.1.et"
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    assert any("dispatch.1.et" in p for p in read_back(run))
    last = (run.path / "traces" / "dispatch.2.et").read_bytes()
    path.write_bytes(last[:8])  # the metadata alone
    assert any("dispatch.1.et: chakra reads 0 nodes" in p for p in read_back(run))


def test_without_chakra_the_command_says_where_it_comes_from(run):
    code = (
        "import sys; sys.modules['chakra'] = None\n"
        "sys.argv = ['moxtrace', 'verify', '--chakra', sys.argv[1]]\n"
        "from moxtrace.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "it is on no package index" in done.stderr


@pytest.mark.parametrize("first", ["moxtrace.generate", "google.protobuf"])
def test_protobuf_is_never_imported_and_never_in_the_way(tmp_path, first):
    """The bytes are the same whether protobuf, of whatever release, was imported before, after or never."""
    code = (
        f"import importlib, sys; importlib.import_module({first!r})\n"
        "before = 'google.protobuf' in sys.modules\n"
        "from pathlib import Path\n"
        "from moxtrace.config import RunConfig; from moxtrace.generate import generate\n"
        "from tests.test_schema import CONFIG\n"
        "generate(RunConfig.model_validate(CONFIG), Path(sys.argv[1]))\n"
        "print(before, 'google.protobuf' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    imported = str(first == "google.protobuf")
    assert done.stdout.split() == [imported, imported]
    generate(RunConfig.model_validate(CONFIG), tmp_path / "again")
    one, other = (Run.open(tmp_path / name).manifest["files"] for name in ("run", "again"))
    assert one == other
