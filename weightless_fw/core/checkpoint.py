"""Reads safetensors into float32 numpy arrays, without MAX.

The reference that MAX is checked against must not depend on MAX's loader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from weightless_fw.core.factors import Array

_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class Checkpoint(Mapping[str, Array]):
    """The tensors of a folder's safetensors files, by name, read on access.

    bfloat16 and float16 become float32; float32 is a read-only view of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._entries: dict[str, tuple[Path, int, str, tuple[int, ...]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            for name, entry in header.items():
                if name != "__metadata__":
                    offset = 8 + size + entry["data_offsets"][0]
                    shape = tuple(entry["shape"])
                    self._entries[name] = (path, offset, entry["dtype"], shape)

    def __getitem__(self, name: str) -> Array:
        path, offset, dtype, shape = self._entries[name]
        if dtype not in _DTYPES:
            raise ValueError(f"{path}: tensor {name} has dtype {dtype}, want F32, F16 or BF16")
        raw = np.memmap(path, _DTYPES[dtype], mode="r", offset=offset, shape=shape)
        if dtype == "BF16":
            # bfloat16 is the upper half of float32.
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
