"""Turns dense weights into factors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weightless_fw.core.factors import Array, Factors


class RankError(ValueError):
    """The rank does not fit the matrix."""


def check_rank(rank: int, shape: tuple[int, int]) -> None:
    """Raises RankError unless 1 <= rank <= min(shape)."""
    if not 1 <= rank <= min(shape):
        raise RankError(
            f"rank={rank}: a {shape[0]} x {shape[1]} projection takes ranks 1 to {min(shape)}"
        )


def pass_through(weight: Array, rank: int, seed: int) -> Factors:
    """Keeps ``weight`` as W0; U is zero by construction, so W_eff = W exactly.

    V is random, as at the start of adapter training: the factors are read and
    multiplied like any others and add nothing.

    Args:
        weight: [N, K].
        rank: Columns of U and V.
        seed: Seed of V.
    """
    check_rank(rank, weight.shape)
    n, k = weight.shape
    v = np.random.default_rng(seed).standard_normal((k, rank), dtype=np.float32)
    return Factors(
        w0=weight,
        s=np.ones(n, np.float32),
        u=np.zeros((n, rank), np.float32),
        v=v / np.float32(np.sqrt(k)),
    )


def share(weights: Sequence[Array], rank: int) -> tuple[Factors, ...]:
    """Fits one W0 to several layers: their mean, a row scale, a plain SVD.

    W0 = mean of W_l; s by least squares per row; U V^T the best rank-``rank``
    approximation of the residual W_l - diag(s) W0 in the Frobenius norm.
    Neighbouring layers of a pretrained model are nearly orthogonal, so this is
    small and not coherent; it serves to measure speed and bytes.

    Args:
        weights: [N, K] each, all of one shape.
        rank: Columns of U and V.

    Returns:
        One Factors per weight, all holding the same W0 array.
    """
    check_rank(rank, weights[0].shape)
    w0 = np.mean(weights, axis=0, dtype=np.float64).astype(np.float32)
    row_energy = np.maximum(np.einsum("nk,nk->n", w0, w0), np.float32(1e-30))
    layers = []
    for weight in weights:
        s = np.einsum("nk,nk->n", weight, w0) / row_energy
        u, v = _truncated_svd(weight - s[:, None] * w0, rank)
        layers.append(Factors(w0=w0, s=s.astype(np.float32), u=u, v=v))
    return tuple(layers)


def perturb(factors: Factors, seed: int) -> Factors:
    """Moves s, U and V visibly and keeps W0, to show that a path reads them."""
    rng = np.random.default_rng(seed)
    n, k = factors.w0.shape
    rank = max(1, factors.rank)
    rms = np.float32(np.sqrt(np.mean(np.square(factors.dense_w0, dtype=np.float64))))

    def noise(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    # U V^T gets about a tenth of the energy of W0, s about a tenth of its size.
    scale = np.float32(np.sqrt(0.3 * rms / np.sqrt(rank)))
    return Factors(
        w0=factors.w0,
        s=factors.s * (1 + np.float32(0.1) * noise(n)),
        u=factors.u + scale * noise(n, factors.rank),
        v=factors.v + scale * noise(k, factors.rank),
    )


def _truncated_svd(matrix: Array, rank: int) -> tuple[Array, Array]:
    """Best U [N, R], V [K, R] with U V^T ~ matrix, by the smaller Gram matrix."""
    n, k = matrix.shape
    wide = matrix.astype(np.float64) if n >= k else matrix.T.astype(np.float64)
    _, vectors = np.linalg.eigh(wide.T @ wide)
    top = vectors[:, ::-1][:, :rank]
    left = wide @ top
    u, v = (left, top) if n >= k else (top, left)
    return u.astype(np.float32), v.astype(np.float32)
