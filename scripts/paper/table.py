"""``table.md``: the paper's numbers, ours, the difference and why.

Goes in: :class:`~paper.results.Results`.  Comes out: Markdown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np

from paper.grid import POLICIES, Plan
from paper.results import TRAFFIC, Comparison, Results, number, range_of, spread

__all__ = ["table_of"]

Row = Sequence[Any]
HEAD = """# The MoX paper's evaluation, computed anew

Per cent over the ideal switch unless a column says otherwise; median over seeds [least, greatest]. A seed
draws the expander, the placement of experts, the layer and the tokens. `mox-paper` is the paper's policy
step by step, `mox` is ours, `tree` is the paper's tree without weights.
"""
WHY_TIMES = """
*difference* is `mox` minus the paper's MoX, in points, 0 within its range; *by policy* is what `mox`
changes against `mox-paper` on the same cases. What is left of the difference is not the policy: it is
traffic, expander and the rate of the experts, which the paper leaves open; the section on assumptions
measures each. With recorded layers the hottest NPU's port is the ideal switch's bottleneck too (last
column: its load over the mean), which hides part of what a network costs. With uniform traffic nothing
hides it.
"""
WHY_BOUND = """
*needs*: the busiest link, over the ideal switch's busiest port, at which the paper's number would be
reached, if slowdown = share of communication x (busiest link - 1), as the next section finds; for Boardfly
it follows from min-hop. *bound*: what no multicast routing can undercut on these graphs and tokens (`moxtrace
bound`; {seeds}). Where the bound is above what is needed, the paper's number cannot be had on our graph
with our traffic, by any policy.
"""
WHY_PROXY = """
The proxy knows nothing of compute.  It is off where the NPUs at the busiest link have less to compute than
the hottest one: they wait for the link while that one still computes.  So it is min-hop on skewed layers that
it overstates most.
"""
WHY_SKEW = """
The tuned network is the best degree-8 graph for the very tokens that are then sent, proved so by an integer
program; the paper's builder is not published.
"""
WHY_BOARDFLY = """
The port map, the doubled board pairs and the choice of 1,024 of the chips are not published; ours are
seeded (`moxtrace topology make boardfly -h`). Only link loads are compared, as in the paper.
"""


def rows_of(columns: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n" + "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def table_of(
    results: Results, published: dict[str, Any], found: list[Comparison], plans: tuple[Plan, Plan]
) -> str:
    """The whole text.

    Parameters
    ----------
    results : Results
    published : dict
        ``published.yaml``.
    found : list of Comparison
        The paper's cells for MoX.
    plans : (Plan, Plan)
        What was computed, and the full plan.
    """
    made, full = plans
    sections = [
        HEAD,
        _left_out(made, full),
        _times(results, published, found),
        _bounds(found, made),
        _proxy(results),
        _skew(results, published),
        _boardfly(results, published, found),
        _sizes(results, published),
        _sensitivity(results, made),
        _condition(results),
    ]
    return "\n".join(section for section in sections if section)


def _left_out(made: Plan, full: Plan) -> str:
    """What a quick run does not compute."""
    rows = []
    before, after = asdict(full), asdict(made)
    for key, value in after.items():
        if value != before[key]:
            rows.append((key.replace("_", " "), _listed(value), _listed(before[key])))
    if not rows:
        return ""
    return (
        "**This is a quick run.**  It has every kind of point, but fewer seeds, sizes and tokens; its ranges "
        "are those of few seeds, and shorter collectives balance worse.\n"
        + rows_of(("", "here", "in full"), rows)
    )


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _range(value: Any) -> str:
    """A published value; empty where there is none."""
    return "" if value is None else number(range_of(value))


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"  # no minus before a zero


def _times(results: Results, published: dict[str, Any], found: list[Comparison]) -> str:
    known = {one.what: one for one in found}
    rows = []
    for stage, traffic, npus, top_k in product(
        ("training", "inference"), *(results.labels("2", key) for key in ("traffic", "npus", "top_k"))
    ):
        cells = results.of("2", stage=stage, traffic=traffic, npus=npus, top_k=top_k)
        one = known.get(f"{stage}, {TRAFFIC[traffic]}, {npus} NPUs, top-{top_k}")
        ours = {policy: spread(results.percent(cells, policy)) for policy in POLICIES}
        paper, base = (published[stage][policy].get(top_k, {}).get(npus) for policy in ("mox", "min-hop"))
        rows.append((
            stage, TRAFFIC[traffic], npus, top_k, _range(paper), f"**{ours['mox']}**",
            ours["mox-paper"], ours["tree"], _signed(one.difference) if one else "",
            _signed(one.policy_part) if one else "", one.verdict if one else "",
            _range(base), ours["min-hop"],
            spread(results.values(cells, "mox", "hottest_npu"), 2),
        ))  # fmt: skip
    if not rows:
        return ""
    columns = (
        "", "traffic", "NPUs", "top-K", "paper, MoX", "mox", "mox-paper", "tree", "difference", "by policy",
        "verdict", "paper, min-hop", "min-hop", "hottest NPU",
    )  # fmt: skip
    return "## Figure 2: time of the MoE block\n" + rows_of(columns, rows) + WHY_TIMES


def _bounds(found: list[Comparison], made: Plan) -> str:
    worse = [one for one in found if one.is_worse]
    if not found:
        return ""
    text = "## Where ours is worse than the paper's, and what is possible\n"
    if not worse:
        return text + f"\nNowhere: all {len(found)} cells are as good or better.\n"
    rows = []
    for one in worse:
        rows.append((
            one.what, number(one.paper), spread(one.ours), spread(one.needs, 3), spread(one.bound, 3),
            spread(one.allows), one.verdict,
        ))  # fmt: skip
    columns = ("cell", "paper", "mox", "needs", "bound", "a routing at the bound", "verdict")
    most = max(len(one.bound) for one in worse)
    seeds = f"{most} of {len(made.seeds)} seeds" if most < len(made.seeds) else "all seeds"
    head = f"\n{len(worse)} of {len(found)} cells are worse.\n"
    return text + head + rows_of(columns, rows) + WHY_BOUND.format(seeds=seeds)


def _proxy(results: Results) -> str:
    cells = results.of("2") + results.of("4")
    rows = []
    for policy in POLICIES:
        proxy, time, block, share = (
            np.array(results.values(cells, policy, key))
            for key in ("normalized_max_load", "communication_slowdown", "slowdown", "communication_share")
        )
        if len(proxy):
            off = 100 * np.abs(time / proxy - 1)
            points = 100 * np.abs(block - 1 - share * (proxy - 1))
            rows.append(
                (policy, len(proxy))
                + tuple(f"{x:.1f}" for x in (np.median(off), off.max(), np.median(points), points.max()))
            )
    if not rows:
        return ""
    columns = ("policy", "blocks", "time off, median %", "most %", "block off, median points", "most")
    return (
        "## Figure 3: the busiest link as a proxy for time\n\nThe paper: a close match.  *time off*: exposed "
        "communication over the switch's, against the busiest link over the switch's busiest port.  *block "
        "off*: the block's slowdown against share of communication x (busiest link - 1).\n"
        + rows_of(columns, rows)
        + WHY_PROXY
    )


def _skew(results: Results, published: dict[str, Any]) -> str:
    rows = []
    for network, policy in product(published["skew"], ("min-hop", "tree", "mox-paper", "mox")):
        cells = results.of("4", network=network)
        ours = results.percent(cells, policy)
        if ours:
            known = published["skew"][network].get(policy)
            middle = statistics.median(ours)
            gap = ""
            if known is not None:
                low, high = range_of(known)
                gap = _signed(middle - min(max(middle, low), high))
            rows.append((network, policy, _range(known), spread(ours), gap))
    if not rows:
        return ""
    columns = ("network", "policy", "paper", "ours", "difference")
    return "## Figure 4: skew, 16 NPUs, top-8\n" + rows_of(columns, rows) + WHY_SKEW


def _boardfly(results: Results, published: dict[str, Any], found: list[Comparison]) -> str:
    rows = []
    known = {one.what: one for one in found}
    for stage in ("training", "inference"):
        cells = results.of("5", stage=stage)
        for policy in ("tree", "mox-paper", "mox"):
            ours = results.over_min_hop(cells, policy)
            if ours:
                paper = published["boardfly"][stage].get(policy)
                gap = _signed(statistics.median(ours) - paper) if paper is not None else ""
                one = known.get(f"Boardfly, {stage}, over min-hop")
                verdict = one.verdict if one and policy == "mox" else ""
                rows.append(
                    (stage, policy, "" if paper is None else f"{paper:g}", spread(ours), gap, verdict)
                )
    if not rows:
        return ""
    uneven = spread(results.values(results.of("5", stage="training"), "min-hop", "busiest_over_mean"), 2)
    columns = ("", "policy", "paper", "ours", "difference", "verdict")
    return (
        "## Figure 5: Boardfly, 1,024 TPUs: busiest link of dispatch over min-hop's, per cent\n"
        + rows_of(columns, rows)
        + f"\nUnder min-hop the busiest link carries {uneven} x the mean; the paper: "
        f"{published['boardfly_min_hop_busiest_over_mean']} x.\n" + WHY_BOARDFLY
    )


def _sizes(results: Results, published: dict[str, Any]) -> str:
    rows = []
    for key in ("npus", "degree"):
        for value, top_k in product(
            results.labels("6", key), results.labels("6", "top_k") if key == "npus" else (8,)
        ):
            labels = {key: value} | ({"top_k": top_k} if key == "npus" else {})
            cells = results.of("6", **labels)
            ours = [spread(results.percent(cells, p, "normalized_max_load")) for p in POLICIES]
            known = published["tree_overhead"].get(value) if key == "npus" and top_k == 8 else None
            where = f"{value} NPUs" if key == "npus" else f"degree {value}"
            rows.append((where, top_k, "" if known is None else f"{known:g}", *reversed(ours)))
    if not rows:
        return ""
    columns = ("", "top-K", "paper, tree alone", *reversed(POLICIES))
    return (
        "## Figure 6: busiest link over the switch's busiest port, per cent over 1, uniform traffic\n"
        + rows_of(columns, rows)
        + "\nThe paper's overheads of the tree alone do not say for which top-K; they are set beside top-8.\n"
    )


def _sensitivity(results: Results, made: Plan) -> str:
    base = results.of("sensitivity", change="")
    if not base:
        return ""
    policies = ("min-hop", "mox-paper", "mox")
    chosen = "; ".join(f"{key.replace('_', '-')}: {value}" for key, value in made.assumptions.items())
    rows = [("as it stands", f"configs/paper/training.yaml; {chosen}", "")
            + tuple(spread(results.percent(base, p)) for p in policies)]  # fmt: skip
    for entry in made.sensitivity:
        change = json.dumps(entry["change"], sort_keys=True)
        cells = results.of("sensitivity", change=change)
        if [c.case.name for c in cells] == [c.case.name for c in base]:
            continue  # what stands anyway
        keys = ", ".join(f"`{key}: {value}`" for key, value in entry["change"].items())
        shown = []
        for policy in policies:
            values = results.percent(cells, policy)
            effect = [a - b for a, b in zip(values, results.percent(base, policy), strict=False)]
            shown.append(
                f"{spread(values)} ({_signed(statistics.median(effect))})" if values and effect else "-"
            )
        rows.append((entry["what"], keys, entry["says"], *shown))
    share = spread([100 * s for s in results.values(base, "min-hop", "communication_share")])
    columns = ("assumption", "key", "", *policies)
    return (
        f"## Assumptions that the paper leaves open: {made.sensitivity_npus} NPUs, top-8, training, recorded "
        "layers\n\nEach changed alone; in brackets the change in points.  The switch spends "
        f"{share} per cent of the block on communication.  Keys that begin with `paper.` stand in "
        "configs/paper/evaluation.yaml.\n" + rows_of(columns, rows)
    )


def _condition(results: Results) -> str:
    """What failed, what is missing, and which code made the numbers."""
    points = {(cell.case.name, p): (cell, p) for cell in results.cells for p in cell.case.policies}
    failed, missing, older, seconds = [], 0, 0, 0.0
    for cell, policy in points.values():
        reason = results.store.failure(cell.case, policy)
        facts = results.store.facts(cell.case, policy)
        where = ", ".join(f"{k} {v}" for k, v in cell.labels)
        if reason is not None:
            failed.append(f"- figure {cell.figure}, {where}, {policy}: {reason}\n")
        missing += facts is None and reason is None
        older += results.store.is_older(cell.case, policy)
        seconds += facts["cpu_seconds"] if facts else 0
    text = f"## Points\n\n{len(points) - len(failed) - missing} of {len(points)} points, "
    text += f"{seconds:,.0f} CPU seconds without weights.\n"
    if missing:
        text += f"\n{missing} points are missing: run the script again.\n"
    if older:
        text += f"\n{older} points are older than some other code of moxtrace; `--again all` renews them.\n"
    if failed:
        text += "\nFailed:\n\n" + "".join(failed)
    return text
