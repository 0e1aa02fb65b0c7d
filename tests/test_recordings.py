"""Recordings: every format, every kind of dirt, and one line for each thing that cannot be used."""

import contextlib
import importlib.util
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace import recordings
from moxtrace.errors import OutputError, RecordingError

ROOT = Path(__file__).resolve().parents[1]
COUNTS = np.array([[0, 0, 0, 0], [5, 3, 2, 10], [4, 4, 4, 8]])
ROUTES = np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[1, 0], [2, 1]]], np.int16)


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


# ---- formats


def write(kind, path):
    """COUNTS in one of the formats that hold totals."""
    if kind == "counts-npy":
        np.save(path, COUNTS)
    elif kind == "counts-npz":
        np.savez(path, counts=COUNTS)
        path = path.with_suffix(".npz")
    elif kind == "sglang-json":
        path.write_text(json.dumps({"logical_count": COUNTS.tolist()}))
    elif kind == "counts-json":
        path.write_text(json.dumps(COUNTS.tolist()))
    else:
        header = "layer_id,expert_id,count" if "sglang" in kind else "layer,expert,count"
        lines = [f"{i},{e},{COUNTS[i, e]}" for i in (2, 1, 0) for e in range(4)]
        path.write_text("\n".join([header, *lines, ""]))
    return path


@pytest.mark.parametrize(
    "kind", ["counts-npy", "counts-npz", "sglang-json", "counts-json", "counts-csv", "sglang counts-csv"]
)
def test_totals_are_told_by_content(tmp_path, kind):
    suffix = ".npy" if kind == "counts-npy" else ""  # numpy.save adds it
    path = write(kind, tmp_path / f"counts{suffix}")
    recording = recordings.read(path)
    assert recording.format == kind.split()[-1]
    assert recording.kind == "totals"
    assert recording.path == str(path)
    np.testing.assert_array_equal(recording.counts, COUNTS)
    assert recording.counts.dtype == np.float64
    assert recording.layer_ids.tolist() == [0, 1, 2]
    assert recording.moe_layer_ids.tolist() == [1, 2]
    assert recording.topk_ids is None
    assert recording.top_k is None
    assert recording.warnings == ("without counts (dense): layer 0; 2 of 3 layers are MoE layers",)


def test_one_axis_is_one_layer_and_three_are_summed(tmp_path):
    np.save(tmp_path / "one.npy", np.array([1, 2, 3]))
    assert recordings.read(tmp_path / "one.npy").counts.tolist() == [[1, 2, 3]]
    np.save(tmp_path / "three.npy", np.stack([COUNTS, COUNTS, 0 * COUNTS]).astype(np.int64))
    three = recordings.read(tmp_path / "three.npy")
    np.testing.assert_array_equal(three.counts, 2 * COUNTS)
    assert three.warnings[:2] == (
        "summed 2 buffer rows (1 unused ones are zero); the unevenness of single passes is lost",
        "1 buffer rows equal the row before them: warm-up?",
    )


def test_token_routes(tmp_path):
    path = save(
        tmp_path / "r.npz", topk_ids=ROUTES.astype(np.uint8), layer_ids=[3, 7], request_offsets=[0, 1, 3]
    )
    recording = recordings.read(path)
    assert (recording.format, recording.kind, recording.top_k, recording.num_tokens) == (
        "token-routes",
        "tokens",
        2,
        3,
    )
    assert recording.counts.tolist() == [[2, 3, 1, 0], [1, 1, 2, 2]]
    assert recording.layer_ids.tolist() == [3, 7]
    assert recording.request_offsets.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(recording.topk_ids, ROUTES)
    assert recording.topk_ids.dtype == np.int16
    one = recording.layer(7)
    assert one.topk_ids.tolist() == [[2, 3], [3, 0], [2, 1]]
    assert one.counts.tolist() == [1, 1, 2, 2]
    both = recording.layer("all")
    assert both.topk_ids.tolist() == ROUTES.reshape(6, 2).tolist()
    assert both.counts.tolist() == [3, 4, 3, 2]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_counts_of_routes_match_a_plain_count(tmp_path_factory, data):
    tokens, layers, experts = (data.draw(st.integers(1, n)) for n in (6, 3, 9))
    top_k = data.draw(st.integers(1, experts))
    generator = np.random.default_rng(data.draw(st.integers(0, 999)))
    ids = generator.permuted(np.broadcast_to(np.arange(experts), (tokens, layers, experts)), axis=2)[
        :, :, :top_k
    ]
    ids = np.where(generator.random(ids.shape) < 0.2, -1, ids)
    ids[0, 0, 0] = experts - 1 if experts - 1 not in ids[0, 0, 1:] else ids[0, 0, 0]
    if (ids < 0).all() or (ids <= 0).all(axis=(0, 2)).any():
        return  # nothing recorded, or what looks like a layer that was not captured
    path = save(tmp_path_factory.mktemp("r") / "r.npz", topk_ids=ids, num_experts=experts)
    plain = [[sum(e in row for row in ids[:, i].tolist()) for e in range(experts)] for i in range(layers)]
    assert recordings.read(path).counts.tolist() == plain


