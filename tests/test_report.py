"""The report: whole, self-contained, escaped, the same bytes; the browser's part stands apart."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

from moxtrace.cli.report import command
from moxtrace.errors import ConfigError, MoxtraceError
from moxtrace.generate import generate
from moxtrace.plots.loads import loads_of
from moxtrace.plots.reading import read
from moxtrace.plots.setting import setting_of
from moxtrace.report.columns import columns_of, reading_of
from moxtrace.report.elements import element, html
from moxtrace.report.page import render, write_report
from tests.runs import configured
from tests.sweep_folders import GRID, make_sweep
from tests.test_plots import luminance

VOID = {"meta", "link", "input", "br", "hr", "img"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;</style></textarea>$title ${x}"


class Page(HTMLParser):
    """Elements of a page; complains about a tag that is not closed where it should be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links, self.refs = [], Counter(), Counter(), [], []
        self.texts, self.rows = [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} {name}"
            if name == "id":
                self.ids[value] += 1
            if name in ("href", "src", "xlink:href", "action", "data"):
                self.links.append(value)
            if name in ("aria-labelledby", "aria-describedby", "for"):
                self.refs.append(value)
            self.refs += re.findall(r"url\(#(.*?)\)", value or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open, f"stray </{tag}>"
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.rows and self.rows[-1] and ({"td", "th"} & set(self.open)):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("sweep"), failed={1: "deadlock at rank 3", 4: EVIL})


@pytest.fixture(scope="module")
def page(folder):
    return render(read([folder]), "a sweep")


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    parsed = Page(page)
    assert parsed.tags["html"] == parsed.tags["main"] == parsed.tags["h1"] == parsed.tags["script"] == 1
    assert all(count == 1 for count in parsed.ids.values()), parsed.ids.most_common(3)
    for link in parsed.links:
        assert link.startswith("#") or link == "data:,", link
        assert link == "data:," or link[1:] in parsed.ids, link
    for name in parsed.refs:
        assert name in parsed.ids, name
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(
        r"\$\{?[a-z]+", re.sub(r"(?s)<script>.*</script>", "", page).replace("$title ${x}", "")
    )


def test_every_run_is_in_the_table(folder, page):
    rows = [json.loads(path.read_text()) for path in (folder / "rows").iterdir()]
    assert len(rows) == 12
    found = {row[0]: row for row in Page(page).rows if row}
    columns = columns_of(read([folder]))
    for row in rows:
        cells = dict(zip(columns, found[row["run"]], strict=False))
        assert cells["status"] == row["status"] if len(found[row["run"]]) == len(columns) else True
        assert row["run"] in page
    text = "".join(Page(page).texts)
    assert "2 of 12 runs failed." in text
    assert "deadlock at rank 3" in text
    assert "a recording made by hand" in text
    assert "topology.seed" in text


def test_the_columns_are_what_differs_and_the_results(folder):
    columns = columns_of(read([folder]))
    assert columns[:8] == [
        "run", "topology.npus", "routing.policy", "topology.seed", "status", "reason", "slowdown",
        "completion_ns",
    ]  # fmt: skip
    assert "npus" not in columns  # topology.npus says it
    assert "bound" not in columns  # empty
    assert columns[-1] == "wall_s"
    assert "peak_memory_bytes" not in columns  # the same in all runs, and said above the table


def test_only_the_pages_own_script_may_run(page):
    script = re.search(r"(?s)<script>(.*?)</script>", page)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_hottest_links_come_first(folder, page):
    row = setting_of(read([folder])).first["mox"]
    network, loads = row.detail.topology, loads_of(row)
    tables = [cells for cells in Page(page).rows if len(cells) == 5 and cells[0].isdecimal()]
    assert len(tables) == 3 * 10
    busiest = int(np.argmax(loads))
    first = f"{network.src[busiest]} → {network.dst[busiest]}"
    assert [first, f"{loads.max():.3f}"] in [cells[1:3] for cells in tables if cells[0] == "1"]
    found = [float(cells[2]) for cells in tables]
    assert found == [load for i in range(3) for load in sorted(found[10 * i : 10 * i + 10], reverse=True)]


def test_data_cannot_run(tmp_path):
    grid = {"routing.policy": [EVIL, "mox"], "traffic.tokens_per_npu": [EVIL[:30], "b"]}
    folder = make_sweep(tmp_path / "evil", grid, failed={0: EVIL})
    for path in (folder / "rows").iterdir():
        row = json.loads(path.read_text())
        row.update(stands_on=EVIL, warnings=[EVIL], inputs={EVIL: EVIL})
        row["config"][EVIL] = EVIL
        path.write_text(json.dumps(row))
    text = render(read([folder]), EVIL)
    parsed = Page(text)
    assert parsed.tags["script"] == 1
    assert parsed.tags["img"] == 0
    assert parsed.tags["style"] == 1
    assert "<script>alert" not in text
    assert "alert(1)" in "".join(parsed.texts)
    assert "Content-Security-Policy" in text


def test_elements_escape_and_close():
    made = element("td", "<&>", element("b", "x"), "tail", data_v='"<', class_="n", title=None)
    assert html(made) == '<td data-v="&quot;&lt;" class="n">&lt;&amp;&gt;<b>x</b>tail</td>'
    assert html(element("td")) == "<td></td>"
    assert html(element("td", "a\x00b")) == "<td>a\N{REPLACEMENT CHARACTER}b</td>"


