from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightless_fw.core.band_fit import (
    BandFit,
    BandFitError,
    Method,
    fit_band,
    quantized_fit,
    spectrum,
)
from weightless_fw.core.block_steps import base_step, fixed_gauge, low_rank_step, scale_step
from weightless_fw.core.factors import Array
from weightless_fw.core.nvfp4 import Nvfp4, ScaleChoice
from weightless_fw.core.quantize import quantize
from weightless_fw.core.whitening import DAMPING, MomentsError, Whitener

SIZES = st.integers(2, 10)
SEEDS = st.integers(0, 200)


def band(count: int, n: int, k: int, seed: int) -> tuple[list[Array], list[np.ndarray]]:
    """Weights with something in common, and inputs of very unequal directions."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, k))
    weights = [
        (common * rng.uniform(0.2, 2, (n, 1)) + rng.standard_normal((n, k))).astype(np.float32)
        for _ in range(count)
    ]
    moments = []
    for _ in range(count):
        x = rng.standard_normal((3 * k, k)) * rng.uniform(0.1, 5, k) @ rng.standard_normal((k, k))
        moments.append(x.T @ x / len(x))
    return weights, moments


def root(moments: np.ndarray) -> np.ndarray:
    """H^(1/2) of the damped moments, symmetric, from numpy alone."""
    damped = moments + DAMPING * np.mean(np.diag(moments)) * np.eye(len(moments))
    values, vectors = np.linalg.eigh(damped)
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T


def total_error(weights: list[Array], moments: list[np.ndarray], fit: BandFit) -> float:
    """The objective, written down densely."""
    return sum(
        float(np.linalg.norm((w - f.effective_weight.astype(np.float64)) @ root(h)) ** 2)
        for w, h, f in zip(weights, moments, fit.factors, strict=True)
    )


def energy(weights: list[Array], moments: list[np.ndarray]) -> float:
    return sum(
        float(np.linalg.norm(w @ root(h)) ** 2) for w, h in zip(weights, moments, strict=True)
    )


@settings(deadline=None)
@given(n=SIZES, k=SIZES, seed=SEEDS, method=st.sampled_from([Method.WHITENED, Method.SVD]))
def test_one_layer_per_band_has_no_error(n: int, k: int, seed: int, method: Method) -> None:
    weights, moments = band(1, n, k, seed)
    fit = fit_band(weights, moments, 1, method=method)
    np.testing.assert_array_equal(fit.factors[0].effective_weight, weights[0])
    assert fit.errors == (0.0,)


@settings(deadline=None)
@given(n=SIZES, k=SIZES, seed=SEEDS, method=st.sampled_from(["whitened", "svd", "mean"]))
def test_full_rank_has_no_error(n: int, k: int, seed: int, method: str) -> None:
    weights, moments = band(3, n, k, seed)
    fit = fit_band(weights, moments, min(n, k), method=Method(method))
    assert max(fit.errors) < 1e-5


@settings(deadline=None)
@given(n=SIZES, k=SIZES, seed=SEEDS)
def test_full_rank_has_no_error_for_any_w0(n: int, k: int, seed: int) -> None:
    (weight,), (h,) = band(1, n, k, seed)
    rest = weight - 3 * np.random.default_rng(seed).standard_normal((n, k))
    u, v, _ = low_rank_step(rest, Whitener.of(h), min(n, k))
    np.testing.assert_allclose(u @ v.T, rest, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(n=SIZES, k=SIZES, seed=SEEDS, rank=st.integers(0, 2))
def test_a_free_scale_is_never_worse(n: int, k: int, seed: int, rank: int) -> None:
    weights, moments = band(3, n, k, seed)
    free, fixed = (
        fit_band(weights, moments, rank, method=Method.WHITENED, free_scale=free)
        for free in (True, False)
    )
    assert all((f.s == 1).all() for f in fixed.factors)
    slack = 1e-6 * energy(weights, moments)
    assert total_error(weights, moments, free) <= total_error(weights, moments, fixed) + slack


@settings(deadline=None, max_examples=40)
@given(n=SIZES, k=SIZES, seed=SEEDS, count=st.integers(2, 4))
def test_the_error_falls_and_is_what_the_history_says(
    n: int, k: int, seed: int, count: int
) -> None:
    weights, moments = band(count, n, k, seed)
    fit = fit_band(weights, moments, 1, method=Method.WHITENED)
    assert all(b <= a + 1e-9 for a, b in zip(fit.history, fit.history[1:], strict=False))
    dense = total_error(weights, moments, fit) / energy(weights, moments)
    assert fit.history[-1] == pytest.approx(dense, abs=1e-6)


def test_without_w0_the_low_rank_step_is_the_whitened_svd() -> None:
    """Against numpy's own SVD and a symmetric root."""
    (weight,), (h,) = band(1, 9, 7, 4)
    u, v, left_over = low_rank_step(weight.astype(np.float64), Whitener.of(h), 3)
    r = root(h)
    left, sigma, right = np.linalg.svd(weight.astype(np.float64) @ r)
    dense = left[:, :3] @ np.diag(sigma[:3]) @ right[:3] @ np.linalg.inv(r)
    np.testing.assert_allclose(u @ v.T, dense, atol=1e-8)
    assert left_over == pytest.approx(np.sum(sigma[3:] ** 2))


