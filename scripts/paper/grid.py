"""Which cases the figures are made of.

Goes in: ``configs/paper/evaluation.yaml``.  Comes out: :class:`Cell`, a place in a figure, and the
:class:`Case` that it shows.  Figures share cases, so each is computed once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from moxtrace import recordings
from moxtrace.config import load
from moxtrace.errors import ConfigError

__all__ = ["CONFIGS", "FIGURES", "POLICIES", "Case", "Cell", "Plan", "cells_of", "merged", "read_plan"]

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "paper"
POLICIES = ("min-hop", "tree", "mox-paper", "mox")
FIGURES = ("2", "3", "4", "5", "6", "sensitivity")
SEEDED = ("topology", "placement", "recording", "traffic")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Traffic on a network, under some policies.

    Parameters
    ----------
    config : str
        Name of a file in configs/paper.
    settings : str
        Keys set in it, as JSON with sorted keys; those that begin with ``paper.`` are this script's own.
    policies : tuple of str
    simulated : bool
        Whether the whole block is simulated, or only link loads are counted.
    """

    config: str
    settings: str
    policies: tuple[str, ...] = POLICIES
    simulated: bool = True

    @property
    def name(self) -> str:
        """Short and unique; policies and simulation do not matter."""
        return hashlib.sha256(f"{self.config} {self.settings}".encode()).hexdigest()[:16]

    @property
    def keys(self) -> Settings:
        """The settings."""
        return dict(json.loads(self.settings))


@dataclass(frozen=True)
class Cell:
    """A place in a figure, by its labels, and the case that it shows."""

    figure: str
    labels: tuple[tuple[str, Any], ...]
    case: Case

    def has(self, **labels: Any) -> bool:
        """Whether it carries all these labels."""
        mine = dict(self.labels)
        return all(mine.get(key) == value for key, value in labels.items())


@dataclass(frozen=True)
class Plan:
    """What ``evaluation.yaml`` says for a full or a quick run; see there."""

    seeds: list[int]
    training_tokens: int
    inference_tokens: int
    npus: list[int]
    top_k: list[int]
    layers: int
    boardfly_seeds: list[int]
    boardfly_training_tokens: int
    boardfly_inference_tokens: int
    sizes: list[int]
    size_top_k: list[int]
    degrees: list[int]
    degrees_npus: int
    sensitivity_npus: int
    assumptions: Settings
    sensitivity: list[Settings]


def read_plan(quick: bool, path: Path) -> Plan:
    """The full plan, or the quick one, whose keys replace some of the full one's.

    Raises
    ------
    ConfigError
        When the file cannot be read, or its keys are not those of :class:`Plan`.
    """
    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
        values = {**text["full"], **(text["quick"] if quick else {})}
        values |= {key: text[key] for key in ("assumptions", "sensitivity")}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, KeyError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: {problem}; expected blocks full, quick, assumptions, sensitivity"
        ) from None
    known = {field.name for field in fields(Plan)}
    if odd := sorted(known.symmetric_difference(values)):
        raise ConfigError(
            f"{path}: {', '.join(odd)}: unknown or missing; expected {', '.join(sorted(known))}"
        )
    return Plan(**values)


def _cell(figure: str, config: str, settings: Settings, simulated: bool = True, **labels: Any) -> Cell:
    text = json.dumps(settings, sort_keys=True)
    return Cell(figure, tuple(labels.items()), Case(config, text, simulated=simulated))


def _settings(plan: Plan, seed: int, npus: int, top_k: int, **more: Any) -> Settings:
    """Settings of a case on an expander; dots in the further keys are written ``__``."""
    common = {"topology.npus": npus, "model.top_k": top_k}
    seeds = {f"{block}.seed": seed for block in SEEDED}
    own = {f"paper.{key}": value for key, value in plan.assumptions.items()}
    return common | seeds | own | {key.replace("__", "."): value for key, value in more.items()}


def _times(plan: Plan) -> Iterator[Cell]:
    """Figure 2: block time over size and top-K, in training and inference."""
    tokens = {"training": plan.training_tokens, "inference": plan.inference_tokens}
    for config, sampling, npus, top_k, seed in product(
        tokens, ("exact", "uniform"), plan.npus, plan.top_k, plan.seeds
    ):
        labels: Settings = {"stage": config, "traffic": sampling, "npus": npus, "top_k": top_k, "seed": seed}
        traffic: Settings = {"traffic__sampling": sampling, "traffic__tokens_per_npu": tokens[config]}
        yield _cell("2", config, _settings(plan, seed, npus, top_k, **traffic), **labels)