def test_every_mark_has_a_tip_and_colours_follow_the_theme(page):
    tips = re.findall(r'data-tip="([^"]*)"', page)
    assert sum("x the switch" in tip for tip in tips) == 6
    assert sum("busiest link" in tip for tip in tips) == 10
    assert sum(bool(re.match(r"\w.*, \d+ to \d+: load", tip)) for tip in tips) == 2 * 3 * 32
    pictures = "".join(re.findall(r"(?s)<svg.*?</svg>", page))
    assert not re.findall(r"#[0-9a-f]{6}\b", pictures.replace("url(#", ""))
    used, given = set(re.findall(r"var\(--([\w-]+)\)", page)), set(re.findall(r"--([\w-]+):", page))
    assert used <= given


def test_the_same_folder_gives_the_same_bytes(folder, tmp_path):
    for name in ("a.html", "b.html"):
        write_report(read([folder]), "same", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_has_contrast_in_both_themes(page, theme):
    colours = {m[1]: m[2 + theme] for m in re.finditer(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", page)}
    assert len(colours) > 20
    for text in ("ink", "muted", "accent", "bad"):
        for ground in ("paper", "page", "zebra", "hover"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("mox", "mox-paper", "tree", "min-hop", "other1", "other2"):
        assert contrast(colours[mark], colours["paper"]) >= 3, mark
    steps = [luminance(colours[f"r{i}"]) for i in range(10)]
    assert steps == sorted(steps, reverse=theme == 0)


def test_run_directories_have_a_report_too(tmp_path):
    for policy in ("tree", "min-hop"):
        generate(configured(routing={"policy": policy}), tmp_path / policy)
    one = render(read([tmp_path / "tree"]), "one")
    text = "".join(Page(one).texts)
    assert "Not drawn: time" in text
    assert "Hottest links" in text
    assert "tokens_per_npu: 8" in text
    assert "uniform" in text
    assert "The network by link load, tree" in text
    both = "".join(Page(render(read([tmp_path / "tree", tmp_path / "min-hop"]), "two")).texts)
    assert "Completion time over policy" in both


def test_a_sweep_that_failed_altogether_says_why(tmp_path):
    folder = make_sweep(
        tmp_path / "failed", {"routing.policy": ["tree", "mox"]}, failed={0: "no memory", 1: "no"}
    )
    text = "".join(Page(render(read([folder]), "failed")).texts)
    assert "2 of 2 runs failed." in text
    assert "no memory" in text
    assert "Not drawn: load" in text
    assert "policy: tree" in text


def test_rows_without_links_leave_out_what_needs_them(tmp_path):
    folder = make_sweep(tmp_path / "wide", GRID)
    for path in (folder / "rows").iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "ok", "links": None}))
    text = "".join(Page(render(read([folder]), "wide")).texts)
    assert "Not drawn: heatmap" in text
    assert "more links than a row keeps" in text
    assert "Completion time over NPUs" in text


def test_a_thousand_rows_are_all_there(tmp_path):
    grid = {"topology.npus": [8], "routing.policy": ["tree", "mox"], "traffic.seed": list(range(500))}
    results = read([make_sweep(tmp_path / "many", grid)])
    text = render(results, "many")
    assert len([row for row in Page(text).rows if row and re.fullmatch("[0-9a-f]{16}", row[0])]) == 1000


def test_an_empty_table_is_refused(tmp_path):
    folder = make_sweep(tmp_path / "empty", {"routing.policy": []})
    with pytest.raises(ConfigError, match="no results yet"):
        render(read([folder]), "empty")


@pytest.mark.parametrize(
    ("column", "value", "wanted"),
    [
        ("completion_ns", 1_500_000.0, "1.5 ms"), ("topology.latency_ns", 500, "500"),
        ("slowdown", 1.0312, "1.031"), ("busiest_link_bytes", 2_000_000, "2 MB"),
        ("bandwidth_tax", 0.051, "5.1%"), ("wall_s", 0.52, "0.52 s"), ("bound", None, ""),
        ("reason", "a b", "a b"),
    ],
)  # fmt: skip
def test_numbers_read_with_their_units(column, value, wanted):
    assert reading_of(column)(value) == wanted


def report(*arguments):
    done = CliRunner().invoke(command, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, MoxtraceError), done.exception
        return str(done.exception)
    return done.output


def test_the_command_writes_one_file(folder, tmp_path):
    target = tmp_path / "report.html"
    assert re.search(r"report\.html: 12 runs, 2 failed, \d+ kB", report(folder, "-o", target))
    assert "exists" in report(folder, "-o", target)
    assert "12 runs" in report(folder, "-o", target, "--force", "--title", "Over <night>")
    assert "<h1><span>Over &lt;night&gt;</span></h1>" in target.read_text()
    assert "4 runs" in report(folder, "-o", target, "--force", "--where", "routing.policy=mox")
    assert "ends in .html" in report(folder, "-o", tmp_path / "report.pdf")
    assert "no such directory" in report(folder, "-o", tmp_path / "absent" / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
