"""How every figure looks: column width, colours, words for keys; and how it becomes a file.

Colours are told apart by colour-blind readers, and each policy has dashes and a marker besides.  Loads are
shown in steps of lightness.  The same drawing gives the same bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moxtrace.errors import OutputError
from moxtrace.outputs import written_aside
from moxtrace.plots.results import shown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["ENDINGS", "Drawing", "label_of", "look_of", "save", "svg", "wrapped"]

ENDINGS = (".png", ".svg", ".pdf")
COLUMN = 3.3  # inches
INK, MUTED, FAINT, PAPER = "#22303c", "#5b6670", "#d5dade", "#ffffff"

# the first four fixed, so that a policy looks the same in every figure: Okabe and Ito's, one darker
_LOOKS = {
    "mox": ("#0072b2", "-", "o"),
    "mox-paper": ("#009e73", "-.", "s"),
    "tree": ("#b8588f", "--", "^"),
    "min-hop": ("#d55e00", ":", "D"),
    "switch": ("#5b6670", (0, (1, 1)), "x"),
}
_OTHERS = (
    ("#e69f00", (0, (5, 1)), "v"), ("#56b4e9", (0, (3, 1, 1, 1)), "P"), ("#0072b2", "-", "o"),
    ("#009e73", "-.", "s"), ("#b8588f", "--", "^"), ("#d55e00", ":", "D"),
)  # fmt: skip
# matplotlib's magma_r in ten steps, light to dark; each is told from its neighbours in grey print too
RAMP = (
    "#fde7a9", "#feb97f", "#fc8a62", "#ef5d5e", "#d0416f", "#a8327d", "#802582", "#59157e",
    "#311165", "#0e0b2b",
)  # fmt: skip

_WORDS = {
    "npus": "NPUs",
    "topology.npus": "NPUs",
    "topology.degree": "links per NPU",
    "topology.link_gbps": "link rate (Gbit/s)",
    "topology.latency_ns": "link latency (ns)",
    "topology.lanes": "lanes per link",
    "topology.kind": "topology",
    "topology.seed": "topology seed",
    "traffic.tokens_per_npu": "tokens per NPU",
    "traffic.seed": "traffic seed",
    "placement.kind": "placement",
    "placement.seed": "placement seed",
    "placement.redundant": "redundant expert replicas",
    "model.top_k": "experts per token (top-k)",
    "model.num_experts": "experts",
    "model.hidden_dim": "token width (values)",
    "model.intermediate_dim": "expert width (values)",
    "recording.layer": "recorded layer",
    "recording.path": "recording",
    "routing.policy": "policy",
    "routing.replays": "weight replays",
    "compute.peak_tflops": "peak compute (TFLOP/s)",
    "compute.efficiency": "share of peak compute",
    "compute.reduce_ns_per_byte": "partial sums (ns per byte)",
    "trace.window": "messages in flight per link",
}


def label_of(key: str) -> str:
    """A configuration key in words, with its unit; keys without words stand for themselves."""
    return _WORDS.get(key, shown(key, 40))


def wrapped(text: str, width: int = 56) -> str:
    """A title in lines that fit a column; no more than three."""
    return textwrap.fill(text, width, max_lines=3, placeholder=" \N{HORIZONTAL ELLIPSIS}")


def look_of(names: list[str]) -> dict[str, tuple[str, Any, str]]:
    """Colour, dashes and marker of each name: fixed for policies, the next free ones for others."""
    looks = {name: _LOOKS[name] for name in names if name in _LOOKS}
    taken = {look[0] for look in looks.values()}
    free = [look for look in _OTHERS if look[0] not in taken] or list(_OTHERS)
    others = [name for name in names if name not in looks]
    return looks | {name: free[i % len(free)] for i, name in enumerate(others)}


@dataclass(eq=False)
class Drawing:
    """A figure that has not been drawn yet.

    Parameters
    ----------
    name : str
        Of its file, without an ending.
    title, caption : str
        What it shows, in a line and in a few sentences.
    draw : callable
        Fills a matplotlib figure; tells :meth:`mark` what the marks in it stand for.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Figure, Drawing], None] = field(repr=False)
    tips: dict[str, list[str]] = field(default_factory=dict, repr=False)

    def mark(self, artist: Artist, tips: list[str]) -> None:
        """Say what each mark of an artist stands for, in the order in which it draws them."""
        gid = f"tip{len(self.tips)}"
        artist.set_gid(gid)
        self.tips[gid] = tips


_SETTINGS: dict[str, Any] = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.4, "lines.markersize": 4,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "text.parse_math": False, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.titlecolor": INK, "pdf.fonttype": 42,
    "svg.hashsalt": "moxtrace", "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.03,
}  # fmt: skip


@contextmanager
def _style(**more: Any) -> Iterator[None]:
    """The library's defaults and ours, whatever the user's own settings are."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # a character that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(_SETTINGS | more)
        yield


def _figure(drawing: Drawing) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    drawing.tips.clear()
    drawing.draw(figure, drawing)
    return figure


def save(drawing: Drawing, path: Path) -> None:
    """Draw into a file.

    Parameters
    ----------
    drawing : Drawing
    path : path
        ``.png`` (300 dots per inch), ``.svg`` or ``.pdf``; replaced if it exists.

    Raises
    ------
    OutputError
        When the ending is another one, or the file cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        what = repr(path.suffix) if path.suffix else "no ending"
        raise OutputError(f"{path}: unknown picture format: {what}; expected {', '.join(ENDINGS)}")
    # dates, versions and random ids would make two runs differ
    stamp: dict[str, Any] = {
        ".png": {"Software": None, "Title": drawing.title},
        ".svg": {"Date": None, "Title": drawing.title},
        ".pdf": {"CreationDate": None, "Title": drawing.title},
    }
    with _style(), written_aside(path) as aside:
        _figure(drawing).savefig(aside, dpi=300, metadata=stamp[ending])


def svg(drawing: Drawing) -> str:
    """The drawing as SVG text whose words stay words; ids of marks are those of ``drawing.tips``."""
    with _style(**{"svg.fonttype": "none"}):
        target = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        _figure(drawing).savefig(target, format="svg", transparent=True, metadata=metadata)
    return target.getvalue()
