"""What ``mox`` knows before any traffic: shares, levels and prices of links, in integers.

Made by :func:`moxtrace.routing.mox.train.compute_tables` for one topology, placement and top-K, kept in a
file, and refused elsewhere.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError
from moxtrace.outputs import written_aside
from moxtrace.replicas import Hosts
from moxtrace.routing.prior import refuse_elsewhere
from moxtrace.topology.graph import Topology

__all__ = ["MOST_PRICE", "MoxTables"]

MOST_PRICE = 410  # 0.4, either way: a link's length, 1 + 2 price at the least, stays positive
MOST_STRETCHED = 3072  # 3, where prices lengthen ways
_FORMAT = "moxtrace-mox-tables-1"
_ARRAYS = {"share": 2, "level": 1, "price": 1, "ingress": 1, "prior": 1}


@dataclass(frozen=True, eq=False)
class MoxTables:
    """Tables of the policy ``mox``, with what they were made for.

    Parameters
    ----------
    share : array of int64, shape (npus, links)
        Copies that a source sends over each link per token, in ``2**-20``.
    level : array of int64, shape (links,)
        Load per unit of capacity under uniform traffic, over the greatest, but at least 0.9: prices tell what
        is further below apart; in ``2**-10``.
    price : array of int64, shape (links,)
        What balances the links under uniform traffic: an addition to each link's excess load, of which 410
        at most counts either way, and to its length, up to 3,072; in ``2**-10``.
    ingress : array of int64, shape (npus,)
        Load of an NPU's links in if every token goes there, over the greatest load of a link; in ``2**-10``.
    prior : array of int64, shape (npus,)
        Probability that a token goes to each NPU, in ``2**-20``.
    history : tuple of float
        Maximum over mean of the load per unit of capacity, in each replay.
    topology, placement : str
        Hashes of the topology and of the expert-to-NPU map.
    top_k, num_experts : int
    parameters : dict
        How they were computed.
    stretch : int
        How far prices lengthen ways, 0 to 2: a link is ``1 + stretch price`` long.

    Raises
    ------
    RoutingError
        If the arrays do not fit together.
    """

    share: NDArray[np.int64]
    level: NDArray[np.int64]
    price: NDArray[np.int64]
    ingress: NDArray[np.int64]
    prior: NDArray[np.int64]
    history: tuple[float, ...]
    topology: str
    placement: str
    top_k: int
    num_experts: int
    parameters: dict[str, Any] = field(default_factory=dict)
    stretch: int = 0

    def __post_init__(self) -> None:
        for name, dimensions in _ARRAYS.items():
            array = np.array(getattr(self, name))
            if array.ndim != dimensions or not np.issubdtype(array.dtype, np.integer):
                raise RoutingError(f"mox tables: {name}: expected whole numbers in {dimensions} dimension(s)")
            array = np.ascontiguousarray(array, np.int64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        npus, links = self.share.shape
        if not (len(self.level) == len(self.price) == links and len(self.ingress) == len(self.prior) == npus):
            raise RoutingError("mox tables: the arrays disagree about the number of NPUs or links")
        if min(self.share.min(), self.level.min(), self.ingress.min(), self.prior.min()) < 0:
            raise RoutingError("mox tables: a share, level, ingress or prior is negative")
        if self.stretch not in (0, 1, 2):
            raise RoutingError(f"mox tables: stretch {self.stretch!r}; expected 0, 1 or 2")
        most = MOST_STRETCHED if self.stretch else MOST_PRICE
        if len(self.price) and not -MOST_PRICE <= self.price.min() <= self.price.max() <= most:
            raise RoutingError(f"mox tables: a price is not from -{MOST_PRICE} to {most}")

    @property
    def arrays(self) -> tuple[NDArray[np.int64] | int, ...]:
        """All that routing reads."""
        return self.share, self.level, self.price, self.ingress, self.prior, self.stretch

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.level)

    def state_bytes(self) -> dict[str, int]:
        """What one source holds, in 4-byte numbers.

        Returns
        -------
        dict
            ``own``: counter, share and cost of each link, and popularity of each NPU; ``common``, what all
            sources share: level and price of each link, ingress and prior of each NPU, and the cost of the
            way between each pair of NPUs.
        """
        npus, links = self.share.shape
        return {"own": 12 * links + 4 * npus, "common": 8 * links + 8 * npus + 4 * npus * npus}

    @property
    def kept_replays(self) -> tuple[int, ...]:
        """The replays that the tables average."""
        return tuple(range(len(self.history) // 2, len(self.history)))

    def check(self, topology: Topology, host: Hosts, top_k: int) -> None:
        """Refuse to serve what the tables were not made for.

        Raises
        ------
        RoutingError
            If topology, placement or ``top_k`` is another.
        """
        refuse_elsewhere(self, topology, host, top_k)

    def save(self, path: str | Path) -> None:
        """Write a compressed file of arrays, aside and then renamed; equal tables give equal bytes.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        text = json.dumps({"format": _FORMAT} | rest, sort_keys=True, allow_nan=False)
        arrays = {name: getattr(self, name).astype(np.int32) for name in _ARRAYS}
        with written_aside(path) as aside, aside.open("wb") as file:
            np.savez_compressed(file, about=np.frombuffer(text.encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> MoxTables:
        """Read what :meth:`save` wrote.

        Raises
        ------
        RoutingError
            If the file cannot be read or holds something else.
        """
        expected = f"expected a file that moxtrace weights wrote for routing.policy mox (format {_FORMAT})"
        try:
            # opened here, because numpy leaves a file open that turns out to be no archive
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                arrays = {name: file[name] for name in _ARRAYS}
        except OSError as error:
            raise RoutingError(f"weights {path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise RoutingError(f"weights {path}: no mox tables ({error}); {expected}") from error
        if not isinstance(about, dict) or about.pop("format", None) != _FORMAT:
            raise RoutingError(f"weights {path}: no mox tables; {expected}")
        try:
            return cls(**arrays, **about | {"history": tuple(about["history"])})
        except (KeyError, TypeError, ValueError, RoutingError) as error:
            raise RoutingError(f"weights {path}: damaged ({error}); {expected}") from error
