"""Gemma 3's configuration, with the scheme of its weightless layers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from max.driver import accelerator_api
from max.pipelines.architectures.gemma3.model_config import Gemma3Config
from max.pipelines.modeling.config_enums import SupportedEncoding

from weightless_fw.compress.read import CompressedModel, is_compressed, load_compressed
from weightless_fw.core.factors import Array
from weightless_fw.core.select import Selection, select_path
from weightless_fw.models.gemma3.scheme import Dimensions, dimensions_of
from weightless_fw.models.scheme import (
    LayerFactors,
    Scheme,
    compressed_settings,
    factorize_model,
    resolve_scheme,
    stored_scheme,
)
from weightless_fw.settings import Settings


@dataclass(kw_only=True)
class WeightlessGemma3Config(Gemma3Config):
    """Stock configuration; float32 is accepted as well, for CPUs."""

    DEFAULT_ENCODING: ClassVar[SupportedEncoding] = "bfloat16"
    SUPPORTED_ENCODINGS: ClassVar[set[SupportedEncoding]] = {"bfloat16", "float32"}

    settings: Settings = field(default_factory=lambda: Settings.from_environment(os.environ))
    """The switches, read from the environment when the configuration is made."""

    @property
    def dimensions(self) -> Dimensions:
        return dimensions_of(self)

    @property
    def selection(self) -> Selection:
        """The path of these switches on the model's device."""
        api = "cpu" if self.devices[0].is_cpu() else accelerator_api()
        return select_path(self.settings, api)

    compressed: CompressedModel | None = None
    """The checkpoint, where ``python -m weightless_fw compress`` wrote it."""

    def read_compressed(self, folder: Path) -> None:
        """Takes bands, ranks and factors from ``folder`` where it is compressed."""
        if is_compressed(folder):
            self.compressed = load_compressed(folder)
            self.settings = compressed_settings(self.settings, self.compressed.scheme, os.environ)

    def factors(self, dense: Mapping[str, Array], prefix: str) -> tuple[LayerFactors, ...]:
        """The factors of every layer, as compressed or made from dense weights."""
        if self.compressed is not None:
            return tuple(self.compressed.layers)
        return factorize_model(dense, self.scheme, prefix)

    @property
    def scheme(self) -> Scheme:
        if self.compressed is not None:
            stored = self.compressed.scheme
            return stored_scheme(
                self.settings, self.selection.path, self.dimensions.layer_kinds, stored
            )
        return resolve_scheme(self.settings, self.selection.path, self.dimensions.layer_kinds)
