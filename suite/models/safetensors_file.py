"""Writes a safetensors file tensor by tensor.

The safetensors package saves a dictionary of whole arrays, so a model would
have to fit in memory. The format allows better: eight bytes of length, a JSON
table of contents, then the tensors' bytes in order.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BYTES_PER_VALUE = {"F32": 4, "BF16": 2}


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor of a file that is about to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """"F32" or "BF16", as safetensors spells it."""

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * BYTES_PER_VALUE[self.dtype]


def write_safetensors(path: Path, specs: Iterable[TensorSpec], pieces: Iterable[bytes]) -> None:
    """Writes `specs`, in order, with the row-major little-endian bytes that `pieces` yields.

    A piece may be any part of a tensor. Raises ValueError where the pieces do
    not add up to the tensors, OSError where the disk is full.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + spec.size_bytes
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    table = json.dumps(header, separators=(",", ":")).encode()
    # Readers map the file and expect the data at a multiple of eight bytes.
    table += b" " * (-len(table) % 8)
    written = 0
    with path.open("wb") as file:
        file.write(len(table).to_bytes(8, "little") + table)
        for piece in pieces:
            written += file.write(piece)
        if written != offset:
            raise ValueError(f"{path} got {written} bytes of tensors, its table says {offset}")
        file.flush()
        os.fsync(file.fileno())
