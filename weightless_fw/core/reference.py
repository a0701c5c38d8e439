"""The layer in numpy, in float64: what every path must agree with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weightless_fw.core.factors import Factors


def linear(x: npt.NDArray[np.floating], factors: Factors) -> npt.NDArray[np.float64]:
    """y = s * (x W0^T) + (x V) U^T.

    Args:
        x: [T, K].
        factors: W0 [N, K], s [N], U [N, R], V [K, R].

    Returns:
        [T, N], float64.
    """
    w0, s, u, v = (
        a.astype(np.float64) for a in (factors.dense_w0, factors.s, factors.u, factors.v)
    )
    x64 = x.astype(np.float64)
    return s * (x64 @ w0.T) + (x64 @ v) @ u.T
