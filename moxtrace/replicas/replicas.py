"""Experts with several replicas: which of them a token takes.

Goes in: the NPUs that host each expert, and a rule.  Comes out: one NPU for each expert of each token, from
which the demand follows as if there were no replicas.

A source decides alone, from its own tokens:

``static``
    Its own NPU where that hosts a replica, else a fixed one: of ``c`` replicas the ``(source + expert) mod
    c``-th, so that sources share them fairly.
``nearest``
    The replica the fewest hops away; equal ones are shared in the same manner.
``tree``
    Token by token, what the multicast tree will need least for.  The source and the hosts of experts without
    a choice are in the tree anyway.  Of all NPUs that host a remaining expert, take the one with the fewest
    hops from the tree for each remaining expert that it hosts, and serve all these there; repeat.  Ties: the
    NPU to which this source has assigned the fewest token-expert pairs so far, then the first after the
    source in a circle.

References
----------
``static`` follows SGLang's choice for redundant experts (srt/eplb/expert_location_dispatch.py), without its
step "same node".  The greedy rule of ``tree`` is that of weighted set cover: V. Chvatal, "A greedy
heuristic for the set-covering problem", Mathematics of Operations Research 4 (3), 1979.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand, demand_of
from moxtrace.errors import ConfigError
from moxtrace.replicas.kernels import choose_by_tree

__all__ = ["RULES", "Hosts", "Replicas", "demand_on", "hosts_as_rows"]

RULES = ("nearest", "static", "tree")


@dataclass(frozen=True, eq=False)
class Replicas:
    """Where every expert's replicas live, and the rule that chooses among them.

    Parameters
    ----------
    hosts : array of int32, shape (experts, most replicas)
        NPUs of each expert, the unused places at the end -1; at least one, and none twice.
    hops : array of int16, shape (npus, npus)
        Hops from each NPU to each other one.
    rule : {"nearest", "static", "tree"}

    Raises
    ------
    ConfigError
        For an unknown rule.
    """

    hosts: NDArray[np.int32]
    hops: NDArray[np.int16]
    rule: str

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"routing.replicas: {self.rule!r}; expected one of {', '.join(RULES)}")
        for array in (self.hosts, self.hops):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.hosts)

    def chosen(
        self, source: NDArray[np.integer[Any]], topk_ids: NDArray[np.integer[Any]]
    ) -> NDArray[np.int32]:
        """NPU that serves each expert of each token, int32, shape (tokens, top_k); -1 in unused slots.

        ``source`` is ascending, as in a demand.
        """
        if self.rule == "tree":
            return choose_by_tree(source.astype(np.int32), topk_ids.astype(np.int32), self.hosts, self.hops)
        npu = self._fixed()[source[:, None], topk_ids]
        return np.where(topk_ids >= 0, npu, np.int32(-1))

    def _fixed(self) -> NDArray[np.int32]:
        """The replica of each expert that each source takes, shape (npus, experts)."""
        npus, experts = len(self.hops), len(self.hosts)
        source, expert = np.arange(npus)[:, None, None], np.arange(experts)[None, :, None]
        far = np.where(self.hosts >= 0, self.hops[source, self.hosts], np.iinfo(np.int16).max)
        least = far.min(axis=2, keepdims=True)
        static = (self.hosts >= 0) & (least > 0) if self.rule == "static" else False
        open_to = (far == least) | static
        turn = (source + expert)[:, :, 0] % open_to.sum(axis=2)
        at = (np.cumsum(open_to, axis=2) > turn[:, :, None]).argmax(axis=2)
        return self.hosts[expert[:, :, 0], at]


Hosts = NDArray[np.integer[Any]] | Replicas  # one NPU per expert, or several


def hosts_as_rows(host: Hosts) -> NDArray[np.integer[Any]]:
    """NPUs of each expert, shape (experts, most replicas)."""
    return host.hosts if isinstance(host, Replicas) else host[:, None]


def demand_on(
    source: NDArray[np.int32], topk_ids: NDArray[np.integer[Any]], host: Hosts, num_npus: int
) -> Demand:
    """Destination sets of tokens whose experts are known, replicas chosen where there are any.

    Parameters
    ----------
    source : array of int32, shape (tokens,)
        NPU of each token, ascending.
    topk_ids : array of int, shape (tokens, top_k)
        Experts of each token; -1 marks an unused slot.
    host : array of int32, shape (experts,), or Replicas
    num_npus : int

    Returns
    -------
    Demand
    """
    if isinstance(host, Replicas):
        return demand_of(source, host.chosen(source, topk_ids), np.arange(num_npus, dtype=np.int32), num_npus)
    return demand_of(source, topk_ids, host.astype(np.int32, copy=False), num_npus)
