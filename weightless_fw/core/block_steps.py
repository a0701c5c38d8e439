"""The exact minimiser of each block of a band, given the other blocks.

Everything is float64 and in the norm of a :class:`Whitener`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import linalg

from weightless_fw.core.whitening import Array64, Whitener

CG_STEPS = 2
"""At most this many conjugate-gradient steps; each of them lowers the error. On
Gemma 3 270M two of them end, turn for turn, where twelve do."""

CG_TOLERANCE = 1e-6
"""Ends the conjugate gradients: residual relative to the right-hand side."""


def low_rank_step(
    residual: Array64, whitener: Whitener, rank: int
) -> tuple[Array64, Array64, float]:
    """U [N, R] and V [K, R] that minimise ||(residual - U V^T) H^(1/2)||.

    The rank-R SVD of residual H^(1/2), taken from the smaller Gram matrix, with
    H^(1/2) divided out of V.

    Returns:
        U, V, and the squared norm that is left.
    """
    n, k = residual.shape
    white = whitener.whitened(residual)
    if rank == 0:
        return np.zeros((n, 0)), np.zeros((k, 0)), float(np.vdot(white, white))
    wide = white if n >= k else white.T
    gram, side = wide.T @ wide, min(n, k)
    captured, top = linalg.eigh(gram, subset_by_index=(side - rank, side - 1))
    top = top[:, ::-1]
    left = wide @ top
    u, v = (left, top) if n >= k else (top, left)
    return u, whitener.unwhitened(v), max(0.0, float(np.trace(gram) - captured.sum()))


def captured_by(residual: Array64, whitener: Whitener) -> Array64:
    """[min(N, K)] squared singular values of residual H^(1/2), falling."""
    white = whitener.whitened(residual)
    wide = white if white.shape[0] >= white.shape[1] else white.T
    return np.maximum(linalg.eigvalsh(wide.T @ wide)[::-1], 0.0)


def scale_step(target: Array64, w0: Array64, whitener: Whitener) -> Array64:
    """s [N] that minimises ||(target - diag(s) W0) H^(1/2)||: a regression per row."""
    weighed = whitener.times_h(w0)
    energy = np.einsum("nk,nk->n", weighed, w0)
    overlap = np.einsum("nk,nk->n", weighed, target)
    # A row of zeros has no scale; 1 is as good as any.
    return np.divide(overlap, energy, out=np.ones_like(energy), where=energy > 0)


def fixed_gauge(w0: Array64, scales: Sequence[Array64]) -> tuple[Array64, tuple[Array64, ...]]:
    """Moves a factor per row from s to W0 so that s has root mean square 1 over the band.

    diag(s) W0 stays as it is. Without it, s and W0 could drift apart without
    bound; with s of the first layer fixed instead, a small one would blow up W0.
    """
    size = np.sqrt(np.mean(np.square(scales), axis=0))
    size[size == 0] = 1.0
    return w0 * size[:, None], tuple(s / size for s in scales)


def mean_base(weights: Sequence[npt.NDArray[np.floating]]) -> Array64:
    """[N, K]: the mean of the weights."""
    return np.mean(weights, axis=0, dtype=np.float64)


def base_step(
    targets: Sequence[npt.NDArray[np.floating]],
    scales: Sequence[Array64] | None,
    whiteners: Sequence[Whitener],
    start: Array64 | None,
    steps: int = CG_STEPS,
) -> Array64:
    """W0 [N, K] that minimises the sum of ||(target_l - diag(s_l) W0) H_l^(1/2)||^2.

    With s = 1 one solve: (sum target_l H_l) (sum H_l)^(-1). With a row scale
    every row o has its own matrix, sum s_l[o]^2 H_l, and all rows run together
    through conjugate gradients from ``start``, preconditioned by that solve:
    one step where the layers' s agree, few where they do not.

    Args:
        targets: [N, K] of each layer.
        scales: [N] of each layer; None is s = 1.
        whiteners: Of each layer.
        start: Where the conjugate gradients begin.
        steps: At most this many of them.
    """
    if len(targets) == 1:
        # Any row with a scale can be met exactly.
        return _single(targets[0], None if scales is None else scales[0], start)
    solve = _solver(whiteners)
    right = np.zeros(targets[0].shape)
    for layer, (target, whitener) in enumerate(zip(targets, whiteners, strict=True)):
        weighed = whitener.times_h(target.astype(np.float64, copy=False))
        right += weighed if scales is None else scales[layer][:, None] * weighed
    if scales is None or start is None:
        return solve(right)
    squares = [np.square(s)[:, None] for s in scales]

    def operator(w0: Array64) -> Array64:
        total = np.zeros_like(w0)
        for square, whitener in zip(squares, whiteners, strict=True):
            total += square * whitener.times_h(w0)
        return total

    return _conjugate_gradients(operator, solve, right, start, steps)


def _single(target: Array64, scale: Array64 | None, start: Array64 | None) -> Array64:
    if scale is None or start is None:
        return np.asarray(target, np.float64)
    scaled = scale[:, None]
    return np.divide(target, scaled, out=start.copy(), where=scaled != 0)


def _solver(whiteners: Sequence[Whitener]):
    """X -> X (sum H_l)^(-1)."""
    width, count = whiteners[0].width, len(whiteners)
    if all(w.h is None for w in whiteners):
        return lambda x: x / count
    total = sum(np.eye(width) if w.h is None else w.h for w in whiteners)
    factor = linalg.cho_factor(total, lower=True)
    return lambda x: linalg.cho_solve(factor, x.T).T


def _conjugate_gradients(operator, solve, right: Array64, start: Array64, steps: int) -> Array64:
    """Solves operator(x) = right for every row at once."""
    x = start.copy()
    residual = right - operator(x)
    limit = CG_TOLERANCE * np.linalg.norm(right)
    direction = z = solve(residual)
    slope = np.einsum("nk,nk->n", residual, z)
    for _ in range(steps):
        if np.linalg.norm(residual) <= limit:
            break
        image = operator(direction)
        curvature = np.einsum("nk,nk->n", direction, image)
        # A row that is solved, or has s = 0 in every layer, stands still.
        step = np.divide(slope, curvature, out=np.zeros_like(slope), where=curvature > 0)
        x += step[:, None] * direction
        residual -= step[:, None] * image
        z = solve(residual)
        after = np.einsum("nk,nk->n", residual, z)
        turn = np.divide(after, slope, out=np.zeros_like(slope), where=slope > 0)
        direction, slope = z + turn[:, None] * direction, after
    return x
