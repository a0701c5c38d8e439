"""The factors of one projection of one layer: (W0, s, U, V)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weightless_fw.core.nvfp4 import Nvfp4

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Factors:
    """W_eff = diag(s) W0 + U V^T, for y = W_eff x.

    Arrays are float32. The same ``w0`` object stands in every layer of a band.
    """

    w0: Array | Nvfp4
    """[N, K]: the weight shared by the band, dense or in NVFP4."""

    s: Array
    """[N]: scale of each output row."""

    u: Array
    """[N, R]: up-projection. R may be 0."""

    v: Array
    """[K, R]: down-projection."""

    def __post_init__(self) -> None:
        (n, k), r = self.w0.shape, self.u.shape[-1]
        shapes = (self.s.shape, self.u.shape, self.v.shape)
        if shapes != ((n,), (n, r), (k, r)):
            raise ValueError(f"factors of W0 {(n, k)} have shapes s, U, V = {shapes}")

    @property
    def rank(self) -> int:
        return int(self.u.shape[1])

    @property
    def dense_w0(self) -> Array:
        """[N, K]: W0, decoded where it is quantised."""
        return self.w0.dense() if isinstance(self.w0, Nvfp4) else self.w0

    @property
    def effective_weight(self) -> Array:
        """[N, K]: diag(s) W0 + U V^T."""
        return self.s[:, None] * self.dense_w0 + self.u @ self.v.T


def without_factors(w0: Array | Nvfp4) -> Factors:
    """W0 alone: s = 1 and rank 0."""
    n, k = w0.shape
    return Factors(
        w0=w0,
        s=np.ones(n, np.float32),
        u=np.zeros((n, 0), np.float32),
        v=np.zeros((k, 0), np.float32),
    )
