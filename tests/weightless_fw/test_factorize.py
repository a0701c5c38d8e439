import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightless_fw.core.factorize import RankError, check_rank, pass_through, perturb, share
from weightless_fw.core.factors import Factors
from weightless_fw.core.reference import linear


def weights(count: int, n: int, k: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, k)).astype(np.float32) for _ in range(count)]


def residual(weight: np.ndarray, factors: Factors) -> float:
    return float(np.linalg.norm(weight - factors.effective_weight))


@given(n=st.integers(2, 12), k=st.integers(2, 12), seed=st.integers(0, 99))
def test_pass_through_is_exact_and_keeps_the_weight(n: int, k: int, seed: int) -> None:
    (weight,) = weights(1, n, k, seed)
    factors = pass_through(weight, min(n, k), seed)
    assert factors.w0 is weight
    np.testing.assert_array_equal(factors.effective_weight, weight)
    assert factors.v.any()


@settings(deadline=None)
@given(n=st.integers(3, 10), k=st.integers(3, 10), seed=st.integers(0, 99))
def test_full_rank_sharing_has_no_error(n: int, k: int, seed: int) -> None:
    layers = weights(3, n, k, seed)
    for weight, factors in zip(layers, share(layers, min(n, k)), strict=True):
        np.testing.assert_allclose(factors.effective_weight, weight, atol=2e-5)


def test_one_w0_serves_the_band() -> None:
    shared = share(weights(4, 6, 5, 1), 2)
    assert all(factors.w0 is shared[0].w0 for factors in shared)


def test_the_residual_is_the_best_of_its_rank() -> None:
    """Against numpy's own SVD: Eckart and Young give the least possible error."""
    layers = weights(2, 9, 7, 3)
    for weight, factors in zip(layers, share(layers, 3), strict=True):
        rest = weight - factors.s[:, None] * factors.w0
        singular = np.linalg.svd(rest.astype(np.float64), compute_uv=False)
        least = float(np.sqrt(np.sum(singular[3:] ** 2)))
        assert residual(weight, factors) == pytest.approx(least, rel=1e-4)


def test_a_higher_rank_is_never_worse() -> None:
    layers = weights(3, 8, 8, 5)
    errors = [
        sum(residual(w, f) for w, f in zip(layers, share(layers, rank), strict=True))
        for rank in range(1, 9)
    ]
    assert errors == sorted(errors, reverse=True)


def test_perturbing_moves_everything_but_w0() -> None:
    factors = pass_through(weights(1, 6, 5, 2)[0], 3, seed=0)
    moved = perturb(factors, seed=1)
    assert moved.w0 is factors.w0
    for name in ("s", "u", "v"):
        assert not np.array_equal(getattr(moved, name), getattr(factors, name))
    change = np.linalg.norm(moved.effective_weight - factors.w0) / np.linalg.norm(factors.w0)
    assert 0.05 < change < 2


@pytest.mark.parametrize("rank", [0, -1, 6])
def test_a_rank_that_does_not_fit_is_refused(rank: int) -> None:
    with pytest.raises(RankError, match=f"rank={rank}: a 5 x 9 projection takes ranks 1 to 5"):
        check_rank(rank, (5, 9))


def test_mismatched_factors_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="have shapes"):
        Factors(
            w0=np.zeros((3, 4), np.float32),
            s=np.zeros(4, np.float32),
            u=np.zeros((3, 1), np.float32),
            v=np.zeros((4, 1), np.float32),
        )


def test_the_reference_is_the_formula() -> None:
    """Element by element, as it is written."""
    factors = perturb(pass_through(weights(1, 3, 4, 8)[0], 2, seed=0), seed=3)
    x = np.random.default_rng(4).standard_normal((2, 4))
    y = linear(x, factors)
    for t in range(2):
        for o in range(3):
            base = sum(float(factors.w0[o, i]) * x[t, i] for i in range(4))
            delta = sum(
                float(factors.u[o, r]) * sum(float(factors.v[i, r]) * x[t, i] for i in range(4))
                for r in range(2)
            )
            assert y[t, o] == pytest.approx(float(factors.s[o]) * base + delta, rel=1e-12)
