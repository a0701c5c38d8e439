"""GEMM path: s * (x W0^T) + (x V) U^T with stock matmuls.

W0 and V^T stand in one matrix, so that the first matmul does both; its rows
are padded to 128 bytes of output. A fused bundle has one such matrix for all
its projections and a block-diagonal U. Where a band shares its W0, W0 is a
matrix of its own (a copy beside each layer's V would undo the sharing).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from weightless_fw.core.factors import Factors
from weightless_fw.core.weightless_linear import (
    W0,
    BundleShape,
    Packed,
    WeightlessLinear,
    block_diagonal_u,
    stacked_scale,
    stacked_v_t,
)

ALIGN_BYTES = 128


def padded(count: int, dtype: DType) -> int:
    """``count`` rounded up so that a row of that many elements is a multiple of 128 bytes."""
    step = ALIGN_BYTES // dtype.size_in_bytes
    return -(-count // step) * step


class GemmLinear(WeightlessLinear):
    """Two stock matmuls (three where W0 is shared) and a combine.

    The matmuls run in the dtype of x. The combine is in float32, or in
    bfloat16 where ``combine_dtype`` says so, and ends in the dtype of x.
    """

    def __init__(
        self,
        shape: BundleShape,
        dtype: DType,
        device: DeviceRef,
        combine_dtype: DType = DType.float32,
    ) -> None:
        super().__init__(shape, dtype, device)
        self.combine_dtype = combine_dtype
        self.first_name = "v_t" if shape.shared else "w0_v_t"
        self.rows = padded(shape.rank if shape.shared else shape.out + shape.rank, dtype)
        if self.rows:
            self.first = self._weight(self.first_name, self.rows, shape.width)
        self.scale = self._weight("scale", shape.out, dtype=DType.float32)
        if shape.rank:
            self.up = self._weight("up", shape.out, shape.rank)

    def __call__(self, x: TensorValue, w0: W0 | None) -> TensorValue:
        out, rank = self.shape.out, self.shape.rank
        if self.shape.shared:
            assert w0 is not None
            base = x @ w0[0].T
            down = (x @ self.first.T)[:, :rank] if rank else None
        else:
            both = x @ self.first.T
            base, down = both[:, :out], both[:, out : out + rank]
        y = ops.cast(base, self.combine_dtype) * ops.cast(self.scale, self.combine_dtype)
        if rank:
            assert down is not None
            y += ops.cast(down @ self.up.T, self.combine_dtype)
        return ops.cast(y, x.dtype)

    def pack(self, factors: Sequence[Factors]) -> Packed:
        parts = [] if self.shape.shared else [f.dense_w0 for f in factors]
        parts.append(stacked_v_t(factors))
        padding = self.rows - sum(len(p) for p in parts)
        parts.append(np.zeros((padding, self.shape.width), np.float32))
        packed = {"scale": stacked_scale(factors)}
        if self.rows:
            packed[self.first_name] = np.concatenate(parts)
        if self.shape.rank:
            packed["up"] = block_diagonal_u(factors)
        return packed
