"""Work that several runs share: what a shelf may hold, and where it is asked for.

Whoever computes something that another run may need too asks a shelf for it.  The shelf here keeps nothing
and computes everything; :class:`moxtrace.sweep.cache.Cache` keeps it in files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

__all__ = ["EMPTY", "Kind", "Shelf"]

Kind = Literal["topology", "weights", "routes", "switch", "bound"]
T = TypeVar("T")


class Shelf:
    """A shelf that keeps nothing."""

    def take(self, kind: Kind, parts: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What ``make`` returns, or an equal thing that was kept.

        Parameters
        ----------
        kind : str
            What it is; each kind has one type.
        parts : tuple
            All that it depends on: numbers, text, arrays, or tuples and dicts of them.
        make : callable
            Computes it.
        """
        return make()


EMPTY = Shelf()
