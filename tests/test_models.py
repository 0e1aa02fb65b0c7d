"""Model presets."""

import pytest

from moxtrace import models
from moxtrace.errors import ConfigError

# experts, K, hidden, intermediate, MoE layers, layers, shared experts
TABLE = {
    "deepseek-v3": (256, 8, 7168, 2048, 58, 61, 1),
    "deepseek-v4-flash": (256, 6, 4096, 2048, 43, 43, 1),
    "deepseek-v4-pro": (384, 6, 7168, 3072, 61, 61, 1),
    "qwen3-235b-a22b": (128, 8, 4096, 1536, 94, 94, 0),
    "qwen3.5-397b-a17b": (512, 10, 4096, 1024, 60, 60, 1),
    "kimi-k2": (384, 8, 7168, 2048, 60, 61, 1),
    "kimi-k3": (896, 16, 7168, 3072, 92, 93, 2),
    "llama-4-maverick": (128, 1, 5120, 8192, 24, 48, 1),
    "gpt-oss-120b": (128, 4, 2880, 2880, 36, 36, 0),
    "mixtral-8x7b": (8, 2, 4096, 14336, 32, 32, 0),
    "glm-4.5": (160, 8, 5120, 1536, 89, 92, 1),
    "glm-5": (256, 8, 6144, 2048, 75, 78, 1),
    "minimax-m2.5": (256, 8, 3072, 1536, 62, 62, 0),
}


@pytest.mark.parametrize("name", TABLE)
def test_presets(name):
    m = models.load(name)
    found = (m.num_experts, m.top_k, m.hidden_dim, m.intermediate_dim, m.num_moe_layers, m.num_layers)
    assert (*found, m.shared_experts) == TABLE[name]
    assert m.dispatch_dim == (3584 if name == "kimi-k3" else m.hidden_dim)
    assert len(m.dense_layers) == m.num_layers - m.num_moe_layers


def test_names_and_aliases():
    aliases = {"deepseek-r1", "deepseek-v3.1", "deepseek-v3.2"}
    assert models.names() == sorted({*TABLE, *aliases})
    for alias in aliases:
        assert models.load(alias) == models.load("deepseek-v3")
    assert models.load(" DeepSeek_V3 ").name == "deepseek-v3"
    assert models.load("deepseek-v3").dense_layers == (0, 1, 2)
    assert models.load("llama-4-maverick").moe_layers == tuple(range(1, 48, 2))


def test_with_shapes():
    model = models.load("mixtral-8x7b")
    assert model.with_shapes() == model
    wide = model.with_shapes(hidden_dim=100, top_k=3)
    assert (wide.hidden_dim, wide.dispatch_dim, wide.top_k, wide.num_experts) == (100, 100, 3, 8)
    assert model.with_shapes(hidden_dim=100, dispatch_dim=50).dispatch_dim == 50
    assert models.load("kimi-k3").with_shapes(hidden_dim=100).dispatch_dim == 3584
    with pytest.raises(ConfigError, match="model mixtral-8x7b: top_k 9; expected at most num_experts 8"):
        model.with_shapes(top_k=9)


def test_unknown_name():
    with pytest.raises(ConfigError, match="model 'deepsek-v3' is no preset; the nearest are deepseek-v3, "):
        models.load("deepsek-v3")
    with pytest.raises(ConfigError, match="the nearest are deepseek-r1, .*, qwen3.5-397b-a17b"):
        models.load("????")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 9}, "model custom: top_k 9; expected at most num_experts 8"),
        ({"hidden_dim": 0}, "model custom: hidden_dim 0; expected at least 1"),
        ({"num_layers": 2, "first_moe_layer": 2}, "model custom: first_moe_layer 2; expected 0 to 1"),
    ],
)
def test_bad_shape(change, message):
    sizes = {"num_experts": 8, "top_k": 2, "hidden_dim": 4, "intermediate_dim": 6, **change}
    with pytest.raises(ConfigError) as error:
        models.ModelShape(**sizes)
    assert str(error.value) == message
