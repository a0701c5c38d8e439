"""The Mojo operations as functions of graph values."""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorType, TensorValue, ops

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
