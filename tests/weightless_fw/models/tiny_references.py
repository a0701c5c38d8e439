"""The numpy references over the tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.transformers.tiny_models import Array, TinyModel
from weightless_fw.models.gemma3.reference import ReferenceModel as Gemma3Reference
from weightless_fw.models.gemma3.reference import logits as gemma3_logits
from weightless_fw.models.gemma3.scheme import Dimensions as Gemma3Dimensions
from weightless_fw.models.gemma4.reference import ReferenceModel as Gemma4Reference
from weightless_fw.models.gemma4.reference import logits as gemma4_logits
from weightless_fw.models.gemma4.scheme import Dimensions as Gemma4Dimensions
from weightless_fw.models.gemma4.scheme import HeadSizes

Projection = Callable[[int, str], Array]
"""(layer, name) -> effective weight [N, K]."""


def reference_logits(
    model: TinyModel, tokens: list[int], projection: Projection | None = None
) -> Array:
    """[T, vocabulary] by numpy, from the checkpoint's weights or from other projections."""
    weights, config = model.weights, model.config
    if projection is None:

        def projection(layer: int, name: str) -> Array:
            return weights[f"layers.{layer}.{name}.weight"]

    rope = config["rope_parameters"]
    arguments: dict[str, Any] = {
        "projection": projection,
        "weights": weights,
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_theta": rope["full_attention"]["rope_theta"],
        "rope_local_theta": rope["sliding_attention"]["rope_theta"],
        "sliding_window": config["sliding_window"],
    }
    if model.name == "gemma3":
        dimensions = Gemma3Dimensions.of_pattern(
            pattern=config["sliding_window_pattern"],
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            ffn=config["intermediate_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
        )
        factor = rope["full_attention"]["factor"]
        return gemma3_logits(
            Gemma3Reference(dimensions=dimensions, rope_linear_factor=factor, **arguments), tokens
        )
    return gemma4_logits(
        Gemma4Reference(
            dimensions=gemma4_dimensions(config),
            partial_rotary_factor=rope["full_attention"]["partial_rotary_factor"],
            logit_softcapping=config["final_logit_softcapping"],
            **arguments,
        ),
        tokens,
    )


def gemma4_dimensions(config: Mapping[str, Any]) -> Gemma4Dimensions:
    return Gemma4Dimensions(
        hidden=config["hidden_size"],
        ffn=config["intermediate_size"],
        heads=config["num_attention_heads"],
        sliding=HeadSizes(config["num_key_value_heads"], config["head_dim"], has_v_proj=True),
        full=HeadSizes(
            config["num_global_key_value_heads"], config["global_head_dim"], has_v_proj=False
        ),
        attention_types=tuple(config["layer_types"]),
    )


def relative(got: Array, want: Array) -> float:
    """Largest difference, relative to the largest wanted value."""
    return float(np.abs(got - want).max() / np.abs(want).max())
