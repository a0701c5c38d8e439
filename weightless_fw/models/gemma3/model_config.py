"""Gemma 3's configuration, with the scheme of its weightless layers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from max.driver import accelerator_api
from max.pipelines.architectures.gemma3.model_config import Gemma3Config
from max.pipelines.modeling.config_enums import SupportedEncoding

from weightless_fw.core.select import Selection, select_path
from weightless_fw.models.gemma3.scheme import (
    Dimensions,
    Scheme,
    dimensions_of,
    resolve_scheme,
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

    @property
    def scheme(self) -> Scheme:
        return resolve_scheme(self.settings, self.selection.path, self.dimensions)
