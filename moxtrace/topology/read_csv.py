"""Edge CSV.

Goes in: text.  Comes out: rows, in the file's order.

The header is ``src,dst,gbps[,latency_ns][,lanes]`` (any order).  Lines that start with ``#`` are comments,
but for these, which :mod:`moxtrace.topology.writers` writes:

========================= =============================================================
``# npus: 16``            how many NPUs there are
``# nodes: a,b,c``        their names, in order
``# switch: hub``         this node is an ideal switch, no NPU; every link starts or ends there
``# links: 128``          how many rows follow, so that a cut file is noticed
========================= =============================================================
"""

from __future__ import annotations

import csv
import difflib

from moxtrace.topology.draft import Draft, Row

__all__ = ["read_csv"]

COLUMNS = ("src", "dst", "gbps", "latency_ns", "lanes")


def read_csv(draft: Draft, text: str) -> None:
    """Take in an edge CSV."""
    header: list[str] | None = None
    declared: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        at = Row("", "", None, None, None, number)
        if line.startswith("#"):
            links = _comment(draft, line[1:], at)
            declared = declared if links is None else links
            continue
        if not line:
            continue
        cells = _cells(draft, line, at)
        if header is None:
            header = _header(draft, cells, at)
            continue
        if len(cells) != len(header):
            found = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            draft.refuse(f"{found}, the header has {len(header)}; is the file cut?", at)
        values = dict(zip(header, cells, strict=True))
        gbps, latency, lanes = (values.get(name) or None for name in COLUMNS[2:])
        row = Row(values["src"], values["dst"], gbps, latency, lanes, number)
        if not row.src or not row.dst:
            draft.refuse("src or dst is empty; expected two nodes", row)
        draft.rows.append(row)
    if header is None:
        draft.refuse("has no header; expected src,dst,gbps[,latency_ns][,lanes]")
    if declared not in (None, len(draft.rows)):
        draft.refuse(f"has {len(draft.rows)} links, its comment says {declared}; is the file cut?")


def _cells(draft: Draft, line: str, at: Row) -> list[str]:
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        return next(csv.reader([line], strict=True, skipinitialspace=True))
    except csv.Error as error:
        draft.refuse(f"is no CSV: {error}", at)


def _header(draft: Draft, cells: list[str], at: Row) -> list[str]:
    header = ["gbps" if name == "bandwidth_gbps" else name for name in map(str.lower, cells)]
    missing = [name for name in COLUMNS[:3] if name not in header]
    if missing:
        draft.refuse(f"no column {', '.join(missing)}; expected src,dst,gbps[,latency_ns][,lanes]", at)
    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f", did you mean {near[0]}?" if near else ""
            draft.refuse(f"unknown column {name!r}{hint}; expected src,dst,gbps[,latency_ns][,lanes]", at)
        if header.count(name) > 1:
            draft.refuse(f"column {name} stands twice", at)
    return header


def _comment(draft: Draft, comment: str, at: Row) -> int | None:
    """Take a declaration in; returns the number of links where it declares that."""
    key, colon, value = (part.strip() for part in comment.partition(":"))
    if not colon or key not in ("npus", "nodes", "switch", "links"):
        return None
    if key == "nodes":
        draft.nodes = _cells(draft, value, at)
    elif key == "switch":
        draft.switch = _cells(draft, value, at)[0]
    elif not value.isdecimal():
        draft.refuse(f"{key}: {value!r}; expected a number", at)
    elif key == "links":
        return int(value)
    else:
        draft.npus = int(value)
    return None
