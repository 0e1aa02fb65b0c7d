"""Small run directories, and changes to them that the manifest agrees with."""

from __future__ import annotations

import json

from moxtrace.chakra import reader, writer
from moxtrace.config import RunConfig
from moxtrace.rundir import Run, sha256_of
from moxtrace.verify import verify_run
from tests.editing import pack, unpack

CONFIG = {
    "model": {"num_experts": 16, "top_k": 4, "hidden_dim": 64, "intermediate_dim": 64},
    "traffic": {"tokens_per_npu": 8, "sampling": "uniform"},
    "topology": {"kind": "torus", "dims": [2, 4]},
    "routing": {"policy": "tree"},
}


def configured(**blocks) -> RunConfig:
    """The small configuration with some keys of some blocks replaced."""
    return RunConfig.model_validate(
        {k: {**CONFIG.get(k, {}), **blocks.get(k, {})} for k in {**CONFIG, **blocks}}
    )


def vouched(run: Run, change=lambda manifest: None) -> Run:
    """Make the manifest agree with the files as they are, and then ``change`` it."""
    path = run.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in list(manifest["files"]):
        if (run.path / name).is_file():
            facts = {"bytes": (run.path / name).stat().st_size, "sha256": sha256_of(run.path / name)}
            manifest["files"][name].update(facts)
        else:
            del manifest["files"][name]
    change(manifest)
    path.write_text(json.dumps(manifest))
    return Run.open(run.path)


def edited(run: Run, name: str, edit) -> list[str]:
    """Rewrite one file set after ``edit``, manifest and counts included; returns what verify says."""
    ranks = unpack(reader.read(run.path / "traces" / name))
    edit(ranks)
    writer.write(pack(ranks), run.path / "traces" / name)

    def recount(manifest):
        manifest["traces"][name]["nodes"] = sum(map(len, ranks))
        for r, rank in enumerate(ranks):
            manifest["files"][f"traces/{name}.{r}.et"]["nodes"] = len(rank)

    return verify_run(vouched(run, recount)).problems
