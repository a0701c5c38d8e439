"""What a model is to the suite: a folder on disk, its shape, and where its weights came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class WeightsKind(StrEnum):
    """Where the numbers in the weights came from, as results tables name it."""

    DEQUANTISED_Q4_K_M = "dequantised Q4_K_M"
    """Expanded to float32 from a Q4_K_M GGUF: its rounding is in the weights."""

    DEQUANTISED_GGUF = "dequantised GGUF"
    """Expanded to float32 from a GGUF of any other kind, unquantised ones included."""

    CHECKPOINT = "checkpoint"
    """A Hugging Face checkpoint as published."""

    RANDOM = "random"
    """Made here from a seed: speed and memory mean something, text does not."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a Gemma 3 text model that decide its cost.

    Projections are stored [out, in]: q [heads * head_dim, hidden], k and v
    [kv_heads * head_dim, hidden], o [hidden, heads * head_dim], gate and up
    [ffn, hidden], down [hidden, ffn], embedding [vocab, hidden].
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    sliding_window: int
    """Tokens a sliding layer looks back on."""

    sliding_pattern: int
    """Every ``sliding_pattern``-th layer is global, counting from one."""

    tied_head: bool
    """Whether the output projection is the embedding."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is ready to load."""

    name: str
    folder: Path
    """Holds config.json, the safetensors files and tokenizer.json."""

    weights: WeightsKind
    weights_sha256: str
    """SHA-256 over the bytes of every safetensors file, in the order of their names."""

    shape: ModelShape