@settings(deadline=None)
@given(n=SIZES, k=SIZES, seed=SEEDS, rank=st.integers(1, 2))
def test_whitened_is_never_worse_than_plain(n: int, k: int, seed: int, rank: int) -> None:
    """Of one residual, in the whitened norm: Eckart and Young."""
    (weight,), (h,) = band(1, n, k, seed)
    r, errors = root(h), []
    for whitener in (Whitener.of(h), Whitener(k)):
        u, v, _ = low_rank_step(weight.astype(np.float64), whitener, rank)
        errors.append(np.linalg.norm((weight - u @ v.T) @ r))
    assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_a_whitened_band_beats_the_plain_and_the_mean(seed: int) -> None:
    weights, moments = band(3, 24, 16, seed)
    errors = [
        total_error(weights, moments, fit_band(weights, moments, 3, method=method))
        for method in (Method.WHITENED, Method.SVD, Method.MEAN)
    ]
    assert errors[0] < min(errors[1:])


def test_the_spectrum_says_what_a_rank_would_gain() -> None:
    """Of the residual that W0 alone leaves, by numpy's own SVD."""
    weights, moments = band(2, 9, 6, 8)
    alone = fit_band(weights, moments, 0, method=Method.WHITENED)
    gains = spectrum(alone, weights, [Whitener.of(h) for h in moments])
    expected = np.zeros(6)
    for weight, h, f in zip(weights, moments, alone.factors, strict=True):
        sigma = np.linalg.svd((weight - f.effective_weight) @ root(h), compute_uv=False)
        expected += sigma**2 / np.linalg.norm(weight @ root(h)) ** 2
    np.testing.assert_allclose(gains, expected, rtol=1e-4, atol=1e-9)


