"""Boardfly against what is published of it, and against its own parameters."""

import numpy as np
import pytest

from moxtrace.errors import TopologyError
from moxtrace.topology import build, describe


def place(graph):
    """Group, board and chip of every NPU, from its name."""
    return np.array(
        [[int(x) for x in name[1:].replace("b", " ").replace("c", " ").split()] for name in graph.names]
    )


def cables(graph):
    """Lanes by sort: within a board, between boards of a group, between groups."""
    at = place(graph)
    same_group = at[graph.src, 0] == at[graph.dst, 0]
    same_board = same_group & (at[graph.src, 1] == at[graph.dst, 1])
    once = graph.src < graph.dst
    return [
        int(graph.lanes[once & sort].sum()) for sort in (same_board, same_group & ~same_board, ~same_group)
    ]


@pytest.mark.parametrize("board", ["ring", "full"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pod_of_36_groups_is_the_published_one(board, seed):
    pod = build("boardfly", board=board, seed=seed)
    intra = {"ring": 1152, "full": 1728}[board]
    assert cables(pod) == [intra, 1584, 630]
    assert pod.parameters["cables"] == {"board": intra, "copper": 1584, "optical": 630}
    found = describe(pod)
    assert (found["npus"], found["diameter"]) == (1152, 7)
    ports = np.bincount(pod.src, pod.lanes)
    assert ports.max() == (6 if board == "ring" else 7)
    assert set(pod.bandwidth_gbps) == {1600.0}
    assert found["is_symmetric"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_32_groups_are_1024_chips(seed):
    pod = build("boardfly", 1024, seed=seed)
    assert pod.parameters["groups"] == 32
    assert cables(pod) == [1024, 1408, 496]
    assert describe(pod)["diameter"] in (7, 8)


@pytest.mark.parametrize("wiring", ["alike", "each"])
@pytest.mark.parametrize("port_map", ["balanced", "random"])
def test_ports_of_boards_and_chips(wiring, port_map):
    pod = build("boardfly", groups=6, wiring=wiring, port_map=port_map)
    at = place(pod)
    board = at[:, 0] * 8 + at[:, 1]
    between = np.zeros((48, 48), int)
    np.add.at(between, (board[pod.src], board[pod.dst]), pod.lanes)
    for g in range(6):
        group = between[8 * g : 8 * g + 8, 8 * g : 8 * g + 8].copy()
        np.fill_diagonal(group, 0)
        assert (group.sum(axis=1) == 11).all()
        assert sorted(np.bincount(group[np.triu_indices(8, 1)]).tolist()) == [0, 12, 16]  # 16 of 28 doubled
        if wiring == "alike":
            assert np.array_equal(group, between[:8, :8] * (1 - np.eye(8, dtype=int)))
    outside = pod.lanes * (at[pod.src, 0] != at[pod.dst, 0])
    optical = np.bincount(board[pod.src], outside)
    assert optical.max() <= 5
    copper = np.bincount(pod.src, pod.lanes * (board[pod.src] != board[pod.dst])) - np.bincount(
        pod.src, outside
    )
    assert np.bincount(pod.src, pod.lanes).max() <= 6
    if port_map == "balanced":
        assert set(copper) == {2, 3}
        assert np.ptp(optical) <= 1


def test_each_wiring_differs_between_groups():
    pod = build("boardfly", groups=3, wiring="each")
    inside = [(u, v) for u, v in zip(pod.src, pod.dst, strict=True) if u // 32 == v // 32]
    first, second = ({(u % 32, v % 32) for u, v in inside if u // 32 == g} for g in (0, 1))
    assert first != second


def test_doubled_cables_are_lanes():
    pod = build(
        "boardfly", groups=2, chips=2, copper_ports=14, optical_ports=8, spare_optics="doubled", lanes=3
    )
    assert pod.lanes.max() >= 6
    assert (pod.lanes % 3 == 0).all()


def test_spare_optics_light_every_port():
    pod = build("boardfly", spare_optics="doubled")
    assert cables(pod) == [1152, 1584, 720]  # 40 ports in each of 36 groups
    assert (np.bincount(pod.src, pod.lanes) == 6).all()


@pytest.mark.parametrize("idle", ["boards", "chips", "groups"])
def test_idle_chips_are_left_out(idle):
    pod = build("boardfly", 1024, groups=36, idle=idle)
    at = place(pod)
    assert len(at) == 1024
    per_board = np.bincount(at[:, 0] * 8 + at[:, 1], minlength=288)
    per_group = np.bincount(at[:, 0], minlength=36)
    if idle != "chips":
        assert set(per_board) == {0, 4}
    assert (set(per_group) == {0, 32}) == (idle == "groups")
    assert pod.names[0].startswith("g0b")


def test_seeds_move_the_ports():
    one, two = (build("boardfly", groups=3, seed=seed) for seed in (1, 2))
    assert not np.array_equal(one.dst, two.dst)
    assert one.parameters["seed"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": 42}, "42 groups need 41 optical ports in each, but 8 boards with 5 have 40; the nearest: "
                         "groups: 41, which is 1312 NPUs"),
        ({"npus": 1400}, "the nearest: groups: 41"),
        ({"groups": 33, "boards": 64, "copper_ports": 63}, "are 8448 NPUs; expected at most 4096"),
        ({"copper_ports": 6}, "copper_ports 6 for 8 boards; expected at least 7"),
        ({"boards": 7, "copper_ports": 7}, "an even number of ports in all; the nearest: 6 or 8"),
        ({"groups": 3, "npus": 97}, "3 groups of 8 boards of 4 chips hold 96; the nearest: groups: 4"),
        ({"board": "mesh"}, "expected one of ring, full"),
        ({"degree": 6}, "degree 6: 1152 NPUs of this kind have degree 5 to 6"),
    ],
)  # fmt: skip
def test_infeasible_shapes(given, message):
    with pytest.raises(TopologyError) as caught:
        build("boardfly", **given)
    assert message in str(caught.value)
