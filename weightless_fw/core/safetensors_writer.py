"""Writes a safetensors file tensor by tensor, whole or not at all.

The safetensors package saves a dictionary of arrays, so a model would have to
fit in memory. The format allows better: eight bytes of length, a JSON table of
contents, then the tensors' bytes in order.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1}

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of a file about to be written."""

    name: str
    dtype: str
    """As safetensors spells it; a key of ``ITEM_BYTES``."""

    shape: tuple[int, ...]
    read: Callable[[], npt.NDArray[Any]]
    """Gives its elements, asked for once when its turn comes: bfloat16 as
    uint16, e4m3 as uint8."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def tensor_of(name: str, array: npt.NDArray[Any], dtype: str) -> OutputTensor:
    """An array in memory as a tensor of ``dtype``, rounded to it where need be."""

    def read() -> npt.NDArray[Any]:
        return encoded(array, dtype)

    return OutputTensor(name, dtype, array.shape, read)


def encoded(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The elements of ``array`` in the bits of ``dtype``; bytes stay as they are.

    bfloat16 rounds to nearest, ties to even.
    """
    if dtype in ("U8", "F8_E4M3"):
        if array.dtype != np.uint8:
            raise ValueError(f"{dtype} is written from bytes, got {array.dtype}")
        return array
    if dtype == "BF16":
        words = np.ascontiguousarray(array, np.float32).view(np.uint32)
        rounding = np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
        return ((words + rounding) >> np.uint32(16)).astype("<u2").reshape(array.shape)
    return np.asarray(array, {"F32": "<f4", "F16": "<f2"}[dtype])


def write_safetensors(
    path: Path, tensors: Iterable[OutputTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes ``tensors`` in order; ``path`` appears when all of them are on disk.

    Raises:
        ValueError: A name stands twice, or elements do not fit their shape.
        OSError: The disk is full or may not be written to; nothing is left behind.
    """
    listed = list(tensors)
    table = _table(listed, metadata or {})
    unfinished = path.with_name(path.name + ".writing")
    try:
        with unfinished.open("wb") as file:
            file.write(len(table).to_bytes(8, "little") + table)
            for tensor in listed:
                data = np.ascontiguousarray(tensor.read())
                if data.nbytes != tensor.nbytes:
                    raise ValueError(
                        f"tensor {tensor.name}: {data.nbytes} bytes for {tensor.dtype} "
                        f"{list(tensor.shape)}"
                    )
                flat = memoryview(data.reshape(-1).view(np.uint8))
                for start in range(0, len(flat), _CHUNK_BYTES):
                    file.write(flat[start : start + _CHUNK_BYTES])
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _table(tensors: Iterable[OutputTensor], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for tensor in tensors:
        if tensor.name in header:
            raise ValueError(f"tensor {tensor.name} stands twice")
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    table = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    # Readers map the file and expect the data at a multiple of eight bytes.
    return table + b" " * (-len(table) % 8)
