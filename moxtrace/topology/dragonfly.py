"""Dragonfly: fully connected groups of routers, joined by global links.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

Router r of group i is NPU ``i * group_size + r`` and owns ``global_links`` global ports, numbered through the
group.  Ports lead 1 group on, 1 back, 2 on, 2 back and so forth, so with one port fewer than groups every two
groups share one cable.  Fewer groups are joined by whole rounds more, the last of which may be partial.

References
----------
Kim, Dally, Scott and Abts, Technology-driven, highly-scalable dragonfly topology, ISCA 2008: a balanced one
has group_size = 2 * global_links.
"""

from __future__ import annotations

import numpy as np

from moxtrace.topology.request import Ends, Request, Wiring, choices, nearest

__all__ = ["dragonfly"]


def _shape(request: Request) -> tuple[int, int, int]:
    """(group size, global links per router, groups)."""
    size, links, groups = request.only(("group_size", "global_links", "groups"))
    if size is None and links is None:
        npus = request.need_npus()
        balanced = {2 * h * (2 * h * h + 1): h for h in range(1, 11)}
        if groups is not None or npus not in balanced:
            near = nearest(npus, balanced)
            raise request.refuse(
                f"{npus} NPUs and no group_size; a balanced one has {choices(near)}, or give group_size, "
                "global_links and groups"
            )
        links = balanced[npus]
    size = 2 * links if size is None else size
    links = max(1, size // 2) if links is None else links
    most = size * links + 1
    groups = most if groups is None else groups
    if groups > most:
        raise request.refuse(
            f"groups {groups}, but {size} routers with {links} global links reach {most - 1} others; the "
            f"nearest: groups: {most}, or global_links: {-(-(groups - 1) // size)}"
        )
    request.sized(groups * size, f"{groups} groups of {size} have")
    return size, links, groups


def _steps(groups: int, ports: int) -> list[int]:
    """Groups further on to which the ports of a round lead: 1, -1, 2, -2, ..., and to the opposite group.

    Each step stands beside its opposite, so a partial round joins whole rings of groups; with an odd number
    of ports the last leads to the opposite group, or is dark where there is none.
    """
    steps = [sign * (k // 2 + 1) for k in range(0, ports - 1, 2) for sign in (1, -1)]
    return [*steps, groups // 2] if ports % 2 and groups % 2 == 0 else steps


def _global(size: int, links: int, groups: int) -> Ends:
    """Cables between groups."""
    ends = []
    here = np.arange(groups)
    for first in range(0, size * links, groups - 1):
        steps = _steps(groups, min(groups - 1, size * links - first))
        for k, step in enumerate(steps):
            there = (here + step) % groups
            if step < 0:
                continue  # the same cables, seen from their other ends
            opposite = 2 * step == groups
            back = k if opposite else k + 1
            pair = np.stack(
                (here * size + (first + k) // links, there * size + (first + back) // links), axis=1
            )
            ends.append(pair[: groups // 2] if opposite else pair)
    return np.concatenate(ends)


def dragonfly(request: Request) -> Wiring:
    """Groups that are complete graphs, with cables between every two of them."""
    size, links, groups = _shape(request)
    low, high = np.triu_indices(size, 1)
    base = np.repeat(np.arange(groups) * size, len(low))
    local = np.stack((base + np.tile(low, groups), base + np.tile(high, groups)), axis=1)
    ends = np.concatenate((local, _global(size, links, groups)))
    settled = {"group_size": size, "global_links": links, "groups": groups}
    return Wiring(groups * size, ends, settled=settled)
