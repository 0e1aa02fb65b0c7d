"""Configuration: one YAML file per run, checked once, frozen.

Goes in: a YAML file and ``--set key.path=value`` overrides.  Comes out: :class:`RunConfig`.  Every message
names the file, the line and the key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moxtrace import models
from moxtrace.documents import Document, explain, parse_value, read_document
from moxtrace.errors import ConfigError
from moxtrace.kinds import COMMON, KINDS, POLICIES, misfit, near

__all__ = [
    "ComputeConfig",
    "FailedConfig",
    "ModelConfig",
    "PlacementConfig",
    "RecordingConfig",
    "RoutingConfig",
    "RunConfig",
    "Setting",
    "TopologyConfig",
    "TraceConfig",
    "TrafficConfig",
    "dump",
    "load",
    "resolve",
    "setting_of",
]

Dtype = Literal["bf16", "fp16", "fp32", "fp8"]
Seed = Field(default=1, ge=0, lt=2**63)


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class RecordingConfig(_Block):
    """Which recording, and which of its layers."""

    path: str | None = None
    layer: int | Literal["random", "all"] = "random"
    seed: int = Seed


class ModelConfig(_Block):
    """A preset, explicit shapes, or a preset with some shapes replaced."""

    preset: str | None = None
    num_experts: int | None = Field(default=None, gt=0, le=1_000_000)
    top_k: int | None = Field(default=None, gt=0, le=1024)
    hidden_dim: int | None = Field(default=None, gt=0, le=10_000_000)
    intermediate_dim: int | None = Field(default=None, gt=0, le=10_000_000)
    dispatch_dim: int | None = Field(default=None, gt=0, le=10_000_000)


class TrafficConfig(_Block):
    """How many tokens there are, how their experts are drawn, and how wide they are on the wire."""

    tokens_per_npu: int = Field(default=5120, gt=0, le=10_000_000)
    sampling: Literal["exact", "uniform", "replay"] = "exact"
    clip: bool = False
    dispatch_dtype: Dtype = "bf16"
    combine_dtype: Dtype = "bf16"
    seed: int = Seed


class PlacementConfig(_Block):
    """Which NPU hosts which expert; ``redundant`` more replicas go to the experts in greatest demand."""

    kind: Literal["random", "contiguous", "file", "coactivation"] = "random"
    path: str | None = None
    redundant: int = Field(default=0, ge=0, le=1_000_000)
    seed: int = Seed


Ends = Annotated[list[int | str], Field(min_length=2, max_length=2)]
Lanes = Annotated[list[int | str], Field(min_length=3, max_length=3)]


class FailedConfig(_Block):
    """What is broken, by number or name: cables (both ways), single links, NPUs, lanes of a cable."""

    links: list[Ends] = []
    one_way: list[Ends] = []
    npus: list[int | str] = []
    lanes: list[Lanes] = []


class TopologyConfig(_Block):
    """The network.  ``moxtrace.kinds`` says which keys a kind has; None stands for its default."""

    kind: str = "expander"
    npus: int | None = None
    degree: int | None = None
    link_gbps: float = Field(default=100.0, ge=1e-3, le=1e7)
    latency_ns: float = Field(default=500.0, ge=0, le=1e9)
    lanes: int = Field(default=1, gt=0, le=4096)
    seed: int = Seed
    dims: list[int] | None = None
    twist: list[int] | None = None
    offsets: list[int] | None = None
    dim_lanes: list[int] | None = None
    select: str | None = None
    proposals: int | None = None
    path: str | None = None
    groups: int | None = None
    group_size: int | None = None
    global_links: int | None = None
    prime_power: int | None = None
    symbols: int | None = None
    word_length: int | None = None
    p: int | None = None
    q: int | None = None
    nics: int | None = None
    nic_lanes: int | None = None
    boards: int | None = None
    chips: int | None = None
    board: str | None = None
    copper_ports: int | None = None
    optical_ports: int | None = None
    port_map: str | None = None
    wiring: str | None = None
    spare_optics: str | None = None
    idle: str | None = None
    failed: FailedConfig = FailedConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        """What the kind says where the configuration does not."""
        kind = value.get("kind", "expander") if isinstance(value, Mapping) else None
        if not isinstance(kind, str) or kind not in KINDS:
            return value
        usual = {"link_gbps": KINDS[kind].link_gbps, **KINDS[kind].parameters}
        return {**usual, **{k: v for k, v in value.items() if v is not None or k not in usual}}

    @property
    def own(self) -> dict[str, Any]:
        """Keys that not all kinds have, and their values."""
        return self.model_dump(exclude=set(COMMON))


class RoutingConfig(_Block):
    """The policy, and its weights: computed for this topology and placement, or read from a file."""

    policy: str = "mox"
    replicas: Literal["nearest", "static", "tree"] = "tree"
    weights: str | None = None
    replays: int = Field(default=6, gt=0, le=10_000)
    tokens_per_source: int = Field(default=1000, gt=0, le=1_000_000)
    eta: float = Field(default=0.05, ge=0, le=10)
    seed: int = Seed


class ComputeConfig(_Block):
    """Speed of an NPU's experts and of its partial sums.

    ``reduce_ns_per_byte`` is the time that adding one received vector costs, per byte of it; the default
    reads two operands and writes one at 3.35 TB/s, the memory bandwidth of an H100 SXM.
    """

    peak_tflops: float = Field(default=989.0, ge=1e-3, le=1e9)
    efficiency: float = Field(default=0.6, ge=1e-3, le=1)
    reduce_ns_per_byte: float = Field(default=0.0009, ge=0, le=1000)


class TraceConfig(_Block):
    """The form of the execution traces; see ``astra_configs/`` for what ASTRA-sim does with each."""

    form: Literal["collective", "flat"] = "collective"
    order: Literal["simulated", "token"] = "simulated"
    window: int | None = Field(default=None, ge=0)
    barrier: Literal["phase", "tokens"] = "phase"
    time_scale: Literal["ps", "ns"] = "ps"

    @property
    def usual_window(self) -> int:
        """Enough for a trace in this order, measured in ASTRA-sim: 4 simulated, 64 by tokens."""
        return 4 if self.order == "simulated" else 64


class RunConfig(_Block):
    """Everything that decides the bytes of a run directory."""

    recording: RecordingConfig = RecordingConfig()
    model: ModelConfig = ModelConfig(preset="deepseek-v3")
    traffic: TrafficConfig = TrafficConfig()
    placement: PlacementConfig = PlacementConfig()
    topology: TopologyConfig = TopologyConfig()
    routing: RoutingConfig = RoutingConfig()
    compute: ComputeConfig = ComputeConfig()
    trace: TraceConfig = TraceConfig()

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = dict(value)
            for block, key in (("model", "preset"), ("recording", "path")):
                if isinstance(value.get(block), str):
                    value[block] = {key: value[block]}
        return value


# ---------------------------------------------------------------------------------------- reading

PATH_KEYS = (("recording", "path"), ("placement", "path"), ("topology", "path"), ("routing", "weights"))


@dataclass(frozen=True)
class Setting:
    """A value that wins over the file's.

    Parameters
    ----------
    keys : tuple of str
        Path of the key.
    value : object
        Plain YAML.
    origin : str
        Who says so, for messages: ``--set``, or a file and line.
    folder : path
        What paths in the value are relative to.
    """

    keys: tuple[str, ...]
    value: Any
    origin: str
    folder: Path


def setting_of(text: str) -> Setting:
    """Read ``key.path=value``, as ``--set`` gives it; paths in it are relative to the working directory.

    Raises
    ------
    ConfigError
        When there is no key or the value is no YAML.
    """
    name, equals, value = text.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {text!r}: expected key.path=value, for example topology.npus=32")
    try:
        return Setting(keys, parse_value(value), "--set", Path.cwd())
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is no YAML: {' '.join(str(error).split())}") from None


def _apply(value: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """The plain configuration with a setting in it; blocks are copied before they change."""
    inner = value = dict(value)
    keys = setting.keys
    shorthand = "preset" if keys[0] == "model" else "path"
    for key in keys[:-1]:
        below = inner.get(key)
        if isinstance(below, str):  # model: deepseek-v3 becomes a block when one of its keys is set
            below = {shorthand: below}
        if below is not None and not isinstance(below, dict):
            what = f"--set {'.'.join(keys)}" if setting.origin == "--set" else setting.origin
            raise ConfigError(f"{what}: {key} holds {below!r}, not a block")
        inner[key] = dict(below or {})
        inner = inner[key]
    inner[keys[-1]] = setting.value
    return value


class _Origins:
    """Where each key was said, and what paths in it are relative to."""

    def __init__(self, source: Document, settings: Sequence[Setting]) -> None:
        self._source, self._settings = source, {setting.keys: setting for setting in settings}

    def _setting(self, loc: Sequence[str | int]) -> Setting | None:
        for end in range(len(loc), 0, -1):
            setting = self._settings.get(tuple(map(str, loc[:end])))
            if setting is not None:
                return setting
        return None

    def where(self, loc: Sequence[str | int]) -> str:
        setting = self._setting(loc)
        return self._source.where(loc) if setting is None else setting.origin

    def folder(self, loc: Sequence[str]) -> Path:
        setting = self._setting(loc)
        return self._source.path.resolve().parent if setting is None else setting.folder


def _validate(value: Mapping[str, Any], origins: _Origins) -> RunConfig:
    # ``topology:`` with nothing below means the defaults of that block
    value = {k: ({} if v is None and k in RunConfig.model_fields else v) for k, v in value.items()}
    try:
        return RunConfig.model_validate(value)
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
        # a union reports each branch with the branch's name after the key: keep the key
        first: dict[str, Any] = dict(errors[0])
        known = tuple(first["loc"])
        same = [e for e in errors if e["loc"][:2] == known[:2]]
        if known[:2] == ("recording", "layer"):
            first.update(loc=known[:2], type="value", msg="expected a layer number, 'random' or 'all'")
        loc = tuple(part for part in first["loc"] if part not in ("int", "str"))
        more = len(errors) - len(same)
        tail = f" (and {more} more)" if more > 0 else ""
        why = explain(first, RunConfig)
        raise ConfigError(f"{origins.where(loc)}: {'.'.join(map(str, loc))}: {why}{tail}") from None


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and check a configuration.

    Parameters
    ----------
    path : path
        The YAML file; paths in it are relative to its folder.
    overrides : sequence of str
        ``key.path=value`` settings that win over the file, as ``--set`` gives them; paths in them are
        relative to the working directory.

    Returns
    -------
    RunConfig
        With every path made absolute.

    Raises
    ------
    ConfigError
        When the file cannot be read or parsed, a key is unknown, a value is of the wrong type or out of its
        range, or a file that it names does not exist.
    """
    return resolve(read_document(Path(path)), [setting_of(text) for text in overrides])


