"""Turns a model reference into a local Hugging Face folder."""

from suite.models.cache import default_cache_dir
from suite.models.model import Model, ModelShape, WeightsKind
from suite.models.resolve import resolve_model
from suite.models.tokenizer import decode, encode

__all__ = [
    "Model",
    "ModelShape",
    "WeightsKind",
    "decode",
    "default_cache_dir",
    "encode",
    "resolve_model",
]
