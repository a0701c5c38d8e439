"""Reads what a GGUF file says about itself: metadata and the table of tensors.

gguf.GGUFReader makes an array view of every string in a 262,144-entry
vocabulary, which takes 15 seconds for Gemma 3, and meets a truncated file with
whatever exception numpy raises. This reads the header in order, in under a
second, and knows how long the file ought to be.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from suite.errors import UserError

TYPE_CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


FIELD_BYTES_LIMIT = 1 << 28
"""No field of a model is larger; a damaged length must not become an allocation."""


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as numpy and Hugging Face have it; GGUF stores the reverse."""

    kind: GGMLQuantizationType
    offset_bytes: int
    """From the start of the file."""

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF file's header; the tensors' bytes stay on disk."""

    path: Path
    metadata: dict[str, object]
    tensors: tuple[GgufTensor, ...]

    def integer(self, key: str, default: int | None = None) -> int:
        """The metadata value at `key`, or `default` where the file has none."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int):
            raise UserError(
                f"gguf {self.path} has no whole number under {key};"
                " convert the model again with a current llama.cpp"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Like `integer`, for a float32 value: its shortest decimal that reads back the same."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise UserError(
                f"gguf {self.path} has no number under {key};"
                " convert the model again with a current llama.cpp"
            )
        return float(str(np.float32(value)))

    def array(self, key: str) -> list[object]:
        """The metadata array at `key`."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise UserError(
                f"gguf {self.path} has no list under {key};"
                " convert the model again with a current llama.cpp"
            )
        return value


def read_gguf(path: Path) -> GgufFile:
    """Reads the header of `path` and checks that the file holds every tensor it lists.

    Raises UserError where it is no GGUF of version 2 or 3, or is cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            metadata, rows, data_start = read_header(file)
        except EOFError:
            raise UserError(
                f"gguf {path} is cut short: {size} bytes end inside its header;"
                " fetch the file again"
            ) from None
        except (ValueError, struct.error) as problem:
            raise UserError(
                f"gguf {path} cannot be read: {problem};"
                " pass a little-endian GGUF of version 2 or 3"
            ) from None
    tensors = tuple(
        locate(name, dims, kind, data_start + offset) for name, dims, kind, offset in rows
    )
    needed = max(
        (tensor.offset_bytes + tensor.size_bytes for tensor in tensors), default=data_start
    )
    if size < needed:
        raise UserError(
            f"gguf {path} is cut short: it has {size} bytes of {needed}; fetch the file again"
        )
    return GgufFile(path=path, metadata=metadata, tensors=tensors)


def locate(
    name: str, dims: tuple[int, ...], kind: GGMLQuantizationType, offset_bytes: int
) -> GgufTensor:
    """The tensor's place and size in bytes, from its dimensions as GGUF stores them."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return GgufTensor(
        name=name,
        shape=tuple(reversed(dims)),
        kind=kind,
        offset_bytes=offset_bytes,
        size_bytes=math.prod(dims) // block * block_bytes,
    )


Row = tuple[str, tuple[int, ...], GGMLQuantizationType, int]


def read_header(file: BinaryIO) -> tuple[dict[str, object], list[Row], int]:
    """Metadata, the rows (name, dimensions, kind, offset) and where the data starts, in bytes."""
    magic = take_bytes(file, 4)
    version, tensor_count, field_count = take(file, "<IQQ")
    if magic != b"GGUF":
        raise ValueError(f"it starts with {magic!r}, not b'GGUF'")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    metadata: dict[str, object] = {}
    for _ in range(field_count):
        key = read_string(file)
        (kind,) = take(file, "<I")
        metadata[key] = read_value(file, GGUFValueType(kind))
    rows: list[Row] = []
    for _ in range(tensor_count):
        name = read_string(file)
        (rank,) = take(file, "<I")
        dims = take(file, f"<{rank}Q")
        kind, offset = take(file, "<IQ")
        rows.append((name, dims, GGMLQuantizationType(kind), offset))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment {alignment!r}")
    return metadata, rows, -(-file.tell() // alignment) * alignment


def take(file: BinaryIO, layout: str) -> tuple[int, ...]:
    """Unpacks the next bytes; EOFError where there are too few."""
    return struct.unpack(layout, take_bytes(file, struct.calcsize(layout)))


def take_bytes(file: BinaryIO, count: int) -> bytes:
    """The next `count` bytes; EOFError where there are too few."""
    if count > FIELD_BYTES_LIMIT:
        raise ValueError(f"a field of {count} bytes")
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


def read_string(file: BinaryIO) -> str:
    """A length of 8 bytes, then UTF-8."""
    return take_bytes(file, int.from_bytes(take_bytes(file, 8), "little")).decode()


def read_value(file: BinaryIO, kind: GGUFValueType) -> object:
    """One metadata value; arrays become lists."""
    if kind is GGUFValueType.STRING:
        return read_string(file)
    if kind is not GGUFValueType.ARRAY:
        return take(file, "<" + TYPE_CODES[kind])[0]
    item, count = take(file, "<IQ")
    item_kind = GGUFValueType(item)
    if item_kind in TYPE_CODES:
        return list(take(file, f"<{count}{TYPE_CODES[item_kind]}"))
    return [read_value(file, item_kind) for _ in range(count)]
