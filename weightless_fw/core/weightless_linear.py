"""A linear layer that stores no weight of its own: the interface of every path.

A *bundle* is one or more projections of the same input, fused when it holds
more than one: Q, K and V, or gate and up. Each path is a module that declares
what it keeps on the device and how it packs ``Factors`` into that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight
from max.nn.layer import Module

from weightless_fw.core.factors import Array, Factors


@dataclass(frozen=True)
class BundleShape:
    """Sizes of a bundle of projections of one input.

    ``outs`` are the rows of each projection, ``width`` the input length K.
    """

    outs: tuple[int, ...]
    width: int
    rank: int
    shared: bool
    """Whether W0 is an argument, bound once per band, instead of a weight."""

    @property
    def out(self) -> int:
        return sum(self.outs)


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
    def __call__(self, x: TensorValue, w0: TensorValue | None) -> TensorValue:
        """Applies the bundle.

        Args:
            x: [T, K].
            w0: [N, K] of the band where the shape is shared, else None.

        Returns:
            [T, N] with the projections side by side.
        """

    @abstractmethod
    def pack(self, factors: Sequence[Factors]) -> Mapping[str, Array]:
        """Lays the factors of each projection out as this path's weights."""


def stacked_w0(factors: Sequence[Factors]) -> Array:
    """[N, K]: the W0 of each projection, one above the other."""
    if len(factors) == 1:
        return factors[0].w0
    return np.concatenate([f.w0 for f in factors])


def stacked_scale(factors: Sequence[Factors]) -> Array:
    """[N]: the row scales of each projection, end to end."""
    return np.concatenate([f.s for f in factors])
