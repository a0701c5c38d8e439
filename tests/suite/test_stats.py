"""Speed-up, interval and verdict, against brute force and simulated campaigns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from suite.stats import (
    ALPHA,
    PairedRatio,
    Verdict,
    median,
    noise_floor,
    paired_ratio,
    percentile,
    verdict,
)

NATIVE = [100.0, 102.0, 98.0, 101.0]
ARM = [121.0, 120.0, 119.0, 124.0]


def shift(values: list[float]) -> float:
    """Hodges and Lehmann's estimate, by its definition."""
    pairs = itertools.combinations_with_replacement(values, 2)
    return float(np.median([(a + b) / 2 for a, b in pairs]))


def test_ratio_is_the_hodges_lehmann_shift_of_the_log_ratios() -> None:
    paired = paired_ratio(NATIVE, ARM, seed=1)
    logs = [math.log(b / a) for a, b in zip(NATIVE, ARM, strict=True)]
    assert paired is not None
    assert paired.ratio == pytest.approx(math.exp(shift(logs)))
    assert paired.rounds == 4
    assert paired.low < paired.ratio < paired.high


def test_interval_is_the_widened_bootstrap_over_all_resamples() -> None:
    logs = [math.log(b / a) for a, b in zip(NATIVE, ARM, strict=True)]
    every = [shift(list(sample)) for sample in itertools.product(logs, repeat=4)]
    low, high = np.percentile(every, [2.5, 97.5])
    factor = math.sqrt(4 / 3) * scipy_stats.t.ppf(0.975, 3) / scipy_stats.norm.ppf(0.975)
    paired = paired_ratio(NATIVE, ARM, seed=1, resamples=50_000)
    assert paired is not None
    assert math.log(paired.low) == pytest.approx(shift(logs) + factor * (low - shift(logs)), 1e-2)
    assert math.log(paired.high) == pytest.approx(shift(logs) + factor * (high - shift(logs)), 1e-2)


def test_equal_seeds_give_equal_intervals() -> None:
    assert paired_ratio(NATIVE, ARM, seed=1) == paired_ratio(NATIVE, ARM, seed=1)


def test_the_size_of_a_batch_does_not_change_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paired_ratio(NATIVE, ARM, seed=1)
    monkeypatch.setattr("suite.stats._BATCH_ELEMENTS", 100)
    assert paired_ratio(NATIVE, ARM, seed=1) == whole


def test_a_slowdown_is_the_reciprocal_of_a_speedup() -> None:
    up = paired_ratio(NATIVE, ARM, seed=1)
    down = paired_ratio(ARM, NATIVE, seed=1)
    assert up is not None
    assert down is not None
    assert down.ratio == pytest.approx(1 / up.ratio)
    assert (down.low, down.high) == pytest.approx((1 / up.high, 1 / up.low), rel=1e-2)


