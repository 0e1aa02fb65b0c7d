"""Drawings as inline SVG: colours by theme, words as text, a tip on every mark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from moxtrace.plots import style
from moxtrace.plots.style import Drawing
from moxtrace.report.elements import Element, clean, element

__all__ = ["figure", "picture"]

# colours of the figures to the page's variables, which the style sheet gives for both themes
VARIABLES = {
    style.INK: "ink", style.MUTED: "muted", style.FAINT: "faint", style.PAPER: "paper", "#0072b2": "mox",
    "#009e73": "mox-paper", "#b8588f": "tree", "#d55e00": "min-hop", "#e69f00": "other1", "#56b4e9": "other2",
    **{colour: f"r{i}" for i, colour in enumerate(style.RAMP)},
}  # fmt: skip
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\s*font-family:[^;]*;|font: ([\d.]+px) [^;]*")
_REFERENCE = re.compile(r"url\(#|^#")


def _local(name: str) -> str:
    """A name without its namespace: SVG in a page needs none."""
    return name.rpartition("}")[2]


def _themed(style_text: str) -> str:
    """A style whose colours follow the theme, and whose font is the page's."""
    text = _COLOUR.sub(lambda m: f"var(--{VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], style_text)
    return _FONT.sub(lambda m: f"font-size: {m[1]}" if m[1] else "", text).strip()


def _copy(source: Element, prefix: str, tips: dict[str, list[str]]) -> Element:
    """The element and all below it, ids made unique in the page."""
    made = Element(_local(source.tag))
    made.text, made.tail = (source.text or "").strip() or None, None
    for name, value in source.items():
        name = _local(name)
        if name == "id":
            value = prefix + value
        elif name == "style":
            value = _themed(value)
        elif name == "d":
            value = " ".join(value.split())
        else:
            value = _REFERENCE.sub(lambda m: m[0] + prefix, value)
        made.set(name, value)
    made.extend(
        _copy(child, prefix, tips) for child in source if _local(child.tag) not in ("metadata", "style")
    )
    marks = tips.get(source.get("id", ""))
    if marks is not None:
        _put_tips(made, marks)
    return made


def _put_tips(group: Element, tips: list[str]) -> None:
    """Give each mark of a group its tip; both are in drawing order."""
    marks = [e for e in group.iter() if e.tag in ("use", "path") and e.get("id") is None]
    for mark, tip in zip(marks, tips, strict=True):
        mark.set("data-tip", clean(tip))


def picture(drawing: Drawing, name: str) -> Element:
    """A drawing as an ``svg`` element of the page.

    Parameters
    ----------
    drawing : Drawing
    name : str
        Prefix of every id in it, unique in the page.
    """
    root = ElementTree.fromstring(style.svg(drawing))
    made = _copy(root, f"{name}-", drawing.tips)
    for key in ("width", "height", "version"):
        made.attrib.pop(key, None)
    made.attrib |= {"role": "img", "tabindex": "0", "focusable": "true", "aria-labelledby": f"{name}-title"}
    made.set("aria-describedby", f"{name}-caption")
    return made


def figure(drawing: Drawing, name: str) -> Element:
    """A drawing with its title, its caption and the buttons that zoom it."""
    title = clean(drawing.title)
    svg = picture(drawing, name)  # first: drawing it may complete the caption
    buttons = (("\N{MINUS SIGN}", "Zoom out"), ("1:1", "Show all"), ("+", "Zoom in"))
    tools = element(
        "div",
        *(
            element("button", sign, type="button", aria_label=f"{what}: {title}", title=what)
            for sign, what in buttons
        ),
        class_="tools js",
    )
    return element(
        "figure",
        element("div", element("h3", title, id=f"{name}-title"), tools, class_="head"),
        element("div", svg, class_="frame"),
        element("figcaption", drawing.caption, id=f"{name}-caption"),
    )
