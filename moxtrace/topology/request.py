"""What a builder is asked for, and what it hands over.

Goes in: the ``topology`` block of a configuration, as :class:`Request`.  Comes out of every construction
beside this file: :class:`Wiring`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import TopologyError
from moxtrace.topology.graph import MAX_NPUS

__all__ = ["Ends", "Request", "Wiring", "choices", "nearest"]

Ends = NDArray[np.integer[Any]]


def choices(options: Iterable[object]) -> str:
    """``8 or 16``."""
    return " or ".join(str(o) for o in options)


def nearest(wanted: int, sizes: Iterable[int]) -> list[int]:
    """The largest of ``sizes`` below ``wanted`` and the smallest above, where there are such."""
    fits = [size for size in sizes if 2 <= size <= MAX_NPUS]
    below, above = [s for s in fits if s < wanted], [s for s in fits if s > wanted]
    return ([max(below)] if below else []) + ([min(above)] if above else [])


@dataclass(frozen=True)
class Wiring:
    """Cables, before they have rates.

    Parameters
    ----------
    npus : int
    ends : array of int, shape (cables, 2)
        Ends of each cable; a cable given k times becomes one with k times the lanes.
    one_way : bool
        Whether a cable carries only from its first end to its second.
    names : tuple of str
        Of the NPUs, where numbers would say too little.
    settled : dict
        Parameters that the builder worked out, and what it has to tell; goes into provenance.
    """

    npus: int
    ends: Ends
    one_way: bool = False
    names: tuple[str, ...] = ()
    settled: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What was asked for, as far as it shapes the graph.

    Parameters
    ----------
    kind : str
    npus, degree : int or None
    seed : int
    own : mapping
        Every parameter of the kind; None where it was not given and has no default.
    """

    kind: str
    npus: int | None
    degree: int | None
    seed: int
    own: Mapping[str, Any]

    def refuse(self, problem: str) -> TopologyError:
        """The error to raise, with the kind's name in front."""
        return TopologyError(f"topology {self.kind}: {problem}")

    def need_npus(self) -> int:
        """How many NPUs were asked for, where nothing else says it."""
        if self.npus is None:
            raise self.refuse(f"npus is missing; give a number from 2 to {MAX_NPUS}")
        return self.npus

    def need_degree(self) -> int:
        """The degree, where nothing else says it."""
        if self.degree is None:
            usual = 8 if self.npus is None else min(8, self.npus - 1)
            raise self.refuse(f"degree is missing; give the links per NPU, such as degree: {usual}")
        return self.degree

    def sized(self, npus: int, why: str, mend: str = "") -> int:
        """The size that the parameters give, once it is known to be allowed and the one asked for.

        Parameters
        ----------
        npus : int
        why : str
            The parameters that give it: ``dims [4, 5] hold 4 x 5 =``.
        mend : str
            What else would do, after ``give npus: 20``.
        """
        if not 2 <= npus <= MAX_NPUS:
            raise self.refuse(f"{why} {npus} NPUs; expected 2 to {MAX_NPUS}")
        if self.npus not in (None, npus):
            raise self.refuse(f"{why} {npus} NPUs, but npus is {self.npus}; give npus: {npus}{mend}")
        return npus

    def check_degree(self, wiring: Wiring) -> None:
        """Refuse a degree that the kind does not have."""
        if self.degree is None:
            return
        leaving = wiring.ends[:, 0] if wiring.one_way else wiring.ends.ravel()
        found = np.bincount(leaving, minlength=wiring.npus)
        low, high = int(found.min()), int(found.max())
        if not low == high == self.degree:
            has = str(low) if low == high else f"{low} to {high}"
            raise self.refuse(
                f"degree {self.degree}: {wiring.npus} NPUs of this kind have degree {has}; "
                "leave degree out, or take kind expander"
            )

    def only(self, names: Sequence[str]) -> list[Any]:
        """Values of several own parameters."""
        return [self.own[name] for name in names]
