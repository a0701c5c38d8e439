"""The dense model that is to be compressed: a folder, checked before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weightless_fw.compress.errors import CompressError
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array
from weightless_fw.models.scheme import LayerKinds

SUPPORTED = ("Gemma3ForCausalLM",)
"""Values of ``architectures`` in config.json that can be compressed."""

_READ_BYTES = 1 << 24
_SCAN_VALUES = 1 << 24


@dataclass(frozen=True)
class SourceModel:
    """A dense checkpoint and what its config.json says of its layers."""

    folder: Path
    config: Mapping[str, Any]
    kinds: LayerKinds
    prefix: str
    """What stands before the layer number in the names of tensors."""

    checkpoint: Checkpoint

    def tensor(self, layer: int, projection: str) -> str:
        return f"{self.prefix}{layer}.{projection}.weight"

    def weight(self, layer: int, projection: str) -> Array:
        """[N, K] float32, read now."""
        return self.checkpoint[self.tensor(layer, projection)]

    def dtype(self, layer: int, projection: str) -> str:
        """As safetensors spells it."""
        return self.checkpoint.entry(self.tensor(layer, projection)).dtype

    @property
    def projection_values(self) -> int:
        """Weights in all projections."""
        shapes = [self.kinds.of_layer(i) for i in range(len(self.kinds.attention_types))]
        return sum(n * k for layer in shapes for n, k in layer.values())


def open_source(folder: Path) -> SourceModel:
    """Opens a model folder and checks that every projection is there, whole and finite.

    Raises:
        CompressError: Something is missing, mis-shaped, NaN, or not supported.
        CheckpointError: A file is damaged.
    """
    config = read_config(folder)
    if "weightless" in config:
        raise CompressError(f"{folder} is compressed already; give the dense model")
    named = config.get("architectures") or ["none"]
    if named[0] not in SUPPORTED:
        raise CompressError(
            f"{folder}: architecture {named[0]} cannot be compressed; "
            f"supported is {', '.join(SUPPORTED)}"
        )
    # Imported here: it brings MAX, which takes seconds.
    from weightless_fw.compress.gemma3 import FILE_PREFIX, layer_kinds

    checkpoint = Checkpoint(folder)
    if not checkpoint:
        raise CompressError(f"{folder} holds no *.safetensors file")
    source = SourceModel(folder, config, layer_kinds(config, folder), FILE_PREFIX, checkpoint)
    _check_shapes(source)
    _check_finite(source)
    return source


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder.

    Raises:
        CompressError: There is none, or it is no JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "has no config.json" if folder.is_dir() else "is no folder"
        raise CompressError(
            f"{folder} {what}; give a folder with config.json and *.safetensors"
        ) from None
    except NotADirectoryError:
        raise CompressError(f"{folder} is a file; give the folder that holds it") from None
    except ValueError:
        raise CompressError(f"{path} is damaged: no JSON") from None
    if not isinstance(config, dict):
        raise CompressError(f"{path} is damaged: no JSON object")
    return config


def _check_shapes(source: SourceModel) -> None:
    for layer in range(len(source.kinds.attention_types)):
        for projection, shape in source.kinds.of_layer(layer).items():
            name = source.tensor(layer, projection)
            if name not in source.checkpoint:
                raise CompressError(f"tensor {name} is missing from {source.folder}")
            found = source.checkpoint.entry(name).shape
            if found != shape:
                raise CompressError(
                    f"tensor {name} is {list(found)}; config.json needs {list(shape)}"
                )


def _check_finite(source: SourceModel) -> None:
    for name in source.checkpoint:
        dtype, flat = source.checkpoint.entry(name).dtype, source.checkpoint.raw(name).reshape(-1)
        bad = 0
        for start in range(0, flat.size, _SCAN_VALUES):
            part = flat[start : start + _SCAN_VALUES]
            if dtype == "BF16":
                # All eight exponent bits set: infinity or NaN.
                bad += int(np.count_nonzero((part & 0x7F80) == 0x7F80))
            elif dtype in ("F32", "F16"):
                bad += int(part.size - np.count_nonzero(np.isfinite(part)))
        if bad:
            raise CompressError(
                f"tensor {name} in {source.folder} holds {bad} values that are NaN or infinite"
            )


def weights_sha256(folder: Path) -> str:
    """SHA-256 over config.json and every safetensors file, in the order of their names."""
    digest = hashlib.sha256()
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
