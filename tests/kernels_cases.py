"""Random cases for the torch side of kernels/: a shape, and what every rank hands in, all from one seed."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the torch side of kernels/ needs torch (pip install torch)")
KERNELS = Path(__file__).resolve().parents[1] / "kernels"
if not KERNELS.is_dir():
    pytest.skip("installed without its source tree", allow_module_level=True)
sys.path.insert(0, str(KERNELS))

from moxtrace_kernels import Shape  # noqa: E402
from moxtrace_kernels.shape import DTYPE_BYTES  # noqa: E402

from .reference.kernels_alltoall import Held  # noqa: E402

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DTYPES = FLOATS | {"fp8": torch.float8_e4m3fn}


@dataclass
class Given:
    """Arguments of one rank's ``dispatch_send``."""

    x: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor | None
    scales: torch.Tensor | None
    bound_m: torch.Tensor | None

    @property
    def sent(self):
        bound = len(self.x) if self.bound_m is None else int(self.bound_m)
        return max(0, min(len(self.x), bound))


@st.composite
def shapes(draw):
    dp = draw(st.sampled_from([1, 1, 2, 3]))
    ranks = dp * draw(st.integers(1, 5 if dp == 1 else 2))
    experts = draw(st.one_of(st.integers(1, 3 * ranks), st.just(1024)))
    dispatch = draw(st.sampled_from(list(DTYPES)))
    return Shape(
        ranks=ranks,
        experts=experts,
        top_k=draw(st.integers(1, min(16, experts))),
        max_tokens=draw(st.integers(1, 9)),
        hidden=draw(st.integers(1, 3) | st.just(13)) * 16 // DTYPE_BYTES[dispatch],
        dispatch=dispatch,
        expert_out=draw(st.sampled_from(list(FLOATS))),
        combine=draw(st.sampled_from(list(FLOATS))),
        wire_fp32=draw(st.booleans()),
        dp=dp,
        row_align=draw(st.sampled_from([0, 0, 1, 4])),
        self_put=draw(st.booleans()),
    )


def random_bytes(shape, dtype, generator):
    """Any bit pattern, not-a-numbers included."""
    numbers = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), generator=generator)
    return numbers.to(torch.uint8).view(dtype)


def give(shape, seed, exact):
    """What every rank hands in; members of a DP group the same."""
    generator = torch.Generator().manual_seed(seed)
    given = []
    for rank in range(shape.ranks):
        if rank % shape.dp:
            given.append(given[-1])
            continue
        tokens = int(torch.randint(0, shape.max_tokens + 1, (1,), generator=generator))
        size = (tokens, shape.top_k)
        order = torch.rand((tokens, shape.experts), generator=generator).argsort(1)
        experts = order[:, : shape.top_k].contiguous()
        experts[torch.rand(size, generator=generator) < 0.2] = -1
        weights = (
            torch.randint(-2, 3, size, generator=generator).float()
            if exact
            else torch.rand(size, generator=generator)
        )
        kinds = torch.randint(0, 4, (3,), generator=generator).tolist()
        bound = int(torch.randint(-1, tokens + 2, (1,), generator=generator))
        given.append(
            Given(
                x=random_bytes((tokens, shape.hidden), DTYPES[shape.dispatch], generator),
                experts=experts.int() if kinds[0] % 2 else experts,
                weights=None if kinds[1] == 0 else weights,
                scales=random_bytes((tokens, shape.scale_blocks), torch.float32, generator)
                if shape.dispatch == "fp8"
                else None,
                bound_m=torch.tensor([bound], dtype=torch.int32) if kinds[2] == 0 else None,
            )
        )
    return given


def as_held(given):
    """The same for the twin: tokens that are sent, rows as bytes."""
    held = []
    for g in given:
        weights = torch.ones(g.experts.shape) if g.weights is None else g.weights
        rows = [
            (
                bytes(g.x[t].view(torch.uint8).tolist()),
                b"" if g.scales is None else bytes(g.scales[t].view(torch.uint8).tolist()),
            )
            for t in range(g.sent)
        ]
        held.append(Held(rows, g.experts[: g.sent].tolist(), weights[: g.sent].tolist()))
    return held


def answer(shape, rows_shape, seed, exact):
    """What a rank's experts write, padding included."""
    generator = torch.Generator().manual_seed(seed)
    values = (
        torch.randint(-2, 3, rows_shape, generator=generator).float()
        if exact
        else torch.randn(rows_shape, generator=generator)
    )
    return values.to(FLOATS[shape.expert_out])


def tolerance(shape):
    """Relative to the sum of magnitudes: a rounding for the wire, one for the result, fp32 sums between."""
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
    wire = unit["fp32" if shape.wire_fp32 else shape.combine]
    return 1.01 * (wire + unit[shape.combine] + 2 * (shape.top_k + 1) * unit["fp32"])
