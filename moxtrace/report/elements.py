"""Elements of the page, built as a tree: whatever comes from data is text or an attribute, and escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

__all__ = ["clean", "element", "html", "items", "table"]

Element = ElementTree.Element


def clean(text: object) -> str:
    """Text without control characters, which no page may hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def element(tag: str, *inside: Element | str, **attributes: object) -> Element:
    """An element.

    Parameters
    ----------
    tag : str
        One that is not void: it gets an end tag.
    *inside : Element or str
        What stands in it, in order.
    **attributes : object
        Underscores stand for dashes, but one at the end (``class_``) is left out; None leaves one out.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), clean(value))
    for part in inside:
        if isinstance(part, Element):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + clean(part)
        else:
            made.text = (made.text or "") + clean(part)
    return made


def html(*elements: Element) -> str:
    """The elements as text; ``<`` and ``&`` from data are escaped."""
    return "\n".join(
        ElementTree.tostring(one, encoding="unicode", short_empty_elements=False) for one in elements
    )


def items(pairs: Mapping[str, Any]) -> Element:
    """A list of names and values."""
    parts: list[Element] = []
    for name, value in pairs.items():
        parts += [element("dt", name), element("dd", str(value))]
    return element("dl", *parts)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numeric: Sequence[int] = ()
) -> Element:
    """A plain table in a box that scrolls.

    Parameters
    ----------
    columns : sequence of str
    rows : iterable of sequence of str
    caption : str
        What it shows, for those who do not see it.
    numeric : sequence of int
        Columns to align to the right.
    """

    def side(i: int) -> str | None:
        return "n" if i in numeric else None

    head = element("tr", *(element("th", c, scope="col", class_=side(i)) for i, c in enumerate(columns)))
    body = [
        element("tr", *(element("td", cell, class_=side(i)) for i, cell in enumerate(row))) for row in rows
    ]
    made = element("table", element("thead", head), element("tbody", *body), aria_label=caption)
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)
