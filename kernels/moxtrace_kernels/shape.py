"""Shape: what every rank agrees on before the first byte moves; plain Python, without torch or a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ShapeError

__all__ = [
    "DTYPE_BYTES",
    "MAX_BLOCKS",
    "MAX_EXPERTS",
    "MAX_RANKS",
    "MAX_THREADS",
    "MAX_TOP_K",
    "SCALE_BLOCK",
    "Shape",
    "dtype_name",
]

MAX_RANKS = 4096
MAX_EXPERTS = 1024
MAX_TOP_K = 16
MAX_BLOCKS = 65535  # of a launch
MAX_THREADS = 1024  # of a block
SCALE_BLOCK = 128  # elements that share one fp32 scale
VECTOR_BYTES = 16  # the kernels move rows in pieces of this size
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}

_NAMES = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
    "torch.float8_e4m3fn": "fp8",
    "torch.float8_e5m2": "fp8",
} | {name: name for name in DTYPE_BYTES}


def dtype_name(dtype: Any) -> str:
    """Name of a payload type: ``bf16``, ``fp16``, ``fp32`` or ``fp8``.

    Parameters
    ----------
    dtype
        One of these names, or the torch dtype. Both 8-bit torch formats are ``fp8``: the kernels move bytes.

    Returns
    -------
    str
        The name.

    Raises
    ------
    ShapeError
        When it is none of them.
    """
    name = _NAMES.get(str(dtype))
    if name is None:
        raise ShapeError(
            f"dtype is {dtype}; expected bf16, fp16, fp32 or fp8, or torch.bfloat16, torch.float16, "
            "torch.float32, torch.float8_e4m3fn or torch.float8_e5m2"
        )
    return name


@dataclass(frozen=True)
class Shape:
    """What every rank agrees on.

    Attributes
    ----------
    ranks : int
        GPUs that take part; any number.
    experts : int
        At most 1,024, dealt out contiguously and evenly: the first ``experts % ranks`` ranks host one more.
    top_k : int
        Experts a token names, at most 16.
    max_tokens : int
        Most rows of ``x`` on one rank.
    hidden : int
        Elements of a row; a row of the dispatch dtype must be a multiple of 16 bytes.
    dispatch, expert_out, combine : str
        What is sent, what the experts write, what combine returns: ``bf16``, ``fp16``, ``fp32``; ``dispatch``
        may also be ``fp8``, which carries one fp32 scale per 128 elements. torch dtypes are taken too.
    wire_fp32 : bool
        Partial sums travel as fp32 rather than in the combine dtype.
    dp : int
        Ranks ``dp * g .. dp * g + dp - 1`` hold the same tokens; token ``t`` is sent by member ``t % dp``.
    row_capacity : int
        Rows per expert (padded) or in all (packed); 0: as many as can arrive.
    row_align : int
        0: padded, expert ``e`` starts at row ``e * capacity``; n: packed, experts start at multiples of n.
    self_put : bool
        A rank's own tokens use the network as well; for tests on one GPU.

    Raises
    ------
    ShapeError
        With the name of the field, what it is, and what it may be.
    """

    ranks: int
    experts: int
    top_k: int
    max_tokens: int
    hidden: int
    dispatch: str = "bf16"
    expert_out: str = "bf16"
    combine: str = "bf16"
    wire_fp32: bool = False
    dp: int = 1
    row_capacity: int = 0
    row_align: int = 0
    self_put: bool = False

    def __post_init__(self) -> None:
        for field in ("dispatch", "expert_out", "combine"):
            object.__setattr__(self, field, dtype_name(getattr(self, field)))
        for field, least, most in (
            ("ranks", 1, MAX_RANKS),
            ("experts", 1, MAX_EXPERTS),
            ("top_k", 1, MAX_TOP_K),
            ("max_tokens", 1, 2**20),
            ("hidden", 1, 2**20),
            ("dp", 1, self.ranks),
            ("row_capacity", 0, 2**31 - 1),
            ("row_align", 0, 2**16),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ShapeError(f"{field} is {value!r}; expected a whole number from {least} to {most}")
        for field in ("wire_fp32", "self_put"):
            if not isinstance(getattr(self, field), bool):
                raise ShapeError(f"{field} is {getattr(self, field)!r}; expected True or False")
        self._check_together()

    def _check_together(self) -> None:
        if self.top_k > self.experts:
            raise ShapeError(
                f"top_k is {self.top_k}, but there are only {self.experts} experts to choose from"
            )
        if self.ranks % self.dp:
            raise ShapeError(
                f"dp is {self.dp}, which does not divide the {self.ranks} ranks into equal groups"
            )
        for field in ("expert_out", "combine"):
            if getattr(self, field) == "fp8":
                raise ShapeError(f"{field} is fp8; sums need bf16, fp16 or fp32")
        row = self.hidden * DTYPE_BYTES[self.dispatch]
        if row % VECTOR_BYTES:
            raise ShapeError(
                f"hidden is {self.hidden}: a row of {self.dispatch} is {row} bytes; expected a multiple of "
                f"{VECTOR_BYTES}"
            )
        if self.ranks * self.slots >= 2**31:
            raise ShapeError(
                f"max_tokens is {self.max_tokens}: {self.ranks * self.slots} tokens of all ranks; expected "
                "fewer than 2^31"
            )
        rows = self.capacity * (1 if self.row_align else self.local_experts(0))
        if rows >= 2**31:
            raise ShapeError(f"one rank would have {rows} rows; expected fewer than 2^31: lower row_capacity")

    @property
    def scale_blocks(self) -> int:
        """Scales of a row: one per 128 elements, the last one for what remains."""
        return -(-self.hidden // SCALE_BLOCK)

    @property
    def slots(self) -> int:
        """Tokens that one rank sends at most."""
        return -(-self.max_tokens // self.dp)

    @property
    def capacity(self) -> int:
        """Rows per expert (padded) or in all (packed) that ``dispatch_recv`` has room for."""
        if self.row_capacity:
            return self.row_capacity
        arrive = self.ranks * self.slots
        if not self.row_align:
            return arrive
        local = self.local_experts(0)  # the rank that has most
        return arrive * min(self.top_k, local) + local * (self.row_align - 1)

    def local_experts(self, rank: int) -> int:
        """Experts that a rank hosts.

        Parameters
        ----------
        rank : int
            Which rank.

        Returns
        -------
        int
            ``experts // ranks``, one more on the first ``experts % ranks`` ranks.
        """
        return self.experts // self.ranks + (rank < self.experts % self.ranks)

    def first_expert(self, rank: int) -> int:
        """Lowest expert of a rank (the one that it would host, if it hosts none).

        Parameters
        ----------
        rank : int
            Which rank.

        Returns
        -------
        int
            Number of the expert.
        """
        return rank * (self.experts // self.ranks) + min(rank, self.experts % self.ranks)

    def host(self, expert: int) -> int:
        """Rank that hosts an expert.

        Parameters
        ----------
        expert : int
            Number of the expert.

        Returns
        -------
        int
            The rank.
        """
        few, more = divmod(self.experts, self.ranks)
        boundary = more * (few + 1)
        return expert // (few + 1) if expert < boundary else more + (expert - boundary) // few

    def sender(self, rank: int, token: int) -> int:
        """Member of a rank's DP group that sends a token for all of them.

        Parameters
        ----------
        rank : int
            Any member of the group.
        token : int
            Index of the token.

        Returns
        -------
        int
            The rank that sends it.
        """
        return rank - rank % self.dp + token % self.dp