def resolve(source: Document, settings: Sequence[Setting] = ()) -> RunConfig:
    """Check a configuration that was read, with some keys set.

    Parameters
    ----------
    source : Document
        Paths in it are relative to its folder.
    settings : sequence of Setting
        Win over the document; the last of equals over the others.

    Returns
    -------
    RunConfig
        With every path made absolute.

    Raises
    ------
    ConfigError
        As :func:`load` does.
    """
    value = source.value
    for setting in settings:
        value = _apply(value, setting)
    origins = _Origins(source, settings)
    config = _validate(value, origins)
    updates: dict[str, Any] = {}
    for block, key in PATH_KEYS:
        named = getattr(getattr(config, block), key)
        if named is None:
            continue
        target = Path(os.path.normpath(origins.folder((block, key)) / Path(named).expanduser()))
        if not target.exists():
            raise ConfigError(f"{origins.where((block, key))}: {block}.{key}: no file {target}")
        updates[block] = getattr(config, block).model_copy(update={key: str(target)})
    config = config.model_copy(update=updates)
    _check_together(config, origins)
    return config


def _check_together(config: RunConfig, origins: _Origins) -> None:
    """Keys that only make sense together."""

    def refuse(loc: tuple[str, str], message: str) -> None:
        raise ConfigError(f"{origins.where(loc)}: {'.'.join(loc)}: {message}")

    topology, traffic = config.topology, config.traffic
    if config.recording.path is None and traffic.sampling != "uniform":
        refuse(
            ("recording", "path"),
            f"missing, and traffic.sampling is {traffic.sampling!r}; name a recording, or set "
            "traffic.sampling: uniform",
        )
    if topology.kind not in KINDS:
        refuse(("topology", "kind"), f"unknown kind {topology.kind!r}; {near(topology.kind, KINDS)}")
    kind = KINDS[topology.kind]
    if unsuited := misfit(topology.kind, topology.own):
        refuse(("topology", unsuited[0]), unsuited[1])
    if "path" in kind.parameters and topology.path is None:
        refuse(("topology", "path"), f"missing; kind: {topology.kind} reads a file")
    if topology.npus is None and all(getattr(topology, key) is None for key in kind.sized_by):
        other = f", or give {' and '.join(kind.sized_by)}" if kind.sized_by else ""
        refuse(("topology", "npus"), f"missing; say how many NPUs there are{other}")
    if config.placement.kind == "file" and config.placement.path is None:
        refuse(("placement", "path"), "missing; kind: file reads the placement from a file")
    if config.routing.policy not in POLICIES:
        refuse(
            ("routing", "policy"),
            f"unknown policy {config.routing.policy!r}; {near(config.routing.policy, POLICIES)}",
        )
    model = config.model
    if model.preset is not None and (unknown := models.unknown(model.preset)):
        refuse(("model", "preset"), unknown)
    shapes = ("num_experts", "top_k", "hidden_dim", "intermediate_dim")
    if model.preset is None:
        for key in shapes:
            if getattr(model, key) is None:
                refuse(("model", key), f"missing; give {', '.join(shapes)}, or a preset")


def dump(config: RunConfig, inside: Mapping[str, str]) -> str:
    """The configuration as YAML, every default spelled out.

    Parameters
    ----------
    config : RunConfig
    inside : mapping of str to str
        By block, the path that stands in place of the one that the block names.
    """
    value = config.model_dump(mode="json")
    for block, key in PATH_KEYS:
        value[block][key] = inside.get(block)
    header = "# Every key of this run, defaults included: moxtrace generate config.resolved.yaml -o RUN\n"
    return header + yaml.safe_dump(value, sort_keys=False, default_flow_style=False)


def message_bytes(width: int, dtype: str) -> int:
    """Bytes of one vector on the wire; fp8 carries one fp32 scale per 128 values.

    ``message_bytes(7168, "bf16") == 14336`` and ``message_bytes(7168, "fp8") == 7392``.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(f"dtype {dtype!r}: expected one of {', '.join(get_args(Dtype))}")
    if dtype == "fp8":
        return width + 4 * math.ceil(width / 128)
    return width * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype]
