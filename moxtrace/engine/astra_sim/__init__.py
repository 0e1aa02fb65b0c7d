"""The ASTRA-sim runner: find the binary, run it on a run directory, and believe it only when it is right.

ASTRA-sim exits with status 0 on a deadlock, a missing receive and a cut file.  So what can be found is
found before it starts (:mod:`.before`), and success afterwards is exit status 0, a line ``sys[i] finished``
for each NPU, and a run directory that is still as its manifest says.
"""

from moxtrace.engine.astra_sim.binary import BINARY, check_starts, find_binary
from moxtrace.engine.astra_sim.estimate import Estimate, check_fits, estimate_of
from moxtrace.engine.astra_sim.outcome import parse_finished
from moxtrace.engine.astra_sim.probe import Probe, probe
from moxtrace.engine.astra_sim.runner import Outcome, execute, run_astra_sim

__all__ = [
    "BINARY",
    "Estimate",
    "Outcome",
    "Probe",
    "check_fits",
    "check_starts",
    "estimate_of",
    "execute",
    "find_binary",
    "parse_finished",
    "probe",
    "run_astra_sim",
]
