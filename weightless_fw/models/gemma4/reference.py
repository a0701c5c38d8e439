"""Gemma 4's text model in numpy: logits of every position, from dense effective weights.

Independent of MAX: written from the published architecture, without a cache,
for prompts of a few dozen tokens. What differs from Gemma 3: norms scale by
their weight and not by one more; V is normalised, without a weight; scores
are not scaled; global layers have heads of their own size, rotate a part of
them, and where they have no v_proj take V from k_proj; every layer ends in a
scalar; the logits are soft-capped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weightless_fw.core.factors import Array
from weightless_fw.models.gemma4.scheme import SLIDING, Dimensions

Observe = Callable[[int, str, Array], None]
"""Called with (layer, name of the fused projections, their input [T, K])."""


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """Dense weights and the constants of one Gemma 4 text model.

    ``projection(layer, name)`` returns the effective [N, K] weight;
    ``weights`` holds everything else, by name below the checkpoint's prefix.
    """

    dimensions: Dimensions
    projection: Callable[[int, str], Array]
    weights: Mapping[str, Array]
    rms_norm_eps: float
    rope_theta: float
    """Of global layers."""

    rope_local_theta: float
    """Of sliding layers."""

    partial_rotary_factor: float
    """The part of a global layer's head that is rotated."""

    sliding_window: int
    logit_softcapping: float | None


def logits(model: ReferenceModel, tokens: Sequence[int]) -> Array:
    """Returns [T, vocabulary] float32 logits for ``tokens``."""
    h = embedded(model, tokens)
    for layer in range(model.dimensions.layers):
        h = layer_output(model, layer, h)
    head = model.weights.get("lm_head.weight", model.weights["embed_tokens.weight"])
    y = _normed(model, "norm", h) @ head.T
    if model.logit_softcapping is None:
        return y
    cap = np.float32(model.logit_softcapping)
    return np.tanh(y / cap) * cap


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
    prefix = f"layers.{layer}"
    x = _normed(model, f"{prefix}.input_layernorm", h)
    attention = _attention(model, layer, x, observe)
    h = h + _normed(model, f"{prefix}.post_attention_layernorm", attention)
    x = _normed(model, f"{prefix}.pre_feedforward_layernorm", h)
    gate = _gelu_tanh(x @ model.projection(layer, "mlp.gate_proj").T)
    product = gate * (x @ model.projection(layer, "mlp.up_proj").T)
    if observe:
        observe(layer, "mlp.gate_up_proj", x)
        observe(layer, "mlp.down_proj", product)
    down = product @ model.projection(layer, "mlp.down_proj").T
    h = h + _normed(model, f"{prefix}.post_feedforward_layernorm", down)
    return h * model.weights[f"{prefix}.layer_scalar"]


def _normed(model: ReferenceModel, name: str, x: Array) -> Array:
    """RMS norm with a weight."""
    return _unit(model, x) * model.weights[f"{name}.weight"]


def _unit(model: ReferenceModel, x: Array) -> Array:
    """RMS norm without a weight."""
    mean_square = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return (x / np.sqrt(mean_square + model.rms_norm_eps)).astype(np.float32)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _attention(model: ReferenceModel, layer: int, x: Array, observe: Observe | None) -> Array:
    kind = model.dimensions.attention_types[layer]
    sizes, heads = model.dimensions.attention(kind), model.dimensions.heads

    def head_states(name: str, count: int) -> Array:
        y = x @ model.projection(layer, f"self_attn.{name}_proj").T
        return y.reshape(len(x), count, sizes.head_dim)

    q = _normed(model, f"layers.{layer}.self_attn.q_norm", head_states("q", heads))
    k = head_states("k", sizes.kv_heads)
    v = _unit(model, head_states("v", sizes.kv_heads) if sizes.has_v_proj else k)
    k = _normed(model, f"layers.{layer}.self_attn.k_norm", k)
    q, k = _rotated(model, kind, q), _rotated(model, kind, k)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
    visible = distance >= 0
    if kind == SLIDING:
        visible &= distance < model.sliding_window
    out = np.empty_like(q)
    for head in range(heads):
        kv = head * sizes.kv_heads // heads
        scores = np.where(visible, q[:, head] @ k[:, kv].T, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv]
    y = out.reshape(len(x), -1)
    if observe:
        observe(layer, "self_attn.qkv_proj", x)
        observe(layer, "self_attn.o_proj", y)
    return y @ model.projection(layer, "self_attn.o_proj").T


def _rotated(model: ReferenceModel, kind: str, x: Array) -> Array:
    """Rotary embedding of [T, heads, head_dim], halves as the two coordinates.

    A partial rotation turns the first coordinates of each half and leaves the
    others; its frequencies are those of the whole head.
    """
    half = x.shape[-1] // 2
    theta, turning = model.rope_theta, int(model.partial_rotary_factor * half)
    if kind == SLIDING:
        theta, turning = model.rope_local_theta, half
    frequency = np.zeros(half)
    frequency[:turning] = theta ** (-np.arange(turning) / half)
    angle = (np.arange(len(x))[:, None] * frequency)[:, None, :]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
