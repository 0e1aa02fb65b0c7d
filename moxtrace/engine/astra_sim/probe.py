"""Is a binary really ASTRA-sim's analytical, congestion-aware one?  Three messages over one link tell.

It has no ``--version``.  On a congestion-aware network the messages queue; on the unaware one they do not;
and a version without custom collectives of a node does not finish.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace import topology
from moxtrace.chakra import writer
from moxtrace.chakra.astra_inputs import TRACES, write_inputs
from moxtrace.chakra.trace import COLL, RECV, SEND, Trace
from moxtrace.engine.astra_sim.binary import check_starts
from moxtrace.engine.astra_sim.outcome import judge
from moxtrace.engine.astra_sim.process import STDERR, STDOUT, watch
from moxtrace.engine.astra_sim.runner import ARGUMENTS
from moxtrace.engine.network import Network
from moxtrace.engine.traces import simulate
from moxtrace.errors import MoxtraceError

__all__ = ["Probe", "probe"]

ALL_TO_ALL = 6
MESSAGES, SIZE = 3, 14336
SECONDS = 20.0


class Probe(NamedTuple):
    """Whether a binary answers as it should, and in words what it answered."""

    ok: bool
    words: str


def _trace(kind: list[int], peer: list[int], tag: list[int], size: list[int], ranks: int) -> Trace:
    """A trace without dependencies, nodes shared out evenly."""
    nodes, none = len(kind), np.zeros(0, np.int64)
    each = nodes // ranks
    return Trace(
        np.arange(ranks + 1, dtype=np.int64) * each, np.tile(np.arange(each, dtype=np.int64) + 1, ranks),
        np.array(kind, np.int8), np.array(peer, np.int32), np.array(tag, np.int32), np.array(size, np.int64),
        np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32), none, none, none,
    )  # fmt: skip


def _write(folder: Path) -> tuple[Network, NDArray[np.int64]]:
    """Write the question; returns its network and the right answer, cycles of each NPU."""
    pair = topology.build("fully-connected", 2, link_gbps=100.0, latency_ns=500.0)
    m = MESSAGES
    work = _trace([COLL, COLL], [ALL_TO_ALL] * 2, [0, 0], [1, 1], 2)
    inner = _trace([SEND] * m + [RECV] * m, [1] * m + [0] * m, [*range(m)] * 2, [SIZE] * 2 * m, 2)
    (folder / TRACES).mkdir()
    writer.write(work, folder / TRACES / "workload")
    writer.write(inner, folder / TRACES / "dispatch")
    write_inputs(folder, pair, {1: "dispatch"}, "ns", "three messages over one link")
    network = Network.from_astra(folder / "network.yml")
    return network, simulate(work, {1: inner}, network).finished


def probe(binary: Path) -> Probe:
    """Ask a binary a question whose answer is known.

    Parameters
    ----------
    binary : Path
    """
    try:
        check_starts(binary)
    except MoxtraceError as error:
        return Probe(False, str(error))
    with tempfile.TemporaryDirectory(prefix="moxtrace-probe-") as name:
        folder = Path(name)
        try:
            network, right = _write(folder)
            command = [str(binary.resolve()), *ARGUMENTS, f"--logging-folder={folder / 'log'}"]
            ended = watch(command, folder, folder, SECONDS)
            stdout, stderr = ((folder / f).read_text(errors="replace") for f in (STDOUT, STDERR))
            finished, _ = judge(ended, 2, binary, SECONDS, stdout, stderr)
        except MoxtraceError as error:
            what = "is not ASTRA-sim's analytical binary, or one without custom collectives"
            return Probe(False, f"{what}: {str(error).removeprefix('ASTRA-sim: ')}")
        except OSError as error:
            return Probe(False, f"ASTRA-sim: cannot be tried: {error.strerror or error}")
    unqueued = int(network.latency[0] + SIZE / network.bytes_per_cycle[0])
    if np.array_equal(finished, right):
        return Probe(True, "analytical, congestion-aware; custom collectives work")
    if int(finished.max()) == unqueued:
        return Probe(False, "messages do not queue: it is the congestion-unaware network, not the aware one")
    return Probe(False, f"took {finished.max()} cycles for {MESSAGES} messages; expected {right.max()}")
