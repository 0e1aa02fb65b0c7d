"""What can go wrong, as classes; a message is one line: where, what was found and expected, how to mend."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ArgumentError",
    "CapacityError",
    "DeviceError",
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


class DeviceError(KernelsError, RuntimeError):
    """A kernel could not go on; nothing of this epoch is to be used, and every later call fails as well.

    Attributes
    ----------
    failure : Failure
        Which kernel, where, and why.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class WaitExpiredError(DeviceError):
    """A peer did not answer before the deadline: look at that rank first, it may have stopped."""


@dataclass(frozen=True)
class Failure:
    """What a kernel left behind when it could not go on; the first one is kept.

    Attributes
    ----------
    phase : str
        What the kernel was doing, for example ``dispatch packet``.
    rank, peer : int
        Who failed, and who was waited for (for ``dispatch rows`` the local expert).
    token : int or None
        Token on the rank that sent it.
    epoch : int
        Dispatches since the object was made.
    wanted, found : int
        Value of the signal that would have ended the wait, and the last one seen; for other phases what the
        message says.
    is_wait : bool
        A wait ran out of time.
    message : str
        All of it in one line.
    """

    phase: str
    rank: int
    peer: int
    token: int | None
    epoch: int
    wanted: int
    found: int
    is_wait: bool
    message: str

    def error(self) -> DeviceError:
        """The exception that stands for this failure."""
        return WaitExpiredError(self) if self.is_wait else DeviceError(self)
