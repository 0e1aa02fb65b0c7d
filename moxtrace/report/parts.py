"""The parts of the page: each takes results and gives elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from moxtrace.errors import ConfigError, MoxtraceError
from moxtrace.plots.figures import KINDS, drawings
from moxtrace.plots.loads import loads_of
from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.setting import Setting, setting_of
from moxtrace.plots.style import label_of
from moxtrace.report.columns import columns_of, heading_of, reading_of
from moxtrace.report.elements import Element, element, table
from moxtrace.report.pictures import figure
from moxtrace.units import format_bytes

__all__ = ["failures", "figures", "filters", "glance", "hottest", "run_table", "setting_or_none"]

MOST_CHOICES = 60
HOTTEST = 10
LONG = ("reason",)


def _note(text: str) -> Element:
    return element("p", text, class_="note")


def setting_or_none(results: Results) -> Setting | None:
    """The setting whose network the figures show; None where no run has link loads."""
    try:
        return setting_of(results)
    except ConfigError:
        return None


def _median(rows: Sequence[Row], column: str) -> str:
    values = [row.values[column] for row in rows if isinstance(row.values.get(column), (int, float))]
    if not values:
        return ""
    text = reading_of(column)(float(np.median(values)))
    if min(values) < max(values):
        text += f" ({reading_of(column)(min(values))} to {reading_of(column)(max(values))})"
    return text


def glance(results: Results) -> list[Element]:
    """Each policy over all its runs: medians, and the range."""
    policies: dict[str, list[Row]] = {}
    for row in results.rows:
        policies.setdefault(row.policy, []).append(row)
    columns = ("slowdown", "max_link_load", "bandwidth_tax", "completion_ns")
    rows = []
    for policy, mine in policies.items():
        good = [row for row in mine if row.ok]
        failed = len(mine) - len(good)
        rows.append(
            [policy, str(len(mine)), str(failed) if failed else "", *(_median(good, c) for c in columns)]
        )
    made = table(
        ["policy", "runs", "failed", *map(heading_of, columns)], rows, "Policies at a glance", range(1, 7)
    )
    return [_note("Median over all runs of a policy, and the lowest and highest."), made]


def figures(results: Results) -> list[Element]:
    """Every figure that the results allow, and why others are not there."""
    made: list[Element] = []
    missing: list[Element] = []
    for kind in KINDS:
        try:
            drawn = drawings(results, kind, apart=True)
            made += [figure(drawing, f"f{len(made) + i}") for i, drawing in enumerate(drawn)]
        except MoxtraceError as error:
            missing.append(_note(f"Not drawn: {kind}: {error}"))
    return [element("div", *made, class_="side"), *missing] if made else missing


def filters(results: Results) -> list[Element]:
    """A choice of values for each column in which runs differ in a few words or numbers."""
    made: list[Element] = []
    swept = {*results.keys, "policy", "npus", "topology", "status", "engine"}
    for i, column in enumerate(columns_of(results)):
        read = reading_of(column)
        values = list(dict.fromkeys(row.values.get(column) for row in results.rows))
        if column not in swept or not 1 < len(values) <= MOST_CHOICES:
            continue
        if all(isinstance(value, (int, float)) for value in values):
            values.sort()
        options = [element("option", read(value) or "(empty)", value=_raw(value)) for value in values]
        choice = element("select", element("option", "all", value="all"), *options, data_column=i)
        made.append(element("label", f"{heading_of(column)} ", choice))
    return made


def _raw(value: object) -> str:
    """What the page sorts and filters by."""
    return "" if value is None else str(value)


def _cell(column: str, value: object) -> Element:
    number = isinstance(value, (int, float))
    text = reading_of(column)(value)
    kind = "n" if number else "long" if column in LONG else "bad" if value == "failed" else None
    same = text == _raw(value)
    return element("td", text, class_=kind, data_v=None if same else _raw(value))


def run_table(results: Results) -> Element:
    """Every run, failed ones too; the heads are buttons that sort."""
    columns = columns_of(results)
    numeric = {
        column
        for column in columns
        if any(isinstance(r.values.get(column), (int, float)) for r in results.rows)
    }
    heads = [
        element(
            "th",
            element("button", heading_of(c), type="button"),
            scope="col",
            class_="n" if c in numeric else None,
        )
        for c in columns
    ]
    body = (element("tr", *(_cell(c, row.values.get(c)) for c in columns)) for row in results.rows)
    made = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        aria_label="Runs, one per row",
    )
    return element(
        "div", made, id="table", class_="scroll", tabindex=0, role="region", aria_label="Table of runs"
    )


def _hottest_of(row: Row) -> Iterator[list[str]]:
    detail, loads = row.detail, loads_of(row)
    network = detail.topology
    order = np.argsort(-loads, kind="stable")[:HOTTEST]
    for rank, e in enumerate(order, 1):
        ends = (
            network.npu_name(end) if end < network.num_npus else "switch"
            for end in (network.src[e], network.dst[e])
        )
        yield [
            str(rank), " \N{RIGHTWARDS ARROW} ".join(ends), f"{loads[e]:.3f}",
            format_bytes(detail.dispatch_bytes[e]), format_bytes(detail.combine_bytes[e]),
        ]  # fmt: skip


def hottest(setting: Setting | None) -> list[Element]:
    """The busiest links of each policy, in the setting that the figures show."""
    if setting is None:
        return [_note("No run has link loads.")]
    try:
        return _hottest_tables(setting)
    except ConfigError as error:
        return [_note(f"No links: {error}")]


def _hottest_tables(setting: Setting) -> list[Element]:
    columns = ["", "link", "load / port", "dispatch", "combine"]
    made = []
    for policy, row in setting.first.items():
        rows = table(columns, _hottest_of(row), f"Hottest links, {policy}", (0, 2, 3, 4))
        made.append(element("div", element("h3", policy), rows))
    said = f"The {HOTTEST} busiest links in dispatch, over the ideal switch's busiest port: {setting.title}."
    return [_note(said), element("div", *made, class_="side")]


def failures(results: Results) -> list[Element]:
    """Every failed run and its reason."""
    failed = [row for row in results.rows if not row.ok]
    if not failed:
        return [
            _note(
                f"Nothing: all {len(results.rows)} runs have results."
                if len(results.rows) > 1
                else "Nothing."
            )
        ]
    keys = [key for key in results.keys if key != "repeat"]
    rows = [
        [
            shown(row.values.get("run"), 16), *(shown(row.values.get(key)) for key in keys),
            shown(row.values.get("reason") or "no reason given", 400),
        ]
        for row in failed
    ]  # fmt: skip
    said = element("p", f"{len(failed)} of {len(results.rows)} runs failed.", class_="bad")
    made = table(["run", *map(label_of, keys), "reason"], rows, "Failed runs")
    for row_element in made.iter("tr"):
        if row_element[-1].tag == "td":
            row_element[-1].set("class", "long")
    return [said, made]
