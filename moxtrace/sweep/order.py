"""What runs share, told from their configurations: in which order to start them, and what to keep.

Goes in: planned runs.  Comes out: an order in which runs that need the same weights do not start together,
and the runs whose routes others need too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from moxtrace.sweep.plan import PlannedRun

__all__ = ["sharing_routes", "start_order"]

# keys that change neither weights nor routes
_UNROUTED = {"topology": {"latency_ns"}, "traffic": {"dispatch_dtype", "combine_dtype"}}


def _key(run: PlannedRun, *blocks: str) -> str:
    value: dict[str, Any] = {
        block: getattr(run.config, block).model_dump(exclude=_UNROUTED.get(block)) for block in blocks
    }
    return json.dumps(value, sort_keys=True)


def start_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """First one run of each set of weights, then those that find them made; likewise for networks.

    Parameters
    ----------
    runs : sequence of PlannedRun

    Returns
    -------
    list of PlannedRun
        Among equals in the order of the plan.
    """
    weights = _rank(runs, "topology", "placement", "model", "routing")
    networks = _rank(runs, "topology")
    order = sorted(
        range(len(runs)), key=lambda i: (min(weights[i], 1), networks[i] if weights[i] == 0 else 0, i)
    )
    return [runs[i] for i in order]


def _rank(runs: Sequence[PlannedRun], *blocks: str) -> list[int]:
    """How many earlier runs agree with each in these blocks."""
    seen: Counter[str] = Counter()
    ranks = []
    for run in runs:
        key = _key(run, *blocks)
        ranks.append(seen[key])
        seen[key] += 1
    return ranks


def sharing_routes(runs: Sequence[PlannedRun]) -> set[str]:
    """Names of the runs whose routes another run needs too."""
    blocks = ("recording", "model", "traffic", "placement", "topology", "routing")
    keys = [_key(run, *blocks) for run in runs]
    count = Counter(keys)
    return {run.run for run, key in zip(runs, keys, strict=True) if count[key] > 1}
