"""Where host weights lie in memory, and in which bits.

MAX's CPU kernels read bound weights with aligned vector loads, and numpy
promises 16 bytes only, so every weight is placed on a 64-byte boundary. The
native arm goes through here too: a comparison must not turn on which arm's
weights are page-cache mappings and which are ordinary memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from max.driver import Buffer
from max.dtype import DType
from max.graph.shape import Shape
from max.graph.weights import WeightData

from weightless_fw.core.factors import Array

ALIGNMENT_BYTES = 64


def placed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copies ``array`` to fresh, contiguous, 64-byte aligned memory."""
    raw = np.empty(array.nbytes + ALIGNMENT_BYTES, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT_BYTES
    view = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(view, array)
    return view


def bits(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """``array`` in ``dtype``; bfloat16, which numpy lacks, as uint16.

    Rounds to nearest, ties to even.
    """
    if dtype != DType.bfloat16:
        return array
    words = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    return ((words + rounding) >> np.uint32(16)).astype(np.uint16)


def bound_weight(array: npt.NDArray[Any], name: str, dtype: DType) -> WeightData:
    """The bits of a weight as MAX binds them; ``array`` must be aligned."""
    if dtype != DType.bfloat16:
        return WeightData.from_numpy(array, name)
    buffer = Buffer.from_dlpack(array).view(DType.bfloat16, array.shape)
    return WeightData(buffer, name, dtype, Shape(array.shape))


def placed_weight(array: Array, name: str, dtype: DType) -> WeightData:
    """``array`` as a MAX weight of ``dtype``, placed as :func:`placed` says."""
    return bound_weight(placed(bits(array, dtype)), name, dtype)


def host_array(weight: WeightData) -> Array:
    """A checkpoint's weight as a float32 numpy array, without a copy where it is one."""
    data = weight if weight.dtype == DType.float32 else weight.astype(DType.float32)
    return np.from_dlpack(data.data)
