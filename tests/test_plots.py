"""Figures of sweeps and runs: what is drawn, that none is clipped, that bytes repeat, how bad input fails."""

import json
import re
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner

from moxtrace.cli.plot import KINDS as CLI_KINDS
from moxtrace.cli.plot import command
from moxtrace.errors import ConfigError, MoxtraceError, OutputError
from moxtrace.generate import generate
from moxtrace.plots.figures import KINDS, drawings
from moxtrace.plots.heat import heat_drawing
from moxtrace.plots.loads import link_loads, load_drawing, loads_of, plot_link_loads
from moxtrace.plots.reading import read
from moxtrace.plots.results import same, shown
from moxtrace.plots.setting import setting_of
from moxtrace.plots.steps import steps_for
from moxtrace.plots.style import COLUMN, RAMP, look_of, save, svg
from moxtrace.plots.times import time_drawings
from moxtrace.rundir import Run
from tests.runs import configured
from tests.sweep_folders import GRID, make_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("sweep"), failed={1: "deadlock at rank 3"})


@pytest.fixture(scope="module")
def sweep(folder):
    return read([folder])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = []
    for policy in ("tree", "min-hop", "switch"):
        made.append(tmp_path_factory.mktemp("runs") / policy)
        generate(configured(routing={"policy": policy}), made[-1])
    return made


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_rows(folder, change):
    for path in (folder / "rows").iterdir():
        edit(path, change)


def every(results):
    return [drawing for kind in KINDS for drawing in drawings(results, kind, apart=True)]


def words_of(drawing):
    """Texts of a drawing, with their sizes in points."""
    found = []
    for element in ElementTree.fromstring(svg(drawing)).iter("{http://www.w3.org/2000/svg}text"):
        size = re.search(r"font(?:-size)?: ([\d.]+)px", element.get("style"))
        found.append(("".join(element.itertext()), float(size[1])))
    return found


def test_a_sweep_is_read_with_its_failures(sweep):
    assert len(sweep.rows) == 12
    assert len(sweep.ok) == 11
    assert sweep.keys == tuple(GRID)
    assert sweep.settings == ("topology.npus",)
    assert sweep.rows[1].values["reason"] == "deadlock at rank 3"
    row = sweep.ok[0]
    assert row.config["topology"]["npus"] == 8
    assert row.detail.topology.num_links == 32
    assert loads_of(row).max() == pytest.approx(row.values["max_link_load"])


def test_runs_are_rows_whose_differences_are_swept(runs):
    results = read(runs)
    assert results.keys == ("routing.policy",)
    assert [row.policy for row in results.ok] == ["tree", "min-hop", "switch"]
    values = results.rows[0].values
    phases = values["dispatch_ns"] + values["compute_ns"] + values["combine_ns"]
    assert phases == pytest.approx(values["completion_ns"])
    assert values["slowdown"] == pytest.approx(values["completion_ns"] / values["switch_completion_ns"])
    assert values["mean_link_load"] == pytest.approx(link_loads(Run.open(runs[0])).mean())
    assert link_loads(Run.open(runs[2])).max() == pytest.approx(1.0)


def test_settings_take_one_run_of_each_policy_of_the_same_seeds(sweep):
    setting = setting_of(sweep)
    assert setting.rows.keys() == {"min-hop", "tree", "mox"}
    assert {row.values["topology.npus"] for row in setting.first.values()} == {8}
    assert {row.values["topology.seed"] for row in setting.first.values()} == {1}
    assert setting.title == "8 NPUs, topology seed 1"
    assert setting_of(sweep.where_is([("topology.npus", "16")])).title == "16 NPUs, expander, topology seed 1"


def test_settings_avoid_seeds_that_failed(tmp_path):
    setting = setting_of(read([make_sweep(tmp_path / "sweep", failed={0: "no memory"})]))
    assert [row.values["topology.seed"] for row in setting.first.values()] == [2, 2, 2]
    assert setting.title == "8 NPUs, topology seed 2"


def test_times_are_medians_and_bands_over_seeds(sweep):
    (drawing,) = time_drawings(sweep)
    assert drawing.name == "time-topology.npus"
    svg(drawing)
    times = [r.values["slowdown"] for r in sweep.ok if r.policy == "mox" and r.values["topology.npus"] == 16]
    tips = [tip for tips in drawing.tips.values() for tip in tips]
    assert len(tips) == 6
    wanted = f"{np.median(times):.3f} x the switch (median of 2, {min(times):.3f} to {max(times):.3f})"
    assert f"mox, NPUs 16: {wanted}" in tips
    assert "mox, NPUs 8" in "".join(tips)
    assert "The band spans up to 2 runs." in drawing.caption