def test_drift_of_the_machine_cancels() -> None:
    drift = [100.0, 80.0, 60.0, 40.0, 20.0]
    paired = paired_ratio(drift, [1.5 * rate for rate in drift], seed=1)
    assert paired is not None
    assert (paired.low, paired.ratio, paired.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("rates", [[], [100.0]])
def test_fewer_than_two_rounds_have_no_ratio(rates: list[float]) -> None:
    assert paired_ratio(rates, rates, seed=1) is None


@pytest.mark.parametrize(
    ("native", "arm", "reason"),
    [
        ([100.0, 100.0], [120.0, 121.0], "2 rounds of native dense gave exactly 100"),
        ([100.0, 101.0, 102.0], [120.0] * 3, "3 rounds of the arm gave exactly 120"),
        ([100.0, 101.0], [120.0], "2 rounds of native dense, 1 of the arm"),
        ([100.0, 0.0], [120.0, 121.0], "not a positive number"),
        ([100.0, math.nan], [120.0, 121.0], "not a positive number"),
        ([100.0, 101.0], [120.0, math.inf], "not a positive number"),
    ],
)
def test_what_no_measurement_gives_is_refused(
    native: list[float], arm: list[float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        paired_ratio(native, arm, seed=1)


@pytest.mark.parametrize(
    ("low", "high", "floor", "expected"),
    [
        (1.03, 1.10, 0.02, Verdict.FASTER),
        (1.02, 1.10, 0.02, Verdict.UNCLEAR),
        (1.01, 1.10, 0.02, Verdict.UNCLEAR),
        (1.01, 1.10, None, Verdict.FASTER),
        (0.80, 0.97, 0.02, Verdict.SLOWER),
        (0.80, 0.985, 0.02, Verdict.UNCLEAR),
        (0.80, 0.985, None, Verdict.SLOWER),
        (0.99, 1.01, 0.02, Verdict.SAME),
        (1 / 1.02, 1.02, 0.02, Verdict.SAME),
        (0.97, 1.01, 0.02, Verdict.UNCLEAR),
        (0.99, 1.01, None, Verdict.UNCLEAR),
        (1.0, 1.0, None, Verdict.UNCLEAR),
    ],
)
def test_verdict(low: float, high: float, floor: float | None, expected: Verdict) -> None:
    paired = PairedRatio(ratio=math.sqrt(low * high), low=low, high=high, rounds=5)
    assert verdict(paired, noise_floor=floor) is expected


def test_too_few_rounds_are_unclear() -> None:
    assert verdict(None, noise_floor=0.1) is Verdict.UNCLEAR
    four = PairedRatio(ratio=2, low=1.9, high=2.1, rounds=4)
    assert verdict(four, noise_floor=None) is Verdict.UNCLEAR
    assert verdict(four, noise_floor=None, min_rounds=4) is Verdict.FASTER


def test_noise_floor_is_the_larger_side_of_the_audit() -> None:
    audit = PairedRatio(ratio=0.99, low=0.95, high=1.02, rounds=5)
    assert noise_floor(audit) == pytest.approx(1 / 0.95 - 1)
    inside = replace(audit, low=0.951)
    assert verdict(inside, noise_floor=noise_floor(audit)) is Verdict.SAME


def test_medians_and_percentiles() -> None:
    assert median([]) is None
    assert percentile([], 99) is None
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert percentile([0.0, 10.0], 25) == 2.5
    rates = [90.0, 120.0, 100.0, 70.0]
    rising = [percentile(rates, percent) for percent in (1, 50, 99, 100)]
    assert rising == sorted(rising, key=lambda value: value or 0)
    assert rising[-1] == 120.0


Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]

NOISES: dict[str, Noise] = {
    "normal": lambda g, n: g.normal(0, 0.02, n),
    "heavy tails": lambda g, n: 0.02 * g.standard_t(3, n),
    "disturbed rounds": lambda g, n: (
        -np.where(g.random(n) < 0.2, g.exponential(0.3, n), 0) + g.normal(0, 0.01, n)
    ),
}


def simulated(generator: np.random.Generator, noise: Noise, rounds: int, speedup: float) -> Verdict:
    native = 100 * np.exp(noise(generator, rounds))
    arm = 100 * speedup * np.exp(noise(generator, rounds))
    paired = paired_ratio(native.tolist(), arm.tolist(), seed=7, resamples=400)
    return verdict(paired, noise_floor=None)


@pytest.mark.parametrize(("noise", "rounds"), [*((name, 5) for name in NOISES), ("normal", 8)])
def test_identical_code_differs_at_most_as_often_as_stated(noise: str, rounds: int) -> None:
    generator = np.random.default_rng(42)
    seen = [simulated(generator, NOISES[noise], rounds, 1.0) for _ in range(1000)]
    assert sum(v in (Verdict.FASTER, Verdict.SLOWER) for v in seen) / len(seen) <= ALPHA


def test_a_real_difference_is_seen() -> None:
    generator = np.random.default_rng(43)
    seen = [simulated(generator, NOISES["normal"], 5, 1.15) for _ in range(200)]
    assert seen.count(Verdict.FASTER) >= 195
