"""Custom-op path: one ``generated_linear`` dispatch per projection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorValue

from weightless_fw.core.factors import Factors
from weightless_fw.core.graph_ops import generated_linear
from weightless_fw.core.weightless_linear import W0, BundleShape, Packed, WeightlessLinear


class CustomOpLinear(WeightlessLinear):
    """The custom op never fuses, so a bundle is one projection."""

    def __init__(self, shape: BundleShape, dtype: DType, device: DeviceRef) -> None:
        super().__init__(shape, dtype, device)
        if len(shape.outs) != 1:
            raise ValueError("the custom op takes one projection at a time")
        if not shape.shared:
            self.w0 = self._weight("w0", shape.out, shape.width)
        self.scale = self._weight("scale", shape.out, dtype=DType.float32)
        self.u = self._weight("u", shape.out, shape.rank)
        self.v_t = self._weight("v_t", shape.rank, shape.width)

    def operands(self, w0: W0 | None) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
        """(W0, s, U, V^T) in the graph, as the operations take them."""
        if self.shape.shared:
            assert w0 is not None
            weight = w0[0]
        else:
            weight = TensorValue(self.w0)
        return weight, TensorValue(self.scale), TensorValue(self.u), TensorValue(self.v_t)

    def __call__(self, x: TensorValue, w0: W0 | None) -> TensorValue:
        return generated_linear(x, *self.operands(w0))

    def pack(self, factors: Sequence[Factors]) -> Packed:
        (f,) = factors
        packed = {"scale": f.s, "u": f.u, "v_t": np.ascontiguousarray(f.v.T)}
        return packed if self.shape.shared else {"w0": f.dense_w0, **packed}
