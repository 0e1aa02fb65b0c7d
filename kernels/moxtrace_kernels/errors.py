"""What can go wrong, as classes; every message is one line: where, what was found, what was expected, how to mend."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ArgumentError",
    "CapacityError",
    "Failure",
    "KernelsError",
    "LibraryError",
    "OrderError",
    "ShapeError",
    "WaitExpiredError",
]


class KernelsError(Exception):
    """Base of every error of this package."""


class ShapeError(KernelsError, ValueError):
    """A shape that no kernel serves, or on which the ranks do not agree."""


class ArgumentError(KernelsError, ValueError):
    """A tensor of the wrong dtype, device, shape or layout."""


class CapacityError(KernelsError, RuntimeError):
    """More rows arrived than the output has room for."""


class OrderError(KernelsError, RuntimeError):
    """A half was called out of turn: send, receive, send, receive is the order of an epoch."""


class LibraryError(KernelsError, RuntimeError):
    """The compiled library is absent, cannot be loaded, or refused a call."""


@dataclass(frozen=True)
class Failure:
    """A wait on the GPU that ran out of time.

    Attributes
    ----------
    rank, peer
        Who waited, and for whom.
    phase
        What was waited for, in the kernels' words.
    token
        Token (or slot) that was waited for; -1 when none in particular.
    wanted, found
        Value of the 64-bit signal that would have ended the wait, and the last one seen.
    """

    rank: int
    peer: int
    phase: str
    token: int
    wanted: int
    found: int

    def __str__(self) -> str:
        token = "" if self.token < 0 else f", token {self.token}"
        return (
            f"rank {self.rank} waited too long for rank {self.peer} in {self.phase}{token}: the signal is "
            f"{self.found}, wanted at least {self.wanted}"
        )


class WaitExpiredError(KernelsError, RuntimeError):
    """A peer did not answer before the deadline; what this rank received is not to be used.

    Attributes
    ----------
    failure : Failure
        Which wait, on whom.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(
            f"{failure}; look at rank {failure.peer} first (it may have stopped, or never called this half), "
            "or raise timeout_ms"
        )
        self.failure = failure
