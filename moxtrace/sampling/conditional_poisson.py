"""Top-K sets with prescribed inclusion probabilities: conditional Poisson (maximum entropy) sampling.

Goes in: how often each expert is chosen.  Comes out: sets of K experts, independent from token to token,
which choose each expert exactly that often and are otherwise as random as can be.

References
----------
S. X. Chen, A. P. Dempster, J. S. Liu, "Weighted finite population sampling to maximize entropy",
Biometrika 81 (1994) 457-469.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moxtrace.errors import RecordingError
from moxtrace.sampling.kernels import draw_subsets, inclusion, suffix_table

__all__ = ["ConditionalPoisson", "inclusion_probabilities"]

# how far rounding may carry an inclusion probability beyond 1
_ROUNDING = 1e-12
_CALIBRATED = 1e-10
_GOAL = 1e-13
_MOST_SWEEPS = 500
_SHORT_STEP = 0.6
_BLOCK = 1 << 16


def inclusion_probabilities(
    counts: ArrayLike, top_k: int, clip: bool = False, name: str = "counts"
) -> NDArray[np.float64]:
    """Chance of each expert to be among a token's ``top_k``: ``pi_e = top_k * c_e / sum(c)``.

    Parameters
    ----------
    counts : array of float, shape (experts,)
        Tokens per expert, >= 0.
    top_k : int
    clip : bool
        Where some ``pi_e`` exceeds 1, set it to 1 and share the rest among the others in proportion to
        their counts, again where that lifts another above 1: ``pi_e = min(1, s * c_e)``, with the one ``s``
        for which they sum to ``top_k``.
    name : str
        What the counts are, for messages.

    Returns
    -------
    array of float64, shape (experts,)
        In [0, 1]; sums to ``top_k``.

    Raises
    ------
    RecordingError
        If ``top_k`` is no number of experts, if fewer than ``top_k`` experts were ever chosen, or if some
        ``pi_e`` exceeds 1 and ``clip`` is false: no sampler can choose an expert twice for one token.
    """
    c = np.asarray(counts, np.float64)
    if not 1 <= top_k <= len(c):
        raise RecordingError(f"{name}: top_k {top_k}; expected 1 to {len(c)}, the number of experts")
    used = int((c > 0).sum())
    if used < top_k:
        raise RecordingError(
            f"{name}: only {used} of {len(c)} experts were ever chosen; top_k {top_k} needs as many, "
            "clipped or not: lower top_k or sample uniformly"
        )
    pi: NDArray[np.float64] = top_k * c / c.sum()
    hottest = int(np.argmax(pi))
    if pi[hottest] > 1 + _ROUNDING:
        if not clip:
            raise RecordingError(
                f"{name}: expert {hottest} would be chosen {pi[hottest]:.4g} times per token "
                f"(top_k {top_k} x count {c[hottest]:g} / sum {c.sum():g}); expected at most 1: "
                "is top_k the recorded one? clip it with traffic.clip: true, or choose another layer"
            )
        pi = _clipped(c, top_k)
    return np.minimum(pi, 1.0)


def _clipped(c: NDArray[np.float64], top_k: int) -> NDArray[np.float64]:
    order = np.argsort(-c, kind="stable")
    rest = c[order][::-1].cumsum()[::-1]  # sum of the counts from each place on
    # the first place whose own share of what is left does not exceed 1; all before it are always chosen
    left = top_k - np.arange(top_k)
    fits = left * c[order][:top_k] <= rest[:top_k]
    full = int(np.argmax(fits)) if fits.any() else top_k
    pi = np.zeros(len(c))
    pi[order[:full]] = 1
    if full < top_k:
        pi[order[full:]] = (top_k - full) * c[order[full:]] / rest[full]
    return pi


class ConditionalPoisson:
    """Sets of ``top_k`` experts in which expert ``e`` stands with chance ``pi[e]``.

    The chance of a set is proportional to the product of its experts' weights; the weights are calibrated
    here, once.  Experts with ``pi`` 0 and 1 are kept apart, never or always chosen.  Internally a weight is
    the odds of an independent trial and every set has the chance of exactly ``top_k`` successes: all
    numbers are then probabilities, which neither overflow nor vanish with many experts.

    Parameters
    ----------
    pi : array of float, shape (experts,)
        In [0, 1], summing to ``top_k``; from :func:`inclusion_probabilities`.
    top_k : int

    Attributes
    ----------
    weights : array of float64, shape (experts,)
        0 where ``pi`` is 0, infinite where it is 1, elsewhere up to one common factor.
    error : float
        Largest difference between ``pi`` and what the weights give.

    Raises
    ------
    RecordingError
        If ``pi`` is out of range, does not sum to ``top_k``, or cannot be met to 1e-10.
    """

    def __init__(self, pi: ArrayLike, top_k: int) -> None:
        target = np.array(pi, np.float64)
        if (
            not (target >= 0).all()
            or not (target <= 1 + _ROUNDING).all()
            or abs(target.sum() - top_k) > _CALIBRATED
        ):
            raise RecordingError(
                f"inclusion probabilities from {target.min():g} to {target.max():g} that sum to "
                f"{target.sum():g}; expected numbers in [0, 1] that sum to top_k {top_k}"
            )
        self.num_experts = len(target)
        self.top_k = top_k
        sure = target >= 1 - _ROUNDING
        if (target > 0).sum() <= top_k:
            sure = target > 0
        self._always = np.flatnonzero(sure)
        self._free = top_k - len(self._always)
        # rounding may leave crumbs of probability where the sure ones take everything
        self._experts = np.flatnonzero(~sure & (target > 0)) if self._free else np.empty(0, np.int64)
        self._p, self._q, self.error = _calibrate(target[self._experts], self._free)
        self.weights = np.zeros(len(target))
        self.weights[self._always] = np.inf
        self.weights[self._experts] = self._p / self._q
        self._survival = self._survival_table()

    def _survival_table(self) -> NDArray[np.float64]:
        """Log of P(no success before m, j from m on), shape (top_k + 1, active + 1)."""
        table = np.empty((len(self._p) + 1, self._free + 1))
        suffix_table(self._p, self._q, self._free, table)
        before = np.concatenate(([0.0], np.cumsum(np.log(self._q))))
        with np.errstate(divide="ignore"):  # log 0 = -inf: cannot happen, and is never drawn
            return np.ascontiguousarray((np.log(table) + before[:, None]).T)

    def draw(self, tokens: int, seed: int | np.random.Generator) -> NDArray[np.integer]:
        """Draw independent sets.

        Parameters
        ----------
        tokens : int
        seed : int or numpy.random.Generator
            The first ``n`` sets are the same whatever ``tokens`` is.

        Returns
        -------
        array of int16 (int32 beyond 32,767 experts), shape (tokens, top_k)
            Each row ascending.
        """
        generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
        out = np.empty((tokens, self.top_k), _id_type(self.num_experts))
        for start in range(0, tokens, _BLOCK):
            block = out[start : start + _BLOCK]
            uniform = generator.random((len(block), self._free))
            draw_subsets(self._survival, self._experts, uniform, self._always, block)
        return out

    def touch_probability(self, members: ArrayLike) -> float:
        """Chance that a set holds at least one of ``members``: ``1 - e_K(w without them) / e_K(w)``.

        ``e_K`` is the elementary symmetric polynomial; with ``members`` the experts of an NPU this is the
        chance that a token must reach it.

        Parameters
        ----------
        members : array of int
            Experts; repeats do not matter.
        """
        inside = np.zeros(self.num_experts, bool)
        inside[np.asarray(members, np.int64)] = True
        if inside[self._always].any():
            return 1.0
        outside = ~inside[self._experts]
        table = np.empty((int(outside.sum()) + 1, self._free + 1))
        suffix_table(self._p[outside], self._q[outside], self._free, table)
        spared = table[0, self._free] * np.prod(self._q[~outside])
        return float(1 - spared / np.exp(self._survival[self._free, 0]))


def _id_type(num_experts: int) -> type[np.int16] | type[np.int32]:
    return np.int16 if num_experts < 2**15 else np.int32


def _calibrate(pi: NDArray[np.float64], top_k: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Trial chances ``p`` and ``q = 1 - p`` whose inclusion probabilities are ``pi``, and the largest error.

    Sweeps: multiply each expert's odds by the ratio of its wanted to its present odds of inclusion.  That is
    Newton's step on the entropy with the diagonal of its Hessian, which is within a factor of 2 of the whole
    (each row of the covariance of a set of fixed size sums to 0): a full step usually converges in few
    sweeps, may swing for ever where two groups of experts exclude each other, and a shorter step never does.
    The common factor, which means nothing, is held where about ``top_k`` trials succeed.
    """
    if not len(pi):
        return pi, pi, 0.0
    wanted = np.log(pi) - np.log1p(-pi)
    logit = wanted.copy()
    chosen, spared = np.empty(len(pi)), np.empty(len(pi))
    table = np.empty((len(pi) + 1, top_k + 1))
    best, last, since, step = np.inf, np.inf, 0, 1.0
    kept = (pi, 1 - pi)
    for _ in range(_MOST_SWEEPS):
        p, q = _sigmoid(logit), _sigmoid(-logit)
        suffix_table(p, q, top_k, table)
        inclusion(p, q, top_k, table, chosen, spared)
        error = float(np.abs(chosen - pi).max())
        since += 1
        if error < best:
            best, since, kept = error, 0, (p, q)
        if error <= _GOAL or (best <= _CALIBRATED and since > 3):
            break
        if error > last / 2:
            step = _SHORT_STEP
        last = error
        logit = logit + step * (wanted - (np.log(chosen) - np.log(spared)))
        logit -= np.clip((_sigmoid(logit).sum() - top_k) / max((p * q).sum(), 1e-3), -1, 1)
    if best > _CALIBRATED:
        raise RecordingError(
            f"inclusion probabilities from {pi.min():g} to {pi.max():g} could only be met to {best:.1e}, "
            f"expected {_CALIBRATED:.0e}: drop the experts that are hardly ever chosen, or clip"
        )
    return *kept, best


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)
