"""The report in a real browser: sorting, filters, zoom, tips, keyboard, themes; skipped without one."""

import re
import shutil

import pytest

from moxtrace.plots.reading import read
from moxtrace.report.page import write_report
from tests.sweep_folders import make_sweep

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

GRID = {
    "topology.npus": [8, 16],
    "routing.policy": ["min-hop", "mox", "<b>mine</b>"],
    "topology.seed": [1, 2],
}


@pytest.fixture(scope="module")
def browser():
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as running:
        try:
            found = running.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    results = read([make_sweep(folder / "sweep", GRID, failed={3: "deadlock <script>alert(1)</script>"})])
    write_report(results, "sweep", folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture
def page(browser, address):
    made = browser.new_page(viewport={"width": 1280, "height": 800})
    troubles = []
    made.on("console", lambda message: troubles.append(message.text))
    made.on("pageerror", lambda error: troubles.append(str(error)))
    made.on("dialog", lambda dialog: troubles.append(dialog.message))
    made.on(
        "request", lambda request: request.url.startswith(("file:", "data:")) or troubles.append(request.url)
    )
    made.goto(address)
    yield made
    made.close()
    assert not troubles


def column(page, heading):
    heads = page.locator("#table thead th").all_text_contents()
    i = heads.index(heading)
    return [
        (cells[i].strip())
        for cells in page.locator("#table tbody tr:not([hidden])").evaluate_all(
            "rows => rows.map(r => [...r.cells].map(c => c.dataset.v ?? c.textContent))"
        )
    ]


def choice(page, heading):
    return page.locator("#filters label", has_text=re.compile(f"^{heading}")).locator("select")


def sort(page, heading):
    page.locator("#table thead th button", has_text=re.compile(f"^{re.escape(heading)}$")).click()


def test_heads_sort_both_ways_and_empty_cells_stay_last(page):
    sort(page, "over the switch")
    found = column(page, "over the switch")
    numbers = [float(x) for x in found[:-1]]
    assert numbers == sorted(numbers)
    assert found[-1] == ""
    sort(page, "over the switch")
    found = column(page, "over the switch")
    assert [float(x) for x in found[:-1]] == sorted(numbers, reverse=True)
    assert found[-1] == ""
    assert page.locator('th[aria-sort="descending"]').count() == 1


def test_numbers_sort_as_numbers(page):
    sort(page, "NPUs")
    assert column(page, "NPUs") == ["8"] * 6 + ["16"] * 6


def test_filters_narrow_and_clear(page):
    assert page.locator("#count").text_content() == "12 of 12 runs"
    choice(page, "policy").select_option("<b>mine</b>")
    assert set(column(page, "policy")) == {"<b>mine</b>"}
    choice(page, "NPUs").select_option("16")
    assert page.locator("#count").text_content() == "2 of 12 runs"
    page.get_by_role("button", name="Clear filters").click()
    playwright.expect(page.locator("#count")).to_have_text("12 of 12 runs")
    page.get_by_label("Search").fill("deadlock")
    playwright.expect(page.locator("#count")).to_have_text("1 of 12 runs")
    assert column(page, "status") == ["failed"]


def test_figures_zoom_by_button_and_key_and_come_back(page):
    svg = page.locator("figure svg").first
    whole = svg.get_attribute("viewBox")
    page.get_by_role("button", name=re.compile("^Zoom in")).first.click()
    near = svg.get_attribute("viewBox")
    assert float(near.split()[2]) < float(whole.split()[2])
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert float(svg.get_attribute("viewBox").split()[0]) > float(near.split()[0])
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert [float(x) for x in svg.get_attribute("viewBox").split()] == [float(x) for x in whole.split()]


def test_pointing_at_a_mark_tells_its_numbers(page):
    mark = page.locator("figure svg use[data-tip]").first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "x the switch" in page.locator("#tip").text_content()
    assert page.locator("#tip").is_visible()
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def test_a_thin_line_is_found_from_a_few_pixels_away(page):
    line = page.locator("figure svg path[data-tip*=' to ']").last
    line.scroll_into_view_if_needed()
    x, y = line.evaluate(
        "e => { const p = e.getPointAtLength(e.getTotalLength() / 2).matrixTransform(e.getScreenCTM());"
        "return [p.x, p.y] }"
    )
    page.mouse.move(x + 3, y + 3)
    assert re.search(r"\d+ to \d+: load", page.locator("#tip").text_content())


def test_everything_is_reached_by_keyboard_and_has_a_name(page):
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(() => { const e = document.activeElement;"
                "const name = e.id || e.getAttribute('aria-label') || e.textContent;"
                "return `${e.tagName.toLowerCase()}:${name}` })()"
            )
        )
    kinds = {name.partition(":")[0] for name in reached}
    assert {"a", "button", "svg", "input", "select"} <= kinds
    assert "button:over the switch" in reached
    nameless = page.evaluate(
        "[...document.querySelectorAll('button,input,select,[tabindex=\"0\"]')].filter(e =>"
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')"
        "|| e.labels?.length)).length"
    )
    assert nameless == 0


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_in_both_themes(page, width, theme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    first = [int(re.search(r"\d+", colour)[0]) for colour in (ground, ink)]
    assert (first[0] > first[1]) == (theme == "light")


def test_the_theme_can_be_chosen(page):
    button = page.locator("#theme")
    grounds = []
    for _ in range(3):
        button.click()
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert button.text_content() == "Theme: system"
    assert grounds[0] != grounds[1]


def test_without_scripts_the_table_and_the_figures_are_there(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#table tbody tr").count() == 12
    assert page.locator("#filters").is_hidden()
    assert page.locator("figure svg").first.is_visible()
    context.close()
