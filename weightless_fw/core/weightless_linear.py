"""A linear layer that stores no weight of its own: the interface of every path.

A *bundle* is one or more projections of the same input, fused when it holds
more than one: Q, K and V, or gate and up. Each path is a module that declares
what it keeps on the device and how it packs ``Factors`` into that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight
from max.nn.layer import Module

from weightless_fw.core.factors import Array, Factors

W0 = tuple[TensorValue, ...]
"""A W0 in the graph: (weight,), or (packed codes, block scales) in NVFP4."""

Packed = Mapping[str, npt.NDArray[Any]]
"""Bound weights by name: float32 arrays, uint8 codes."""


@dataclass(frozen=True)
class BundleShape:
    """Sizes of a bundle of projections of one input.

    ``outs`` are the rows of each projection, ``ranks`` the columns of its U,
    ``width`` the input length K.
    """

    outs: tuple[int, ...]
    width: int
    ranks: tuple[int, ...]
    shared: bool
    """Whether W0 is an argument, bound once per band, instead of a weight."""

    @property
    def out(self) -> int:
        return sum(self.outs)

    @property
    def rank(self) -> int:
        """Rows of all V^T, one above the other."""
        return sum(self.ranks)


class WeightlessLinear(Module):
    """Computes y = s * (W0 x) + U (V^T x) for a bundle, by one path."""

    def __init__(self, shape: BundleShape, dtype: DType, device: DeviceRef) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def _weight(self, name: str, *dims: int, dtype: DType | None = None) -> Weight:
        return Weight(name, dtype or self.dtype, list(dims), device=self.device)

    @abstractmethod
    def __call__(self, x: TensorValue, w0: W0 | None) -> TensorValue:
        """Applies the bundle.

        Args:
            x: [T, K].
            w0: The band's W0 where the shape is shared, else None.

        Returns:
            [T, N] with the projections side by side.
        """

    @abstractmethod
    def pack(self, factors: Sequence[Factors]) -> Packed:
        """Lays the factors of each projection out as this path's weights."""


def stacked_w0(factors: Sequence[Factors]) -> Array:
    """[N, K]: the dense W0 of each projection, one above the other."""
    if len(factors) == 1:
        return factors[0].dense_w0
    return np.concatenate([f.dense_w0 for f in factors])


def stacked_scale(factors: Sequence[Factors]) -> Array:
    """[N]: the row scales of each projection, end to end."""
    return np.concatenate([f.s for f in factors])


def stacked_v_t(factors: Sequence[Factors]) -> Array:
    """[R, K]: V^T of each projection, one above the other."""
    return np.concatenate([f.v.T for f in factors])


def block_diagonal_u(factors: Sequence[Factors]) -> Array:
    """[N, R]: U of each projection on the diagonal, for the stacked V^T."""
    u = np.zeros((sum(len(f.u) for f in factors), sum(f.rank for f in factors)), np.float32)
    row = column = 0
    for f in factors:
        u[row : row + len(f.u), column : column + f.rank] = f.u
        row, column = row + len(f.u), column + f.rank
    return u
