"""Precompute outside: W_eff is built at load and the graph has one matmul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue

from weightless_fw.core.factors import Factors
from weightless_fw.core.weightless_linear import W0, BundleShape, Packed, WeightlessLinear


class PrecomputedLinear(WeightlessLinear):
    """y = W_eff x. W_eff is per layer, so a shared W0 never reaches the device."""

    def __init__(self, shape: BundleShape, dtype: DType, device: DeviceRef) -> None:
        super().__init__(shape, dtype, device)
        self.weight = self._weight("weight", shape.out, shape.width)

    def __call__(self, x: TensorValue, w0: W0 | None) -> TensorValue:
        return x @ self.weight.T

    def pack(self, factors: Sequence[Factors]) -> Packed:
        return {"weight": np.concatenate([f.effective_weight for f in factors])}
