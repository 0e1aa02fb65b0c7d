"""Shapes of models: what sampling, message sizes and compute times need to know.

Goes in: a preset's name, or numbers.  Comes out: :class:`ModelShape`.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import yaml

from moxtrace.errors import ConfigError

__all__ = ["ModelShape", "load", "names", "unknown"]


@dataclass(frozen=True)
class ModelShape:
    """Shape of a mixture-of-experts model.

    Parameters
    ----------
    num_experts : int
        Routed experts of a MoE layer.
    top_k : int
        Routed experts per token.
    hidden_dim : int
        Width of the residual stream, values.
    intermediate_dim : int
        Inner width of one routed expert, values.
    dispatch_dim : int
        Width of what the all-to-all carries, values; 0 stands for ``hidden_dim`` and is replaced by it.
    num_layers : int
        All layers, dense ones included.
    first_moe_layer, moe_layer_step : int
        MoE layers are ``range(first_moe_layer, num_layers, moe_layer_step)``.
    shared_experts : int
        Experts that every token visits without travelling.
    num_groups, top_groups : int
        Group-limited routing: a token's experts lie in ``top_groups`` of ``num_groups`` groups.
    name : str
        The preset, or ``"custom"``.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    num_experts: int
    top_k: int
    hidden_dim: int
    intermediate_dim: int
    dispatch_dim: int = 0
    num_layers: int = 1
    first_moe_layer: int = 0
    moe_layer_step: int = 1
    shared_experts: int = 0
    num_groups: int = 1
    top_groups: int = 1
    name: str = "custom"

    def __post_init__(self) -> None:
        if self.dispatch_dim == 0:
            object.__setattr__(self, "dispatch_dim", self.hidden_dim)
        for key in (
            "num_experts", "top_k", "hidden_dim", "intermediate_dim", "dispatch_dim", "num_layers",
            "moe_layer_step", "num_groups", "top_groups",
        ):  # fmt: skip
            if getattr(self, key) < 1:
                raise ConfigError(f"model {self.name}: {key} {getattr(self, key)}; expected at least 1")
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"model {self.name}: top_k {self.top_k}; expected at most num_experts {self.num_experts}"
            )
        if not 0 <= self.first_moe_layer < self.num_layers:
            raise ConfigError(
                f"model {self.name}: first_moe_layer {self.first_moe_layer}; "
                f"expected 0 to {self.num_layers - 1}"
            )

    def with_shapes(self, **shapes: Any) -> ModelShape:
        """The same model with some shapes changed.

        ``dispatch_dim`` follows ``hidden_dim`` where the two are equal and only the latter is given.

        Raises
        ------
        ConfigError
            If the shapes do not fit together.
        """
        if "hidden_dim" in shapes and self.dispatch_dim == self.hidden_dim:
            shapes = {"dispatch_dim": shapes["hidden_dim"], **shapes}
        return replace(self, **shapes)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Numbers of the MoE layers."""
        return tuple(range(self.first_moe_layer, self.num_layers, self.moe_layer_step))

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Numbers of all other layers."""
        moe = set(self.moe_layers)
        return tuple(layer for layer in range(self.num_layers) if layer not in moe)

    @property
    def num_moe_layers(self) -> int:
        """How many layers are MoE layers."""
        return len(self.moe_layers)


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("moxtrace.models").joinpath("presets.yaml").read_text(encoding="utf-8")
    shapes = {}
    for name, entry in yaml.safe_load(text).items():
        for alias in (name, *entry.pop("aliases", ())):
            shapes[alias] = {**entry, "name": name}
    return shapes


def names() -> list[str]:
    """Names of all presets, aliases included, sorted."""
    return sorted(_presets())


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def unknown(name: str) -> str | None:
    """Why a name is no preset's, with the nearest ones; None where it is.

    Parameters
    ----------
    name : str
        Capitals and underscores do not matter.
    """
    if _key(name) in _presets():
        return None
    near = difflib.get_close_matches(_key(name), names(), 3, 0.4) or names()
    return f"model {name!r} is no preset; the nearest are {', '.join(near)}"


def load(name: str) -> ModelShape:
    """Look up a preset.

    Parameters
    ----------
    name : str
        Capitals and underscores do not matter.

    Raises
    ------
    ConfigError
        For an unknown name; the nearest ones are named.
    """
    if why := unknown(name):
        raise ConfigError(why)
    return ModelShape(**_presets()[_key(name)])
