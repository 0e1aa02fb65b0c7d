"""The page: one HTML file that needs nothing else, the same bytes for the same results.

Goes in: :class:`~moxtrace.plots.results.Results`.  Comes out: a file that works from ``file://``, without a
network.  Its template, style and script lie beside this module; a content policy allows that script only, so
that nothing in the data can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml

from moxtrace import __version__
from moxtrace.errors import ConfigError, MoxtraceError
from moxtrace.outputs import written_aside
from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.style import label_of
from moxtrace.report.columns import constants_of
from moxtrace.report.elements import Element, clean, element, html, items, table
from moxtrace.report.parts import failures, figures, filters, glance, hottest, run_table, setting_or_none

__all__ = ["render", "write_report"]

SECTIONS = {
    "glance": "Policies", "figures": "Figures", "runs": "Runs", "links": "Hottest links",
    "failures": "What failed", "stands": "What it stands on", "config": "Configuration",
}  # fmt: skip

_NOT_SAID = ("format", "columns", "runs")  # of sweep.json: what the page says elsewhere


def _asset(name: str) -> str:
    return (files("moxtrace.report") / name).read_text(encoding="utf-8").strip("\n")


def _example(results: Results) -> Row:
    """A run whose configuration stands for all: the first with results, else the first."""
    return next((row for row in results.rows if row.ok), results.rows[0])


def _stands_on(results: Results, rows: list[Row]) -> list[Element]:
    """Recording, inputs, notes and versions."""
    pairs: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    notes: dict[str, None] = {}
    for row in rows:
        try:
            facts = row.detail.facts
        except MoxtraceError:  # a failed run may have no links
            continue
        pairs.setdefault("traffic", facts.get("stands_on"))
        notes |= dict.fromkeys(map(str, facts.get("warnings", ())))
        inputs |= facts.get("inputs") or {}
    pairs["notes"] = "; ".join(notes)
    for name, column in (
        ("engine", "engine"),
        ("moxtrace", "moxtrace_version"),
        ("ASTRA-sim", "astra_sim_version"),
    ):
        found = dict.fromkeys(
            shown(row.values.get(column), 60) for row in results.rows if row.values.get(column)
        )
        pairs[name] = ", ".join(found)
    pairs["report by"] = f"moxtrace {__version__}"
    made = [items({name: value for name, value in pairs.items() if value})]
    if inputs:
        rows_of = [[name, str(value)] for name, value in inputs.items()]
        made.append(table(["input", "SHA-256"], rows_of, "Inputs"))
    return made


def _config(results: Results) -> list[Element]:
    """What was swept, and one configuration in full."""
    made = []
    if results.keys:
        rows = []
        for key in results.keys:
            values = list(dict.fromkeys(row.values.get(key) for row in results.rows))
            rows.append([key, label_of(key), ", ".join(shown(value, 40) for value in values[:40])])
        made += [element("h3", "Swept keys"), table(["key", "", "values"], rows, "Swept keys")]
    if results.sweep:
        said = {key: value for key, value in results.sweep.items() if value and key not in _NOT_SAID}
        made += [element("h3", "The sweep"), _block(said)]
    example = _example(results)
    try:
        config = example.config
    except MoxtraceError as error:
        return [*made, element("p", f"No resolved configuration: {error}", class_="note")]
    run = shown(example.values.get("run"), 40)
    return [*made, element("h3", f"Resolved configuration of run {run}"), _block(config)]


def _given(value: Any) -> Any:
    """Blocks without the keys that are not set."""
    if isinstance(value, dict):
        return {key: _given(inner) for key, inner in value.items() if inner is not None}
    return value


def _block(value: dict[str, Any]) -> Element:
    """YAML; what is not set is left out."""
    plain = _given(json.loads(json.dumps(value, default=str)))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    return element("pre", text, tabindex=0)


def _lead(results: Results) -> str:
    failed = sum(not row.ok for row in results.rows)
    parts = [f"{len(results.rows):,} run{'' if len(results.rows) == 1 else 's'}"]
    parts.append(f"{failed:,} failed" if failed else "none failed")
    if results.missing:
        parts.append(f"{results.missing:,} not done yet")
    swept = [key for key in results.keys if len({row.values.get(key) for row in results.rows}) > 1]
    if swept:
        parts.append("over " + ", ".join(map(label_of, swept)))
    return "; ".join(parts)


def render(results: Results, name: str) -> str:
    """The page.

    Parameters
    ----------
    results : Results
    name : str
        What the page is about, its heading.

    Raises
    ------
    ConfigError
        When there are no rows at all; failed ones are reported.
    """
    if not results.rows:
        raise ConfigError(f"{results.where}: no results yet; run 'moxtrace sweep' to its end")
    setting = setting_or_none(results) if any(row.ok for row in results.rows) else None
    shown_rows = list(setting.first.values()) if setting else [_example(results)]
    script = _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    links = [element("li", element("a", word, href=f"#{name}")) for name, word in SECTIONS.items()]
    constants = constants_of(results)
    heading = html(element("span", name))
    return Template(_asset("page.html")).substitute(
        title=html(element("b", f"{name}: moxtrace report")).removeprefix("<b>").removesuffix("</b>"),
        heading=heading,
        lead=html(element("span", _lead(results))),
        script_hash=f"sha256-{digest}",
        style=_asset("style.css"),
        script=script,
        contents=html(element("ul", *links)),
        glance=html(*glance(results)),
        figures=html(*figures(results)),
        constants=html(*([items(constants)] if constants else [])),
        filters=html(*filters(results)),
        table=html(run_table(results)),
        links=html(*hottest(setting)),
        failures=html(*failures(results)),
        stands=html(*_stands_on(results, shown_rows)),
        config=html(*_config(results)),
    )


def write_report(results: Results, name: str, path: Path) -> int:
    """Write the page to a file, replacing it.

    Parameters
    ----------
    results : Results
    name : str
    path : path

    Returns
    -------
    int
        Its size in bytes.

    Raises
    ------
    MoxtraceError
        When there is nothing to report, or the file cannot be written.
    """
    page = (render(results, clean(name)) + "\n").encode("utf-8", "replace")
    with written_aside(path) as aside:
        aside.write_bytes(page)
    return len(page)
