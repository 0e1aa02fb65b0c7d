"""Configuration files: what is read, and the one line for each thing that is wrong."""

from pathlib import Path

import pytest
import yaml

from moxtrace import config
from moxtrace.errors import ConfigError

GOOD = """\
model: deepseek-v3
traffic: {sampling: uniform, tokens_per_npu: 64}
topology:
  kind: expander
  npus: 16
  degree: 8
"""


@pytest.fixture
def write(tmp_path):
    def put(text: str, name: str = "run.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return put


def test_defaults_fill_every_block(write):
    got = config.load(write(GOOD))
    assert got.model.preset == "deepseek-v3"
    assert (got.trace.form, got.trace.order, got.trace.usual_window) == ("collective", "simulated", 4)
    assert (got.compute.peak_tflops, got.compute.efficiency) == (989.0, 0.6)


def test_token_order_widens_the_window_unless_it_is_given(write):
    path = write(GOOD + "trace: {order: token}\n")
    assert config.load(path).trace.usual_window == 64
    assert config.load(path, ["trace.window=0"]).trace.window == 0


def test_an_override_wins_and_opens_a_shorthand(write):
    got = config.load(write(GOOD), ["model.top_k=12", "topology.npus=32", "traffic={sampling: uniform}"])
    assert (got.model.preset, got.model.top_k, got.topology.npus) == ("deepseek-v3", 12, 32)
    assert got.traffic.tokens_per_npu == 5120


def test_resolved_configuration_reads_back_as_the_same(write, tmp_path):
    write("", "r.npz")
    path = write(GOOD.replace("uniform", "exact") + "recording: r.npz\n")
    first = config.load(path)
    assert first.recording.path == str(tmp_path / "r.npz")
    folder = tmp_path / "deep" / "run"
    folder.mkdir(parents=True)
    text = config.dump(first, {"recording": "inputs/recording.npz"})
    assert yaml.safe_load(text)["recording"]["path"] == "inputs/recording.npz"
    (folder / "inputs").mkdir()
    (folder / "inputs" / "recording.npz").write_text("")
    (folder / "config.resolved.yaml").write_text(text)
    again = config.load(folder / "config.resolved.yaml")
    assert again.recording.path == str(folder / "inputs" / "recording.npz")
    assert config.dump(again, {"recording": "inputs/recording.npz"}) == text


@pytest.mark.parametrize(
    ("written", "number"), [("1e2", 100.0), ("2.5E+1", 25.0), ("1_0e1", 100.0), ("40", 40.0)]
)
def test_numbers_with_an_exponent_are_numbers(write, written, number):
    assert config.load(write(GOOD), [f"topology.link_gbps={written}"]).topology.link_gbps == number
    assert config.load(write(GOOD + f"compute: {{peak_tflops: {written}}}\n")).compute.peak_tflops == number


BAD = [
    ("topologi: {npus: 4}\n", "run.yaml:7: topologi: unknown key; did you mean 'topology'?"),
    ("trace: {windw: 3}\n", "run.yaml:7: trace.windw: unknown key; did you mean 'window'?"),
    ("trace: {zzzz: 3}\n", "run.yaml:7: trace.zzzz: unknown key; known keys: form, order"),
    ("compute:\n  efficiency: 2\n", "run.yaml:8: compute.efficiency: found 2; expected a value <= 1"),
    ("compute:\n  peak_tflops: .nan\n", "run.yaml:8: compute.peak_tflops: found nan; expected a value"),
    ("recording: {path: none.npz}\n", "run.yaml:7: recording.path: no file .*none.npz"),
    ("recording: {layer: deepest}\n", "run.yaml:7: recording.layer: .*expected a layer number, 'random' or"),
    ("trace: {barrier: phases}\n", "run.yaml:7: trace.barrier: .*did you mean 'phase'?"),
    ("trace: 5\n", "run.yaml:7: trace: found 5; .*"),
    ("placement: {kind: file}\n", "run.yaml:7: placement.path: missing"),
    ("trace: {form: flat\n", "run.yaml:8: YAML syntax: .*"),
    ("topology: {npus: 4}\n", "run.yaml:7: key topology stands twice"),
    ("3: 4\n", "run.yaml:7: key 3; expected a name"),
    (
        "routing: {weights: !!python/object:os.system {}}\n",
        "run.yaml:7: routing.weights: found {}; expected text",
    ),
    ("routing: &a {weights: *a}\n", "run.yaml:.*"),
]


@pytest.mark.parametrize(("extra", "message"), BAD)
def test_each_mistake_is_named_with_file_line_and_key(write, extra, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(write(GOOD + extra))
    assert "\n" not in str(caught.value)


WHOLE = [
    ("", "traffic.sampling is 'exact'"),
    ("- 1\n", r"run.yaml:1: found \[1\]; expected blocks"),
    ("traffic: {sampling: uniform}\n", "topology.npus: missing"),
    ("traffic: {sampling: uniform}\ntopology: {kind: graph}\n", "topology.path: missing"),
    ("traffic: {sampling: uniform}\ntopology: {npus: 4}\nmodel: {top_k: 2}\n", "model.num_experts: missing"),
    ("topology: {npus: 4, kind: ring}\nrecording: \n", "recording.path: missing"),
    (
        GOOD + "routing:\n  policy: mox-papr\n",
        r"run.yaml:8: routing.policy: unknown policy 'mox-papr'; did you mean 'mox-paper'\?; expected one of",
    ),
    (
        GOOD.replace("-v3", "-v33"),
        r"run.yaml:1: model.*: model 'deepseek-v33' is no preset; the nearest are deepseek-v3, ",
    ),
    (
        GOOD.replace("model: deepseek-v3", "model:\n  top_k: 4\n  preset: mixtrl"),
        r"run.yaml:3: model.preset: model 'mixtrl' is no preset; the nearest are mixtral",
    ),
]


@pytest.mark.parametrize(("text", "message"), WHOLE)
def test_blocks_must_make_sense_together(write, text, message):
    with pytest.raises(ConfigError, match=message):
        config.load(write(text))


OVERRIDES = [
    ("topology.npus", "expected key.path=value"),
    ("=3", "expected key.path=value"),
    ("topology.npus=[", "the value is no YAML"),
    ("topology.npus.x=3", "npus holds 16, not a block"),
    ("topology.npu=3", "--set: topology.npu: unknown key; did you mean 'npus'"),
    ("topology.npus=3.5", "--set: topology.npus: found 3.5; expected a whole number"),
    ("placement.path=nowhere", "--set: placement.path: no file .*nowhere"),
]


@pytest.mark.parametrize(("setting", "message"), OVERRIDES)
def test_a_bad_override_is_named(write, setting, message):
    with pytest.raises(ConfigError, match=message):
        config.load(write(GOOD), [setting])


def test_a_missing_or_binary_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration: No such file"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        config.load(tmp_path / "b.yaml")


def test_message_bytes():
    assert config.message_bytes(7168, "bf16") == 14336
    assert config.message_bytes(7168, "fp8") == 7392
    assert config.message_bytes(7168, "fp32") == 28672
    with pytest.raises(ConfigError, match="expected one of bf16, fp16, fp32, fp8"):
        config.message_bytes(7168, "int4")


def test_a_kind_of_network_brings_its_defaults(write):
    text = "traffic: {sampling: uniform}\ntopology: {kind: boardfly, npus: 1024, board: full}\n"
    topology = config.load(write(text)).topology
    assert (topology.link_gbps, topology.board, topology.port_map, topology.dims) == (
        1600.0,
        "full",
        "balanced",
        None,
    )
    assert config.load(write(text), ["topology.link_gbps=400"]).topology.link_gbps == 400
    expander = config.load(write(GOOD)).topology
    assert (expander.select, expander.proposals, expander.link_gbps) == ("anneal", 1_000_000, 100.0)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            "kind: expnder, npus: 8",
            "run.yaml:2: topology.kind: unknown kind 'expnder'; did you mean 'expander'",
        ),
        (
            "kind: torus, npus: 8, select: anneal",
            "run.yaml:2: topology.select: found 'anneal', which is nothing that kind torus has; its",
        ),
        (
            "kind: expander, npus: 8, select: best",
            "topology.select: found 'best'; expected one of anneal, radius",
        ),
        ("kind: hyperx", "topology.npus: missing; say how many NPUs there are, or give dims"),
        ("kind: demand-tuned, degree: 2", "topology.path: missing; kind: demand-tuned reads a file"),
        ("kind: ring, npus: 8, failed: {links: [[0]]}", "topology.failed.links.0: found"),
        (
            "kind: ring, npus: 8, failed: {links: [[0, 1.5]]}",
            "topology.failed.links.0.1: found 1.5; expected",
        ),
        (
            "kind: ring, npus: 8, failed: {link: []}",
            "topology.failed.link: unknown key; did you mean 'links'",
        ),
    ],
)
def test_keys_that_do_not_suit_the_kind(write, topology, message):
    with pytest.raises(ConfigError) as caught:
        config.load(write(f"traffic: {{sampling: uniform}}\ntopology: {{{topology}}}\n"))
    assert message in str(caught.value)
