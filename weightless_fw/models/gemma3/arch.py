"""Registers Gemma 3 with weightless layers under the stock name."""

from __future__ import annotations

from dataclasses import replace

from max.driver import accelerator_count
from max.pipelines.architectures.gemma3.arch import gemma3_arch

from weightless_fw.models.gemma3.model import WeightlessGemma3Model
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config

weightless_gemma3_arch = replace(
    gemma3_arch,
    # MAX's CPU backend takes no bfloat16.
    default_encoding="bfloat16" if accelerator_count() else "float32",
    supported_encodings=WeightlessGemma3Config.SUPPORTED_ENCODINGS,
    pipeline_model=WeightlessGemma3Model,
    config=WeightlessGemma3Config,
    multi_gpu_supported=False,
)
