"""The built-in engine gives ASTRA-sim's answers to the cycle, as recorded in ``tests/data``."""

import json

import pytest

from moxtrace.units import cycles_per_ns
from tests.answers import ASTRA_SIM, FILE, answer_of, configurations, digest_of, make

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


def name(run):
    trace = run["configuration"]["trace"]
    return "-".join(
        map(str, (run["configuration"]["topology"]["kind"], run["configuration"]["routing"]["policy"],
                  *trace.values()))
    )  # fmt: skip


def test_the_record_says_who_made_it_and_covers_every_configuration():
    assert RECORDED["made_by"].endswith(f"astra-sim {ASTRA_SIM}")
    assert [run["configuration"] for run in RECORDED["runs"]] == list(configurations())
    assert FILE.stat().st_size < 100_000


@pytest.mark.parametrize("run", RECORDED["runs"], ids=name)
def test_equals_what_astra_sim_said(run, tmp_path):
    made = make(run["configuration"], tmp_path / "run")
    if digest_of(made) != run["traces"]:
        pytest.fail("generate makes other traces than were run: record anew with 'python -m tests.answers'")
    assert answer_of(made) == (run["finished_cycles"], run["exposed_communication_cycles"])
    scale = cycles_per_ns(made.manifest["time_scale"])
    assert max(run["finished_cycles"]) > 3 * 500 * scale  # it crossed links and computed
