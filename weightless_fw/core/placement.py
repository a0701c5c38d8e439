"""Where host weights lie in memory.

MAX's CPU kernels read bound weights with aligned vector loads, and numpy
promises 16 bytes only, so every weight is placed on a 64-byte boundary. The
native arm goes through here too: a comparison must not turn on which arm's
weights are page-cache mappings and which are ordinary memory.
"""

from __future__ import annotations

import numpy as np
from max.dtype import DType
from max.graph.weights import WeightData

from weightless_fw.core.factors import Array

ALIGNMENT_BYTES = 64


def placed(array: Array) -> Array:
    """Copies ``array`` to fresh, contiguous, 64-byte aligned memory."""
    raw = np.empty(array.nbytes + ALIGNMENT_BYTES, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT_BYTES
    view = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(view, array)
    return view


def placed_weight(array: Array, name: str, dtype: DType) -> WeightData:
    """``array`` as a MAX weight of ``dtype``, placed as :func:`placed` says."""
    data = WeightData.from_numpy(placed(array), name)
    return data if dtype == DType.float32 else data.astype(dtype)


def host_array(weight: WeightData) -> Array:
    """A checkpoint's weight as a float32 numpy array, without a copy where it is one."""
    data = weight if weight.dtype == DType.float32 else weight.astype(DType.float32)
    return np.from_dlpack(data.data)
