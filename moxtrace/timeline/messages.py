"""Messages of a block with their times, and how many wait at each link.

Goes in: the phases and the engine's times.  Comes out: columns, all times in whole ns, for the events of a
timeline; where there are too many, those of every k-th token only, and the queues' peaks in windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand
from moxtrace.engine.network import Network
from moxtrace.engine.result import BlockResult
from moxtrace.transfers import Phase

__all__ = ["Messages", "Queues", "lanes_of", "messages_of", "queues_of", "stride_of"]


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in the order of links, and on a link in the order in which they entered it.

    Parameters
    ----------
    phase : array of int8, shape (messages,)
        0 in dispatch, 1 in combine.
    token, source : array of int32, shape (messages,)
        The token that travels, or whose partial sum does, and the NPU that it is from.
    link : array of int32, shape (messages,)
    size_bytes : array of int64, shape (messages,)
    queued, start, released, arrived : array of int64, shape (messages,)
        When the message was handed to its link, entered it, let the next one in, and was at the far end; ns.
    """

    phase: NDArray[np.int8]
    token: NDArray[np.int32]
    source: NDArray[np.int32]
    link: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    queued: NDArray[np.int64]
    start: NDArray[np.int64]
    released: NDArray[np.int64]
    arrived: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Queues:
    """Messages that wait at links, at the times at which their number changes.

    Parameters
    ----------
    link : array of int32, shape (samples,)
    at : array of int64, shape (samples,)
        Time, ns; ascending on each link.
    length : array of int64, shape (samples,)
    window_ns : int
        0 where every change is there; else the most in windows of so many ns.
    """

    link: NDArray[np.int32]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    window_ns: int = 0


def stride_of(phases: tuple[Phase, ...], demand: Demand, most: int) -> int:
    """A ``k`` so that every ``k``-th token together makes no more than ``most`` messages.

    It is the least, or up to a twentieth more; above every token where not even one fits.

    Parameters
    ----------
    phases : tuple of Phase
    demand : Demand
        One row per tree.
    most : int
        0 for none.
    """
    per_row = sum(np.diff(phase.tree_ptr) for phase in phases)
    per_token = np.bincount(demand.token, per_row, minlength=demand.num_tokens)
    total = int(per_token.sum())
    if most <= 0:
        return demand.num_tokens + 1
    stride = max(1, -(-total // most))
    while per_token[::stride].sum() > most and stride <= demand.num_tokens:
        stride += max(1, stride // 20)
    return min(stride, demand.num_tokens + 1)


def messages_of(
    phases: tuple[Phase, ...], result: BlockResult, demand: Demand, network: Network, stride: int
) -> Messages:
    """Messages of every ``stride``-th token.

    Parameters
    ----------
    phases : tuple of Phase
        Dispatch and combine.
    result : BlockResult
        With times.
    demand : Demand
        One row per tree.
    network : Network
    stride : int
    """
    scale = network.cycles_per_ns
    columns: list[tuple[NDArray[np.integer], ...]] = []
    times = (result.dispatch_times, result.combine_times)
    for number, (phase, when) in enumerate(zip(phases, times, strict=True)):
        rows = np.flatnonzero(demand.token % stride == 0) if stride <= demand.num_tokens else np.zeros(0, int)
        count = phase.tree_ptr[rows + 1] - phase.tree_ptr[rows]
        row = np.repeat(rows, count)
        first = np.repeat(phase.tree_ptr[rows] - np.concatenate(([0], np.cumsum(count)))[:-1], count)
        i = first + np.arange(len(row))
        link, queued, start = phase.link[i], when[i, 0], when[i, 1]
        delay = phase.size_bytes / network.bytes_per_cycle[link]
        released = start + delay.astype(np.int64)
        arrived = start + (network.latency[link] + delay).astype(np.int64)
        columns.append((
            np.full(len(i), number, np.int8), demand.token[row], demand.source[row], link,
            np.full(len(i), phase.size_bytes, np.int64),
            queued // scale, start // scale, released // scale, arrived // scale,
        ))  # fmt: skip
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    exact = np.concatenate([when[:, 1] for when in times]) if stride == 1 else joined[6]
    order = np.lexsort((joined[0], exact, joined[3]))
    return Messages(*(column[order] for column in joined))


def lanes_of(messages: Messages, lanes: NDArray[np.int32]) -> NDArray[np.int32]:
    """A lane for each message, so that no lane carries two at a time.

    Which of equal lanes carried a message does not change its time; this takes the lowest that is free.

    Parameters
    ----------
    messages : Messages
    lanes : array of int32, shape (links,)
        Lanes of each link.
    """
    lane = np.zeros(len(messages.link), np.int32)
    for i in np.flatnonzero(lanes[messages.link] > 1):
        if i == 0 or messages.link[i - 1] != messages.link[i]:
            free = [0] * int(lanes[messages.link[i]])
        lane[i] = next((k for k, time in enumerate(free) if time <= messages.start[i]), int(np.argmin(free)))
        free[lane[i]] = int(messages.released[i])
    return lane


def queues_of(phases: tuple[Phase, ...], result: BlockResult, network: Network, most: int) -> Queues:
    """How many messages wait at each link, from all messages.

    Parameters
    ----------
    phases : tuple of Phase
    result : BlockResult
        With times.
    network : Network
    most : int
        Samples that there may be.  Where there are more changes, the most in equal windows of time; nothing
        where there is no room for a window of every link.
    """
    scale, times = network.cycles_per_ns, (result.dispatch_times, result.combine_times)
    link = np.concatenate([phase.link for phase in phases])
    when = np.concatenate([t // scale for t in times])
    waited = when[:, 1] > when[:, 0]
    link, when = link[waited], when[waited]
    at = np.concatenate((when[:, 0], when[:, 1]))
    step = np.repeat(np.array([1, -1]), len(when))
    link = np.tile(link, 2)
    order = np.lexsort((at, link))
    link, at, length = link[order], at[order], np.cumsum(step[order])  # the steps of a link sum to 0
    last = np.ones(len(at), np.bool_)
    last[:-1] = (link[1:] != link[:-1]) | (at[1:] != at[:-1])
    link, at, length = link[last], at[last], length[last]
    before = np.concatenate(([0], length[:-1]))  # 0 at the first of a link too
    changed = length != before
    whole = Queues(link[changed], at[changed], length[changed])
    if len(whole.at) <= most:
        return whole
    return _peaks(whole, max(1, result.completion // scale), most // (2 * network.num_links))


def _peaks(queues: Queues, end_ns: int, windows: int) -> Queues:
    """The most in each of so many equal windows of time."""
    if windows < 1:
        nothing = np.zeros(0, np.int64)
        return Queues(nothing.astype(np.int32), nothing, nothing, end_ns)
    width = -(-(end_ns + 1) // windows)
    window = queues.at // width
    key = queues.link * np.int64(windows + 1) + window
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    peak = np.maximum.reduceat(queues.length, first)
    carried = np.concatenate(([0], queues.length[:-1]))[first]  # what waited when the window began
    left = queues.length[np.concatenate((first[1:] - 1, [len(key) - 1]))]
    follows = np.concatenate((key[first][1:] == key[first][:-1] + 1, [False]))
    link = np.concatenate((queues.link[first], queues.link[first][~follows]))
    at = np.concatenate((window[first] * width, (window[first][~follows] + 1) * width))
    length = np.concatenate((np.maximum(peak, carried), left[~follows]))
    order = np.lexsort((at, link))
    return Queues(link[order], at[order], length[order], int(width))