@settings(deadline=None)
@given(n=SIZES, k=SIZES, seed=SEEDS)
def test_the_scale_is_the_regression_of_every_row(n: int, k: int, seed: int) -> None:
    weights, (h, _) = band(2, n, k, seed)
    target, w0 = (w.astype(np.float64) for w in weights)
    s, r = scale_step(target, w0, Whitener.of(h)), root(h)
    for row in range(n):
        expected = np.linalg.lstsq((w0[row] @ r)[:, None], target[row] @ r, rcond=None)[0]
        assert s[row] == pytest.approx(expected[0], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("free", [True, False])
def test_w0_is_the_least_squares_solution(free: bool) -> None:
    """Row by row against the normal equations, solved densely."""
    weights, moments = band(3, 6, 8, 2)
    rng = np.random.default_rng(0)
    scales = [rng.uniform(0.5, 1.5, 6) if free else np.ones(6) for _ in weights]
    whiteners = [Whitener.of(h) for h in moments]
    start = np.zeros((6, 8)) if free else None
    w0 = base_step(weights, scales if free else None, whiteners, start, steps=100)
    for row in range(6):
        left = sum(s[row] ** 2 * root(h) @ root(h) for s, h in zip(scales, moments, strict=True))
        right = sum(
            s[row] * (w[row] @ root(h) @ root(h))
            for s, w, h in zip(scales, weights, moments, strict=True)
        )
        np.testing.assert_allclose(w0[row], np.linalg.solve(left, right), rtol=1e-4, atol=1e-5)


def test_the_gauge_moves_size_and_not_the_product() -> None:
    rng = np.random.default_rng(1)
    w0, scales = rng.standard_normal((4, 5)), rng.standard_normal((3, 4))
    moved, fixed = fixed_gauge(w0, list(scales))
    np.testing.assert_allclose(np.mean(np.square(fixed), axis=0), 1)
    for before, after in zip(scales, fixed, strict=True):
        np.testing.assert_allclose(after[:, None] * moved, before[:, None] * w0)


def test_one_w0_serves_the_band() -> None:
    weights, moments = band(3, 6, 5, 7)
    fit = fit_band(weights, moments, 2, method=Method.WHITENED)
    assert all(f.w0 is fit.factors[0].w0 for f in fit.factors)


def coarse(choice: ScaleChoice) -> Callable[[Array], Nvfp4]:
    return lambda w0: quantize(w0, choice)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rank", [0, 4])
def test_the_residual_absorbs_what_quantising_lost(count: int, rank: int) -> None:
    weights, moments = band(count, 48, 32, 3)
    fit = fit_band(
        weights, moments, rank, method=Method.WHITENED, quantize=coarse(ScaleChoice.SWEEP)
    )
    w0 = fit.factors[0].w0
    assert isinstance(w0, Nvfp4)
    naive = fit_band(weights, moments, rank, method=Method.WHITENED)
    naive_w0 = quantize(naive.factors[0].dense_w0, ScaleChoice.SWEEP).dense()
    left_alone = sum(
        np.linalg.norm((w - f.s[:, None] * naive_w0 - f.u @ f.v.T) @ root(h)) ** 2
        for w, h, f in zip(weights, moments, naive.factors, strict=True)
    )
    assert total_error(weights, moments, fit) < left_alone


def test_the_best_round_is_kept() -> None:
    """A quantiser that gets worse each time: its first answer must win."""
    weights, moments = band(2, 16, 16, 5)
    dense = fit_band(weights, moments, 2, method=Method.WHITENED)
    calls: list[Nvfp4] = []

    def worsening(w0: Array) -> Nvfp4:
        calls.append(quantize(w0 * np.float32(0.1 if calls else 1), ScaleChoice.AMAX))
        if len(calls) > 1:
            calls[-1] = Nvfp4(calls[-1].packed * 0, calls[-1].scales, calls[-1].global_scale)
        return calls[-1]

    arguments = {"method": Method.WHITENED, "quantize": worsening}
    fit = quantized_fit(dense, weights, moments, 2, **arguments)
    assert len(calls) == 2
    assert fit.factors[0].w0 is calls[0]


def test_pass_through_keeps_the_weight_and_has_no_factors() -> None:
    weights, _ = band(1, 6, 16, 0)
    fit = fit_band(weights, None, 0, method=Method.PASS_THROUGH)
    assert fit.factors[0].w0 is weights[0]
    assert fit.factors[0].rank == 0
    with pytest.raises(BandFitError, match="one layer per band and rank 0"):
        fit_band(band(2, 6, 16, 0)[0], None, 0, method=Method.PASS_THROUGH)


def test_mean_is_the_mean_with_a_plain_svd() -> None:
    weights, moments = band(3, 9, 7, 6)
    fit = fit_band(weights, moments, 2, method=Method.MEAN)
    mean = np.mean(weights, axis=0, dtype=np.float64)
    np.testing.assert_allclose(fit.factors[0].dense_w0, mean, atol=1e-6)
    for weight, f in zip(weights, fit.factors, strict=True):
        assert (f.s == 1).all()
        sigma = np.linalg.svd(weight - mean, compute_uv=False)
        least = np.sqrt(np.sum(sigma[2:] ** 2))
        assert np.linalg.norm(weight - f.effective_weight) == pytest.approx(least, rel=1e-4)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda h: h + np.triu(np.ones_like(h), 1), "not symmetric"),
        (lambda h: np.where(np.eye(len(h)) > 0, np.nan, h), "5 values that are NaN"),
        (lambda h: h[:, :-1], r"shape \[5, 4\]"),
        (lambda h: -h, "negative eigenvalue"),
        (lambda h: h * 0, "all zero"),
        (lambda h: np.eye(6), "of 6 inputs for weights with K=5"),
    ],
)
def test_malformed_moments_are_refused(
    spoil: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    weights, (h,) = band(1, 4, 5, 0)
    with pytest.raises((MomentsError, BandFitError), match=message):
        fit_band(weights, [spoil(h)], 1, method=Method.WHITENED)


def test_what_cannot_be_fitted_is_refused() -> None:
    weights, moments = band(2, 4, 5, 0)
    with pytest.raises(BandFitError, match="rank=5: a 4 x 5 projection takes ranks 0 to 4"):
        fit_band(weights, moments, 5, method=Method.WHITENED)
    with pytest.raises(BandFitError, match="--calibration FILE"):
        fit_band(weights, None, 1, method=Method.WHITENED)
    with pytest.raises(BandFitError, match="2 layers with 1 second moments"):
        fit_band(weights, moments[:1], 1, method=Method.WHITENED)
    with pytest.raises(BandFitError, match="layers of one shape"):
        fit_band([weights[0], weights[1][:3]], moments, 1, method=Method.WHITENED)
