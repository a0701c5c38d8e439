"""Reads safetensors into float32 numpy arrays, without MAX.

The reference that MAX is checked against must not depend on MAX's loader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weightless_fw.core.factors import Array

# bfloat16 and e4m3, which numpy lacks, as their bits.
_DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
}
_FLOATS = ("F32", "F16", "BF16")


class CheckpointError(ValueError):
    """A folder's safetensors cannot be read; the message names file and tensor."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and what it is."""

    path: Path
    offset: int
    dtype: str
    """As safetensors spells it."""

    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """0 for a dtype that is not read here."""
        return math.prod(self.shape) * (
            _DTYPES[self.dtype].itemsize if self.dtype in _DTYPES else 0
        )


class Checkpoint(Mapping[str, Array]):
    """The tensors of a folder's safetensors files, by name, read on access.

    bfloat16 and float16 become float32; float32 is a read-only view of the
    file. ``raw`` gives any tensor as it is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._entries: dict[str, TensorEntry] = {}
        self.metadata: dict[str, str] = {}
        """What the files' headers say beside their tensors."""

        for path in sorted(folder.glob("*.safetensors")):
            self._read_header(path)

    def _read_header(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                # A damaged length would have json read the whole file.
                header = json.loads(file.read(size)) if size <= path.stat().st_size else None
            for name, entry in header.items():
                if name == "__metadata__":
                    self.metadata |= entry
                    continue
                offset = 8 + size + entry["data_offsets"][0]
                found = TensorEntry(path, offset, entry["dtype"], tuple(entry["shape"]))
                if offset + found.nbytes > path.stat().st_size:
                    raise CheckpointError(f"{path}: cut short within tensor {name}")
                self._entries[name] = found
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError):
            raise CheckpointError(f"{path}: damaged, no safetensors header") from None

    def entry(self, name: str) -> TensorEntry:
        """Where ``name`` lies; KeyError where it is missing."""
        return self._entries[name]

    def raw(self, name: str) -> npt.NDArray[Any]:
        """The stored elements, mapped: bfloat16 as uint16, e4m3 as uint8."""
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}, want {', '.join(_DTYPES)}"
            )
        if 0 in entry.shape:
            return np.empty(entry.shape, _DTYPES[entry.dtype])
        # A scalar is mapped as one element: memmap knows no shape ().
        mapped = np.memmap(entry.path, _DTYPES[entry.dtype], "r", entry.offset, entry.shape or (1,))
        return mapped.reshape(entry.shape).view(np.ndarray)

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        if entry.dtype not in _FLOATS:
            raise CheckpointError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}, want F32, F16 or BF16"
            )
        raw = self.raw(name)
        if entry.dtype == "BF16":
            # bfloat16 is the upper half of float32.
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, np.float32)

    def __contains__(self, name: object) -> bool:
        # Mapping would read the tensor to find out.
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
