"""Placement by co-activation against its slow twin, by hand, and on real token routes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moxtrace import placement, recordings
from moxtrace.coactivation import kernels, place_by_coactivation
from moxtrace.coactivation.placement import _tokens_of
from moxtrace.errors import RecordingError
from moxtrace.recordings import LayerCounts
from tests.reference import coactivation as slow


def routes(tokens, experts, top_k, seed, unused=0.0):
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((tokens, experts)) ** rng.integers(1, 5, experts), axis=1)[:, :top_k]
    return np.where(rng.random(ids.shape) < unused, -1, ids).astype(np.int16)


def layer_of(topk_ids, experts):
    counts = np.bincount(topk_ids[topk_ids >= 0], minlength=experts).astype(float)
    return LayerCounts("layer 0", (0,), counts, topk_ids)


@given(st.integers(1, 30), st.integers(2, 9), st.integers(1, 4), st.integers(2, 5), st.integers(0, 10_000),
       st.floats(0, 0.5))  # fmt: skip
def test_kernels_equal_the_slow_twin(tokens, experts, top_k, npus, seed, unused):
    topk_ids = routes(tokens, experts, min(top_k, experts), seed, unused)
    host = placement.place("random", experts, npus, seed)
    assert kernels.fan_out(topk_ids, host, npus) == slow.fan_out(topk_ids, host)
    ptr, token = _tokens_of(topk_ids, experts)
    weight = np.diff(ptr)
    has = np.zeros((tokens, experts), np.bool_)
    has[token, np.repeat(np.arange(experts), weight)] = True
    held = np.zeros((tokens, npus), np.uint8)
    np.add.at(held, (token, np.repeat(host, weight)), 1)
    load = np.bincount(host, weights=weight, minlength=npus).astype(np.int64)
    limit = np.int64(load.max() + 1)
    theirs = host.copy()
    gained = slow.improve(topk_ids, theirs, npus, limit)
    assert kernels.improve(host, load, limit, weight, ptr, token, has, held) == gained
    np.testing.assert_array_equal(host, theirs)
    np.testing.assert_array_equal(load, np.bincount(host, weights=weight, minlength=npus))


def test_partners_end_up_together():
    """Four pairs of experts that are always chosen together, on four NPUs."""
    pairs = np.repeat(np.array([[0, 4], [1, 5], [2, 6], [3, 7]], np.int16), 50, axis=0)
    even = placement.place("contiguous", 8, 4)
    host, gain = place_by_coactivation(layer_of(pairs, 8), 4, even)
    assert all(host[a] == host[b] for a, b in pairs[::50])
    assert (gain.fan_out_before, gain.fan_out_after, gain.tokens) == (2.0, 1.0, 100)


@given(st.integers(2, 60), st.integers(2, 12), st.integers(2, 6), st.integers(0, 10_000))
def test_every_npu_hosts_as_many_experts_as_under_random(tokens, experts, npus, seed):
    layer = layer_of(routes(tokens, experts, min(3, experts), seed), experts)
    even = placement.place("random", experts, npus, seed)
    host, _ = place_by_coactivation(layer, npus, even, seed)
    assert sorted(np.bincount(host, minlength=npus)) == sorted(np.bincount(even, minlength=npus))


def test_real_routes_touch_fewer_npus_and_spread_no_worse(shared_data):
    recording = recordings.read(shared_data / "recordings" / "deepseek_v2_lite" / "dsv2lite_260prompts.npz")
    layer = recording.layer(int(recording.moe_layer_ids[4]))
    even = placement.place("random", layer.num_experts, 8, 1)
    host, gain = place_by_coactivation(layer, 8, even)
    assert gain.fan_out_after < 0.85 * gain.fan_out_before
    assert gain.load_after < gain.load_before
    again, _ = place_by_coactivation(layer, 8, even)
    np.testing.assert_array_equal(host, again)


def test_totals_are_refused():
    layer = LayerCounts("layer 3", (3,), np.ones(8))
    with pytest.raises(RecordingError, match="needs token routes, and the recording holds totals"):
        place_by_coactivation(layer, 4, np.zeros(8, np.int32))
