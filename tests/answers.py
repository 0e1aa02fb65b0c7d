"""Small runs and ASTRA-sim's answers to them, kept in ``tests/data`` so that exactness is tested everywhere.

To record them anew: ``python -m tests.answers BINARY``, where BINARY is ASTRA-sim's
``AstraSim_Analytical_Congestion_Aware``.
"""

import hashlib
import json
import sys
import tempfile
from itertools import product
from pathlib import Path

import moxtrace
from moxtrace.chakra import reader
from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.config import RunConfig
from moxtrace.engine.astra_sim import find_binary, run_astra_sim
from moxtrace.engine.inputs import load, simulate_inputs
from moxtrace.generate import generate
from moxtrace.rundir import Run

ASTRA_SIM = "518bd51"
FILE = Path(__file__).parent / "data" / "astra_sim_answers.json"


def configurations():
    """Settings of every run: forms, barriers, policies and scales, and a few networks and orders besides."""
    for form, barrier, policy, scale in product(
        ("collective", "flat"), ("phase", "tokens"), ("min-hop", "tree", "switch"), ("ps", "ns")
    ):
        trace = {"form": form, "barrier": barrier, "time_scale": scale, "order": "token", "window": 0}
        yield settings({"kind": "switch" if policy == "switch" else "ring"}, policy, trace)
    for topology, order, window in (
        ({"kind": "fully-connected"}, "simulated", 4),
        ({"kind": "expander", "degree": 3}, "simulated", 4),
        ({"kind": "expander", "degree": 3}, "token", 64),
    ):
        yield settings(topology, "tree", {"order": order, "window": window})


def settings(topology, policy, trace):
    """A run of 6 NPUs with 16 tokens each; sums and experts take a time that shows on either scale."""
    return {
        "model": {"num_experts": 12, "top_k": 3, "hidden_dim": 512, "intermediate_dim": 2048},
        "traffic": {"tokens_per_npu": 16, "sampling": "uniform"},
        "topology": {"npus": 6, **topology},
        "routing": {"policy": policy},
        "compute": {"peak_tflops": 40.0, "reduce_ns_per_byte": 0.9},
        "trace": trace,
    }


def make(configuration, folder):
    """The run directory of a configuration."""
    generate(RunConfig.model_validate(configuration), folder)
    return Run.open(folder)


def digest_of(run):
    """What the traces of a run say, whichever version wrote them."""
    digest = hashlib.sha256()
    for name in sorted(run.manifest["traces"]):
        trace = reader.read(run.path / TRACES / name, run.manifest["npus"])
        columns = (trace.rank_ptr, trace.node_id, trace.kind, trace.peer, trace.tag, trace.amount)
        for column in (*columns, trace.dep_ptr, trace.dep):
            digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def answer_of(run):
    """Finished and exposed cycles from the built-in engine, which reads the files as ASTRA-sim does."""
    files = (run.path / name for name in (f"{TRACES}/workload", "system.json", "network.yml", "memory.json"))
    result = simulate_inputs(load(*files))
    return result.finished.tolist(), result.exposed.tolist()


def record(binary):
    """Ask ASTRA-sim about every configuration."""
    runs = []
    for configuration in configurations():
        with tempfile.TemporaryDirectory() as folder:
            run = make(configuration, Path(folder) / "run")
            finished, exposed = run_astra_sim(run, find_binary(binary))
            digest = digest_of(run)
        runs.append({
            "configuration": configuration,
            "traces": digest,
            "finished_cycles": finished.tolist(),
            "exposed_communication_cycles": exposed.tolist(),
        })  # fmt: skip
    made_by = f"tests/answers.py of moxtrace {moxtrace.__version__}, astra-sim {ASTRA_SIM}"
    lines = ",\n".join("    " + json.dumps(run) for run in runs)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(
        f'{{\n  "made_by": {json.dumps(made_by)},\n  "runs": [\n{lines}\n  ]\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    record(sys.argv[1])
