"""Perfetto's track events read the slow way, and queues counted message by message."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Fields of a message; only numbers and bytes occur."""
    at, out = 0, []
    while at < len(data):
        tag, at = varint(data, at)
        value: int | bytes
        value, at = varint(data, at)
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        else:
            assert tag & 7 == 0, tag
        out.append((tag >> 3, value))
    assert at == len(data)
    return out


def one(data: bytes) -> dict[int, int | bytes]:
    """Fields of a message in which each occurs once."""
    found = dict(fields(data))
    assert len(found) == len(fields(data))
    return found


@dataclass
class Track:
    name: str
    parent: int
    rank: int
    unit: str = ""
    slices: list[dict] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)


def read(data: bytes) -> tuple[dict[int, Track], dict[str, str]]:
    """Tracks with their slices and samples, and the notes of the file."""
    tracks: dict[int, Track] = {}
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    notes: dict[str, str] = {}
    open_slices: dict[int, dict] = {}
    events = []
    for number, body in fields(data):
        assert number == 1
        packet = one(body)
        assert packet[10] == 1
        if 12 in packet:
            for kind, entry in fields(packet[12]):
                pair = one(entry)
                {1: categories, 3: names}[kind][pair[1]] = pair[2].decode()
        elif 60 in packet:
            about = one(packet[60])
            assert about[1] not in tracks
            unit = one(about[8])[6].decode() if 8 in about else ""
            tracks[about[1]] = Track(about[2].decode(), about.get(5, 0), about.get(12, 0), unit)
        else:
            events.append((packet[8], len(events), packet[11]))
    for time, _, body in sorted(events):
        parts = fields(body)
        got = dict(parts)
        shown = [one(value) for number, value in parts if number == 4]
        track = tracks[got[11]]
        if got[9] == 1:
            assert got[11] not in open_slices, "slices of a track overlap"
            values = {names[a[1]]: a[3] for a in shown}
            open_slices[got[11]] = {
                "start": time, "name": got[23].decode(), "category": categories[got[3]], **values,
            }  # fmt: skip
        elif got[9] == 2:
            track.slices.append({**open_slices.pop(got[11]), "end": time})
        elif got[9] == 3:
            notes = {a[10].decode(): a[6].decode() for a in shown}
        else:
            assert got[9] == 4
            track.samples.append((time, got[30]))
    assert not open_slices
    return tracks, notes


def waiting(messages: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Changes of the number of waiting messages of each link, from (link, queued, start) of each."""
    out = defaultdict(list)
    for link in sorted({m[0] for m in messages}):
        mine = [m[1:] for m in messages if m[0] == link]
        before = 0
        for time in sorted({t for pair in mine for t in pair}):
            now = sum(queued <= time < start for queued, start in mine)
            if now != before:
                out[link].append((time, now))
            before = now
    return dict(out)
