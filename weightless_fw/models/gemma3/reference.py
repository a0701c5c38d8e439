"""Gemma 3 in numpy: logits of every position, from dense effective weights.

Independent of MAX: written from the published architecture, without a cache,
for prompts of a few dozen tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weightless_fw.core.factors import Array
from weightless_fw.models.gemma3.scheme import Dimensions


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """Dense weights and the constants of one Gemma 3 text model.

    ``projection(layer, name)`` returns the effective [N, K] weight;
    ``weights`` holds everything else under the checkpoint's names.
    """

    dimensions: Dimensions
    projection: Callable[[int, str], Array]
    weights: Mapping[str, Array]
    rms_norm_eps: float
    rope_theta: float
    rope_local_theta: float
    rope_linear_factor: float
    sliding_window: int


Observe = Callable[[int, str, Array], None]
"""Called with (layer, name of the fused projections, their input [T, K])."""


def logits(model: ReferenceModel, tokens: Sequence[int]) -> Array:
    """Returns [T, vocabulary] float32 logits for ``tokens``."""
    h = embedded(model, tokens)
    for layer in range(model.dimensions.layers):
        h = layer_output(model, layer, h)
    head = model.weights.get("lm_head.weight", model.weights["embed_tokens.weight"])
    return _normed(model, "norm", h) @ head.T


def embedded(model: ReferenceModel, tokens: Sequence[int]) -> Array:
    """[T, hidden]: what enters the first layer."""
    embedding = model.weights["embed_tokens.weight"]
    return embedding[list(tokens)] * np.float32(np.sqrt(model.dimensions.hidden))


def layer_output(
    model: ReferenceModel, layer: int, h: Array, observe: Observe | None = None
) -> Array:
    """[T, hidden]: one layer applied to the hidden states of one sequence.

    Args:
        model: The weights.
        layer: Which layer.
        h: [T, hidden].
        observe: Sees the input of every projection.
    """
    x = _normed(model, f"layers.{layer}.input_layernorm", h)
    attention = _attention(model, layer, x, observe)
    h = h + _normed(model, f"layers.{layer}.post_attention_layernorm", attention)
    x = _normed(model, f"layers.{layer}.pre_feedforward_layernorm", h)
    gate = _gelu_tanh(x @ model.projection(layer, "mlp.gate_proj").T)
    product = gate * (x @ model.projection(layer, "mlp.up_proj").T)
    if observe:
        observe(layer, "mlp.gate_up_proj", x)
        observe(layer, "mlp.down_proj", product)
    down = product @ model.projection(layer, "mlp.down_proj").T
    return h + _normed(model, f"layers.{layer}.post_feedforward_layernorm", down)


def _normed(model: ReferenceModel, name: str, x: Array) -> Array:
    """RMS norm with a scale of 1 + weight."""
    mean_square = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    scaled = x / np.sqrt(mean_square + model.rms_norm_eps)
    return (scaled * (1.0 + model.weights[f"{name}.weight"])).astype(np.float32)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _attention(
    model: ReferenceModel, layer: int, x: Array, observe: Observe | None = None
) -> Array:
    d = model.dimensions
    sliding = d.attention_types[layer] == "sliding_attention"
    prefix = f"layers.{layer}.self_attn"

    def heads(name: str, count: int) -> Array:
        y = x @ model.projection(layer, f"self_attn.{name}_proj").T
        return y.reshape(len(x), count, d.head_dim)

    theta, factor = model.rope_theta, model.rope_linear_factor
    if sliding:
        theta, factor = model.rope_local_theta, 1.0
    q = _rotate(_normed(model, f"{prefix}.q_norm", heads("q", d.heads)), theta, factor)
    k = _rotate(_normed(model, f"{prefix}.k_norm", heads("k", d.kv_heads)), theta, factor)
    v = heads("v", d.kv_heads)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
    visible = distance >= 0
    if sliding:
        visible &= distance < model.sliding_window
    out = np.empty_like(q)
    for head in range(d.heads):
        kv = head * d.kv_heads // d.heads
        scores = q[:, head] @ k[:, kv].T / np.float32(np.sqrt(d.head_dim))
        scores = np.where(visible, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv]
    y = out.reshape(len(x), -1)
    if observe:
        observe(layer, "self_attn.qkv_proj", x)
        observe(layer, "self_attn.o_proj", y)
    return y @ model.projection(layer, "self_attn.o_proj").T


def _rotate(x: Array, theta: float, factor: float) -> Array:
    """Rotary embedding of [T, heads, head_dim], halves as the two coordinates."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half) / factor
    angle = (np.arange(len(x))[:, None] * frequency)[:, None, :]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