def test_source_ranks_follow_the_layers(tmp_path):
    recording = recordings.read(save(tmp_path / "r.npz", topk_ids=ROUTES, source_rank=[2, 0, 1]))
    assert recording.layer(0).source_rank.tolist() == [2, 0, 1]
    assert recording.layer("all").source_rank.tolist() == [2, 2, 0, 0, 1, 1]


def test_layers_that_were_not_captured(tmp_path):
    ids = np.stack([ROUTES[:, 0], np.zeros((3, 2), np.int16), np.full((3, 2), -1, np.int16)], axis=1)
    recording = recordings.read(save(tmp_path / "r.npz", topk_ids=ids))
    assert recording.moe_layer_ids.tolist() == [0]
    assert recording.warnings[0] == "expert 0 in every slot, so not captured and left out: layer 1"
    assert recording.layer("all").topk_ids.tolist() == ROUTES[:, 0].tolist()


def test_vllm_routes_are_told_from_counts(tmp_path):
    np.save(tmp_path / "routes.npy", ROUTES.astype(np.uint8))
    assert recordings.read(tmp_path / "routes.npy").kind == "tokens"


def test_text_routes(tmp_path):
    lines = [{"type": "meta", "num_experts": 6}, *({"layer": 2, "topk_ids": r} for r in ([1, 0], [3, 4]))]
    log = text(tmp_path / "log.jsonl", "\n".join(map(json.dumps, lines)) + '\n{"layer": 2, "topk')
    recording = recordings.read(log)
    assert recording.format == "routes-jsonl"
    assert recording.counts.tolist() == [[1, 1, 0, 1, 1, 0]]
    assert recording.warnings[0] == "line 4 is cut and was left out"
    steps = [{"0": None, "1": [[1, 0], [3, 2]]}, {"0": None, "1": [[2, 0]]}]
    recording = recordings.read(text(tmp_path / "steps.json", json.dumps(steps)))
    assert (recording.format, recording.layer_ids.tolist()) == ("routes-json", [1])
    assert recording.topk_ids[:, 0].tolist() == [[1, 0], [3, 2], [2, 0]]
    table = 'Layer ID,Batch Number,Token,Activated Expert IDs\n1,0,"a, ""b""","[1, 2]"\n2,0,x,"[0, 2]"\n'
    recording = recordings.read(text(tmp_path / "t.csv", table))
    assert (recording.format, recording.topk_ids.tolist()) == ("routes-csv", [[[1, 2], [0, 2]]])


REAL = {
    "sglang_deepseek_v3/decode_in2000out100.json": ("sglang-json", "totals", 61, 256, None),
    "sglang_deepseek_v3/decode_in500out1500.json": ("sglang-json", "totals", 61, 256, None),
    "sglang_deepseek_v3/prefill_in1024.json": ("sglang-json", "totals", 61, 256, None),
    "sglang_deepseek_v3/prefill_in512.json": ("sglang-json", "totals", 61, 256, None),
    "olmoe/olmoe_c4.json": ("counts-json", "totals", 3, 64, None),
    "olmoe/olmoe_arxiv.json": ("counts-json", "totals", 3, 64, None),
    "olmoe/mistral_c4.json": ("counts-json", "totals", 3, 8, None),
    "deepseek_v2_lite/dsv2lite_260prompts.npz": ("token-routes", "tokens", 26, 64, 19850),
    "deepseek_v2_lite/prompt_1_data.csv": ("routes-csv", "tokens", 26, 64, 33),
    "llama4_maverick/maverick_mmlu_387req.npz": ("token-routes", "tokens", 24, 128, 56089),
    "llama4_maverick/raw_abstract_algebra_0.json": ("routes-json", "tokens", 24, 128, 153),
    "token_logs/olmoe_layer0_top8_truncated.jsonl": ("routes-jsonl", "tokens", 1, 64, 3300),
}


