"""The command ``moxtrace topology``."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from moxtrace.cli import _group
from moxtrace.errors import ConfigError, OutputError, TopologyError
from moxtrace.kinds import KINDS, PARAMETERS
from moxtrace.topology import build, describe, read


def run(*arguments):
    result = CliRunner().invoke(_group, ["topology", *map(str, arguments)], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_make_show_convert(tmp_path):
    made = run("make", "torus", "--npus", 8, "--dims", "2x4", "--link-gbps", 50, "-o", tmp_path / "net.csv")
    assert made.stderr == f"wrote {tmp_path}/net.csv: torus, 8 NPUs, 24 links\n"
    assert made.stdout == ""
    shown = json.loads(run("show", tmp_path / "net.csv", "--json").stdout)
    assert shown == {**describe(build("torus", 8, dims=[2, 4], link_gbps=50)), "kind": "graph"}
    run("convert", tmp_path / "net.csv", tmp_path / "net.graphml", "-q")
    run("convert", tmp_path / "net.graphml", tmp_path / "back.csv", "-q")
    assert (tmp_path / "back.csv").read_bytes() == (tmp_path / "net.csv").read_bytes()


def test_show_builds_a_kind_on_the_spot():
    assert run("show", "ring", "--npus", 4).stdout == SHOWN_RING
    shown = json.loads(run("show", "expander", "--npus", 12, "--degree", 3, "--seed", 5, "--json").stdout)
    assert shown == describe(build("expander", 12, degree=3, seed=5))


SHOWN_RING = """\
topology ring
property                           value
---------------------------------  -----------
NPUs                               4
links (directed)                   8
links out of an NPU                2
lanes of a link                    1
diameter                           2 hops
radius                             2 hops
average path length                1.3333 hops
bisection (estimate, upper bound)  200 Gbit/s
capacity of a link                 100 Gbit/s
capacity out of an NPU             200 Gbit/s
capacity into an NPU               200 Gbit/s
latency of a link                  500 ns
triangles                          0
every link has an equal reverse    yes
all links alike, one lane each     yes
"""


def test_what_a_file_leaves_out_comes_from_the_options(tmp_path):
    (tmp_path / "net.json").write_text(
        json.dumps({"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1}]})
    )
    rates = ("--link-gbps", 400, "--latency-ns", 3, "--lanes", 2)
    run("convert", tmp_path / "net.json", tmp_path / "net.csv", *rates)
    link = read(tmp_path / "net.csv")
    assert (link.bandwidth_gbps[0], link.latency_ns[0], link.lanes[0]) == (400, 3, 2)
    shown = json.loads(run("show", tmp_path / "net.json", "--json", *rates).stdout)
    assert shown["link_gbps_max"] == 800


def test_nothing_is_overwritten_unless_forced(tmp_path):
    out = tmp_path / "net.csv"
    out.write_text("mine")
    for arguments in (("make", "ring", "--npus", 4, "-o", out), ("convert", tmp_path / "other.csv", out)):
        with pytest.raises(OutputError, match="net.csv: exists already; .* --force"):
            run(*arguments)
    with pytest.raises(OutputError, match="exists already"):
        run("show", "ring", "--npus", 4, "--plot", out)
    assert out.read_text() == "mine"
    run("make", "ring", "--npus", 4, "-o", out, "--force")
    assert read(out).num_npus == 4


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_the_same_each_time(tmp_path, ending):
    for name in ("a", "b"):
        run("show", "torus", "--npus", 12, "--dims", "2x2x3", "--plot", tmp_path / f"{name}.{ending}", "-q")
    one, two = (tmp_path / f"{name}.{ending}" for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size > 2000
    assert len(list(tmp_path.iterdir())) == 2


def test_pictures_of_every_sort(tmp_path):
    (tmp_path / "net.csv").write_text(
        "src,dst,gbps,lanes\nalpha,b,100,1\nb,c,200,2\nc,alpha,400,1\nb,alpha,100,1\n"
    )
    for what in ((tmp_path / "net.csv",), ("switch", "--npus", 3), ("fully-connected", "--npus", 300)):
        picture = tmp_path / f"{len(list(tmp_path.iterdir()))}.svg"
        run("show", *what, "--plot", picture)
        assert "NPUs" in run("show", *what).stdout
        assert picture.exists()


def test_a_picture_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="unknown picture format '.gif'; expected .png, .svg, .pdf"):
        run("show", "ring", "--npus", 4, "--plot", tmp_path / "net.gif")
    with pytest.raises(OutputError, match="cannot be written: no such directory"):
        run("show", "ring", "--npus", 4, "--plot", tmp_path / "missing" / "net.png")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("make", "rong", "--npus", 4, "-o", "x.csv"), TopologyError, "did you mean 'ring'?"),
        (("show", "rong"), ConfigError, "neither a file nor a kind, did you mean 'ring'?"),
        (("show", "rong.csv"), TopologyError, "rong.csv: cannot be read: No such file"),
        (("show", "net.csv", "--degree", 4), ConfigError, "--degree with a file; expected a file, or a kind"),
        (("show", "ring"), TopologyError, "npus is missing"),
    ],
)
def test_mistakes(arguments, error, message):
    with pytest.raises(error) as caught:
        run(*arguments)
    assert message in str(caught.value)


def test_usage_errors_and_help():
    assert run("make", "torus", "--npus", 4, "--dims", "2by2", "-o", "x.csv").exit_code == 2
    assert run("make", "torus").exit_code == 2
    for command in ((), ("make",), ("show",), ("convert",)):
        text = run(*command, "-h").stdout
        assert "Examples:\n    moxtrace topology" in text


def test_parameters_of_a_kind(tmp_path):
    out = tmp_path / "net.csv"
    made = run("make", "circulant", "--npus", 13, "-p", "offsets=1,5", "-o", out)
    assert made.stderr == f"wrote {out}: circulant, 13 NPUs, 52 links\n"
    assert np.array_equal(read(out).dst, build("circulant", 13, offsets=[1, 5]).dst)
    pod = json.loads(run("show", "boardfly", "-p", "groups=3", "-p", "board=full", "--json").stdout)
    assert pod == describe(build("boardfly", groups=3, board="full"))
    assert pod["cables"] == {"board": 144, "copper": 132, "optical": 3}
    assert pod["link_gbps_min"] == 1600
    assert (
        "cables                             144 board, 132 copper, 3 optical"
        in run("show", "boardfly", "-p", "groups=3", "-p", "board=full").stdout
    )


def test_an_expander_says_what_annealing_won(tmp_path):
    arguments = ("expander", "--npus", 32, "--degree", 6, "-p", "proposals=5000")
    won = build("expander", 32, degree=6, proposals=5000).parameters["annealing"]
    before, after = won["triangles"]
    assert (
        f"annealed triangles: {before} -> {after};"
        in run("make", *arguments, "-o", tmp_path / "a.csv").stderr
    )
    assert f"annealed triangles                 {before} -> {after}\n" in run("show", *arguments).stdout
    assert json.loads(run("show", *arguments, "--json").stdout)["annealing"] == won
    radius = run("show", "expander", "--npus", 32, "--degree", 6, "--select", "radius").stdout
    assert "annealed" not in radius


@pytest.mark.parametrize("setting", ["groups", "group=3", "groups=3=", "groups=3.5"])
def test_bad_parameters(setting):
    try:
        assert run("show", "boardfly", "-p", setting).exit_code == 2
    except TopologyError as error:
        assert "groups: found '3" in str(error)  # noqa: PT017
    with pytest.raises(ConfigError, match="degree is given as an option|dims is given as an option"):
        run("show", "hyperx", "--dims", "4x4", "-p", "dims=4,4")


def test_help_lists_every_kind_and_parameter():
    text = run("make", "-h").stdout
    for name in (*KINDS, *PARAMETERS):
        assert f"    {name}:" in text
