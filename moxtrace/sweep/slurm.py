"""Job scripts for Slurm: an array whose tasks share a sweep, and a collector after them.

Goes in: the command's own arguments and the plan.  Comes out: two scripts in the sweep's folder, which can be
edited, and submitted or run by hand.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from moxtrace.errors import ConfigError
from moxtrace.outputs import written_aside
from moxtrace.sweep.estimate import cost_of
from moxtrace.sweep.folder import open_folder
from moxtrace.sweep.plan import Plan

__all__ = ["MOST_TASKS", "emit_slurm"]

MOST_TASKS = 1000  # Slurm's usual MaxArraySize is 1001
_USUAL_TASKS = 64
_SLACK = 3.0  # times the estimate; a task that Slurm ends loses one run, and can be submitted again
_MEMORY_SLACK = 1.5

_ARRAY = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{tasks}
#SBATCH --cpus-per-task=1
#SBATCH --mem={megabytes}M
#SBATCH --time={hours}:00:00
#SBATCH --output={folder}/slurm/%a.log
# {runs} runs in {tasks} tasks, by estimate {per_task} each; a partition or an account is yours to add.
# Submit both:  bash {folder}/slurm/submit.sh      Again, for what is missing: the same.
cd {cwd} || exit 1
exec {command} --shard "${{SLURM_ARRAY_TASK_ID}}/{tasks}"
"""
_COLLECT = """\
#!/bin/bash
#SBATCH --job-name={name}-collect
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=1:00:00
#SBATCH --output={folder}/slurm/collect.log
exec {command}
"""
_SUBMIT = """\
#!/bin/bash
# Submits the array and, after it, the collector that writes results.csv and results.parquet.
array=$(sbatch --parsable {folder}/slurm/array.sh) || exit 1
sbatch --dependency=afterany:"${{array%%;*}}" {folder}/slurm/collect.sh
"""


def emit_slurm(
    plan: Plan, sweep: Path, folder: Path, arguments: Sequence[str], tasks: int | None = None
) -> list[Path]:
    """Write ``slurm/array.sh``, ``collect.sh`` and ``submit.sh`` into the sweep's folder.

    Parameters
    ----------
    plan : Plan
    sweep : path
        The sweep file.
    folder : path
    arguments : sequence of str
        Further options of ``moxtrace sweep run`` that each task is to have.
    tasks : int, optional
        Tasks of the array; default: one per run, 64 at most.

    Returns
    -------
    list of path

    Raises
    ------
    ConfigError
        When there are more tasks than an array takes.
    OutputError
        When the folder is another sweep's or cannot be written.
    """
    tasks = min(tasks or _USUAL_TASKS, len(plan.runs))
    if not 1 <= tasks <= MOST_TASKS:
        raise ConfigError(f"--tasks {tasks}: expected 1 to {MOST_TASKS}, what a Slurm array usually takes")
    costs = [cost_of(run.config, run.engine) for run in plan.runs]
    slowest = max(sum(cost.seconds for cost in costs[i::tasks]) for i in range(tasks))
    here = folder.resolve()
    quoted = shlex.quote(str(here))
    program = f"{shlex.quote(sys.executable)} -m moxtrace"
    options = " ".join(shlex.quote(a) for a in (str(sweep.resolve()), "-o", str(here), *arguments))
    facts = {
        "name": shlex.quote(f"moxtrace-{sweep.stem}"),
        "folder": quoted,
        "cwd": shlex.quote(os.getcwd()),  # what paths in the options are relative to
        "tasks": tasks,
        "runs": len(plan.runs),
        "megabytes": math.ceil(_MEMORY_SLACK * max(cost.size_bytes for cost in costs) / 1e6 / 256) * 256,
        "hours": max(1, math.ceil(_SLACK * slowest / 3600)),
        "per_task": f"{slowest:.0f} s",
    }
    texts = {
        "array.sh": _ARRAY.format(**facts, command=f"{program} sweep run {options}"),
        "collect.sh": _COLLECT.format(**facts, command=f"{program} sweep collect {quoted}"),
        "submit.sh": _SUBMIT.format(**facts),
    }
    paths = []
    with open_folder(folder, plan):
        (folder / "slurm").mkdir(exist_ok=True)
        for name, text in texts.items():
            paths.append(folder / "slurm" / name)
            with written_aside(paths[-1]) as aside:
                aside.write_text(text, encoding="utf-8")
    return paths
