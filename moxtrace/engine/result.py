"""What a simulation gives back, in simulator cycles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Agreement", "BlockResult", "ComputeModel", "LinkUse", "TraceResult"]


def _no_times() -> NDArray[np.int64]:
    return np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class ComputeModel:
    """How long a COMP node of the workload takes.

    Without the roofline, and on nodes without ``num_ops``: ``duration_micros * 1000`` cycles, 1 for 0.
    With it: ``floor(num_ops / min(local_mem_bw * num_ops / tensor_size, peak_perf) * 1e9)`` cycles.  Nodes
    inside a custom collective always go by their duration.

    Parameters
    ----------
    roofline_enabled : bool
    local_mem_bw : float
        GB/s (1e9).
    peak_perf : float
        TFLOP/s (1e12).

    References
    ----------
    ``Workload::issue_comp`` and ``Roofline::get_perf`` of astra-sim.
    """

    roofline_enabled: bool = False
    local_mem_bw: float = 0.0
    peak_perf: float = 0.0


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What every link carried.

    Parameters
    ----------
    busy : array of int64, shape (links,)
        Cycles of serialization, all lanes together.
    size_bytes, messages : array of int64, shape (links,)
    """

    busy: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    messages: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TraceResult:
    """A trace that ran to its end.

    Parameters
    ----------
    finished : array of int64, shape (ranks,)
        Cycle at which each rank finished.
    exposed : array of int64, shape (ranks,)
        ``finished`` less the time of the workload's COMP nodes: what ASTRA-sim calls exposed communication.
    node_start, node_finish : array of int64, shape (workload nodes,)
        Issue and completion of every node of the workload trace.
    links : LinkUse
    events : int
        Events that were processed.
    """

    finished: NDArray[np.int64]
    exposed: NDArray[np.int64]
    node_start: NDArray[np.int64]
    node_finish: NDArray[np.int64]
    links: LinkUse
    events: int

    @property
    def completion(self) -> int:
        """Cycle at which the last rank finished."""
        return int(self.finished.max(initial=0))


@dataclass(frozen=True, eq=False)
class BlockResult:
    """An MoE block that ran to its end: dispatch, compute, combine.

    Parameters
    ----------
    finished : array of int64, shape (npus,)
        Cycle at which each NPU had done all that it sends, receives, computes and reduces.
    dispatch_done, compute_done : array of int64, shape (npus,)
        Cycle at which each NPU could start to compute, and had computed.
    dispatch_start, combine_start : array of int32, shape (transfers,)
        Place of each transfer in the order in which the transfers of its phase started; sorting the transfers
        of a link by it gives the link's first-in first-out order.  Empty where there is no such phase.
    links : LinkUse
        Of both phases together.
    events : int
    dispatch_times, combine_times : array of int64, shape (transfers, 2)
        Cycle at which each transfer was handed to its link, and at which it entered it; without rows unless
        they were asked for.
    """

    finished: NDArray[np.int64]
    dispatch_done: NDArray[np.int64]
    compute_done: NDArray[np.int64]
    dispatch_start: NDArray[np.int32]
    combine_start: NDArray[np.int32]
    links: LinkUse
    events: int
    dispatch_times: NDArray[np.int64] = field(default_factory=_no_times)
    combine_times: NDArray[np.int64] = field(default_factory=_no_times)

    @property
    def completion(self) -> int:
        """Cycle at which the last NPU finished."""
        return int(self.finished.max(initial=0))

    @property
    def dispatch_order(self) -> NDArray[np.int32]:
        """Transfers of dispatch in the order in which they started."""
        return _inverse(self.dispatch_start)

    @property
    def combine_order(self) -> NDArray[np.int32]:
        """Transfers of combine in the order in which they started."""
        return _inverse(self.combine_start)


def _inverse(place: NDArray[np.int32]) -> NDArray[np.int32]:
    order = np.empty_like(place)
    order[place] = np.arange(len(place), dtype=place.dtype)
    return order


@dataclass(frozen=True)
class Agreement:
    """The times of two engines for one run, side by side.

    Parameters
    ----------
    completion_ns : dict of str to float
        Completion by each engine.
    largest_difference_ns : float
        Between their times for the same NPU.
    """

    completion_ns: dict[str, float]
    largest_difference_ns: float

    @classmethod
    def of(cls, finished_ns: dict[str, NDArray[np.float64]]) -> Agreement:
        """Compare the times of every NPU by two engines.

        Parameters
        ----------
        finished_ns : dict of str to array of float64, shape (npus,)
        """
        one, other = finished_ns.values()
        completion = {engine: float(times.max()) for engine, times in finished_ns.items()}
        return cls(completion, float(np.abs(one - other).max()))

    @property
    def agrees(self) -> bool:
        """Whether every NPU has the same time by both."""
        return self.largest_difference_ns == 0.0

    def to_json(self) -> dict[str, Any]:
        """What ``simulate --json`` adds."""
        return {
            "agrees": self.agrees,
            "engines_completion_ns": self.completion_ns,
            "largest_difference_ns": self.largest_difference_ns,
        }
