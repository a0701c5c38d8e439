"""GEMM path: s * (x W0^T) + (x V) U^T with stock matmuls.

W0 and V^T stand in one matrix, so that the first matmul does both; its rows
are padded to 128 bytes of output. A fused bundle has one such matrix for all
its projections and a block-diagonal U. Where a band shares its W0, W0 is a
matrix of its own (a copy beside each layer's V would undo the sharing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.weightless_linear import (
    BundleShape,
    WeightlessLinear,
    stacked_scale,
)

ALIGN_BYTES = 128


def padded(count: int, dtype: DType) -> int:
    """``count`` rounded up so that a row of that many elements is a multiple of 128 bytes."""
    step = ALIGN_BYTES // dtype.size_in_bytes
    return -(-count // step) * step


class GemmLinear(WeightlessLinear):
    """Two stock matmuls (three where W0 is shared) and a float32 combine."""

    def __init__(self, shape: BundleShape, dtype: DType, device: DeviceRef) -> None:
        super().__init__(shape, dtype, device)
        self.down_rows = shape.rank * len(shape.outs)
        first = self.down_rows if shape.shared else shape.out + self.down_rows
        self.rows = padded(first, dtype)
        self.first_name = "v_t" if shape.shared else "w0_v_t"
        self.first = self._weight(self.first_name, self.rows, shape.width)
        self.scale = self._weight("scale", shape.out, dtype=DType.float32)
        self.up = self._weight("up", shape.out, self.down_rows)

    def __call__(self, x: TensorValue, w0: TensorValue | None) -> TensorValue:
        # The matmuls run in the dtype of x; only the combine is in float32.
        both = x @ self.first.T
        if self.shape.shared:
            assert w0 is not None
            base, down = x @ w0.T, both[:, : self.down_rows]
        else:
            base = both[:, : self.shape.out]
            down = both[:, self.shape.out : self.shape.out + self.down_rows]
        delta = down @ self.up.T
        y = ops.cast(base, DType.float32) * self.scale + ops.cast(delta, DType.float32)
        return ops.cast(y, x.dtype)

    def pack(self, factors: Sequence[Factors]) -> Mapping[str, Array]:
        width, rank = self.shape.width, self.shape.rank
        parts = [f.v.T for f in factors]
        if not self.shape.shared:
            parts = [f.w0 for f in factors] + parts
        used = sum(len(p) for p in parts)
        first = np.concatenate([*parts, np.zeros((self.rows - used, width), np.float32)])
        up = np.zeros((self.shape.out, self.down_rows), np.float32)
        row = 0
        for i, f in enumerate(factors):
            up[row : row + len(f.u), i * rank : (i + 1) * rank] = f.u
            row += len(f.u)
        return {self.first_name: first, "scale": stacked_scale(factors), "up": up}
