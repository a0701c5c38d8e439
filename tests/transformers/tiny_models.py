"""Two-layer Gemma 3 and Gemma 4 text models with weights from seeds, without PyTorch.

One sliding and one global layer each, every feature of the architecture in
use: unequal query and key heads, a sliding window shorter than the prompt, a
stretched or partial rotary embedding, and in Gemma 4 two head sizes, a global
layer without v_proj, layer scalars and soft-capped logits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SEED = "weightless tiny models 1"
WINDOW = 16
TOKENS = tuple(int(i) for i in np.random.default_rng(20).integers(4, 384, size=40))
"""Longer than the window, so that what a sliding layer cannot see matters."""

LAYER_TYPES = ["sliding_attention", "full_attention"]


@dataclass(frozen=True)
class TinyModel:
    """One model: its text configuration, and how its checkpoint is laid out."""

    name: str
    config: Mapping[str, Any]
    """The text configuration, as in config.json."""

    norm_offset: float
    """What the architecture adds to a norm's weight."""

    prefix: str
    """What stands before ``layers.`` in a checkpoint of the architecture that is served."""

    @property
    def weights(self) -> dict[str, Array]:
        """All tensors by name below ``prefix``."""
        return {name: self._values(name, shape) for name, shape in self.shapes.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        hidden = self.config["hidden_size"]
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.config["vocab_size"], hidden),
            "norm.weight": (hidden,),
        }
        for layer, kind in enumerate(self.config["layer_types"]):
            shapes |= {
                f"layers.{layer}.{name}": shape for name, shape in self._layer_shapes(kind).items()
            }
        return shapes

    def _layer_shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        config, gemma4 = self.config, self.name == "gemma4"
        hidden, ffn = config["hidden_size"], config["intermediate_size"]
        head, kv_heads = config["head_dim"], config["num_key_value_heads"]
        k_is_v = gemma4 and kind == "full_attention"
        if k_is_v:
            head, kv_heads = config["global_head_dim"], config["num_global_key_value_heads"]
        q, kv = config["num_attention_heads"] * head, kv_heads * head
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj.weight": (q, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, q),
            "self_attn.q_norm.weight": (head,),
            "self_attn.k_norm.weight": (head,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "pre_feedforward_layernorm.weight": (hidden,),
            "post_feedforward_layernorm.weight": (hidden,),
        }
        if k_is_v:
            del shapes["self_attn.v_proj.weight"]
        if gemma4:
            shapes["layer_scalar"] = (1,)
        return shapes

    def _values(self, name: str, shape: tuple[int, ...]) -> Array:
        """Depends on the model, the tensor's name and ``SEED`` alone."""
        digest = hashlib.sha256(f"{SEED}/{self.name}/{name}".encode()).digest()
        values = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(shape)
        if name == "layer_scalar" or name.endswith(".layer_scalar"):
            values = 0.8 + 0.1 * values
        elif "norm" in name:
            # The last norm is large, so that soft-capping at 30 bends the logits.
            values = (4.0 if name == "norm.weight" else 1.0) + 0.2 * values - self.norm_offset
        elif name == "embed_tokens.weight":
            values = 0.25 * values
        else:
            values = values / np.sqrt(shape[-1])
        return values.astype(np.float32)


def _config(**own: Any) -> dict[str, Any]:
    return {
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": WINDOW,
        "layer_types": LAYER_TYPES,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "dtype": "float32",
        **own,
    }


GEMMA3 = TinyModel(
    name="gemma3",
    config=_config(
        model_type="gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        query_pre_attn_scalar=32,
        sliding_window_pattern=2,
        final_logit_softcapping=None,
        attn_logit_softcapping=None,
        use_bidirectional_attention=False,
    ),
    norm_offset=1.0,
    prefix="model.",
)

GEMMA4 = TinyModel(
    name="gemma4",
    config=_config(
        model_type="gemma4_text",
        rope_parameters={
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        global_head_dim=64,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        final_logit_softcapping=30.0,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=384,
        num_kv_shared_layers=0,
        enable_moe_block=False,
        use_double_wide_mlp=False,
        num_experts=None,
        top_k_experts=None,
        moe_intermediate_size=None,
        use_bidirectional_attention=None,
    ),
    norm_offset=0.0,
    prefix="model.language_model.",
)

MODELS = {model.name: model for model in (GEMMA3, GEMMA4)}


def served_config(model: TinyModel) -> dict[str, Any]:
    """config.json under the architecture name that MAX serves."""
    if model.name == "gemma3":
        return {"architectures": ["Gemma3ForCausalLM"], **model.config}
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": dict(model.config),
        # MAX asks for one; text-only arms build nothing from it.
        "vision_config": {"model_type": "gemma4_vision"},
        "tie_word_embeddings": True,
        "image_token_id": 380,
        "video_token_id": 381,
        "audio_token_id": 382,
        "boi_token_id": 377,
        "eoi_token_id": 378,
        "boa_token_id": 376,
        "eoa_token_index": 379,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "dtype": "float32",
    }


def golden_path(model: TinyModel) -> Path:
    """The file of recorded logits."""
    return Path(__file__).parent / "golden" / f"{model.name}.npz"


def weights_digest(model: TinyModel) -> str:
    """Changes when a weight or the configuration does; stored in the golden file."""
    digest = hashlib.sha256(json.dumps(model.config, sort_keys=True).encode())
    for name, values in sorted(model.weights.items()):
        digest.update(name.encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
