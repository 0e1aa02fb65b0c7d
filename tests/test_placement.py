"""Placement: who hosts which expert."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moxtrace.errors import ConfigError
from moxtrace.placement import add_replicas, place


def test_contiguous_by_hand():
    assert place("contiguous", 6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    # 7 = 3 + 2 + 2: the first NPU takes the one more
    assert place("contiguous", 7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    # fewer experts than NPUs: the last NPUs host none
    assert place("contiguous", 2, 4).tolist() == [0, 1]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_random_is_even_and_seeded(experts, npus, seed):
    host = place("random", experts, npus, seed)
    assert host.dtype == np.int32
    np.testing.assert_array_equal(host, place("random", experts, npus, seed))
    sizes = np.bincount(host, minlength=npus)
    np.testing.assert_array_equal(sizes, np.bincount(place("contiguous", experts, npus), minlength=npus))


def test_seeds_differ():
    assert (place("random", 64, 8, 1) != place("random", 64, 8, 2)).any()


@pytest.mark.parametrize(
    "content", ["[2, 0, 0, 1]", "expert,npu\n3,1\n0,2\n\n1,0\n2,0\n", "0,2\n1, 0\n2,0\n3,1"]
)
def test_from_file(tmp_path, content):
    path = tmp_path / "p"
    path.write_text(content)
    host = place("file", 4, 3, path=path)
    assert host.tolist() == [2, 0, 0, 1]
    assert host.dtype == np.int32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[0, 1]", "expert 2 has no NPU (2 of 4 are missing); expected every expert of the model"),
        ("", "expert 0 has no NPU (4 of 4 are missing)"),
        ("[0, 1, 2, 3]", "entry 3: expert 3 on NPU 3; expected NPU 0 to 2"),
        ("[0, 1, 2, -1]", "entry 3: expert 3 on NPU -1; expected NPU 0 to 2"),
        ("[0, 1, 2, 0, 1]", "entry 4: expert 4; expected 0 to 3"),
        ("[0, 1, 2, true]", "expected a JSON list of integers"),
        ('{"0": 1}', "expected a JSON list of integers"),
        ("[0, [1, 1.5], 2, 0]", "expected a JSON list of integers"),
        ("[0, [], 2, 0]", "expert 1 has no NPU (1 of 4 are missing)"),
        ("[0, [1, 1], 2, 0]", "entry 1: expert 1 is on NPU 1 twice; expected replicas on different NPUs"),
        ("[0, 1", "not JSON: Expecting ',' delimiter"),
        ("expert,npu\n0,1\n0,1\n", "line 3: expert 0 is on NPU 1 twice; expected replicas on different NPUs"),
        ("expert,npu\n9,1\n", "line 2: expert 9; expected 0 to 3"),
        ("expert,npu\n0,one\n", "line 2: found '0,one'; expected expert,npu"),
        ("0,1,2\n", "line 1: found '0,1,2'; expected expert,npu"),
    ],
)
def test_bad_file(tmp_path, content, message):
    path = tmp_path / "p"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        place("file", 4, 3, path=path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_refused(tmp_path):
    with pytest.raises(ConfigError, match="none: placement cannot be read: No such file"):
        place("file", 4, 3, path=tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ConfigError, match="binary: placement is not text"):
        place("file", 4, 3, path=tmp_path / "binary")
    with pytest.raises(ConfigError, match="kind file without a path; add path: FILE"):
        place("file", 4, 3)
    with pytest.raises(ConfigError, match="kind 'even'; expected random, contiguous or file"):
        place("even", 4, 3)
    with pytest.raises(ConfigError, match="0 experts on 3 NPUs"):
        place("random", 0, 3)


@pytest.mark.parametrize("content", ["[2, [0, 1], 0, [1, 2]]", "expert,npu\n0,2\n1,0\n3,1\n1,1\n2,0\n3,2\n"])
def test_replicas_from_file(tmp_path, content):
    path = tmp_path / "p"
    path.write_text(content)
    host = place("file", 4, 3, path=path)
    assert host.tolist() == [[2, -1], [0, 1], [0, -1], [1, 2]]
    assert host.dtype == np.int32


def test_added_replicas_by_hand():
    # expert 1 is in greatest demand; each NPU hosts one expert, and that on NPU 0 has the least demand
    host = add_replicas(np.array([0, 1, 2], np.int32), 1, np.array([1.0, 9.0, 4.0]), 3)
    assert host.tolist() == [[0, -1], [1, 0], [2, -1]]
    # its two replicas have 4.5 each, which is still the most; NPU 2 is the only one left
    host = add_replicas(host, 1, np.array([1.0, 9.0, 4.0]), 3)
    assert host.tolist() == [[0, -1, -1], [1, 0, 2], [2, -1, -1]]


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 20), st.integers(0, 5))
def test_added_replicas_are_even(experts, npus, redundant, seed):
    host = place("random", experts, npus, seed)
    weight = np.random.default_rng(seed).random(experts)
    if redundant > experts * (npus - 1):
        with pytest.raises(ConfigError, match=f"at most {experts * (npus - 1)} have an NPU of their own"):
            add_replicas(host, redundant, weight, npus)
        return
    rows = add_replicas(host, redundant, weight, npus).reshape(experts, -1)
    homes = [[npu for npu in row if npu >= 0] for row in rows.tolist()]
    assert sum(map(len, homes)) == experts + redundant
    assert all(len(set(home)) == len(home) and home[0] == host[e] for e, home in enumerate(homes))
    # none could give up a replica for another expert and leave the busiest replica with less
    open_to = [w / len(home) for w, home in zip(weight, homes, strict=True) if len(home) < npus]
    for w, home in zip(weight, homes, strict=True):
        assert len(home) == 1 or w / (len(home) - 1) >= max(open_to, default=0)