@pytest.mark.parametrize("name", REAL)
def test_real_recordings(shared_data, tmp_path, name):
    recording = recordings.read(shared_data / "recordings" / name)
    found = (
        recording.format, recording.kind, recording.num_layers, recording.num_experts, recording.num_tokens,
    )  # fmt: skip
    assert found == REAL[name]
    recordings.write_canonical(recording, tmp_path / "c.npz")
    back = recordings.read(tmp_path / "c.npz")
    np.testing.assert_array_equal(back.counts, recording.counts)
    np.testing.assert_array_equal(back.layer_ids, recording.layer_ids)
    assert back.top_k == recording.top_k


def test_real_dirt(shared_data):
    folder = shared_data / "recordings"
    deepseek = recordings.read(folder / "sglang_deepseek_v3" / "prefill_in1024.json")
    assert deepseek.warnings[0] == "counts are floats, all of them whole"
    assert "without counts (dense): layers 0-2" in deepseek.warnings[1]
    log = recordings.read(folder / "token_logs" / "olmoe_layer0_top8_truncated.jsonl")
    assert log.warnings[0] == "line 3302 is cut and was left out"
    assert "identical ones, the longest is tokens 0 to 2047: warm-up rows?" in log.warnings[1]
    maverick = recordings.read(folder / "llama4_maverick" / "maverick_mmlu_387req.npz")
    assert maverick.layer(45).counts.max() / maverick.layer(45).counts.sum() > 0.99
    csv_log = recordings.read(folder / "deepseek_v2_lite" / "prompt_1_data.csv")
    routes = recordings.read(folder / "deepseek_v2_lite" / "dsv2lite_260prompts.npz")
    # the CSV is the raw form of the first request
    np.testing.assert_array_equal(np.sort(csv_log.topk_ids), np.sort(routes.topk_ids[:33]))
    with pytest.raises(RecordingError, match="json of no known format .keys moe_layer_count, layer_list"):
        recordings.read(folder / "placement" / "expert_map.json")


# ---- layers and skew


def recording_of(counts, layer_ids=None, **more):
    counts = np.asarray(counts, float)
    ids = np.arange(len(counts)) if layer_ids is None else np.array(layer_ids)
    return recordings.Recording("canonical", "totals", counts, ids, path="r.npz", **more)


def test_layer_by_number_random_and_all():
    recording = recording_of(COUNTS, [2, 4, 9])
    assert recording.layer(9).counts.tolist() == [4, 4, 4, 8]
    assert recording.layer(9).where == "r.npz: layer 9"
    assert recording.layer("all").counts.tolist() == [9, 7, 6, 18]
    assert recording.layer("all").name == "all 2 MoE layers"
    assert recording.layer("all").layer_ids == (4, 9)
    drawn = {recording.layer("random", seed).layer_ids for seed in range(20)}
    assert drawn == {(4,), (9,)}
    assert recording.layer("random", 5).layer_ids == recording.layer("random", 5).layer_ids


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (2, "r.npz: layer 2 is dense: it has no counts; the nearest of its 2 MoE layers: 4, 9"),
        (5, "r.npz: layer 5 is not recorded; the nearest of its 2 MoE layers: 4, 9"),
        ("hot", "layer 'hot': expected a layer number, random or all"),
        (True, "layer True: expected a layer number, random or all"),
    ],
)
def test_no_such_layer(selector, message):
    with pytest.raises(RecordingError) as error:
        recording_of(COUNTS, [2, 4, 9]).layer(selector)
    assert str(error.value) == message or str(error.value) == f"r.npz: {message}"


