"""Statistics over rounds: the paired speed-up, its interval and its verdict.

The unit of replication is the round, not the token: tokens of one run share
whatever disturbed it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

ALPHA = 0.05
"""Share of verdicts FASTER or SLOWER on identical code, at most."""

MIN_ROUNDS = 5
"""Fewer rounds are UNCLEAR whatever they show."""

RESAMPLES = 2000

# Bounds the memory of a batch of resamples.
_BATCH_ELEMENTS = 2**21


class Verdict(StrEnum):
    """What may be said of an arm against native dense."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Speed of the arm over native dense, above 1 where the arm is faster."""

    ratio: float
    low: float
    high: float
    """Ends of the interval that holds the ratio with probability 1 - ALPHA."""
    rounds: int


def paired_ratio(
    native: Sequence[float], arm: Sequence[float], *, seed: int, resamples: int = RESAMPLES
) -> PairedRatio | None:
    """The speed-up of an arm over native dense, paired by round.

    Estimate: the Hodges-Lehmann shift (Hodges and Lehmann 1963) of the log
    ratios. Interval: percentile bootstrap over rounds, its distances from the
    estimate widened by sqrt(n / (n - 1)) t / z, the small-sample correction of
    Hesterberg (2015, "What teachers should know about the bootstrap"). Without
    it, five rounds of identical code differ "significantly" in one of eight.

    Args:
        native: Decode tokens per second of native dense, one per round.
        arm: The same of the arm, in the same order of rounds.
        seed: Of the bootstrap; equal seeds give equal intervals.
        resamples: Bootstrap samples.

    Returns:
        None for fewer than two rounds.

    Raises:
        ValueError: The lengths differ, a rate is not a positive number, or one
            side's rates are all equal, which no measurement gives.
    """
    if len(native) != len(arm):
        raise ValueError(f"{len(native)} rounds of native dense, {len(arm)} of the arm")
    rates = np.array([native, arm], dtype=np.float64)
    if not np.all(np.isfinite(rates) & (rates > 0)):
        raise ValueError("a decode rate is not a positive number")
    rounds = len(native)
    if rounds < 2:
        return None
    for name, side in (("native dense", rates[0]), ("the arm", rates[1])):
        if side.min() == side.max():
            raise ValueError(
                f"{rounds} rounds of {name} gave exactly {side[0]:g} tokens per second each"
            )
    logs = np.log(rates[1] / rates[0])
    estimate = float(_hodges_lehmann(logs))
    generator = np.random.default_rng(seed)
    low, high = np.quantile(_bootstrap(logs, generator, resamples), [ALPHA / 2, 1 - ALPHA / 2])
    widening = _small_sample_factor(rounds)
    return PairedRatio(
        ratio=math.exp(estimate),
        low=math.exp(estimate + widening * min(low - estimate, 0)),
        high=math.exp(estimate + widening * max(high - estimate, 0)),
        rounds=rounds,
    )


def verdict(
    paired: PairedRatio | None, *, noise_floor: float | None, min_rounds: int = MIN_ROUNDS
) -> Verdict:
    """The one judgement of a speed-up, for terminal, Markdown and dashboard alike.

    Args:
        paired: None where there was nothing to compare.
        noise_floor: Relative difference that identical code shows on this
            machine, from an audit. None where there was no audit: then any
            interval clear of 1 counts, and nothing is ever SAME.
        min_rounds: Fewer are UNCLEAR.
    """
    if paired is None or paired.rounds < min_rounds:
        return Verdict.UNCLEAR
    edge = 1 + (noise_floor or 0.0)
    if paired.low > edge:
        return Verdict.FASTER
    if paired.high < 1 / edge:
        return Verdict.SLOWER
    if noise_floor is not None and 1 / edge <= paired.low and paired.high <= edge:
        return Verdict.SAME
    return Verdict.UNCLEAR


def noise_floor(audit: PairedRatio) -> float:
    """Largest relative difference within the interval of native dense against itself."""
    return math.exp(max(abs(math.log(audit.low)), abs(math.log(audit.high)))) - 1


def median(values: Sequence[float]) -> float | None:
    """The middle value, the mean of the two middle ones for even counts; None if empty."""
    return percentile(values, 50)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between order statistics, rising in `percent`; None if empty."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent)) if values else None


def _bootstrap(
    logs: NDArray[np.float64], generator: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """The estimate of [resamples] samples drawn from `logs` [n] with replacement."""
    rounds = len(logs)
    picked = generator.integers(0, rounds, (resamples, rounds))
    batches = max(1, resamples * rounds * rounds // _BATCH_ELEMENTS)
    return np.concatenate([_hodges_lehmann(logs[i]) for i in np.array_split(picked, batches)])


def _hodges_lehmann(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of the means of all pairs, each value with itself too: [..., n] to [...]."""
    i, j = np.triu_indices(values.shape[-1])
    shift: NDArray[np.float64] = np.median((values[..., i] + values[..., j]) / 2, axis=-1)
    return shift


def _small_sample_factor(rounds: int) -> float:
    """How much wider than its bootstrap an interval from few rounds must be."""
    t = -stdtrit(rounds - 1, ALPHA / 2)
    z = -ndtri(ALPHA / 2)
    return float(math.sqrt(rounds / (rounds - 1)) * t / z)
