"""The factors of one projection of one layer: (W0, s, U, V)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Factors:
    """W_eff = diag(s) W0 + U V^T, for y = W_eff x.

    Arrays are float32. The same ``w0`` object stands in every layer of a band.
    """

    w0: Array
    """[N, K]: the weight shared by the band."""

    s: Array
    """[N]: scale of each output row."""

    u: Array
    """[N, R]: up-projection."""

    v: Array
    """[K, R]: down-projection."""

    def __post_init__(self) -> None:
        (n, k), r = self.w0.shape, self.u.shape[1]
        shapes = (self.s.shape, self.u.shape, self.v.shape)
        if shapes != ((n,), (n, r), (k, r)):
            raise ValueError(f"factors of W0 {(n, k)} have shapes s, U, V = {shapes}")

    @property
    def effective_weight(self) -> Array:
        """[N, K]: diag(s) W0 + U V^T."""
        return self.s[:, None] * self.w0 + self.u @ self.v.T
