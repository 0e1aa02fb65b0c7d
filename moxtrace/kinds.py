"""Kinds of network: the parameters that each takes, and what they are when a configuration does not say.

Goes in: nothing.  Comes out: :data:`KINDS` and :data:`PARAMETERS`, one table for the configuration, the
command line and the builders.  Every kind also takes the parameters in :data:`COMMON`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["COMMON", "KINDS", "PARAMETERS", "POLICIES", "Kind", "Parameter", "misfit", "near"]

COMMON = ("kind", "npus", "degree", "link_gbps", "latency_ns", "lanes", "seed", "failed")
POLICIES = ("min-hop", "tree", "mox-paper", "mox", "switch")  # ways to route


@dataclass(frozen=True)
class Parameter:
    """A number by which networks are built.

    Parameters
    ----------
    text : str
        What it is, in one line.
    form : str
        ``number``, ``numbers`` (a list), ``choice`` or ``file``.
    least, most : int
        Of numbers.
    choices : tuple of str
        What a choice can be.
    """

    text: str
    form: str = "number"
    least: int = 1
    most: int = 4096
    choices: tuple[str, ...] = ()

    def refusal(self, value: Any) -> str | None:
        """What was expected in place of ``value``; None if it fits."""
        if self.form == "choice":
            return None if value in self.choices else near(str(value), self.choices)
        if self.form == "file":
            return None if value else "expected a file"
        many = list(value) if self.form == "numbers" and isinstance(value, list | tuple) else [value]
        if many and all(type(v) is int and self.least <= v <= self.most for v in many):
            return None
        what = "a list of whole numbers" if self.form == "numbers" else "a whole number"
        return f"expected {what} from {self.least} to {self.most}"


@dataclass(frozen=True)
class Kind:
    """A way to build networks.

    Parameters
    ----------
    text : str
        What it is, in one line.
    parameters : mapping of str to value
        Its own parameters and their defaults; None where there is none, or where it follows from others.
    sized_by : tuple of str
        Parameters that say how many NPUs there are, so that ``npus`` can be left out; ``kind``: always.
    link_gbps : float
        Default rate of a lane, Gbit/s.
    """

    text: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sized_by: tuple[str, ...] = ()
    link_gbps: float = 100.0


PARAMETERS: dict[str, Parameter] = {
    "dims": Parameter("lengths of the dimensions, such as [4, 4, 8]", "numbers", 2),
    "twist": Parameter("steps along each dimension that a twisted wrap adds", "numbers", 0),
    "offsets": Parameter("NPU i is linked with i + offset for each of these", "numbers"),
    "dim_lanes": Parameter("cables of a pair, for each dimension", "numbers", most=16),
    "select": Parameter(
        "how an expander is chosen: anneal (few triangles and few distant pairs) or radius (the lowest "
        "radius, diameter and path length of 200)",
        "choice",
        choices=("anneal", "radius"),
    ),
    "proposals": Parameter("swaps that annealing tries", least=0, most=1_000_000_000),
    "path": Parameter("the file: a graph, or a traffic matrix (.csv, .npy)", "file"),
    "groups": Parameter("groups of routers (dragonfly) or of boards (boardfly)", least=2),
    "group_size": Parameter("routers in a group", least=1),
    "global_links": Parameter("links to other groups, per router", most=64),
    "prime_power": Parameter("q of Slim Fly, a prime power other than 2", least=3),
    "symbols": Parameter("letters of the words that name NPUs, which is the degree", least=2, most=1024),
    "word_length": Parameter("letters in a word, which is the diameter"),
    "p": Parameter("prime, 1 modulo 4; the degree is p + 1", least=5),
    "q": Parameter("prime, 1 modulo 4, above 2 sqrt(p)", least=5),
    "nics": Parameter("network cards of a server", most=64),
    "nic_lanes": Parameter("lanes of a network card, each a cable of its own", most=64),
    "boards": Parameter("boards in a group", least=2),
    "chips": Parameter("chips on a board", least=2),
    "board": Parameter("how a board's chips are linked", "choice", choices=("ring", "full")),
    "copper_ports": Parameter("ports of a board towards its group", most=64),
    "optical_ports": Parameter("ports of a board towards other groups", most=64),
    "port_map": Parameter(
        "which chip owns a cable's end: balanced (the chip with the fewest of that sort) or random",
        "choice",
        choices=("balanced", "random"),
    ),
    "wiring": Parameter(
        "whether all groups have the same doubled pairs and copper ports, or each its own",
        "choice",
        choices=("alike", "each"),
    ),
    "spare_optics": Parameter(
        "what optical ports beyond one per group do: dark, or doubled (more cables between groups)",
        "choice",
        choices=("dark", "doubled"),
    ),
    "idle": Parameter(
        "what is left out where npus is below all chips: boards, chips or the last groups",
        "choice",
        choices=("boards", "chips", "groups"),
    ),
}

KINDS: dict[str, Kind] = {
    "ring": Kind("one cycle"),
    "torus": Kind("2-D or 3-D, with wraps", {"dims": None}, ("dims",)),
    "mesh": Kind("1-D to 3-D, without wraps", {"dims": None}, ("dims",)),
    "twisted-torus": Kind(
        "2-D or 3-D; short dimensions wrap with an offset", {"dims": None, "twist": None}, ("dims",)
    ),
    "hypercube": Kind("NPUs whose numbers differ in one bit"),
    "circulant": Kind("a ring with chords of the given offsets", {"offsets": None}),
    "fully-connected": Kind("every pair"),
    "hyperx": Kind("every pair within a row of a dimension", {"dims": None, "dim_lanes": None}, ("dims",)),
    "expander": Kind("random regular, chosen well", {"select": "anneal", "proposals": 1_000_000}),
    "random-regular": Kind("random regular, as drawn (Jellyfish)"),
    "xpander": Kind("random lift of a complete graph"),
    "dragonfly": Kind(
        "fully connected groups, joined by global links",
        {"group_size": None, "global_links": None, "groups": None},
        ("group_size", "global_links"),
    ),
    "slim-fly": Kind("McKay-Miller-Siran graph: diameter 2", {"prime_power": None}, ("prime_power",)),
    "de-bruijn": Kind("words, shifted; one-way links", {"symbols": 2, "word_length": None}, ("word_length",)),
    "kautz": Kind(
        "words without repeats, shifted; one-way", {"symbols": 2, "word_length": None}, ("word_length",)
    ),
    "generalized-kautz": Kind("Imase-Itoh: Kautz of any size; one-way links"),
    "lps": Kind("Lubotzky-Phillips-Sarnak: Ramanujan", {"p": None, "q": None}, ("p",)),
    "nvlink-domains": Kind("random regular, servers as endpoints", {"nics": 8, "nic_lanes": 8}),
    "boardfly": Kind(
        "TPU 8i: chips on boards, boards in groups, groups by optics",
        {
            "groups": None, "boards": 8, "chips": 4, "board": "ring", "copper_ports": 11, "optical_ports": 5,
            "port_map": "balanced", "wiring": "alike", "spare_optics": "dark", "idle": "boards",
        },
        ("kind",),
        1600.0,
    ),
    "demand-tuned": Kind("most direct traffic for a known traffic matrix", {"path": None}, ("kind",)),
    "switch": Kind("one ideal packet switch"),
    "graph": Kind("your own, from a file", {"path": None}, ("kind",)),
}  # fmt: skip


def near(found: str, known: Iterable[str]) -> str:
    """What to expect in place of a name that is not known: the nearest first, then all."""
    known = list(known)
    close = difflib.get_close_matches(found, known, 1)
    hint = f"did you mean {close[0]!r}?; " if close else ""
    return f"{hint}expected one of {', '.join(known)}"


def misfit(kind: str, given: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first key of ``given`` that does not suit ``kind``, and why; None if all do.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    given : mapping
        Keys and values; a value of None counts as not given.
    """
    own = KINDS[kind].parameters
    for name, value in given.items():
        if value is None or name in COMMON:
            continue
        if name not in own:
            takes = ", ".join((*own, *COMMON[1:]))
            return name, f"found {value!r}, which is nothing that kind {kind} has; its keys: {takes}"
        if (expected := PARAMETERS[name].refusal(value)) is not None:
            return name, f"found {value!r}; {expected}"
    return None
