"""How the reference's ranks hand messages to each other: within one process, or over torch.distributed.

Posting never waits; collecting needs what every rank posted. A message is made of tensors, numbers, lists and
tuples.
"""

from __future__ import annotations

import io
from typing import Any, Protocol

from .errors import OrderError

__all__ = ["Distributed", "Exchange", "InProcess"]


class Exchange(Protocol):
    """What the reference asks of a network."""

    ranks: int

    def post(self, half: str, epoch: int, rank: int, messages: list[Any]) -> None:
        """Leave one message for every rank, in rank order."""

    def collect(self, half: str, epoch: int, rank: int) -> list[Any]:
        """Messages for this rank, by the rank that posted them."""


class InProcess:
    """Ranks of one process: every rank posts before the first one collects.

    Parameters
    ----------
    ranks : int
        How many there are.

    Examples
    --------
    >>> world = InProcess(2)
    >>> world.post("dispatch", 1, 0, ["to 0", "to 1"])
    >>> world.post("dispatch", 1, 1, ["hello 0", "hello 1"])
    >>> world.collect("dispatch", 1, 1)
    ['to 1', 'hello 1']
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._boxes: dict[tuple[str, int, int, int], Any] = {}

    def post(self, half: str, epoch: int, rank: int, messages: list[Any]) -> None:
        """Leave one message for every rank, in rank order."""
        for peer, message in enumerate(messages):
            self._boxes[half, epoch, peer, rank] = message

    def collect(self, half: str, epoch: int, rank: int) -> list[Any]:
        """Messages for this rank, by the rank that posted them; taken out of the box.

        Raises
        ------
        OrderError
            A rank has not posted yet: on GPUs this would wait for it.
        """
        late = [peer for peer in range(self.ranks) if (half, epoch, rank, peer) not in self._boxes]
        if late:
            raise OrderError(
                f"{half}_recv on rank {rank}: rank {late[0]} has not called {half}_send of epoch {epoch}; "
                "within one process every rank sends before the first one receives"
            )
        return [self._boxes.pop((half, epoch, rank, peer)) for peer in range(self.ranks)]


class Distributed:
    """Ranks of a torch.distributed group, gloo included; messages travel when they are collected.

    Parameters
    ----------
    group : ProcessGroup, optional
        The ranks that take part; None: all of them.
    """

    def __init__(self, group: Any = None) -> None:
        import torch.distributed

        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.ranks = torch.distributed.get_world_size(group)
        self._posted: dict[tuple[str, int], list[Any]] = {}

    def post(self, half: str, epoch: int, rank: int, messages: list[Any]) -> None:
        """Leave one message for every rank, in rank order."""
        self._posted[half, epoch] = messages

    def collect(self, half: str, epoch: int, rank: int) -> list[Any]:
        """Messages for this rank, by the rank that posted them; every rank of the group calls this."""
        import torch.distributed

        # as torch.save writes it: torch's own pickling of objects does not take every dtype
        file = io.BytesIO()
        torch.save(self._posted.pop((half, epoch)), file)
        everything: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(everything, file.getvalue(), group=self._group)
        return [torch.load(io.BytesIO(messages), weights_only=True)[rank] for messages in everything]