def test_skew_by_hand():
    dense, uneven, one = recording_of([[0, 0], [1, 3], [0, 8]]).skew()
    assert (dense.total, dense.max_over_mean, dense.cv, dense.gini) == (0, None, None, None)
    assert (uneven.total, uneven.max_over_mean, uneven.cv, uneven.gini) == (4, 1.5, 0.5, 0.25)
    assert (one.max_over_mean, one.cv, one.gini) == (2, 1, 0.5)


def test_fit():
    recording = recording_of([[6, 1, 1, 0]])
    fitted = recording.fit(6, 2)
    assert fitted.counts.tolist() == [[6, 1, 1, 0, 0, 0]]
    assert fitted.warnings == (
        "4 experts recorded, the model has 6: the others were never chosen",
        "impossible at top_k 2 in layer 0: top_k * count / sum > 1 (expert 0 of layer 0: 1.5); "
        "exact sampling refuses these layers unless clipped",
    )
    assert recording.fit(4, 1).warnings == ()
    assert recording_of([[1, 1, 1, 1]], top_k=2).fit(4, 3).warnings == ("recorded with top_k 2, used with 3",)
    with pytest.raises(RecordingError, match="r.npz: 4 experts, but the model has 3"):
        recording.fit(3, 2)
    with pytest.raises(RecordingError, match="r.npz: top_k 5 exceeds the model's 4 experts"):
        recording.fit(4, 5)


def test_dirt_that_is_only_worth_a_warning(tmp_path):
    np.save(tmp_path / "f.npy", np.array([[-1.0, -1], [1.5, 2], [4, 4]]))
    assert recordings.read(tmp_path / "f.npy").warnings == (
        "counts are floats, not all of them whole",
        "without counts (dense): layer 0; 2 of 3 layers are MoE layers",
        "layer sums differ: 4 in layer 1 to 8 in layer 2",
    )
    ids = np.concatenate([np.repeat(ROUTES[:1], 70, axis=0), ROUTES])
    found = recordings.read(save(tmp_path / "w.npz", topk_ids=ids)).warnings
    assert found[-1] == (
        "71 tokens (97 %) stand in runs of identical ones, the longest is tokens 0 to 70: warm-up rows?"
    )


# ---- the canonical file


def test_canonical_round_trip_and_bytes(tmp_path):
    routes = recordings.read(
        save(
            tmp_path / "r.npz",
            topk_ids=ROUTES,
            layer_ids=[3, 7],
            request_offsets=[0, 1, 3],
            source_rank=[0, 5, 1],
        )
    )
    fractions = recording_of([[0.5, 2]], note="why")
    for recording in (routes, fractions):
        recordings.write_canonical(recording, tmp_path / "a.npz")
        recordings.write_canonical(recordings.read(tmp_path / "a.npz"), tmp_path / "b.npz")
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
        back = recordings.read(tmp_path / "b.npz")
        assert (back.format, back.kind, back.note) == ("canonical", recording.kind, recording.note)
        for name in ("counts", "layer_ids", "topk_ids", "source_rank", "request_offsets"):
            np.testing.assert_array_equal(getattr(back, name), getattr(recording, name))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "r.npz"]


def test_canonical_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="no/c.npz: cannot be written: no such directory"):
        recordings.write_canonical(recording_of([[1, 2]]), tmp_path / "no" / "c.npz")
    (tmp_path / "d").mkdir()
    with pytest.raises(OutputError, match="d: is no regular file"):
        recordings.write_canonical(recording_of([[1, 2]]), tmp_path / "d")
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_shipped_recording():
    path = ROOT / "configs" / "recordings" / "deepseek_v3_like.npz"
    recording = recordings.read(path)
    assert recording.note.startswith("synthetic")
    assert recording.counts.shape == (61, 256)
    assert recording.moe_layer_ids.tolist() == list(range(3, 61))
    skew = [layer for layer in recording.skew() if layer.total]
    assert np.mean([s.cv for s in skew]) == pytest.approx(0.8, abs=0.03)
    assert np.mean([s.max_over_mean for s in skew]) == pytest.approx(6, abs=0.3)
    fitted = recording.fit(256, 8)
    assert fitted.warnings == ("without counts (dense): layers 0-2; 58 of 61 layers are MoE layers",)