def _layers(plan: Plan) -> list[int]:
    """Layers of the training recording at even steps from the most even to the most skewed."""
    path = load(CONFIGS / "training.yaml").recording.path
    skews = [s for s in recordings.read(str(path)).skew() if s.cv is not None]
    skews.sort(key=lambda s: (s.cv, s.layer))
    last, steps = len(skews) - 1, max(plan.layers - 1, 1)
    return [skews[round(i * last / steps)].layer for i in range(plan.layers)]


def _skews(plan: Plan) -> Iterator[Cell]:
    """Figure 4: layers of different skew on an expander and on the network tuned for the layer's demand."""
    for layer, seed, network in product(_layers(plan), plan.seeds, ("expander", "demand-tuned")):
        more: Settings = {"recording__layer": layer, "traffic__tokens_per_npu": plan.training_tokens}
        if network == "demand-tuned":
            more["paper__topology"] = network
        settings = _settings(plan, seed, 16, 8, **more)
        yield _cell("4", "training", settings, layer=layer, network=network, seed=seed)


def _boardfly(plan: Plan) -> Iterator[Cell]:
    """Figure 5: the dispatch of 1,024 TPUs."""
    tokens = {"training": plan.boardfly_training_tokens, "inference": plan.boardfly_inference_tokens}
    for (stage, count), seed in product(tokens.items(), plan.boardfly_seeds):
        seeds = {f"{block}.seed": seed for block in SEEDED}
        settings = seeds | {"traffic.tokens_per_npu": count}
        yield _cell("5", "boardfly", settings, simulated=False, stage=stage, seed=seed)


def _sizes(plan: Plan) -> Iterator[Cell]:
    """Figure 6: busiest link over sizes and top-K, and over degrees, uniform traffic."""
    common: Settings = {"traffic__sampling": "uniform", "traffic__tokens_per_npu": plan.training_tokens}
    for npus, top_k, seed in product(plan.sizes, plan.size_top_k, plan.seeds):
        settings = _settings(plan, seed, npus, top_k, **common)
        yield _cell("6", "training", settings, False, over="size", npus=npus, top_k=top_k, seed=seed)
    for degree, seed in product(plan.degrees, plan.seeds):
        settings = _settings(plan, seed, plan.degrees_npus, 8, topology__degree=degree, **common)
        yield _cell("6", "training", settings, False, over="degree", degree=degree, seed=seed)


def _sensitivity(plan: Plan) -> Iterator[Cell]:
    """What each assumption does alone."""
    for seed in plan.seeds:
        base = _settings(
            plan, seed, plan.sensitivity_npus, 8, traffic__tokens_per_npu=plan.training_tokens,
            traffic__sampling="exact",
        )  # fmt: skip
        yield _cell("sensitivity", "training", base, change="", seed=seed)
        for entry in plan.sensitivity:
            change = json.dumps(entry["change"], sort_keys=True)
            yield _cell("sensitivity", "training", base | entry["change"], change=change, seed=seed)


def cells_of(plan: Plan, only: Iterable[str] = ()) -> list[Cell]:
    """All cells, or those that some figures need; figure 3 shows the blocks of figures 2 and 4.

    Parameters
    ----------
    plan : Plan
    only : iterable of str
        Of :data:`FIGURES`; nothing stands for all.
    """
    wanted = set(only) or set(FIGURES)
    if "3" in wanted:
        wanted |= {"2", "4"}
    makers = {"2": _times, "4": _skews, "5": _boardfly, "6": _sizes, "sensitivity": _sensitivity}
    return [cell for figure, make in makers.items() if figure in wanted for cell in make(plan)]


def merged(cells: Iterable[Cell]) -> list[Case]:
    """The different cases, in order; one that some cell wants simulated is."""
    cases: dict[str, Case] = {}
    for cell in cells:
        known = cases.get(cell.case.name)
        if known is None or (cell.case.simulated and not known.simulated):
            cases[cell.case.name] = cell.case
    return list(cases.values())
