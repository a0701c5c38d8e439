"""Reads a compressed checkpoint into factors, without MAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weightless_fw.compress.errors import CompressError
from weightless_fw.compress.source import read_config
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.nvfp4 import Nvfp4
from weightless_fw.models.scheme import is_projection_tensor

VERSION = 1
"""Of the scheme in config.json and of the tensors' names."""


def is_compressed(folder: Path) -> bool:
    """Whether ``folder`` holds a compressed checkpoint, of any version."""
    try:
        return "weightless" in read_config(folder)
    except CompressError:
        return False


def read_scheme(folder: Path) -> dict[str, Any]:
    """The key "weightless" of a checkpoint's config.json.

    Raises:
        CompressError: The folder is not compressed, or by another version.
    """
    scheme = read_config(folder).get("weightless")
    if not isinstance(scheme, dict):
        raise CompressError(
            f"{folder} is not compressed: its config.json has no key weightless; "
            "make one with python -m weightless_fw compress"
        )
    if scheme.get("version") != VERSION:
        raise CompressError(
            f"{folder} has version {scheme.get('version')} of the scheme, this release reads "
            f"{VERSION}; compress the model again"
        )
    missing = {"bands", "ranks", "quant", "method"} - scheme.keys()
    if missing:
        raise CompressError(f"{folder / 'config.json'}: weightless lacks {', '.join(missing)}")
    return scheme


class LayerFactors(Mapping[str, Factors]):
    """The factors of one layer by projection, read when asked for."""

    def __init__(self, model: CompressedModel, layer: int) -> None:
        self._model = model
        self._layer = layer

    def __getitem__(self, projection: str) -> Factors:
        if projection not in self._model.projections(self._layer):
            raise KeyError(projection)
        return self._model.factors(self._layer, projection)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.projections(self._layer))

    def __len__(self) -> int:
        return len(self._model.projections(self._layer))


@dataclass(frozen=True)
class CompressedModel:
    """A compressed checkpoint. Nothing is read before it is asked for.

    float32 tensors and NVFP4 codes are memory-mapped views; bfloat16 becomes
    float32 when it is read.
    """

    folder: Path
    config: Mapping[str, Any]
    scheme: Mapping[str, Any]
    """The key "weightless" of the configuration."""

    checkpoint: Checkpoint
    prefix: str
    """What stands before the layer number in the names of tensors."""

    _alive: WeakValueDictionary[str, Any]

    @property
    def layers(self) -> tuple[LayerFactors, ...]:
        """The factors by layer; layers of a band give the same W0 object while one is held."""
        count = len(next(iter(self.scheme["bands"].values())))
        return tuple(LayerFactors(self, layer) for layer in range(count))

    @property
    def rest(self) -> dict[str, Array]:
        """Everything that is no projection, float32, by the checkpoint's names."""
        return {n: self.checkpoint[n] for n in self.checkpoint if not is_projection_tensor(n)}

    def projections(self, layer: int) -> tuple[str, ...]:
        """The projections that a layer has."""
        return tuple(p for p in self.scheme["bands"] if self._w0_stem(layer, p) is not None)

    def factors(self, layer: int, projection: str) -> Factors:
        """(W0, s, U, V) of one projection.

        Raises:
            CompressError: A tensor is missing or does not fit the others.
        """
        stem = f"{self.prefix}{layer}.{projection}"
        w0 = self._w0(layer, projection)
        n, k = w0.shape
        s = self._optional(f"{stem}.s", (n,))
        u_name, v_name = f"{stem}.u", f"{stem}.v_t"
        if u_name not in self.checkpoint and v_name not in self.checkpoint:
            u, v_t = np.zeros((n, 0), np.float32), np.zeros((0, k), np.float32)
        else:
            u, v_t = self._present(u_name), self._present(v_name)
        if s.shape != (n,) or u.ndim != 2 or u.shape[0] != n or v_t.shape != (u.shape[1], k):
            raise CompressError(
                f"{self.folder}: {stem} has W0 [{n}, {k}], s {list(s.shape)}, u {list(u.shape)}, "
                f"v_t {list(v_t.shape)}, which do not fit"
            )
        return Factors(w0=w0, s=s, u=u, v=v_t.T)

    def _w0_stem(self, layer: int, projection: str) -> str | None:
        """The stem that holds the W0 of a layer: the first of its band that has one."""
        band_of = self.scheme["bands"][projection]
        for other, band in enumerate(band_of):
            stem = f"{self.prefix}{other}.{projection}"
            if band == band_of[layer] and f"{stem}.weight" in self.checkpoint:
                return stem
        return None

    def _w0(self, layer: int, projection: str) -> Array | Nvfp4:
        stem = self._w0_stem(layer, projection)
        if stem is None:
            raise CompressError(
                f"{self.folder}: no weight for the band of {self.prefix}{layer}.{projection}"
            )
        held = self._alive.get(stem)
        if held is None:
            if self.scheme["quant"] == "nvfp4":
                held = self._nvfp4(stem)
            else:
                held = self._present(f"{stem}.weight")
            self._alive[stem] = held
        return held

    def _nvfp4(self, stem: str) -> Nvfp4:
        for name in ("weight", "weight_scale", "weight_scale_2"):
            if f"{stem}.{name}" not in self.checkpoint:
                raise CompressError(f"tensor {stem}.{name} is missing from {self.folder}")
        return Nvfp4(
            self.checkpoint.raw(f"{stem}.weight"),
            self.checkpoint.raw(f"{stem}.weight_scale"),
            np.float32(self.checkpoint[f"{stem}.weight_scale_2"]),
        )

    def _present(self, name: str) -> Array:
        if name not in self.checkpoint:
            raise CompressError(f"tensor {name} is missing from {self.folder}")
        return self.checkpoint[name]

    def _optional(self, name: str, shape: tuple[int, ...]) -> Array:
        return self.checkpoint[name] if name in self.checkpoint else np.ones(shape, np.float32)


def load_compressed(folder: Path) -> CompressedModel:
    """Opens a checkpoint that ``python -m weightless_fw compress`` wrote.

    Raises:
        CompressError: It is not compressed, or by another version.
        CheckpointError: A file is damaged.
    """
    scheme = read_scheme(folder)
    checkpoint = Checkpoint(folder)
    if not checkpoint:
        raise CompressError(f"{folder} holds no *.safetensors file")
    prefix = next((n.partition("layers.")[0] for n in checkpoint if is_projection_tensor(n)), None)
    if prefix is None:
        raise CompressError(f"{folder} holds no projection of any layer")
    return CompressedModel(
        folder,
        read_config(folder),
        scheme,
        checkpoint,
        f"{prefix}layers.",
        WeakValueDictionary(),
    )
