"""Boardfly, the network of TPU 8i pods: chips on boards, boards in groups, groups joined by optics.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

Published
---------
A board has 4 chips in a ring and 16 ports; a group is 8 boards, fully connected over copper with 11 ports of
each; a pod is up to 36 groups over optical circuit switches, up to 1,024 of its 1,152 chips active, with a
diameter of at most 7.  A chip has 6 links of 400 GB/s, which is 1,600 Gbit/s each way.

Not published, so parameters
----------------------------
Which chip owns which port (``port_map``), which board pairs have the second cable that the 11 ports allow,
and whether all groups are alike in this (``wiring``), what optical ports beyond one for each other group do
(``spare_optics``), and which chips are idle (``idle``, where ``npus`` is below all chips).  A caption calls
the board fully connected, but then chips would have 7 links: ``board: full``.

References
----------
Google Cloud, technical deep dive on TPU 8i, 2026-04-22.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology import expander
from moxtrace.topology.draws import order, ranks
from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Ends, Request, Wiring, choices

__all__ = ["boardfly"]

COPPER, OPTICAL, IDLE = 1, 2, 3  # purposes of draws
SORTS = ("board", "copper", "optical")


class _Ports:
    """Who owns the next free port of a board.

    Parameters
    ----------
    boards, chips, per_board : int
        Of a group, of a board, and ports of a board.
    balanced : bool
        Of the chips with a free port, take the one with the fewest ports of the sort, then with the fewest
        to that peer, then with the fewest in all; otherwise ports belong to chips in a random order.
    key : tuple of int
        Of the draws.
    """

    def __init__(self, boards: int, chips: int, per_board: int, balanced: bool, key: tuple[int, ...]) -> None:
        self.used = np.zeros((2, boards, chips), int)
        self.peers: dict[tuple[int, int, int], int] = {}
        self.balanced = balanced
        self.most = -(-per_board // chips)
        tie = ranks(boards * per_board * chips, *key, 0).reshape(boards, per_board, chips)
        self.tie = np.argsort(tie, axis=2)
        slots = np.arange(per_board) % chips
        self.slots = np.stack([slots[order(per_board, *key, 1, b)] for b in range(boards)])

    def take(self, sort: int, board: int, peer: int) -> int:
        """The chip of the next port of ``board``, for a cable to ``peer``."""
        used = self.used[:, board]
        turn = int(used.sum())
        if self.balanced:
            chip = min(
                range(used.shape[1]),
                key=lambda c: (
                    used[:, c].sum() == self.most,
                    used[sort, c],
                    self.peers.get((board, c, peer), 0),
                    used[:, c].sum(),
                    self.tie[board, turn, c],
                ),
            )
        else:
            chip = int(self.slots[board, turn])
        used[sort, chip] += 1
        self.peers[board, chip, peer] = self.peers.get((board, chip, peer), 0) + 1
        return chip


def _shape(request: Request) -> tuple[int, int, int]:
    """(groups, boards, chips), once the ports are known to suffice."""
    groups, boards, chips, copper, optical = request.only(
        ("groups", "boards", "chips", "copper_ports", "optical_ports")
    )
    per_group = boards * chips
    if groups is None:
        groups = 36 if request.npus is None else max(2, -(-request.npus // per_group))
    if groups * per_group > MAX_NPUS:
        raise request.refuse(
            f"{groups} groups of {boards} boards of {chips} chips are {groups * per_group} NPUs; expected at "
            f"most {MAX_NPUS}"
        )
    if groups - 1 > boards * optical:
        most = boards * optical + 1
        raise request.refuse(
            f"{groups} groups need {groups - 1} optical ports in each, but {boards} boards with {optical} "
            f"have {boards * optical}; the nearest: groups: {most}, which is {most * per_group} NPUs"
        )
    extra = copper - (boards - 1)
    if extra < 0 or extra % (boards - 1) * boards % 2:
        fits = [k for k in (copper - 1, copper + 1) if k >= boards - 1] or [boards - 1]
        raise request.refuse(
            f"copper_ports {copper} for {boards} boards; expected at least {boards - 1}, an even number of "
            f"ports in all; the nearest: {choices(fits)}"
        )
    if request.npus is not None and request.npus > groups * per_group:
        raise request.refuse(
            f"npus {request.npus}, but {groups} groups of {boards} boards of {chips} chips hold "
            f"{groups * per_group}; the nearest: groups: {-(-request.npus // per_group)}"
        )
    return groups, boards, chips


def _rounds(nodes: int, ports: int, seed: int, number: int) -> list[tuple[int, int]]:
    """Pairs of ``nodes`` so that each has ``ports``: all pairs in whole rounds, the rest drawn regular."""
    whole, left = divmod(ports, nodes - 1)
    pairs = list(combinations(range(nodes), 2)) * whole
    if left:
        pairs += [(int(a), int(b)) for a, b in expander.draw(nodes, left, seed, number)]
    return sorted(pairs)


def _group_pairs(request: Request, groups: int, ports: int) -> list[tuple[int, int]]:
    """Groups that share an optical cable, in the order in which they choose their ports."""
    if request.own["spare_optics"] == "dark":
        ports = groups - 1
    elif groups * (ports % (groups - 1)) % 2:
        ports -= 1  # an odd number of ends in all
    pairs = _rounds(groups, ports, request.seed, groups)
    return [pairs[i] for i in order(len(pairs), request.seed, OPTICAL)]


def _copper(request: Request, boards: int, group: int) -> list[tuple[int, int]]:
    pairs = _rounds(boards, request.own["copper_ports"], request.seed, group)
    return [pairs[i] for i in order(len(pairs), request.seed, COPPER, group)]


def _cables(request: Request, groups: int, boards: int, chips: int) -> list[tuple[int, int, int]]:
    """(sort, NPU, NPU) of every cable."""
    chip_pairs = list(combinations(range(chips), 2))
    if request.own["board"] == "ring":
        chip_pairs = sorted({(min(c, (c + 1) % chips), max(c, (c + 1) % chips)) for c in range(chips)})
    balanced = request.own["port_map"] == "balanced"
    optical = request.own["optical_ports"]
    per_board = request.own["copper_ports"] + optical
    cables = []
    ports = []
    for g in range(groups):
        like = 0 if request.own["wiring"] == "alike" else g
        own = _Ports(boards, chips, per_board, balanced, (request.seed, COPPER, like))
        ports.append(own)
        base = g * boards * chips
        for board in range(base, base + boards * chips, chips):
            cables += [(0, board + c, board + d) for c, d in chip_pairs]
        for a, b in _copper(request, boards, like):
            ends = own.take(0, a, b), own.take(0, b, a)
            cables.append((1, base + a * chips + ends[0], base + b * chips + ends[1]))
    pairs = _group_pairs(request, groups, boards * optical)
    tie = ranks(2 * len(pairs) * boards, request.seed, OPTICAL, 1).reshape(len(pairs), 2, boards)
    for k, pair in enumerate(pairs):
        chosen = []
        for side, (g, peer) in enumerate((pair, pair[::-1])):
            taken = ports[g].used[1].sum(axis=1)
            board = min(range(boards), key=lambda b: (taken[b], tie[k, side, b]))  # noqa: B023
            chosen.append((g * boards + board) * chips + ports[g].take(1, board, boards + peer))
        cables.append((2, chosen[0], chosen[1]))
    return cables


def _active(request: Request, groups: int, boards: int, chips: int) -> NDArray[np.int64]:
    """Chips that are there, ascending."""
    every = groups * boards * chips
    npus = every if request.npus is None else request.npus
    idle, count = request.own["idle"], every - npus
    if idle == "groups":
        leaving = np.arange(every)[::-1]
    elif idle == "chips":
        leaving = order(every, request.seed, IDLE)
    else:
        first = order(groups * boards, request.seed, IDLE) * chips
        leaving = (first[:, None] + np.arange(chips)).ravel()
    return np.sort(leaving[count:])


def boardfly(request: Request) -> Wiring:
    """Chips are numbered board by board, group by group, and called ``g0b0c0`` for group, board and chip."""
    groups, boards, chips = _shape(request)
    sort, first, second = np.array(_cables(request, groups, boards, chips)).T
    active = _active(request, groups, boards, chips)
    new = np.full(groups * boards * chips, -1)
    new[active] = np.arange(len(active))
    ends: Ends = new[np.stack((first, second), axis=1)]
    there = (ends >= 0).all(axis=1)
    names = tuple(f"g{i // chips // boards}b{i // chips % boards}c{i % chips}" for i in active)
    count = np.bincount(sort[there], minlength=3)
    cables = dict(zip(SORTS, count.tolist(), strict=True))
    return Wiring(len(active), ends[there], names=names, settled={"groups": groups, "cables": cables})