def test_keys_that_move_together_share_a_panel(tmp_path):
    folder = make_sweep(tmp_path / "zip", {"topology.npus": [8, 16], "routing.policy": ["tree", "mox"]})
    edit_rows(folder, lambda row: row.update({"topology.degree": row["npus"] // 2}))
    edit(folder / "sweep.json", lambda sweep: sweep["columns"].append("topology.degree"))
    over_npus, over_degree = time_drawings(read([folder]))
    assert over_degree.name == "time-topology.degree"
    assert not [word for word, _ in words_of(over_npus) if word.startswith("links per NPU")]


def test_other_keys_make_panels_while_they_are_few(tmp_path):
    grid = {"topology.npus": [8, 16], "model.top_k": [4, 8], "routing.policy": ["mox"]}
    over_npus, _ = time_drawings(read([make_sweep(tmp_path / "few", grid)]))
    words = [word for word, _ in words_of(over_npus)]
    assert "experts per token (top-k) 4" in words
    assert "experts per token (top-k) 8" in words
    many = read([make_sweep(tmp_path / "many", {**grid, "model.top_k": [1, 2, 3, 4, 5, 6, 7]})])
    over_npus, _ = time_drawings(many)
    assert "experts per token (top-k) 4" not in [word for word, _ in words_of(over_npus)]
    assert "The band spans up to 7 runs, over experts per token (top-k)." in over_npus.caption


def test_words_make_groups(tmp_path):
    grid = {"topology.kind": ["ring", "torus"], "routing.policy": ["min-hop", "mox"], "topology.seed": [1, 2]}
    (drawing,) = time_drawings(read([make_sweep(tmp_path / "kinds", grid)]))
    words = [word for word, _ in words_of(drawing)]
    assert {"ring", "torus", "topology"} <= set(words)
    assert len([tip for tips in drawing.tips.values() for tip in tips]) == 4


def test_switches_of_a_configuration_are_words(tmp_path):
    grid = {"traffic.clip": [False, True], "routing.policy": ["mox"]}
    results = read([make_sweep(tmp_path / "clip", grid)])
    assert results.values("traffic.clip") == ["false", "true"]
    (drawing,) = time_drawings(results)
    assert {"false", "true"} <= {word for word, _ in words_of(drawing)}


def test_loads_of_few_settings_are_all_drawn(sweep):
    words = [word for word, _ in words_of(load_drawing(sweep))]
    assert sum("NPUs 16: busiest" in word for word in words) == 3
    assert sum("NPUs 8: busiest" in word for word in words) == 3


def test_a_heat_map_has_a_cell_for_every_link(sweep):
    drawing = heat_drawing(sweep)
    svg(drawing)
    assert [len(tips) for tips in drawing.tips.values()] == [32, 32, 32]
    row = setting_of(sweep).first["mox"]
    network, loads = row.detail.topology, loads_of(row)
    for tips in drawing.tips.values():
        if tips[0].startswith("mox,"):
            said = dict(re.match(r"mox, (\d+ to \d+): load ([\d.]+)", tip).groups() for tip in tips)
    assert said == {
        f"{s} to {d}": f"{v:.3f}" for s, d, v in zip(network.src, network.dst, loads, strict=True)
    }


def marks_of(drawing, group):
    """Middle of each mark of a group, shape (marks, 2), y upwards."""
    space = "{http://www.w3.org/2000/svg}"
    for element in ElementTree.fromstring(svg(drawing)).iter(f"{space}g"):
        if element.get("id") == group:
            used = [(float(use.get("x")), float(use.get("y"))) for use in element.iter(f"{space}use")]
            paths = [re.findall(r"[\d.]+ [\d.]+", path.get("d")) for path in element.iter(f"{space}path")]
            ends = [np.array([point.split() for point in path], float) for path in paths if path]
            places = used or [(one.min(axis=0) + one.max(axis=0)) / 2 for one in ends]
            return np.array(places) * [1, -1]
    raise AssertionError(group)


def test_the_cells_of_a_heat_map_stand_at_source_and_destination(sweep):
    drawing = heat_drawing(sweep)
    places = marks_of(drawing, "tip0").round(2)
    ends = [tuple(map(int, re.search(r"(\d+) to (\d+):", tip).groups())) for tip in drawing.tips["tip0"]]
    across, down = np.unique(places[:, 0]), np.unique(-places[:, 1])
    assert [(int(np.searchsorted(down, -y)), int(np.searchsorted(across, x))) for x, y in places] == ends


def test_the_proxy_stands_across_and_the_time_up(sweep):
    (drawing,) = drawings(sweep, "proxy")
    for group in ("tip0", "tip1", "tip2"):
        places = marks_of(drawing, group)
        said = [re.search(r"link ([\d.]+), time ([\d.]+)", tip).groups() for tip in drawing.tips[group]]
        for axis in (0, 1):
            values = np.array([float(pair[axis]) for pair in said])
            assert np.array_equal(np.argsort(places[:, axis]), np.argsort(values))
    rows = {f"{r.values['max_link_load']:.3f}": r.values for r in sweep.ok}
    for tip in (tip for tips in drawing.tips.values() for tip in tips):
        load, time = re.search(r"link ([\d.]+), time ([\d.]+)", tip).groups()
        row = rows[load]
        whole, switch = row["completion_ns"] - 400_000, row["switch_completion_ns"] - 400_000
        assert float(time) == pytest.approx(whole / switch, abs=6e-4)


def test_correlation_and_distance_are_said(sweep):
    (drawing,) = drawings(sweep, "proxy")
    (title,) = [word for word, _ in words_of(drawing) if "from the line" in word]
    load = np.array([row.values["max_link_load"] for row in sweep.ok])
    time = np.array(
        [(r.values["completion_ns"] - 4e5) / (r.values["switch_completion_ns"] - 4e5) for r in sweep.ok]
    )
    off = np.sqrt(np.mean((load - time) ** 2))
    assert title == f"r = {np.corrcoef(load, time)[0, 1]:.3f}; 11 runs, {off:.3f} from the line (rms)"


def test_the_busiest_links_lie_on_top(sweep):
    (one, *_) = drawings(sweep, "topology", apart=True)
    svg(one)
    loads = [float(tip.rpartition(" ")[2]) for tip in one.tips["tip0"]]
    assert loads == sorted(loads)


def test_large_networks_show_blocks_and_the_hottest_links(tmp_path):
    grid = {"topology.npus": [256], "topology.kind": ["torus"], "routing.policy": ["min-hop", "mox"]}
    results = read([make_sweep(tmp_path / "large", grid)])
    heat, (one, _) = heat_drawing(results), drawings(results, "topology", apart=True)
    svg(heat)
    assert "Each cell shows the busiest link of 2 x 2 pairs of NPUs." in heat.caption
    assert "256 NPUs, torus: the 200 hottest of 1,024 links" in [word for word, _ in words_of(one)]
    assert [len(tips) for tips in one.tips.values()] == [200]
    row = setting_of(results).first["min-hop"]
    network, cells = row.detail.topology, {}
    for src, dst, load in zip(network.src // 2, network.dst // 2, loads_of(row), strict=True):
        cells[src, dst] = max(load, cells.get((src, dst), 0))
    said = [re.search(r"load ([\d.]+)", tip)[1] for tip in heat.tips["tip0"]]
    assert said == [f"{cells[cell]:.3f}" for cell in sorted(cells)]
    busiest = sorted(f"{load:.3f}" for load in loads_of(row))[-200:]
    assert sorted(tip.rpartition(" ")[2] for tip in one.tips["tip0"]) == busiest


@pytest.mark.parametrize("highest", [0.0, 0.3, 1.0, 1.66, 3.66, 250.0])
def test_steps_cover_all_loads_in_rising_darkness(highest):
    steps = steps_for(highest)
    assert steps.bounds[0] == 0
    assert steps.bounds[-1] >= highest
    assert 3 <= len(steps.colours) <= len(RAMP)
    assert list(steps.colours) == [colour for colour in RAMP if colour in steps.colours]
    assert steps.of(np.array([0.0, highest])) == [
        steps.colours[0], steps.colours[int(np.searchsorted(steps.bounds, highest, side="right")) - 1]
        if highest < steps.bounds[-1] else steps.colours[-1],
    ]  # fmt: skip


def luminance(colour):
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    part = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(part @ [0.2126, 0.7152, 0.0722])


def test_colours_are_told_apart():
    shades = [luminance(colour) for colour in RAMP]
    assert all(a > b * 1.15 for a, b in zip(shades, shades[1:], strict=False))
    looks = look_of(["switch", "min-hop", "tree", "mox-paper", "mox", "mine", "yours"])
    for i in range(3):
        assert len({look[i] for look in looks.values()}) == len(looks) if i != 1 else True


@pytest.mark.parametrize("name", ["$broken^{math$", "two\nlines", "<script>", "\x01\x00", "汉字", "a" * 200])
def test_any_name_can_stand_in_a_figure(tmp_path, name):
    grid = {"topology.npus": [8, 16], "routing.policy": [name, "mox"]}
    for drawing in every(read([make_sweep(tmp_path / "odd", grid)])):
        assert len(words_of(drawing)) > 3
        save(drawing, tmp_path / "odd.png")


def test_every_picture_is_a_column_wide_legible_and_not_clipped(sweep, tmp_path):
    for drawing in every(sweep):
        save(drawing, tmp_path / "figure.png")
        picture = matplotlib.image.imread(tmp_path / "figure.png")[..., :3]
        assert picture.shape[1] == round(COLUMN * 300)
        edge = np.concatenate((picture[0], picture[-1], picture[:, 0], picture[:, -1]))
        assert (edge == 1).all(), drawing.name
        for word, size in words_of(drawing):
            assert size >= 6, (drawing.name, word)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_the_same_results_give_the_same_bytes(folder, tmp_path, ending):
    for kind in KINDS:
        paths = [tmp_path / f"{kind}{i}{ending}" for i in range(2)]
        for path in paths:
            save(drawings(read([folder]), kind)[0], path)
        first, second = (path.read_bytes() for path in paths)
        assert first == second
        assert b"2026-" not in first or ending == ".svg"
        assert b"Date" not in first.replace(b"<dc:date", b"Date") if ending == ".svg" else True


def test_run_directories_are_drawn_and_curves_named(runs, tmp_path):
    plot_link_loads([Run.open(run) for run in runs[:2]], tmp_path / "loads.svg")
    words = [word for word, _ in words_of(load_drawing(read(runs[:2])))]
    assert any(re.fullmatch(r"tree: busiest \d\.\d\d, \+\d+\.\d% time", word) for word in words)
    names = {drawing.name for drawing in every(read(runs))}
    assert names == {"time-routing.policy", "load", "heatmap", "topology-tree", "topology-min-hop", "proxy"}


def test_the_users_settings_of_matplotlib_do_not_matter(sweep, tmp_path):
    save(heat_drawing(sweep), tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 20, "figure.facecolor": "black", "savefig.bbox": "tight"}):
        save(heat_drawing(sweep), tmp_path / "b.png")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, "-"),
        (0.5, "0.5"),
        ("a/b/c.npz", "c.npz"),
        ("a\n b", "a b"),
        ("x" * 40, "x" * 27 + "…"),
        (3, "3"),
    ],
)
def test_values_are_short_and_on_one_line(value, wanted):
    assert shown(value) == wanted


