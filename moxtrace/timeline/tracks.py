"""Tracks of a timeline: what there is to see, named, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from moxtrace.timeline.packets import Fields, packet
from moxtrace.topology import Topology

__all__ = ["SEQUENCE", "Tracks", "annotation", "begin", "end", "event"]

# fields of TracePacket, TrackDescriptor, TrackEvent and DebugAnnotation
TIMESTAMP, SEQUENCE_ID, EVENT, FLAGS, INTERNED, DESCRIPTOR = 8, 10, 11, 13, 12, 60
UUID, NAME, PROCESS, PARENT, COUNTER, ORDERING, RANK = 1, 2, 3, 5, 8, 11, 12
CATEGORY_IID, ANNOTATION, TYPE, TRACK, EVENT_NAME, COUNTER_VALUE = 3, 4, 9, 11, 23, 30
SLICE_BEGIN, SLICE_END, INSTANT, COUNT = 1, 2, 3, 4
EXPLICIT, UNIT_COUNT = 3, 2
SEQUENCE = [(SEQUENCE_ID, 1), (FLAGS, 2)]  # one writer, whose names were interned before
CATEGORIES = ("dispatch", "combine", "compute", "about")
ANNOTATIONS = ("token", "source_npu", "bytes", "waited_ns", "arrives_ns")


def event(time: object, kind: int, track: object, rest: Fields = ()) -> Fields:
    """Fields of a packet with an event on a track; numbers may be places."""
    return [(TIMESTAMP, time), *SEQUENCE, (EVENT, [(TYPE, kind), (TRACK, track), *rest])]  # type: ignore[list-item]


def begin(time: object, track: object, name: object, category: str, annotations: Fields = ()) -> Fields:
    """Fields of a packet with which a slice begins."""
    iid = CATEGORIES.index(category) + 1
    return event(time, SLICE_BEGIN, track, [(CATEGORY_IID, iid), (EVENT_NAME, name), *annotations])  # type: ignore[list-item]


def end(time: object, track: object) -> Fields:
    """Fields of a packet with which a track's slice ends."""
    return event(time, SLICE_END, track)


def annotation(name: str, value: object) -> tuple[int, Fields]:
    """A number shown with a slice, whose name is interned."""
    return ANNOTATION, [(1, ANNOTATIONS.index(name) + 1), (3, value)]  # type: ignore[list-item]


class Tracks:
    """Tracks of a network: a group for each node with its phases, its links out, and their queues.

    Parameters
    ----------
    network : Topology
    title : str
        Name of the group that says what the file is.
    """

    def __init__(self, network: Topology, title: str) -> None:
        self.network, self.title = network, title
        nodes = network.num_nodes
        lanes = network.lanes.tolist()
        self._first_phase = 2 + nodes  # 1 is the title's
        self._first_queue = self._first_phase + network.num_npus
        self._first_lane = [self._first_queue + network.num_links]
        for count in lanes:
            self._first_lane.append(self._first_lane[-1] + count)

    def phase(self, npu: int) -> int:
        """Track of an NPU's phases."""
        return self._first_phase + npu

    @property
    def first_queue(self) -> int:
        """Counter of the first link; the others follow."""
        return self._first_queue

    @property
    def first_lane(self) -> list[int]:
        """Track of the first lane of each link; the others follow."""
        return self._first_lane[:-1]

    def node_name(self, node: int) -> str:
        """``NPU 3``, or ``switch``."""
        network = self.network
        return f"NPU {network.npu_name(node)}" if node < network.num_npus else "switch"

    def _link_name(self, link: int) -> str:
        network, hub = self.network, self.network.num_npus
        ends = (network.src[link], network.dst[link])
        return " → ".join("switch" if v >= hub else network.npu_name(v) for v in ends)

    def _child(self, uuid: int, node: int, name: str, rank: int, more: Fields = ()) -> bytes:
        fields: Fields = [(UUID, uuid), (NAME, name), (PARENT, 2 + node), (RANK, rank), *more]
        return packet([*SEQUENCE, (DESCRIPTOR, fields)])

    def _group(self, uuid: int, name: str) -> bytes:
        process: Fields = [(1, uuid), (6, name)]
        fields: Fields = [(UUID, uuid), (NAME, name), (PROCESS, process), (ORDERING, EXPLICIT)]
        return packet([*SEQUENCE, (DESCRIPTOR, fields)])

    def describe(self, queues: bool) -> list[bytes]:
        """Packets that make the tracks known, the names of annotations first.

        Parameters
        ----------
        queues : bool
            Whether there are counters.
        """
        interned: list[tuple[int, Fields]] = []
        for field, names in ((1, CATEGORIES), (3, ANNOTATIONS)):
            interned += [(field, [(1, iid), (2, name)]) for iid, name in enumerate(names, 1)]
        out = [packet([(SEQUENCE_ID, 1), (FLAGS, 1), (INTERNED, interned)]), self._group(1, self.title)]
        network = self.network
        out += [self._group(2 + v, self.node_name(v)) for v in range(network.num_nodes)]
        for npu in range(network.num_npus):
            out.append(self._child(self.phase(npu), npu, "phases", 0))
        for link in range(network.num_links):
            out += self._describe_link(link, queues)
        return out

    def _describe_link(self, link: int, queues: bool) -> list[bytes]:
        network, out = self.network, []
        node, name, lanes = int(network.src[link]), self._link_name(link), int(network.lanes[link])
        rank = 1 + link * (int(network.lanes.max()) + 1)
        for lane in range(lanes):
            which = f", lane {lane}" if lanes > 1 else ""
            rate = f"{network.bandwidth_gbps[link]:g} Gbit/s"
            label = f"{name} ({rate}{which})"
            out.append(self._child(self._first_lane[link] + lane, node, label, rank + lane))
        if queues:
            counter: Sequence[tuple[int, Fields]] = [(COUNTER, [(3, UNIT_COUNT), (6, "messages")])]
            out.append(self._child(self._first_queue + link, node, f"{name} waiting", rank + lanes, counter))
        return out
