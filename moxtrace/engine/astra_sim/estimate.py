"""What a run will need: time, memory and open files, from the number of its nodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from moxtrace.errors import ExternalToolError
from moxtrace.machine import available_memory, raise_descriptor_limit
from moxtrace.rundir import Run
from moxtrace.units import format_bytes

__all__ = ["Estimate", "check_fits", "estimate_of"]

log = logging.getLogger(__name__)

# Measured with ASTRA-sim 518bd51, Release build, on windowed traces of MoE blocks of 0.2 to 4 million nodes
NODES_PER_SECOND = (20_000, 60_000)
BYTES_PER_NODE = (850, 1_200)
SPARE_DESCRIPTORS = 64  # logs, libraries, and what it opens for a moment
LONG_SECONDS = 120.0


@dataclass(frozen=True)
class Estimate:
    """What ASTRA-sim is likely to need for a run.

    Parameters
    ----------
    nodes : int
    seconds, memory_bytes : (float, float), (int, int)
        Least and most.
    descriptors : int
        Files that it has open at once: one for each rank and file set.
    available_bytes : int or None
        Memory that is there now; None where the system does not say.
    """

    nodes: int
    seconds: tuple[float, float]
    memory_bytes: tuple[int, int]
    descriptors: int
    available_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether the least that it needs is there."""
        return self.available_bytes is None or self.memory_bytes[0] <= self.available_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it may need more than is there."""
        return self.available_bytes is not None and self.memory_bytes[1] > self.available_bytes

    def describe(self) -> str:
        """In words, such as ``1,000,000 nodes: about 17 to 50 s, 850 MB to 1.2 GB``."""
        low, high = (format_bytes(value) for value in self.memory_bytes)
        return (
            f"{self.nodes:,} nodes: about {self.duration()}, {low} to {high}, {self.descriptors} open files"
        )

    def duration(self) -> str:
        """The time in words, such as ``17 to 50 s``."""
        low, high = self.seconds
        if high < 1:
            return "1 s"
        unit, divisor = next(
            (u, d) for u, d in (("h", 3600), ("min", 60), ("s", 1)) if high >= 2 * d or d == 1
        )
        return f"{low / divisor:.2g} to {high / divisor:.2g} {unit}"


def estimate_of(run: Run) -> Estimate:
    """Estimate what ASTRA-sim needs for a run directory.

    Parameters
    ----------
    run : Run
    """
    sets = run.manifest["traces"]
    nodes = sum(facts["nodes"] for facts in sets.values())
    return Estimate(
        nodes,
        (nodes / NODES_PER_SECOND[1], nodes / NODES_PER_SECOND[0]),
        (nodes * BYTES_PER_NODE[0], nodes * BYTES_PER_NODE[1]),
        run.manifest["npus"] * len(sets) + SPARE_DESCRIPTORS,
        available_memory(),
    )


def check_fits(estimate: Estimate, *, anyway: bool = False) -> None:
    """Warn about a run that is long or tight; refuse one that cannot fit, also into the open files.

    Parameters
    ----------
    estimate : Estimate
    anyway : bool
        Only warn.

    Raises
    ------
    ExternalToolError
        When even the least that it needs is more than the memory that is there, or it cannot have so many
        files open.
    """
    raise_descriptor_limit(estimate.descriptors, "ASTRA-sim")
    what = f"ASTRA-sim: {estimate.describe()}"
    there = (
        "" if estimate.available_bytes is None else f"; {format_bytes(estimate.available_bytes)} are there"
    )
    if not estimate.fits and not anyway:
        raise ExternalToolError(
            f"{what}{there}: it does not fit into memory; use fewer tokens per NPU or --engine builtin, "
            "which needs a tenth of it, or run it all the same with --yes"
        )
    if estimate.is_tight:
        log.warning("%s%s: the system may kill it", what, there)
    elif estimate.seconds[1] > LONG_SECONDS:
        log.warning("%s", what)
    else:
        log.info("%s", what)