def test_conditions_compare_numbers_and_texts():
    assert same(16, "16.0")
    assert same("mox", "mox")
    assert same("data/rec.npz", "rec.npz")
    assert not same("mox", "16")
    assert not same(None, "0")


def plot(*arguments):
    """The command's output; an error of ours is its text."""
    done = CliRunner().invoke(command, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, MoxtraceError), done.exception
        return str(done.exception)
    return done.output


def test_a_folder_takes_every_figure(folder, tmp_path):
    assert tuple(KINDS) == CLI_KINDS
    said = plot(folder, "-o", tmp_path / "figures", "--format", "png", "--format", "pdf")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    kinds = (
        "heatmap",
        "load",
        "proxy",
        "time-topology.npus",
        "topology-min-hop",
        "topology-mox",
        "topology-tree",
    )
    assert names == sorted(f"{kind}.{ending}" for kind in kinds for ending in ("png", "pdf"))
    assert len(said.splitlines()) == len(names)
    assert "exists" in plot(folder, "-o", tmp_path / "figures")
    assert plot(folder, "-o", tmp_path / "figures", "--force", "--kind", "heatmap").count("\n") == 1


def test_a_file_takes_one_figure(folder, runs, tmp_path):
    assert "Completion time over NPUs" in plot(folder, "-o", tmp_path / "a.svg")
    assert "Link load per policy" in plot(*runs, "-o", tmp_path / "b.pdf")
    assert "Link load by source" in plot(runs[0], "-o", tmp_path / "c.png", "--kind", "heatmap")
    assert "over topology seed" in plot(folder, "-o", tmp_path / "d.png", "--over", "topology.seed")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-o", "x.jpg"], "unknown picture format '.jpg'"),
        (["-o", "x.png", "--kind", "time", "--kind", "load"], "are 2 figures"),
        (["-o", "x.png", "--over", "topology.nodes"], "no such column"),
        (["-o", "x.png", "--over", "npus", "--over", "topology.seed"], "choose one"),
        (["-o", "x.png", "--where", "topology.npus=64"], "no such row; there is 8, 16"),
        (["-o", "x.png", "--where", "topology.nodes=64"], "no such column"),
        (["-o", "x.png", "--where", "topology.npus=8"], "policy has"),
        (["-o", "x.png", "--over", "topology.npus", "--where", "topology.npus=8"], "one value only, 8"),
        (["-o", "x.png", "--where", "topology.npus"], "expected KEY=VALUE"),
    ],
)
def test_bad_options_are_explained(folder, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    said = plot(folder, *arguments)
    if wanted == "policy has":  # over the policy, as nothing else is left
        assert "over policy" in said
    else:
        assert wanted in said
        assert not (tmp_path / "x.png").exists()


def test_bad_folders_are_explained(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"neither sweep\.json nor manifest\.json"):
        read([tmp_path / "empty"])
    with pytest.raises(MoxtraceError, match="no such directory"):
        read([tmp_path / "absent"])
    (tmp_path / "file").write_text("")
    with pytest.raises(MoxtraceError, match="is a file"):
        read([tmp_path / "file"])
    failed = make_sweep(
        tmp_path / "failed", {"routing.policy": ["tree", "mox"]}, failed={0: "no memory", 1: "x"}
    )
    with pytest.raises(ConfigError, match="all 2 runs failed, nothing to draw; the first: no memory"):
        _ = read([failed]).ok
    assert "all 2 runs failed" in plot(failed, "-o", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()
    with pytest.raises(ConfigError, match="give it alone"):
        read([failed, failed])


def test_a_sweep_that_is_not_whole_is_explained(tmp_path, caplog):
    folder = make_sweep(tmp_path / "sweep", {"routing.policy": ["tree", "mox", "min-hop"]})
    first, second, _ = sorted((folder / "rows").iterdir())
    first.unlink()
    second.write_text("{")
    results = read([folder])
    assert (len(results.rows), results.missing) == (1, 2)
    assert "2 of 3 runs are missing, 1 of them damaged; 'moxtrace sweep' does them" in caplog.text
    edit_rows(folder, lambda row: row.pop("slowdown")) if second.unlink() is None else None
    with pytest.raises(ConfigError, match="no results yet"):
        _ = read([folder]).ok
    (folder / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match=r"sweep\.json: is cut"):
        read([folder])


def test_results_without_times_are_explained(tmp_path):
    folder = make_sweep(tmp_path / "sweep", {"routing.policy": ["tree", "mox"]})
    edit_rows(folder, lambda row: row.update(slowdown=None, max_link_load="much"))
    with pytest.raises(ConfigError, match="column 'slowdown' holds no number"):
        time_drawings(read([folder]))
    with pytest.raises(ConfigError, match="column 'max_link_load' holds no number"):
        load_drawing(read([folder]))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda row: row.pop("links"), "more links than a row keeps"),
        (lambda row: row.update(links=[]), "expected lists src and dst"),
        (lambda row: row["links"].pop("src"), "expected lists src and dst"),
        (lambda row: row["links"]["dst"].pop(), "different lengths"),
        (lambda row: row["links"]["combine_bytes"].pop(), "63 values of combine_bytes for 64 links"),
        (lambda row: row["links"].update(dispatch_bytes=None), "dispatch_bytes: expected a list of numbers"),
        (lambda row: row["links"]["capacity_gbps"].__setitem__(0, -1), "rate must be positive"),
        (lambda row: row["links"]["src"].reverse(), "each once, by src and dst"),
    ],
)
def test_bad_links_are_explained(tmp_path, change, wanted):
    folder = make_sweep(tmp_path / "sweep", {"routing.policy": ["tree"]})
    edit_rows(folder, change)
    with pytest.raises(ConfigError, match=re.escape(wanted)) as error:
        heat_drawing(read([folder]))
    assert "\n" not in str(error.value)
    results = read([folder])
    (path,) = (folder / "rows").iterdir()
    path.unlink()
    with pytest.raises(ConfigError, match="is no row of a sweep"):
        heat_drawing(results)


def test_runs_of_the_switch_alone_have_no_matrix(runs):
    with pytest.raises(ConfigError, match="an ideal switch has no links between NPUs"):
        heat_drawing(read(runs[2:]))
    with pytest.raises(ConfigError, match="every run is the ideal switch"):
        time_drawings(read(runs[2:]))


def test_a_figure_is_not_half_written(sweep, tmp_path):
    with pytest.raises(OutputError, match="unknown picture format: no ending"):
        save(heat_drawing(sweep), tmp_path / "figure")
    with pytest.raises(OutputError, match="no such directory"):
        save(heat_drawing(sweep), tmp_path / "absent" / "figure.png")
    assert not list(tmp_path.iterdir())
