"""What compressing needs to know of Gemma 3: its layers, and its forward pass in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weightless_fw.compress.errors import CompressError
from weightless_fw.core.calibration import Observe
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array
from weightless_fw.models.gemma3.reference import ReferenceModel, embedded, layer_output
from weightless_fw.models.gemma3.scheme import Dimensions
from weightless_fw.models.scheme import LayerKinds, is_projection_tensor

FILE_PREFIX = "model.layers."

_SLIDING, _FULL = "sliding_attention", "full_attention"


def dimensions(config: Mapping[str, Any], folder: Path) -> Dimensions:
    """The sizes in a config.json.

    Raises:
        CompressError: A key is missing or no such model exists.
    """
    try:
        layers = int(config["num_hidden_layers"])
        pattern = int(config.get("sliding_window_pattern") or 6)
        kinds = config.get("layer_types") or [
            _SLIDING if (layer + 1) % pattern else _FULL for layer in range(layers)
        ]
        sizes = {
            "hidden": config["hidden_size"],
            "ffn": config["intermediate_size"],
            "heads": config["num_attention_heads"],
            "kv_heads": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
        }
    except KeyError as error:
        raise CompressError(f"{folder / 'config.json'} lacks {error}") from None
    if len(kinds) != layers or set(kinds) - {_SLIDING, _FULL}:
        raise CompressError(
            f"{folder / 'config.json'}: layer_types must be {layers} of {_SLIDING} or {_FULL}"
        )
    return Dimensions(layers=layers, attention_types=tuple(kinds), **sizes)


def layer_kinds(config: Mapping[str, Any], folder: Path) -> LayerKinds:
    """The attention type of each layer and the shapes of its projections."""
    return dimensions(config, folder).layer_kinds


def reference_model(
    config: Mapping[str, Any],
    folder: Path,
    checkpoint: Mapping[str, Array],
    projection: Callable[[int, str], Array],
) -> ReferenceModel:
    """The numpy model over a checkpoint, with the projections from ``projection``."""
    d = dimensions(config, folder)
    if config.get("query_pre_attn_scalar", d.head_dim) != d.head_dim:
        raise CompressError(
            f"{folder / 'config.json'}: query_pre_attn_scalar "
            f"{config['query_pre_attn_scalar']} differs from head_dim {d.head_dim}, which the "
            "calibration's forward pass does not know; use --method svd without --calibration"
        )
    rope = config.get("rope_parameters") or {}
    scaling = rope.get(_FULL) or config.get("rope_scaling") or {}
    rest = {
        name.removeprefix("model."): checkpoint[name]
        for name in checkpoint
        if not is_projection_tensor(name)
    }
    return ReferenceModel(
        dimensions=d,
        projection=projection,
        weights=rest,
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=scaling.get("rope_theta", config.get("rope_theta", 1e6)),
        rope_local_theta=rope.get(_SLIDING, {}).get(
            "rope_theta", config.get("rope_local_base_freq", 1e4)
        ),
        rope_linear_factor=scaling.get("factor") or 1.0,
        sliding_window=config.get("sliding_window") or 512,
    )


class LayerwiseForward:
    """Applies one layer after another; one layer's weights are in memory at a time."""

    def __init__(self, config: Mapping[str, Any], folder: Path, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._layer: int | None = None
        self._weights: dict[str, Array] = {}
        self.model = reference_model(config, folder, checkpoint, self._projection)

    def start(self, tokens: tuple[int, ...]) -> Array:
        """[T, hidden] before the first layer."""
        return embedded(self.model, tokens)

    def advance(self, layer: int, state: Array, observe: Observe) -> Array:
        """[T, hidden] after ``layer``."""
        return layer_output(self.model, layer, state, observe)

    def _projection(self, layer: int, name: str) -> Array:
        if layer != self._layer:
            self._layer, self._weights = layer, {}
        if name not in self._weights:
            self._weights[name] = self._checkpoint[f"{FILE_PREFIX}{layer}.{name}.weight"]
        return self._weights[name]
