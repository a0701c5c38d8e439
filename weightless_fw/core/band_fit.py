"""Fits (W0, s, U, V) to the layers of one band.

Minimises, over one shared W0 and per-layer s, U and V, the weighted error

    sum over layers of || (W_l - diag(s_l) W0 - U_l V_l^T) H_l^(1/2) ||^2

with H_l = E[x x^T] of the layer's inputs: the mean squared error of the
outputs. Every block (U and V together, s, W0) has an exact minimiser given the
others, so taking them in turn never raises the error. All of it is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from weightless_fw.core.block_steps import (
    Array64,
    base_step,
    captured_by,
    fixed_gauge,
    low_rank_step,
    mean_base,
    scale_step,
)
from weightless_fw.core.factors import Array, Factors, without_factors
from weightless_fw.core.nvfp4 import Nvfp4
from weightless_fw.core.whitening import Whitener, identity_whitener

ITERATIONS = 5
"""Turns over the blocks with s = 1, and again with s free."""

ENOUGH = 1e-4
"""An iteration that lowers the error by a smaller share than this is the last."""

ROUNDING = 1e-9
"""What rounding may add to the error, as a share of the weights' own energy."""

REFITS = 2
"""Turns of s against U, V after W0 is quantised; the first brings nearly all."""

ROUNDS = 2
"""Times that W0 is quantised and moved; the best is kept."""

Quantize = Callable[[Array], Nvfp4]


class BandFitError(ValueError):
    """A band cannot be fitted as asked; the message says why."""


class Method(StrEnum):
    """How the factors of a band are found."""

    WHITENED = "whitened"
    """Least error of the outputs on calibration text."""
    SVD = "svd"
    """Least error of the weights: every H_l is the identity."""
    MEAN = "mean"
    """W0 is the mean of the weights, s is 1, one plain SVD."""
    PASS_THROUGH = "pass-through"
    """Every layer keeps its weight as W0 and has no factors."""


@dataclass(frozen=True)
class BandFit:
    """The factors of a band's layers and how well they fit."""

    factors: tuple[Factors, ...]
    """In the order of the weights; all hold the same W0 object."""

    history: tuple[float, ...]
    """Error after each iteration, as a share of the weights' energy (both squared)."""

    errors: tuple[float, ...]
    """||(W - W_eff) H^(1/2)|| / ||W H^(1/2)|| of each layer, of the float32 factors."""


@dataclass(frozen=True)
class _State:
    """One iterate: W0 [N, K], and s, U, V of each layer."""

    w0: Array64
    s: tuple[Array64, ...]
    u: tuple[Array64, ...]
    v: tuple[Array64, ...]
    error: float = float("nan")
    """The objective as a share of the weights' energy, known after a U, V step."""


@dataclass(frozen=True)
class _Problem:
    weights: Sequence[Array]
    whiteners: Sequence[Whitener]
    rank: int
    energy: float
    """Sum of ||W_l H_l^(1/2)||^2: what errors are relative to."""

    def target(self, state: _State, layer: int) -> Array64:
        """W_l - U_l V_l^T: what diag(s_l) W0 is to be."""
        return self.weights[layer] - state.u[layer] @ state.v[layer].T


def fit_band(
    weights: Sequence[Array],
    moments: Sequence[Array64 | Whitener] | None,
    rank: int,
    *,
    method: Method,
    quantize: Quantize | None = None,
    iterations: int = ITERATIONS,
    free_scale: bool = True,
) -> BandFit:
    """Fits one W0 and per-layer factors to the layers of a band.

    Args:
        weights: [N, K] of each layer.
        moments: [K, K] second moments of each layer's inputs, or their
            whiteners. WHITENED needs them; the others report errors by them.
        rank: Columns of U and V, 0 to min(N, K).
        method: What is minimised.
        quantize: Puts W0 into NVFP4; s, U and V are then fitted to what it lost.
        iterations: At most this many turns over the blocks with s = 1, then with s free.
        free_scale: Whether s is fitted or stays 1.

    Raises:
        BandFitError: Shapes differ, the rank does not fit, or moments are missing.
        MomentsError: A matrix of second moments is malformed.
    """
    method = Method(method)
    _check(weights, moments, rank, method)
    measured = _whiteners(weights, moments)
    if method is Method.PASS_THROUGH:
        w0 = weights[0] if quantize is None else quantize(weights[0])
        return _finished(weights, measured, (without_factors(w0),), ())
    free_scale = free_scale and method is not Method.MEAN
    whiteners = measured if method is Method.WHITENED else _whiteners(weights, None)
    problem = _problem(weights, whiteners, rank)
    if method is Method.MEAN:
        state = _refitted(problem, _start(problem, mean_base(weights)), 1, free_scale=False)
        history = [state.error]
    else:
        state, history = _alternated(problem, iterations, free_scale)
    # One layer keeps its own array: no copy, and no rounding.
    own = weights[0] if len(weights) == 1 else state.w0.astype(np.float32)
    fit = _finished(weights, measured, _factors(state, own), history)
    if quantize is None:
        return fit
    return quantized_fit(
        fit,
        weights,
        moments,
        rank,
        method=method,
        quantize=quantize,
        iterations=iterations,
        free_scale=free_scale,
    )


