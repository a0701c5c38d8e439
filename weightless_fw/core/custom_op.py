"""Custom-op path: one ``generated_linear`` dispatch per projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorType, TensorValue, ops

from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.weightless_linear import BundleShape, WeightlessLinear

OP_NAME = "generated_linear"


def generated_linear(
    x: TensorValue, w0: TensorValue, s: TensorValue, u: TensorValue, v_t: TensorValue
) -> TensorValue:
    """Applies the Mojo op y = s * (W0 x) + U (V^T x).

    Args:
        x: [T, K] float32.
        w0: [N, K].
        s: [N] float32.
        u: [N, R].
        v_t: [R, K].

    Returns:
        [T, N] in the dtype of x.

    Raises:
        ValueError: Shapes or dtypes do not fit each other.
    """
    n, k = w0.shape
    r = v_t.shape[0]
    expected = {"x": [x.shape[0], k], "s": [n], "u": [n, r], "v_t": [r, k]}
    for (name, dims), value in zip(expected.items(), (x, s, u, v_t), strict=True):
        if list(value.shape) != dims:
            raise ValueError(f"{OP_NAME}: {name} is {value.shape}, W0 {w0.shape} needs {dims}")
    for name, value in {"x": x, "w0": w0, "s": s, "u": u, "v_t": v_t}.items():
        if value.dtype != DType.float32:
            raise ValueError(f"{OP_NAME}: {name} is {value.dtype}, the op takes float32")
    out = TensorType(x.dtype, [x.shape[0], n], device=x.device)
    return ops.custom(OP_NAME, x.device, [x, w0, s, u, v_t], [out])[0].tensor


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

    def __call__(self, x: TensorValue, w0: TensorValue | None) -> TensorValue:
        if not self.shape.shared:
            w0 = TensorValue(self.w0)
        assert w0 is not None
        s, u, v_t = (TensorValue(w) for w in (self.scale, self.u, self.v_t))
        return generated_linear(x, w0, s, u, v_t)

    def pack(self, factors: Sequence[Factors]) -> Mapping[str, Array]:
        (f,) = factors
        packed = {"scale": f.s, "u": f.u, "v_t": np.ascontiguousarray(f.v.T)}
        return packed if self.shape.shared else {"w0": f.w0, **packed}
