"""A timeline: a configuration simulated transfer by transfer, written as Perfetto's track events.

Goes in: a configuration, or a run directory with its own.  Comes out: one file for ui.perfetto.dev or
Perfetto's trace processor.  The same configuration and limit give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import __version__
from moxtrace.baseline import network_of
from moxtrace.config import RunConfig, load
from moxtrace.engine.blocks import simulate_block
from moxtrace.engine.network import Network
from moxtrace.engine.result import BlockResult
from moxtrace.errors import ConfigError, TraceError
from moxtrace.machine import available_memory
from moxtrace.outputs import written_aside
from moxtrace.rundir import Run, sha256_of
from moxtrace.scenario import Scenario, block_of, prepare
from moxtrace.timeline.messages import Messages, Queues, lanes_of, messages_of, queues_of, stride_of
from moxtrace.timeline.packets import Digits, Number, Template, packet
from moxtrace.timeline.tracks import COUNT, COUNTER_VALUE, INSTANT, Tracks, annotation, begin, end, event
from moxtrace.units import format_bytes

__all__ = ["Timeline", "config_of", "timeline_of"]

Progress = Callable[[str, int, int], None]
CHUNK = 1 << 16  # events that are encoded at once
BYTES_PER_TRANSFER = 200  # measured: the block, its times, and the changes of queues sorted
_TIME = Number("time", 8)
_TRACK = Number("track", 5)
_VALUE = Number("value", 5)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Events to be written.

    Parameters
    ----------
    tracks : Tracks
    messages : Messages
    queues : Queues
    phase_ends : array of int64, shape (3, npus)
        When each NPU has dispatched, computed and combined; ns.
    notes : dict of str to str
        What the file says about itself.
    stride : int
        Every so many tokens are in it.
    events : int
        Slices and samples.
    """

    tracks: Tracks
    messages: Messages
    queues: Queues
    phase_ends: NDArray[np.int64]
    notes: dict[str, str]
    stride: int
    events: int

    @property
    def is_sampled(self) -> bool:
        """Whether anything was left out."""
        return self.stride > 1 or self.queues.window_ns > 0

    def sampling(self) -> str:
        """What was left out, in words."""
        return f"messages {self.notes['messages']}; waiting {self.notes['waiting']}"

    def write(self, path: Path) -> int:
        """Write the file; returns its size in bytes.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        size = 0
        with written_aside(path) as aside, aside.open("wb") as file:
            for chunk in self.chunks():
                size += file.write(chunk)
        return size

    def chunks(self) -> Iterator[bytes]:
        """The file in pieces."""
        yield b"".join(self.tracks.describe(len(self.queues.at) > 0))
        yield self._about()
        yield b"".join(self._phases())
        yield from _events(self.messages, self.queues, self.tracks)

    def _about(self) -> bytes:
        """An instant at time 0 that carries the notes."""
        notes = [(4, [(10, name), (6, text)]) for name, text in self.notes.items()]
        return packet(event(0, INSTANT, 1, [(23, "about this timeline"), *notes]))

    def _phases(self) -> Iterator[bytes]:
        for npu, ends in enumerate(self.phase_ends.T.tolist()):
            track, at = self.tracks.phase(npu), 0
            for name, stop in zip(("dispatch", "compute", "combine"), ends, strict=True):
                yield packet(begin(at, track, name, name))
                yield packet(end(stop, track))
                at = stop


def _events(messages: Messages, queues: Queues, tracks: Tracks) -> Iterator[bytes]:
    """Slices of messages and samples of queues in the order of time; a slice ends before the next begins."""
    lane = lanes_of(messages, tracks.network.lanes)
    track = np.array(tracks.first_lane, np.int64)[messages.link] + lane
    by_track = np.lexsort((np.arange(len(track)), track))
    at = np.column_stack((messages.start, messages.released))[by_track].reshape(-1)
    time = np.concatenate((at, queues.at))
    digits = len(str(int(messages.token.max(initial=0))))
    kinds = [_begin(name, digits) for name in ("dispatch", "combine")]
    kinds += [Template(end(_TIME, _TRACK)), Template(event(_TIME, COUNT, _TRACK, [(COUNTER_VALUE, _VALUE)]))]
    kind = np.full(len(time), 3, np.int8)
    kind[: len(at) : 2] = messages.phase[by_track]
    kind[1 : len(at) : 2] = 2
    index = np.concatenate((np.repeat(by_track, 2), np.arange(len(queues.at))))
    columns: list[dict[str, NDArray[Any]]] = [
        {
            "track": track, "token": messages.token, "source_npu": messages.source,
            "bytes": messages.size_bytes, "waited_ns": messages.start - messages.queued,
            "arrives_ns": messages.arrived,
        },
        {"track": track},
        {"track": tracks.first_queue + queues.link.astype(np.int64), "value": queues.length},
    ]  # fmt: skip
    order = np.argsort(time, kind="stable")
    for first in range(0, len(order), CHUNK):
        some = order[first : first + CHUNK]
        yield _interleaved(kinds, columns, kind[some], index[some], time[some])


def _begin(phase: str, digits: int) -> Template:
    """A message enters a link: ``dispatch 000123``."""
    shown = [("token", 5), ("source_npu", 3), ("bytes", 9), ("waited_ns", 8), ("arrives_ns", 8)]
    annotations = [annotation(name, Number(name, width)) for name, width in shown]
    return Template(begin(_TIME, _TRACK, Digits(f"{phase} ", "token", digits), phase, annotations))


def _interleaved(
    kinds: list[Template],
    columns: list[dict[str, NDArray[Any]]],
    kind: NDArray[np.int8],
    index: NDArray[np.int64],
    time: NDArray[np.int64],
) -> bytes:
    """Packets of several kinds, one behind the other."""
    width = np.array([template.width for template in kinds])[kind]
    stop = np.cumsum(width)
    out = np.empty(int(stop[-1]), np.uint8)
    for k, template in enumerate(kinds):
        mine = np.flatnonzero(kind == k)
        if len(mine):
            taken = {name: column[index[mine]] for name, column in columns[max(k - 1, 0)].items()}
            rows = template.rows({**taken, "time": time[mine]})
            out[(stop - width)[mine][:, None] + np.arange(template.width)] = rows
    return out.tobytes()


def _refuse_too_large(transfers: int) -> None:
    """Refuse what does not fit into memory before it is simulated."""
    needed, there = BYTES_PER_TRANSFER * transfers, available_memory()
    if there is not None and needed > there:
        raise ConfigError(
            f"timeline: {transfers:,} messages need about {format_bytes(needed)}; {format_bytes(there)} are "
            "free: use fewer tokens (--set traffic.tokens_per_npu=...) or NPUs"
        )


def config_of(run: Run) -> RunConfig:
    """The configuration that a run directory was generated from.

    Raises
    ------
    TraceError
        When it, or a file that it names, is missing or was changed.
    ConfigError
        When this version does not know it.
    """
    name = "config.resolved.yaml"
    for file, facts in run.manifest["files"].items():
        if file != name and not file.startswith("inputs/"):
            continue
        path = run.path / file
        if not path.is_file() or sha256_of(path) != facts["sha256"]:
            raise TraceError(
                f"{path}: is missing or was changed since the run was generated; generate it again"
            )
    return load(run.path / name)


def timeline_of(config: RunConfig, max_events: int, progress: Progress | None = None) -> Timeline:
    """Simulate a configuration and collect the events of its timeline.

    Queues get a third of the events at most, messages the rest.  Where all messages do not fit, those of
    every k-th token are kept, whole trees; where not all changes of the queues fit, their peaks in windows.

    Parameters
    ----------
    config : RunConfig
    max_events : int
        Messages and samples of queues that there may be together; the phases of NPUs come on top.
    progress : callable, optional
        Called with (step, done, total).

    Raises
    ------
    MoxtraceError
        When the configuration cannot be carried out.
    """
    if max_events < 1:
        raise ConfigError(f"--max-events: {max_events}; expected at least 1")
    tell = progress or (lambda step, done, total: None)
    scenario = prepare(config, progress=partial(tell, "tokens"))
    block = block_of(scenario, partial(tell, "routes"), partial(tell, "weights"))
    phases = (block.dispatch, block.combine)
    total = sum(phase.num_transfers for phase in phases)
    _refuse_too_large(total)
    network = network_of(scenario.topology, config.trace.time_scale)
    result = simulate_block(
        block.dispatch, block.combine, block.compute_ns, network, barrier=config.trace.barrier,
        reduce_ns_per_byte=block.reduce_ns_per_byte, progress=partial(tell, "simulate"), order=False,
        times=True,
    )  # fmt: skip
    tell("timeline", 0, 1)
    demand = scenario.demand.unicast() if scenario.sends_copies else scenario.demand
    queues = queues_of(phases, result, network, max_events // 3)
    stride = stride_of(phases, demand, max_events - len(queues.at))
    messages = messages_of(phases, result, demand, network, stride)
    notes = _notes(scenario, result, network, queues, stride, (len(messages.link), total))
    title = "about: all messages" if stride == 1 else f"about: one token in {stride} only, see its event"
    ends = np.stack((result.dispatch_done, result.compute_done, result.finished)) // network.cycles_per_ns
    events = len(messages.link) + len(queues.at)
    return Timeline(Tracks(scenario.topology, title), messages, queues, ends, notes, stride, events)


def _notes(
    scenario: Scenario,
    result: BlockResult,
    network: Network,
    queues: Queues,
    stride: int,
    kept: tuple[int, int],
) -> dict[str, str]:
    """What the file says about itself."""
    config, graph = scenario.config, scenario.topology
    which = "all" if stride == 1 else f"those of one token in {stride}"
    lengths = "every change" if queues.window_ns == 0 else f"the most in windows of {queues.window_ns} ns"
    return {
        "made by": f"moxtrace {__version__}",
        "what": f"{graph.num_npus} NPUs, {graph.kind}, policy {config.routing.policy}",
        "stands on": scenario.stands_on,
        "messages": f"{kept[0]} of {kept[1]}: {which}",
        "waiting": f"{lengths}, of all messages" if len(queues.at) else "not shown",
        "times": "simulated transfer by transfer, without the windows of traces; a slice is the time for "
        "which a link is busy with a message",
        "completion_ns": f"{result.completion / network.cycles_per_ns:.3f}",
    }
