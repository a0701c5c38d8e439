"""Precompute outside: W_eff is built at load and the graph has one matmul."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue

from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.weightless_linear import BundleShape, WeightlessLinear


class PrecomputedLinear(WeightlessLinear):
    """y = W_eff x. W_eff is per layer, so a shared W0 never reaches the device."""

    def __init__(self, shape: BundleShape, dtype: DType, device: DeviceRef) -> None:
        super().__init__(shape, dtype, device)
        self.weight = self._weight("weight", shape.out, shape.width)

    def __call__(self, x: TensorValue, w0: TensorValue | None) -> TensorValue:
        return x @ self.weight.T

    def pack(self, factors: Sequence[Factors]) -> Mapping[str, Array]:
        return {"weight": np.concatenate([f.effective_weight for f in factors])}
