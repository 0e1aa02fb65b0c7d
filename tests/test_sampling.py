"""Sampling: chances that are exactly right, in closed form and in the draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace import recordings
from moxtrace.errors import ConfigError, RecordingError
from moxtrace.recordings import LayerCounts
from moxtrace.sampling import ConditionalPoisson, inclusion_probabilities, sample_tokens
from moxtrace.sampling.kernels import draw_subsets, draw_uniform
from tests.reference import sampling as reference


@st.composite
def popularity(draw, most_experts=7):
    """(counts, top_k) with at least top_k experts that were ever chosen."""
    counts = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=most_experts))
    used = sum(c > 0 for c in counts)
    if used == 0:
        counts[0] = used = 1
    return counts, draw(st.integers(1, used))


def layer(counts, topk_ids=None, source_rank=None):
    return LayerCounts("layer 3", (3,), np.asarray(counts, float), topk_ids, source_rank)


# ---- inclusion probabilities


def test_inclusion_by_hand():
    np.testing.assert_array_equal(inclusion_probabilities([4, 2, 1, 1], 2), [1, 0.5, 0.25, 0.25])


def test_impossible_marginal_names_expert_value_and_remedy():
    with pytest.raises(RecordingError) as error:
        inclusion_probabilities([1, 1, 6, 0], 2, name="layer 45")
    assert str(error.value) == (
        "layer 45: expert 2 would be chosen 1.5 times per token (top_k 2 x count 6 / sum 8); "
        "expected at most 1: is top_k the recorded one? clip it with traffic.clip: true, "
        "or choose another layer"
    )


def test_clip_by_hand():
    # 3 * 90 / 100 and then 2 * 6 / 10 exceed 1; one slot is left for counts 3 and 1
    np.testing.assert_array_equal(inclusion_probabilities([3, 90, 6, 1], 3, clip=True), [0.75, 1, 1, 0.25])


@settings(deadline=None)
@given(popularity())
def test_clip_matches_twin(case):
    counts, top_k = case
    pi = inclusion_probabilities(counts, top_k, clip=True)
    np.testing.assert_allclose(pi, reference.clipped(counts, top_k), atol=1e-12)
    assert pi.sum() == pytest.approx(top_k, abs=1e-12)


@pytest.mark.parametrize("top_k", [0, 5])
def test_top_k_out_of_range(top_k):
    with pytest.raises(RecordingError, match=f"top_k {top_k}; expected 1 to 4"):
        inclusion_probabilities([1, 1, 1, 1], top_k)


def test_too_few_experts_cannot_be_clipped():
    with pytest.raises(RecordingError, match="only 2 of 4 experts were ever chosen; top_k 3"):
        inclusion_probabilities([1, 0, 0, 1], 3, clip=True)


# ---- conditional Poisson


@settings(deadline=None)
@given(popularity())
def test_design_matches_enumeration(case):
    counts, top_k = case
    pi = inclusion_probabilities(counts, top_k, clip=True)
    design = ConditionalPoisson(pi, top_k)
    assert design.error <= 1e-10
    finite = np.where(np.isinf(design.weights), 1e15, design.weights)
    chances = reference.set_chances(finite, top_k)
    np.testing.assert_allclose(reference.marginals(chances, len(pi)), pi, atol=1e-9)
    for members in ([0], [0, len(pi) - 1], range(len(pi) // 2)):
        assert design.touch_probability(list(members)) == pytest.approx(
            reference.touch(chances, members), abs=1e-9
        )


@settings(max_examples=40, deadline=None)
@given(popularity(most_experts=6), st.integers(0, 2**32 - 1))
def test_draws_match_twin(case, seed):
    counts, top_k = case
    design = ConditionalPoisson(inclusion_probabilities(counts, top_k, clip=True), top_k)
    uniform = np.random.default_rng(seed).random((5, design._free))
    out = np.empty((5, top_k), np.int16)
    draw_subsets(design._survival, design._experts, uniform, design._always, out)
    chances = reference.set_chances(design._p / design._q, design._free)
    for row, u in zip(out, uniform, strict=True):
        free = design._experts[reference.draw_row(chances, u)]
        assert row.tolist() == sorted([*design._always.tolist(), *free.tolist()])


def test_draw_by_hand():
    # chances 1/2, 1/4, 1/4: expert 1 or later where 1 - u <= 1/2, expert 2 where 1 - u <= 1/4
    design = ConditionalPoisson([0.5, 0.25, 0.25], 1)
    tiny = 1e-9
    uniform = np.array([[0], [0.5 - tiny], [0.5 + tiny], [0.75 - tiny], [0.75 + tiny], [1 - tiny]])
    out = np.empty((6, 1), np.int16)
    draw_subsets(design._survival, design._experts, uniform, design._always, out)
    assert out[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_draws_have_the_chance_of_every_set():
    counts, top_k, tokens = [9, 1, 4, 0, 6], 2, 200_000
    design = ConditionalPoisson(inclusion_probabilities(counts, top_k), top_k)
    drawn = design.draw(tokens, 5)
    chances = reference.set_chances(design.weights, top_k)
    for s, chance in chances.items():
        found = (drawn == s).all(axis=1).mean()
        assert found == pytest.approx(chance, abs=5 * np.sqrt(chance / tokens))


@pytest.mark.parametrize(
    ("experts", "top_k", "spread"),
    [(256, 8, 0.7), (1024, 16, 3.0), (1024, 16, 8.0), (128, 1, 6.0), (20, 19, 2.0)],
)
def test_calibrates_large_and_skewed(experts, top_k, spread):
    counts = np.exp(np.random.default_rng(1).normal(0, spread, experts))
    pi = inclusion_probabilities(counts, top_k, clip=True)
    design = ConditionalPoisson(pi, top_k)
    assert design.error <= 1e-10
    # a single member is touched exactly as often as it is included: an independent way to the marginals
    for expert in (int(np.argmax(pi)), int(np.argmin(pi)), experts // 2):
        assert design.touch_probability([expert]) == pytest.approx(pi[expert], abs=1e-10)
    drawn = design.draw(50, 0)
    assert (np.diff(drawn.astype(int), axis=1) > 0).all()


@pytest.mark.parametrize("near", [1e-6, 1e-9, 1e-13])
def test_nearly_certain_experts(near):
    pi = np.r_[np.full(8, 1 - near), np.full(248, 8 * near / 248)]
    assert ConditionalPoisson(pi, 8).error <= 1e-10


def test_certain_and_impossible_experts():
    design = ConditionalPoisson([0, 1, 0.5, 0.5, 0, 1], 3)
    drawn = design.draw(1000, 2)
    assert (drawn[:, 0] == 1).all()
    assert (drawn[:, 2] == 5).all()
    assert set(drawn[:, 1].tolist()) == {2, 3}
    assert design.touch_probability([5]) == 1
    assert design.touch_probability([0, 4]) == 0
    assert ConditionalPoisson([1, 0, 1], 2).draw(2, 0).tolist() == [[0, 2], [0, 2]]


@pytest.mark.parametrize("pi", [[0.5, 0.6], [1.5, 0.5], [-0.5, 1.5], [np.nan, 1.0]])
def test_no_inclusion_probabilities(pi):
    with pytest.raises(RecordingError, match=r"expected numbers in \[0, 1\] that sum to top_k"):
        ConditionalPoisson(pi, 1 if sum(pi) < 1.5 else 2)


def hottest_and_coldest(counts, top_k, topk_ids):
    pi = inclusion_probabilities(counts, top_k)
    found = np.bincount(topk_ids.ravel(), minlength=len(pi)) / len(topk_ids)
    order = np.argsort(pi)
    for expert in (*order[:5], *order[-5:]):
        assert found[expert] == pytest.approx(pi[expert], abs=5 * np.sqrt(pi[expert] / len(topk_ids)))


def test_real_layers_keep_their_marginals(shared_data):
    folder = shared_data / "recordings"
    recording = recordings.read(folder / "sglang_deepseek_v3" / "decode_in500out1500.json")
    for number in (3, 30, 60):
        chosen = recording.layer(number)
        pi = inclusion_probabilities(chosen.counts, 8)
        design = ConditionalPoisson(pi, 8)
        assert design.error <= 1e-10
        drawn = design.draw(100_000, number)
        hottest_and_coldest(chosen.counts, 8, drawn)
        host = np.arange(256) % 16
        for npu in (0, 15):
            touched = (host[drawn] == npu).any(axis=1).mean()
            wanted = design.touch_probability(np.flatnonzero(host == npu))
            assert touched == pytest.approx(wanted, abs=5 * np.sqrt(wanted * (1 - wanted) / len(drawn)))
    olmoe = recordings.read(folder / "olmoe" / "olmoe_arxiv.json").layer(0)
    with pytest.raises(RecordingError, match=r"olmoe_arxiv.json: layer 0: expert 0 would be chosen 1\."):
        inclusion_probabilities(olmoe.counts, 16, name=olmoe.where)


# ---- dealing


def deal(counts, mode="exact", top_k=2, tokens_per_npu=4, num_npus=3, seed=1, clip=False):
    return sample_tokens(
        counts, mode=mode, top_k=top_k, tokens_per_npu=tokens_per_npu, num_npus=num_npus, seed=seed, clip=clip
    )


@pytest.mark.parametrize("mode", ["exact", "uniform"])
def test_an_npus_tokens_depend_on_nothing_else(mode):
    counts = layer(np.arange(1, 33))
    source, few = deal(counts, mode, num_npus=2)
    _, many = deal(counts, mode, num_npus=5, tokens_per_npu=9)
    assert source.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert source.dtype == np.int32
    assert few.dtype == np.int16
    np.testing.assert_array_equal(few[:4], many[:4])
    np.testing.assert_array_equal(few[4:], many[9:13])
    assert (deal(counts, mode, num_npus=2, seed=2)[1] != few).any()
    assert (few[:4] != few[4:]).any()


@settings(deadline=None)
@given(st.integers(1, 12), st.data())
def test_uniform_matches_twin(experts, data):
    top_k = data.draw(st.integers(1, experts))
    uniform = np.random.default_rng(data.draw(st.integers(0, 1000))).random((6, top_k))
    out = np.empty((6, top_k), np.int16)
    draw_uniform(experts, uniform, out)
    assert out.tolist() == [reference.floyd_row(experts, u) for u in uniform]


def test_uniform_sets_are_alike():
    _, ids = deal(layer(np.ones(5)), "uniform", tokens_per_npu=20_000)
    sets, found = np.unique(ids, axis=0, return_counts=True)
    assert len(sets) == 10
    np.testing.assert_allclose(found / len(ids), 0.1, atol=5 * np.sqrt(0.1 / len(ids)))


def test_exact_clips_on_request():
    _, ids = deal(layer([1, 1, 6, 0]), clip=True)
    assert (ids == 2).any(axis=1).all()
    with pytest.raises(RecordingError, match="layer 3: expert 2"):
        deal(layer([1, 1, 6, 0]))


ROUTES = np.array([[1, 0], [2, 1], [3, 2], [0, 3], [1, 3]], np.int16)


def test_replay_in_blocks_and_round_again(caplog):
    source, ids = deal(layer(np.ones(4), ROUTES), "replay", tokens_per_npu=2, num_npus=2)
    assert ids.tolist() == ROUTES[:4].tolist()
    assert source.tolist() == [0, 0, 1, 1]
    assert not caplog.records
    _, ids = deal(layer(np.ones(4), ROUTES), "replay", tokens_per_npu=2, num_npus=3)
    assert ids.tolist() == ROUTES[[0, 1, 2, 3, 4, 0]].tolist()
    assert "layer 3: 5 recorded tokens for 6 in all" in caplog.text


def test_replay_by_source_rank(caplog):
    ranked = layer(np.ones(4), ROUTES, np.array([3, 0, 1, 0, 2], np.int32))
    _, ids = deal(ranked, "replay", tokens_per_npu=2, num_npus=2)
    # ranks mod 2: 1, 0, 1, 0, 0
    assert ids.tolist() == ROUTES[[1, 3, 0, 2]].tolist()
    _, ids = deal(ranked, "replay", tokens_per_npu=3, num_npus=2)
    assert ids.tolist() == ROUTES[[1, 3, 4, 0, 2, 0]].tolist()
    assert "2 recorded tokens for 3 on some NPU" in caplog.text
    _, ids = deal(ranked, "replay", tokens_per_npu=1, num_npus=5)
    assert ids.tolist() == ROUTES.tolist()
    assert "leave 1 of 5 NPUs without tokens" in caplog.text


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mode": "exactly"}, ConfigError, "traffic.sampling: 'exactly'; expected exact, uniform or replay"),
        ({"tokens_per_npu": 0}, ConfigError, "0 tokens on each of 3 NPUs"),
        ({"num_npus": 0}, ConfigError, "on each of 0 NPUs"),
        ({"mode": "replay"}, RecordingError, "holds counts only, and replay needs token routes"),
        ({"mode": "uniform", "top_k": 9}, RecordingError, "top_k 9; expected 1 to the 4 experts"),
    ],
)
def test_refused(change, error, message):
    with pytest.raises(error, match=message):
        deal(layer(np.ones(4)), **change)


def test_replay_with_another_top_k():
    with pytest.raises(RecordingError, match="recorded with top_k 2; expected the model's top_k 3"):
        deal(layer(np.ones(4), ROUTES), "replay", top_k=3)
