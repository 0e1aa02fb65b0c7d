"""Where pictures put the nodes."""

import numpy as np
import pytest

from moxtrace.plots.layouts import layout_of
from moxtrace.plots.topology import draw_topology
from moxtrace.topology import Failed, build, read, without, write

KINDS = [
    ("ring", {"npus": 5}, 1),
    ("mesh", {"dims": [6]}, 1),
    ("torus", {"dims": [3, 4, 5]}, 1),
    ("twisted-torus", {"dims": [4, 8]}, 1),
    ("hyperx", {"dims": [3, 4, 5]}, 12),
    ("hyperx", {"dims": [6]}, 1),
    ("dragonfly", {"npus": 36}, 9),
    ("slim-fly", {"prime_power": 5}, 10),
    ("xpander", {"npus": 15, "degree": 4}, 5),
    ("boardfly", {"groups": 3}, 24),
    ("switch", {"npus": 4}, 1),
    ("kautz", {"npus": 12}, 1),
]


@pytest.mark.parametrize(("kind", "given", "groups"), KINDS)
def test_nodes_stand_apart_and_clusters_together(kind, given, groups):
    network = build(kind, **given)
    layout = layout_of(network)
    assert layout.places.shape == (network.num_nodes, 2)
    assert len(set(layout.group)) == groups
    gap = np.linalg.norm(layout.places[:, None] - layout.places[None], axis=2)
    np.fill_diagonal(gap, np.inf)
    assert gap.min() > 0.5 * layout.spacing
    if groups > 1:
        same = layout.group[:, None] == layout.group[None]
        np.fill_diagonal(same, False)
        nearest = np.where(same, gap, np.inf).min(axis=1)
        assert np.allclose(nearest, nearest[0])


def test_places_stay_when_some_fail():
    whole = build("dragonfly", 36)
    left = layout_of(without(whole, Failed(npus=[3, 17])))
    kept = [i for i in range(36) if i not in (3, 17)]
    assert np.array_equal(left.places, layout_of(whole).places[kept])
    assert np.array_equal(left.group, layout_of(whole).group[kept])


def test_a_boardfly_from_a_file_stands_as_the_one_that_was_built(tmp_path):
    pod = build("boardfly", 60)
    write(pod, tmp_path / "pod.csv")
    assert np.array_equal(layout_of(read(tmp_path / "pod.csv")).places, layout_of(pod).places)


@pytest.mark.parametrize(("kind", "given"), [("boardfly", {"groups": 2}), ("mesh", {"dims": [4]})])
def test_pictures_are_drawn(tmp_path, kind, given):
    draw_topology(build(kind, **given), tmp_path / "net.svg")
    assert (tmp_path / "net.svg").stat().st_size > 5000