def quantized_fit(
    fit: BandFit,
    weights: Sequence[Array],
    moments: Sequence[Array64 | Whitener] | None,
    rank: int,
    *,
    method: Method,
    quantize: Quantize,
    iterations: int = ITERATIONS,
    free_scale: bool = True,
) -> BandFit:
    """Puts the W0 of a fitted band into NVFP4 and fits s, U and V to what that lost.

    Apart from ``fit_band`` because projections of one input share a global
    scale, which is known once the W0 of all of them are.

    Args:
        fit: What ``fit_band`` gave for the same arguments without ``quantize``.
        weights, moments, rank, method, quantize, iterations, free_scale: As there.
    """
    measured = _whiteners(weights, moments)
    first = fit.factors[0].dense_w0
    if method is Method.PASS_THROUGH:
        return _finished(weights, measured, (without_factors(quantize(first)),), ())
    free_scale = free_scale and method is not Method.MEAN
    whiteners = measured if method is Method.WHITENED else _whiteners(weights, None)
    problem = _problem(weights, whiteners, rank)
    state = _State(
        first.astype(np.float64),
        tuple(f.s.astype(np.float64) for f in fit.factors),
        tuple(f.u.astype(np.float64) for f in fit.factors),
        tuple(f.v.astype(np.float64) for f in fit.factors),
    )
    # Only a method that fits W0 may move it to where quantising loses less.
    rounds = 1 if method is Method.MEAN else max(1, min(ROUNDS, iterations))
    w0, state, history = _absorbed(problem, state, quantize, rounds, free_scale)
    return _finished(weights, measured, _factors(state, w0), history)


def _check(
    weights: Sequence[Array],
    moments: Sequence[Array64 | Whitener] | None,
    rank: int,
    method: Method,
) -> None:
    shapes = {weight.shape for weight in weights}
    if len(shapes) != 1:
        raise BandFitError(f"a band needs layers of one shape, got {sorted(shapes)}")
    n, k = shapes.pop()
    if not 0 <= rank <= min(n, k):
        raise BandFitError(f"rank={rank}: a {n} x {k} projection takes ranks 0 to {min(n, k)}")
    if method is Method.WHITENED and moments is None:
        raise BandFitError(
            "method whitened needs second moments of the inputs: pass --calibration FILE, "
            "or --method svd"
        )
    if method is Method.PASS_THROUGH and (len(weights) > 1 or rank):
        raise BandFitError(
            f"pass-through keeps every weight: it takes one layer per band and rank 0, "
            f"got {len(weights)} layers and rank {rank}"
        )


def _whiteners(
    weights: Sequence[Array], moments: Sequence[Array64 | Whitener] | None
) -> list[Whitener]:
    width = weights[0].shape[1]
    if moments is None:
        return [identity_whitener(width)] * len(weights)
    if len(moments) != len(weights):
        raise BandFitError(f"{len(weights)} layers with {len(moments)} second moments")
    made = [m if isinstance(m, Whitener) else Whitener.of(m) for m in moments]
    for whitener in made:
        if whitener.width != width:
            raise BandFitError(
                f"second moments of {whitener.width} inputs for weights with K={width}"
            )
    return made


def _problem(weights: Sequence[Array], whiteners: Sequence[Whitener], rank: int) -> _Problem:
    energy = sum(w.energy(weight) for w, weight in zip(whiteners, weights, strict=True))
    return _Problem(weights, whiteners, rank, energy or 1.0)


def _start(problem: _Problem, w0: Array64) -> _State:
    n, k = w0.shape
    count = len(problem.weights)
    return _State(
        w0, (np.ones(n),) * count, (np.zeros((n, 0)),) * count, (np.zeros((k, 0)),) * count
    )


