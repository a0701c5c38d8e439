"""Second moments of a projection's inputs, ready to weigh errors with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array64 = npt.NDArray[np.float64]

DAMPING = 1e-3
"""Share of the mean diagonal added to H: directions the calibration text hardly visits."""


class MomentsError(ValueError):
    """A matrix is no matrix of second moments; the message says why."""


@dataclass(frozen=True)
class Whitener:
    """H = Q diag(variances) Q^T, damped; a missing Q and H stand for the identity.

    The root of H in use is R = Q diag(variances)^(1/2): R R^T = H, so E R has
    the singular values and the left vectors of E H^(1/2).
    """

    width: int
    h: Array64 | None = None
    """[K, K], damped."""

    basis: Array64 | None = None
    """[K, K]: Q, eigenvectors in columns."""

    variances: Array64 | None = None
    """[K], all positive."""

    @classmethod
    def of(cls, moments: Array64) -> Whitener:
        """Decomposes second moments [K, K].

        Raises:
            MomentsError: They are not a finite, symmetric, non-negative matrix.
        """
        checked = _checked(moments)
        damping = DAMPING * float(np.mean(np.diag(checked)))
        h = checked + damping * np.eye(len(checked))
        variances, basis = np.linalg.eigh(h)
        # Symmetric eigen-decomposition rather than Cholesky: a matrix from few
        # tokens is singular but for the damping, and this says so exactly.
        if variances[0] < -1e-8 * variances[-1]:
            raise MomentsError(
                f"second moments have a negative eigenvalue {variances[0]:.3g}; E[x x^T] has none"
            )
        return cls(len(h), h, basis, np.maximum(variances, damping))

    def whitened(self, matrix: Array64) -> Array64:
        """E R for E [N, K]."""
        if self.basis is None or self.variances is None:
            return np.asarray(matrix, np.float64)
        return (matrix @ self.basis) * np.sqrt(self.variances)

    def unwhitened(self, vectors: Array64) -> Array64:
        """R^(-T) v for v [K, R]: U (R^(-T) v)^T R = U v^T."""
        if self.basis is None or self.variances is None:
            return vectors
        return self.basis @ (vectors / np.sqrt(self.variances)[:, None])

    def times_h(self, matrix: Array64) -> Array64:
        """E H for E [N, K]."""
        return np.asarray(matrix, np.float64) if self.h is None else matrix @ self.h

    def energy(self, matrix: npt.NDArray[np.floating]) -> float:
        """||E H^(1/2)||^2."""
        wide = np.asarray(matrix, np.float64)
        return max(0.0, float(np.vdot(self.times_h(wide), wide)))


def identity_whitener(width: int) -> Whitener:
    """Weighs all directions of K = ``width`` inputs alike."""
    return Whitener(width)


def _checked(moments: Array64) -> Array64:
    if moments.ndim != 2 or moments.shape[0] != moments.shape[1]:
        raise MomentsError(f"second moments of shape {list(moments.shape)}, [K, K] is needed")
    if not np.isfinite(moments).all():
        count = int(moments.size - np.isfinite(moments).sum())
        raise MomentsError(f"second moments hold {count} values that are NaN or infinite")
    largest = float(np.abs(moments).max())
    if largest == 0:
        raise MomentsError("second moments are all zero: the calibration never reached this input")
    if not np.allclose(moments, moments.T, rtol=0, atol=1e-9 * largest):
        raise MomentsError("second moments are not symmetric")
    return (np.asarray(moments, np.float64) + moments.T) / 2