def test_shipped_recording_is_what_its_script_makes(tmp_path):
    spec = importlib.util.spec_from_file_location("make_recording", ROOT / "scripts" / "make_recording.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    recordings.write_canonical(script.make(), tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == script.SHIPPED.read_bytes()


# ---- bad input: one clear line each


def npy(array, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def archive(name):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, b"x")
    return buffer.getvalue()


def counts_json(value):
    return json.dumps({"logical_count": value}).encode()


BAD = {
    "empty": (b"", "is empty; expected a recording"),
    "blank": (b" \n", "is empty; expected a recording"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0", "is of no known kind (starts with b'\\x89PNG"),
    "prose": (b"hello\n", "is of no known kind (line 1: 'hello'); expected .npz, .npy, JSON or CSV"),
    "cut npy": (npy(COUNTS)[:-8], "is the file cut?"),
    "cut npz": (npz(counts=COUNTS)[:-60], "is the file cut?"),
    "damaged npz": (npz(counts=COUNTS).replace(npy(COUNTS)[-40:], b"\1" * 40), "is the file cut?"),
    "cut json": (counts_json(COUNTS.tolist())[:-9], "line 1, column 54: Expecting"),
    "cut csv": (
        b"layer,expert,count\n0,0,5\n0,1",
        "line 3: 2 cells; expected layer,expert,count (is the file cut?)",
    ),
    "pickle": (npy(np.array([{}]), True), "holds Python objects (pickle), which are never loaded"),
    "torch": (archive("x/data.pkl"), "is a torch.save file, which is not read; save its counts"),
    "zip": (archive("a.txt"), "is a zip archive, but no .npz"),
    "words": (npy(np.array([["a"]])), "counts are of type <U1; expected numbers"),
    "NaN": (
        npy(np.array([[1, 2], [3, np.nan]])),
        "layer 1, expert 1: count nan; expected a finite number >= 0",
    ),
    "infinite": (npy(np.array([[1, np.inf]])), "layer 0, expert 1: count inf"),
    "NaN in JSON": (b'{"logical_count": [[1, NaN]]}', "layer 0, expert 1: count nan"),
    "negative": (npy(np.array([[1, -2]])), "layer 0, expert 1: count -2; expected a finite number >= 0"),
    "negative, numbered": (npz(counts=[[1, -2]], layer_ids=[7]), "layer 7, expert 1: count -2"),
    "zeros": (npy(np.zeros((2, 3))), "every count is zero; expected at least one MoE layer with tokens"),
    "no layers": (npy(np.zeros((0, 3))), "counts have shape [0, 3]; expected [layers, experts]"),
    "four axes": (npy(np.ones((1, 1, 1, 1))), "counts have shape [1, 1, 1, 1]"),
    "K > experts": (npz(counts=COUNTS, top_k=5), "top_k 5; expected 1 to 4, the number of experts"),
    "odd top_k": (npz(counts=COUNTS, top_k=2.5), "top_k: expected one integer >= 1, found float64 2.5"),
    "layer_ids": (
        npz(counts=COUNTS, layer_ids=[1, 2]),
        "layer_ids are int64 of shape [2]; expected 3 integers",
    ),
    "layers twice": (npz(counts=COUNTS, layer_ids=[1, 2, 1]), "layer_ids name a layer twice"),
    "which array": (npz(a=COUNTS, b=COUNTS), "cannot tell which of a, b holds the counts; call it counts"),
    "unknown key": (b'{"load": [1]}', "json of no known format (keys load); expected one of canonical, "),
    "ragged": (counts_json([[1, 2], [3]]), "logical_count[1]: 1 numbers; the rows before have 2"),
    "null": (counts_json([[1, None]]), "logical_count[0, 1]: found 'None'; expected a number"),
    "no list": (counts_json("x"), "logical_count: found 'x'; expected a list of numbers"),
    "mixed depth": (counts_json([[1, 2], 3]), "logical_count[1]: found '3'; expected a list of numbers"),
    "ambiguous": (b"[[1, 5], [7, 2]]", "rows of 2 distinct small integers could be counts or expert ids"),
    "deep": (b"[" * 200_000, "JSON is nested too deeply"),
    "CSV header": (b"a,b\n1,2\n", "csv of no known format (line 1: ['a', 'b'])"),
    "CSV only header": (b"layer,expert,count\n", "no line after the header"),
    "CSV word": (b"layer,expert,count\n0,0,5\n0,x,5\n", "line 3: expert 'x'; expected an integer >= 0"),
    "CSV NaN": (b"layer,expert,count\n0,0,nan\n", "line 2: count 'nan'; expected a finite number >= 0"),
    "CSV negative": (b"layer_id,expert_id,count\n0,0,-3\n", "line 2: count '-3'"),
    "CSV twice": (b"layer,expert,count\n0,1,5\n0,1,6\n", "line 3: layer 0, expert 1 is on line 2 already"),
    "CSV quote": (b'layer,expert,count\n0,1,"5\n', "line 2: unexpected end of data; expected CSV"),
    "float ids": (npz(topk_ids=ROUTES * 1.0), "topk_ids are of type float64; expected integers"),
    "flat ids": (npz(topk_ids=ROUTES[0]), "topk_ids have shape [2, 2]; expected [tokens, layers, top_k]"),
    "no tokens": (npz(topk_ids=ROUTES[:0]), "topk_ids have shape [0, 2, 2]"),
    "ids too large": (npz(topk_ids=ROUTES, num_experts=3), "topk_ids hold 3; expected experts 0 to 2"),
    "ids too small": (npz(topk_ids=ROUTES - 2), "topk_ids hold -2; expected experts 0 to"),
    "ids unused": (npz(topk_ids=ROUTES * 0 - 1), "every slot is unused (-1)"),
    "expert twice": (npz(topk_ids=ROUTES // 2), "token 0, layer 0: experts [0, 0] name one twice"),
    "offsets": (
        npz(topk_ids=ROUTES, request_offsets=[0, 5]),
        "request_offsets do not cut 3 tokens into requests",
    ),
    "ranks": (
        npz(topk_ids=ROUTES, source_rank=[0, 1]),
        "source_rank is int64 of shape [2]; expected 3 integers",
    ),
    "version": (
        npz(moxtrace_recording=9, counts=COUNTS),
        "canonical layout 9; this moxtrace reads 1: upgrade",
    ),
    "no counts": (npz(moxtrace_recording=1, layer_ids=[0]), "canonical recording without counts"),
    "contradiction": (
        npz(moxtrace_recording=1, counts=[[9, 9, 9, 9]] * 2, layer_ids=[0, 1], topk_ids=ROUTES),
        "counts and topk_ids contradict each other",
    ),
    "log line": (b'{"layer": 0, "topk_ids": [1]}\n{"layer": 0, "topk_ids"\n', "line 2, column 24: Expecting"),
    "log ids": (b'{"layer": 0, "topk_ids": [1]}\n{"layer": 0, "topk_ids": 3}\n', "line 2: found '3'"),
    "log layer": (b'{"layer": 0, "topk_ids": [1]}\n{"topk_ids": [3]}\n', "line 2: layer 'None'"),
    "uneven layers": (b'[{"1": [[1]], "2": [[1], [2]]}]', "layer 2 has 2 tokens, layer 1 has 1"),
    "dense steps": (b'[{"1": null}]', "no token routes in it"),
    "table ids": (b"Layer ID,Batch Number,Token,Activated Expert IDs\n1,0,a,4\n", "line 2: found '4'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(tmp_path, name):
    content, message = BAD[name]
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as error:
        recordings.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(RecordingError, match="none.npz: no such file; expected a recording"):
        recordings.read(tmp_path / "none.npz")
    with pytest.raises(RecordingError, match="is a directory; expected a recording file"):
        recordings.read(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_never_crash(tmp_path_factory, data):
    """Any cut or changed file is either read or refused on purpose."""
    whole = data.draw(
        st.sampled_from([npy(COUNTS), npz(counts=COUNTS), npz(topk_ids=ROUTES), counts_json(COUNTS.tolist())])
    )
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("d") / "f"
    path.write_bytes(bytes(damaged))
    with contextlib.suppress(RecordingError):
        recordings.read(path)