def _alternated(problem: _Problem, iterations: int, free_scale: bool) -> tuple[_State, list[float]]:
    """The block steps in turn. s = 1 comes first, so that a free s starts from
    the best of s = 1 and cannot end above it."""
    if len(problem.weights) == 1:
        state = _low_ranked(problem, _start(problem, problem.weights[0].astype(np.float64)))
        return state, [state.error]
    w0 = base_step(problem.weights, None, problem.whiteners, None)
    state = _low_ranked(problem, _start(problem, w0))
    history = [state.error]
    phases = (False, True) if free_scale else (False,)
    for free in phases:
        for _ in range(iterations):
            state = _based(problem, _scaled(problem, state) if free else state, free)
            state = _low_ranked(problem, state)
            history.append(state.error)
            if history[-1] > history[-2] + ROUNDING:
                raise AssertionError(f"an exact step raised the error: {history}")
            if history[-2] - history[-1] <= ENOUGH * history[-2]:
                break
    return state, history


def _absorbed(
    problem: _Problem, state: _State, quantize: Quantize, rounds: int, free_scale: bool
) -> tuple[Nvfp4, _State, list[float]]:
    """Quantises W0, lets s, U and V make up for it, then moves W0 and tries again.

    Rounding to four bits is no exact step, so the best round is kept.
    """
    best: tuple[Nvfp4, _State] | None = None
    history: list[float] = []
    for turn in range(rounds):
        codes = quantize(state.w0.astype(np.float32))
        held = replace(state, w0=codes.dense().astype(np.float64))
        held = _refitted(problem, held, REFITS, free_scale)
        if best is None or held.error < min(history):
            best = codes, held
        history.append(held.error)
        if turn + 1 < rounds:
            state = _based(problem, held, free_scale)
    assert best is not None
    return *best, history


def _refitted(problem: _Problem, state: _State, turns: int, free_scale: bool) -> _State:
    """s, U and V for a W0 that stays as it is."""
    # What U V^T held before belonged to another W0.
    state = state if free_scale else _start(problem, state.w0)
    for _ in range(turns if free_scale else 1):
        if free_scale:
            state = replace(state, s=_scales(problem, state))
        state = _low_ranked(problem, state)
    return state


def _low_ranked(problem: _Problem, state: _State) -> _State:
    u, v, left = [], [], 0.0
    for weight, s, whitener in zip(problem.weights, state.s, problem.whiteners, strict=True):
        rest = weight - s[:, None] * state.w0
        one_u, one_v, one_left = low_rank_step(rest, whitener, problem.rank)
        u.append(one_u)
        v.append(one_v)
        left += one_left
    return replace(state, u=tuple(u), v=tuple(v), error=left / problem.energy)


def _scales(problem: _Problem, state: _State) -> tuple[Array64, ...]:
    return tuple(
        scale_step(problem.target(state, layer), state.w0, whitener)
        for layer, whitener in enumerate(problem.whiteners)
    )


def _scaled(problem: _Problem, state: _State) -> _State:
    w0, s = fixed_gauge(state.w0, _scales(problem, state))
    return replace(state, w0=w0, s=s)


def _based(problem: _Problem, state: _State, free_scale: bool) -> _State:
    targets = [problem.target(state, layer) for layer in range(len(problem.weights))]
    scales = state.s if free_scale else None
    return replace(state, w0=base_step(targets, scales, problem.whiteners, state.w0))


def _factors(state: _State, w0: Array | Nvfp4) -> tuple[Factors, ...]:
    return tuple(
        Factors(w0=w0, s=s.astype(np.float32), u=u.astype(np.float32), v=v.astype(np.float32))
        for s, u, v in zip(state.s, state.u, state.v, strict=True)
    )


def _finished(
    weights: Sequence[Array],
    whiteners: Sequence[Whitener],
    factors: tuple[Factors, ...],
    history: Sequence[float],
) -> BandFit:
    dense = factors[0].dense_w0
    errors = []
    for weight, whitener, f in zip(weights, whiteners, factors, strict=True):
        rest = weight - f.s[:, None] * dense - f.u @ f.v.T
        errors.append(float(np.sqrt(whitener.energy(rest) / (whitener.energy(weight) or 1.0))))
    return BandFit(factors, tuple(history), tuple(errors))


def spectrum(fit: BandFit, weights: Sequence[Array], whiteners: Sequence[Whitener]) -> Array64:
    """[min(N, K)] what each further rank would take off the error, summed over layers.

    Args:
        fit: A fit of rank 0.
        weights: [N, K] of each layer.
        whiteners: Of each layer's inputs.

    Returns:
        Squared whitened singular values of the residuals, falling, each layer
        as a share of its own energy.
    """
    dense = fit.factors[0].dense_w0
    total = np.zeros(min(dense.shape))
    for weight, whitener, f in zip(weights, whiteners, fit.factors, strict=True):
        gains = captured_by(weight - f.s[:, None].astype(np.float64) * dense, whitener)
        total += gains / (whitener.energy(weight) or 1.0)
    return total
