"""config.json of a Gemma 3 text model: written from a shape, and read back into one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.errors import UserError
from suite.models.model import ModelShape

SUPPORTED_ARCHITECTURES = ("Gemma3ForCausalLM",)


@dataclass(frozen=True, kw_only=True)
class GemmaConstants:
    """What Gemma 3 needs beside its sizes; the defaults are those of the 270M and 1B models."""

    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta_global: float = 1_000_000.0
    rope_theta_local: float = 10_000.0
    rope_factor_global: float | None = None
    """Linear stretch of the positions in global layers; 8 from 4B up, else none."""

    query_pre_attn_scalar: int = 256
    """Attention scores are divided by its square root."""

    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int = 2


def write_config(folder: Path, shape: ModelShape, constants: GemmaConstants, *, dtype: str) -> None:
    """Writes config.json and generation_config.json; `dtype` is "float32" or "bfloat16"."""
    rope_global: dict[str, object] = {
        "rope_type": "default",
        "rope_theta": constants.rope_theta_global,
    }
    if constants.rope_factor_global is not None:
        rope_global |= {"rope_type": "linear", "factor": constants.rope_factor_global}
    special = {
        "bos_token_id": constants.bos_token_id,
        "eos_token_id": constants.eos_token_id,
        "pad_token_id": constants.pad_token_id,
    }
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": constants.max_position_embeddings,
        "rms_norm_eps": constants.rms_norm_eps,
        "rope_parameters": {
            "full_attention": rope_global,
            "sliding_attention": {"rope_type": "default", "rope_theta": constants.rope_theta_local},
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "query_pre_attn_scalar": constants.query_pre_attn_scalar,
        "sliding_window": shape.sliding_window,
        "sliding_window_pattern": shape.sliding_pattern,
        "layer_types": [
            "sliding_attention" if (layer + 1) % shape.sliding_pattern else "full_attention"
            for layer in range(shape.layers)
        ],
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "use_cache": True,
        "initializer_range": 0.02,
        "tie_word_embeddings": shape.tied_head,
        "dtype": dtype,
        **special,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"do_sample": False, **special})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes `content` as a person would want to read it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_shape(folder: Path) -> ModelShape:
    """The shape that the folder's config.json gives.

    Raises UserError where the file is absent, unreadable, lacks a size, or is of
    an architecture the suite cannot run.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"model folder {folder} has no config.json;"
            " pass the folder of a Hugging Face checkpoint"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        architectures = config.get("architectures") or []
    except (ValueError, AttributeError) as problem:
        raise UserError(
            f"{path} is no JSON object ({problem}); fetch the checkpoint again"
        ) from None
    if not set(architectures) & set(SUPPORTED_ARCHITECTURES):
        found = ", ".join(map(str, architectures)) or "none"
        raise UserError(
            f"{path} names the architecture {found};"
            f" supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    try:
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            ffn=int(config["intermediate_size"]),
            heads=int(config["num_attention_heads"]),
            kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            vocab=int(config["vocab_size"]),
            sliding_window=int(config["sliding_window"]),
            sliding_pattern=sliding_pattern(config),
            tied_head=bool(config.get("tie_word_embeddings", True)),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{path} has no usable {problem}; fetch the checkpoint again") from None


def sliding_pattern(config: dict[str, Any]) -> int:
    """The number of layers from one global layer to the next; checkpoints say it in three ways."""
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if config.get(key):
            return int(config[key])
    kinds = config.get("layer_types") or []
    return kinds.index("full_attention") + 1 if "full_attention" in kinds else 6
