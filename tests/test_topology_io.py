"""Topology files: round trips, other people's files, and one clear line for every broken one."""

import json
import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moxtrace.errors import OutputError, TopologyError
from moxtrace.topology import Topology, build, ideal_switch_of, read, write
from moxtrace.topology.readers import FORMATS
from tests.test_topology import graphs

ARRAYS = ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes")


def same(one, two):
    assert (one.num_npus, one.num_nodes, one.names) == (two.num_npus, two.num_nodes, two.names)
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


def csv(tmp_path, text):
    path = tmp_path / "net.csv"
    path.write_text(text)
    return path


def node_link(graph, key):
    """What networkx writes, with the list of edges called `key`, whichever way this version has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        data = nx.node_link_data(graph)
    edges = data.pop("edges", None) or data.pop("links")
    return data | {key: edges}


def complaint(path, **options):
    with pytest.raises(TopologyError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# ---- round trips


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.booleans())
@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_written_is_read(tmp_path, ending, graph, switched):
    graph = ideal_switch_of(graph) if switched else graph
    path = tmp_path / f"net{ending}"
    write(graph, path)
    first = path.read_bytes()
    back = read(path)
    same(graph, back)
    assert back.kind == graph.kind
    write(back, path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    "names", [('a,"b"', "#1", " blank ", "<&é>"), ("10", "20", "7", "switch"), ("0", "1", "2", "x")]
)
def test_odd_names_survive(tmp_path, ending, names):
    ring = build("ring", 4)
    named = Topology("graph", 4, *(getattr(ring, name) for name in ARRAYS), names=names)
    for topology in (named, ideal_switch_of(named)):
        write(topology, tmp_path / f"net{ending}")
        same(topology, read(tmp_path / f"net{ending}"))


def test_names_that_a_format_cannot_hold(tmp_path):
    ring = build("ring", 2)
    named = Topology("graph", 2, *(getattr(ring, name) for name in ARRAYS), names=("a\nb", "c"))
    for ending in (".csv", ".graphml"):
        with pytest.raises(TopologyError, match=r"cannot hold the name 'a\\nb'"):
            write(named, tmp_path / f"net{ending}")
    write(named, tmp_path / "net.json")
    same(named, read(tmp_path / "net.json"))


def test_the_written_csv(tmp_path):
    write(build("ring", 3, link_gbps=12.5), tmp_path / "net.csv")
    assert (tmp_path / "net.csv").read_text() == (
        "# moxtrace topology\n# npus: 3\n# links: 6\nsrc,dst,gbps,latency_ns,lanes\n"
        "0,1,12.5,500,1\n0,2,12.5,500,1\n1,0,12.5,500,1\n1,2,12.5,500,1\n2,0,12.5,500,1\n2,1,12.5,500,1\n"
    )


def test_the_written_graphml_and_json(tmp_path):
    """Written by networkx, whose every version since 3.2 must give these bytes."""
    ring = ideal_switch_of(build("ring", 2, link_gbps=12.5))
    write(ring, tmp_path / "net.graphml")
    lines = (tmp_path / "net.graphml").read_text().splitlines()
    assert [line.strip() for line in lines[1:11]] == [
        '<key id="lanes" for="edge" attr.name="lanes" attr.type="long" />',
        '<key id="latency_ns" for="edge" attr.name="latency_ns" attr.type="double" />',
        '<key id="gbps" for="edge" attr.name="gbps" attr.type="double" />',
        '<key id="switch" for="node" attr.name="switch" attr.type="boolean" />',
        '<graph edgedefault="directed">',
        '<node id="0" />',
        '<node id="1" />',
        '<node id="2">',
        '<data key="switch">True</data>',
        "</node>",
    ]
    write(ring, tmp_path / "net.json")
    text = " ".join((tmp_path / "net.json").read_text().split())
    start = '{ "directed": true, "multigraph": false, "graph": {}, "nodes": [ '
    nodes = '{ "id": 0 }, { "id": 1 }, { "switch": true, "id": 2 } ], "edges": [ '
    assert text.startswith(start + nodes + '{ "gbps": ')
    assert text.endswith('"source": 2, "target": 1 } ] }')


def test_networkx_reads_what_is_written(tmp_path):
    graph = build("torus", 6, dims=[2, 3], link_gbps=12.5)
    write(graph, tmp_path / "net.graphml")
    write(graph, tmp_path / "net.json")
    theirs = nx.read_graphml(tmp_path / "net.graphml", node_type=int)
    data = json.loads((tmp_path / "net.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        other = nx.node_link_graph(data | {"links": data["edges"]})
    for found in (theirs, other):
        assert found.is_directed()
        assert sorted(found.edges) == list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
        assert found.edges[0, 3] == {"gbps": 12.5, "latency_ns": 500, "lanes": 2}


@pytest.mark.parametrize("ending", [".txt", ""])
def test_unknown_endings(tmp_path, ending):
    with pytest.raises(OutputError, match="unknown format .*; expected .csv, .graphml, .json"):
        write(build("ring", 4), tmp_path / f"net{ending}")
    assert "unknown format" in complaint(tmp_path / f"net{ending}")


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="net.csv: cannot be written: no such directory"):
        write(build("ring", 4), tmp_path / "missing" / "net.csv")
    (tmp_path / "net.csv").mkdir()
    with pytest.raises(OutputError, match="is no regular file"):
        write(build("ring", 4), tmp_path / "net.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["net.csv"]


# ---- other people's files


def test_a_csv_by_hand(tmp_path):
    text = "# a comment: with a colon\n\nDST, src ,bandwidth_gbps\n1,0,100\n 0 , 1 ,1e2\n2,1,400\n0,2,25\n"
    graph = read(csv(tmp_path, text), latency_ns=7, lanes=3)
    assert graph.src.tolist() == [0, 1, 1, 2]
    assert graph.dst.tolist() == [1, 0, 2, 0]
    assert graph.bandwidth_gbps.tolist() == [100, 100, 400, 25]
    assert set(graph.latency_ns) == {7}
    assert set(graph.lanes) == {3}
    assert graph.names == ()
    assert graph.parameters == {"kind": "graph", "path": str(tmp_path / "net.csv"), "npus": 3}


def test_csv_cells_may_be_empty_and_lines_end_as_on_windows(tmp_path):
    path = tmp_path / "net.csv"
    path.write_bytes("\ufeffsrc,dst,gbps,latency_ns,lanes\r\n0,1,,,\r\n1,0,50,0,2\r\n".encode())
    graph = read(path, link_gbps=10, latency_ns=20)
    assert graph.bandwidth_gbps.tolist() == [10, 50]
    assert graph.latency_ns.tolist() == [20, 0]
    assert graph.lanes.tolist() == [1, 2]


def test_names_are_numbered_as_they_appear(tmp_path):
    graph = read(csv(tmp_path, "src,dst,gbps\nb,a,1\na,c,1\nc,b,1\n"))
    assert graph.names == ("b", "a", "c")
    assert graph.src.tolist() == [0, 1, 2]
    assert graph.dst.tolist() == [1, 2, 0]


def test_a_list_of_nodes_sets_the_order(tmp_path):
    graph = read(csv(tmp_path, "# nodes: a, b, c\nsrc,dst,gbps\nb,a,1\na,c,1\nc,b,1\n"))
    assert graph.names == ("a", "b", "c")


def test_the_same_pair_again_adds_lanes(tmp_path):
    graph = read(csv(tmp_path, "src,dst,gbps,latency_ns,lanes\n0,1,5,9,1\n1,0,5,9,1\n0,1,5,9,3\n"))
    assert graph.lanes.tolist() == [4, 1]


def test_undirected_files_give_links_both_ways(tmp_path):
    theirs = nx.MultiGraph()
    theirs.add_edge("x", "y", gbps=40.0)
    theirs.add_edge("x", "y", gbps=40.0)
    theirs.add_edge("y", "z", bandwidth_gbps=10, latency_ns=3.5, lanes=2)
    nx.write_graphml(theirs, tmp_path / "net.graphml")
    data = node_link(theirs, "links")
    (tmp_path / "net.json").write_text(json.dumps(data))
    for ending in (".graphml", ".json"):
        graph = read(tmp_path / f"net{ending}", latency_ns=1)
        assert graph.names == ("x", "y", "z")
        assert list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)) == [
            (0, 1),
            (1, 0),
            (1, 2),
            (2, 1),
        ]
        assert graph.bandwidth_gbps.tolist() == [40, 40, 10, 10]
        assert graph.latency_ns.tolist() == [1, 1, 3.5, 3.5]
        assert graph.lanes.tolist() == [2, 2, 2, 2]
        assert graph.is_symmetric


@pytest.mark.parametrize("key", ["edges", "links"])
@pytest.mark.parametrize("multigraph", [True, False])
def test_parallel_edges_all_count(tmp_path, key, multigraph):
    edge = {"source": 0, "target": 1, "gbps": 5, "key": 7}
    data = {"multigraph": multigraph, "nodes": [{"id": 0}, {"id": 1}], key: [edge, edge]}
    (tmp_path / "net.json").write_text(json.dumps(data))
    (tmp_path / "net.graphml").write_text(
        '<graphml><graph edgedefault="undirected"><node id="0"/><node id="1"/>'
        '<edge id="7" source="0" target="1"/><edge id="7" source="1" target="0"/></graph></graphml>'
    )
    for ending in (".json", ".graphml"):
        graph = read(tmp_path / f"net{ending}", link_gbps=5)
        assert graph.src.tolist() == [0, 1]
        assert graph.bandwidth_gbps.tolist() == [5, 5]
        assert graph.lanes.tolist() == [2, 2]


def test_networkx_graphs_by_number(tmp_path):
    theirs = nx.random_regular_graph(4, 12, seed=3)
    nx.write_graphml(theirs, tmp_path / "net.graphml")
    (tmp_path / "net.json").write_text(json.dumps(node_link(theirs, "edges")))
    expected = sorted([*theirs.edges, *((v, u) for u, v in theirs.edges)])
    for ending in (".graphml", ".json"):
        graph = read(tmp_path / f"net{ending}")
        assert graph.names == ()
        assert list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)) == expected


def test_graphml_defaults_and_mixed_directions(tmp_path):
    path = tmp_path / "net.graphml"
    path.write_text(
        '<graphml><key id="d0" for="edge" attr.name="gbps"><default>50</default></key>'
        '<key id="y" for="node"/>'
        '<graph edgedefault="directed"><node id="a"><data key="y">1</data></node><node id="b"/>'
        '<edge source="a" target="b" directed="false"/>'
        '<edge source="a" target="b"><data key="d0">50.0</data></edge></graph></graphml>'
    )
    graph = read(path)
    assert graph.bandwidth_gbps.tolist() == [50, 50]
    assert graph.lanes.tolist() == [2, 1]


def test_graphml_defaults_of_every_element_and_empty_values(tmp_path):
    path = tmp_path / "net.graphml"
    path.write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="latency_ns" attr.type="float"><default>7</default></key>'
        '<key id="d1" for="all" attr.name="lanes" attr.type="int"><default>3</default></key>'
        '<key id="d2" for="edge" attr.name="gbps" attr.type="double"/>'
        '<key id="d3" for="node" attr.name="switch" attr.type="boolean"><default>false</default></key>'
        '<graph edgedefault="undirected"><node id="s"><data key="d3">True</data><port name="p"/></node>'
        '<node id="a"/><node id="b"/><edge source="a" target="s"><data key="d2"/></edge>'
        '<edge source="s" target="b"><data key="d1">2</data></edge></graph></graphml>'
    )
    graph = read(path, link_gbps=9)
    assert graph.kind == "switch"
    assert graph.names == ("a", "b")
    assert graph.src.tolist() == [0, 1, 2, 2]
    assert graph.dst.tolist() == [2, 2, 0, 1]
    assert set(graph.bandwidth_gbps) == {9}
    assert set(graph.latency_ns) == {7}
    assert graph.lanes.tolist() == [3, 2, 3, 2]


def test_attributes_with_the_names_of_networkx_parameters(tmp_path):
    odd = {"self": 1, "node_for_adding": 2, "u_for_edge": 3, "attr": 4, "key": 5}
    nodes = [{"id": 0, **odd}, {"id": 1}]
    read(json_file(tmp_path, nodes, [{"source": 0, "target": 1, **odd}], directed=False))
    keys = "".join(f'<key id="{name}" for="all" attr.name="{name}"/>' for name in odd)
    data = "".join(f'<data key="{name}">x</data>' for name in odd)
    (tmp_path / "net.graphml").write_text(
        f'<graphml>{keys}<graph edgedefault="undirected">{data}<node id="0">{data}</node><node id="1"/>'
        f'<edge source="0" target="1">{data}</edge></graph></graphml>'
    )
    assert read(tmp_path / "net.graphml").num_links == 2


def test_build_reads_the_users_graph(tmp_path):
    path = csv(tmp_path, "src,dst,gbps\n0,1,1\n1,0,1\n")
    same(build("graph", 2, path=path, latency_ns=4), read(path, latency_ns=4))
    same(build("graph", None, path=str(path)), read(path))
    with pytest.raises(TopologyError, match="has 2 NPUs|names .*npus is 3|cannot be reached"):
        build("graph", 3, path=path)


# ---- broken files

HEAD = "src,dst,gbps,latency_ns,lanes\n"
PAIR = "0,1,1,1,1\n1,0,1,1,1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a topology"),
        (" \n", "is empty; expected a topology"),
        ("# only a comment\n", "has no header; expected src,dst,gbps[,latency_ns][,lanes]"),
        ("src,dst,gbps\n", "has no links"),
        ("0,1,100\n1,0,100\n", "line 1: no column src, dst, gbps; expected src,dst,gbps"),
        ("src,dst,gbps,latncy_ns\n", "line 1: unknown column 'latncy_ns', did you mean latency_ns?"),
        ("src,dst,gbps,gbps\n", "line 1: column gbps stands twice"),
        (HEAD + "0,1,1\n", "line 2: 3 columns, the header has 5; is the file cut?"),
        (HEAD + ",1,1,1,1\n", "line 2: src or dst is empty"),
        (HEAD + PAIR + "1,1,1,1,1\n", "line 4: 1 -> 1 is a self-loop"),
        (HEAD + "0,1,0,1,1\n", "line 2: gbps 0; expected a rate > 0, Gbit/s"),
        (HEAD + "0,1,-5,1,1\n", "line 2: gbps -5; expected a rate > 0"),
        (HEAD + "0,1,nan,1,1\n", "line 2: gbps nan; expected a rate > 0"),
        (HEAD + "0,1,inf,1,1\n", "line 2: gbps inf; expected a rate > 0"),
        (HEAD + "0,1,fast,1,1\n", "line 2: gbps fast; expected a rate > 0"),
        (HEAD + "0,1,1,-1,1\n", "line 2: latency_ns -1; expected a latency >= 0, ns"),
        (HEAD + "0,1,1,1,0\n", "line 2: lanes 0; expected a whole number of lanes, at least 1"),
        (HEAD + "0,1,1,1,1.5\n", "line 2: lanes 1.5; expected a whole number"),
        (HEAD + "0,1,1,1,9999999\n", "line 2: 0 -> 1 has 9999999 lanes; expected at most 1000000"),
        (
            HEAD + PAIR + "0,1,2,1,1\n",
            "line 4: 0 -> 1 again, with 2 Gbit/s and 1 ns; on line 2 it has 1 and 1",
        ),
        (HEAD + PAIR + "0,1,1,3,1\n", "line 4: 0 -> 1 again, with 1 Gbit/s and 3 ns; on line 2"),
        (
            HEAD + PAIR + "0,3,1,1,1\n",
            "line 4: unknown node 3: 3 nodes are named, but 2 is not; expected 0 to 2",
        ),
        ("# npus: 2\n" + HEAD + PAIR + "0,2,1,1,1\n", "line 5: unknown node 2: npus is 2; expected 0 to 1"),
        ("# npus: 3\n" + HEAD + PAIR, "disconnected: 1 of 3 nodes (2) cannot be reached from NPU 0"),
        ("# npus: 2\n" + HEAD + "a,b,1,1,1\nb,c,1,1,1\n", "line 4: unknown node 'c': npus is 2"),
        ("# npus: 3\n" + HEAD + "a,b,1,1,1\nb,a,1,1,1\n", "has 2 NPUs, but npus is 3"),
        ("# npus: many\n" + HEAD + PAIR, "line 1: npus: 'many'; expected a number"),
        (
            "# nodes: a,bbb\n" + HEAD + "a,bbc,1,1,1\n",
            "line 3: unknown node 'bbc', did you mean 'bbb'?; the nodes are a, bbb",
        ),
        ("# nodes: a,b,a\n" + HEAD + "a,b,1,1,1\n", "node a is listed twice"),
        ("# links: 3\n" + HEAD + PAIR, "has 2 links, its comment says 3; is the file cut?"),
        ("# switch: s\n" + HEAD + "a,s,1,1,1\na,b,1,1,1\n", "line 4: does not touch the switch s"),
        (HEAD + 'a,"b,1,1,1\n', "line 2: is no CSV: unexpected end of data"),
        (HEAD + "a,b,1,1,1\nb,c,1,1,1\nc,b,1,1,1\n", "(b, c) cannot reach NPU a"),
        (
            HEAD + "a,b,1,1,1\nb,a,1,1,1\nc,d,1,1,1\nd,c,1,1,1\n",
            "2 of 4 nodes (c, d) cannot be reached from NPU a",
        ),
    ],
)
def test_broken_csv(tmp_path, text, message):
    assert message in complaint(csv(tmp_path, text))


def test_the_configured_number_of_npus_must_be_the_files(tmp_path):
    path = csv(tmp_path, "# npus: 2\n" + HEAD + PAIR)
    assert complaint(path, npus=4) == "is for 2 NPUs, but npus is 4; change npus or the file"
    path = csv(tmp_path, HEAD + PAIR + "1,2,1,1,1\n2,1,1,1,1\n")
    assert "line 4: unknown node 2: npus is 2; expected 0 to 1" in complaint(path, npus=2)
    write(build("ring", 4), tmp_path / "net.json")
    assert complaint(tmp_path / "net.json", npus=8) == "has 4 NPUs, but npus is 8; change npus or the file"


def test_files_that_are_no_text(tmp_path):
    assert complaint(tmp_path / "missing.csv") == "cannot be read: No such file or directory"
    assert complaint(tmp_path) == "unknown format ''; expected .csv, .graphml, .json"
    (tmp_path / "folder.csv").mkdir()
    assert complaint(tmp_path / "folder.csv") == "cannot be read: Is a directory"
    (tmp_path / "net.csv").write_bytes(b"src,\xff\xfe")
    assert "is no text file (byte 4 is not UTF-8)" in complaint(tmp_path / "net.csv")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_cut_file(tmp_path, ending):
    path = tmp_path / f"net{ending}"
    write(build("ring", 4), path)
    whole = path.read_bytes()
    for cut in (len(whole) - 12, len(whole) * 2 // 3, len(whole) // 3):
        path.write_bytes(whole[:cut])
        assert complaint(path)


def test_a_csv_cut_between_lines(tmp_path):
    path = tmp_path / "net.csv"
    write(build("ring", 4), path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    assert complaint(path) == "has 7 links, its comment says 8; is the file cut?"


def json_file(tmp_path, nodes, edges, **more):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"directed": True, "nodes": nodes, "edges": edges, **more}))
    return path


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (
            [{"id": "a"}, {"id": "b"}],
            [{"source": "a", "target": "c"}],
            "link a -> c: unknown node 'c'; the nodes are a, b",
        ),
        ([{"id": "a"}, {"name": "b"}], [], 'nodes[1] is {"name": "b"}; expected {"id": a number or a name}'),
        ([{"id": 0}, {"id": 1.5}], [], 'nodes[1] is {"id": 1.5}; expected'),
        ([{"id": 0}, {"id": 0}], [{"source": 0, "target": 0}], "node 0 is listed twice"),
        ([{"id": 0}], [[0, 1]], 'edges[0] is [0, 1]; expected {"source": ..., "target": ...}'),
        ([{"id": 0}, {"id": 1}], [{"source": 0, "target": 0}], "link 0 -> 0: 0 -> 0 is a self-loop"),
        ([{"id": 0}], [{"source": 0, "target": 0}], "has 1 NPUs; expected 2 to 4096"),
        (
            [{"id": 0}, {"id": 1}],
            [{"source": 0, "target": 1, "gbps": "fast"}],
            "link 0 -> 1: gbps fast; expected",
        ),
        (
            [{"id": 0}, {"id": 1}],
            [{"source": 0, "target": 1, "gbps": True}],
            "link 0 -> 1: gbps True; expected",
        ),
        (
            [{"id": 0}, {"id": 1}],
            [{"source": 0, "target": 1, "lanes": [1]}],
            "link 0 -> 1: lanes [1]; expected",
        ),
        ([{"id": 0}, {"id": 1}], [{"source": 0, "target": 1}], "(1) cannot reach NPU 0"),
        ([{"id": i, "switch": True} for i in (0, 1)], [], "nodes 0 and 1 are both switches"),
        ([{"id": 0}, {"id": 1}], [], "has no links; expected at least one"),
    ],
)
def test_broken_json(tmp_path, nodes, edges, message):
    assert message in complaint(json_file(tmp_path, nodes, edges))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON: "),
        ("[1]", "is no node-link JSON"),
        ('{"nodes": []}', "is no node-link JSON"),
        ("[" * 100_000, "is no node-link JSON: nested too deeply"),
    ],
)
def test_other_json(tmp_path, text, message):
    (tmp_path / "net.json").write_text(text)
    assert message in complaint(tmp_path / "net.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("src,dst\n", "is no XML: syntax error"),
        ("<svg/>", "is no GraphML; expected <graphml> with a <graph> in it"),
        ("<graphml/>", "is no GraphML"),
        (
            '<graphml><graph><node id="a"/><node id="c"/><edge source="a" target="b"/></graph></graphml>',
            "unknown node 'b'",
        ),
        ("<graphml><graph><node/></graph></graphml>", "a node has no id"),
        ('<graphml><graph><edge source="a"/></graph></graphml>', "an edge has no source or no target"),
        (
            '<graphml><graph><node id="a"/><node id="b"/><node id="a"/><edge source="a" target="b"/>'
            "</graph></graphml>",
            "node a is listed twice",
        ),
        (
            '<graphml><key id="d" for="edge" attr.name="gbps" attr.type="double"/><graph><node id="a"/>'
            '<node id="b"/><edge source="a" target="b"><data key="d">fast</data></edge></graph></graphml>',
            "link a -> b: gbps fast; expected a rate > 0, Gbit/s",
        ),
        (
            '<graphml><graph><node id="a"/><node id="b"/><edge source="a" target="b"><data key="d">1</data>'
            "</edge></graph></graphml>",
            "networkx cannot read it as GraphML: Bad GraphML data: no key d",
        ),
        ("<graphml><graph/><graph/></graphml>", "holds 2 graphs; expected one"),
        (
            '<graphml><graph><node id="a"><graph><node id="b"/></graph></node></graph></graphml>',
            "node a holds a graph of its own; expected all nodes in one graph",
        ),
        ("<graphml><graph><hyperedge/></graph></graphml>", "networkx cannot read it as GraphML: "),
    ],
)
def test_broken_graphml(tmp_path, text, message):
    (tmp_path / "net.graphml").write_text(text)
    assert message in complaint(tmp_path / "net.graphml")


def test_entities_are_not_expanded(tmp_path):
    lines = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 12))
    text = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e0 "ha">{lines}]><graphml>&e11;</graphml>'
    (tmp_path / "net.graphml").write_text(text)
    assert "has a DOCTYPE, which could declare entities; remove it" in complaint(tmp_path / "net.graphml")
