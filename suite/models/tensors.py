"""Every tensor of a Gemma 3 text model: its Hugging Face name, its GGUF name, its shape."""

from __future__ import annotations

from suite.models.model import ModelShape

OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""From llama.cpp's names to Hugging Face's, both without layer number and ``.weight``."""

OF_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def hugging_face_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None where Gemma 3 has no such tensor.

    ``blk.3.attn_q.weight`` becomes ``model.layers.3.self_attn.q_proj.weight``.
    """
    stem = gguf_name.removesuffix(".weight")
    if stem in OF_MODEL:
        return OF_MODEL[stem] + ".weight"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block != "blk" or not layer.isdecimal() or part not in OF_LAYER:
        return None
    return f"model.layers.{layer}.{OF_LAYER[part]}.weight"


def is_norm(name: str) -> bool:
    """Whether the Hugging Face tensor `name` is the weight of an RMS norm."""
    return name.endswith("norm.weight")


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Hugging Face name to shape, [out, in] for matrices, in the order of a forward pass."""
    queries = shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    layer = {
        "input_layernorm": (shape.hidden,),
        "self_attn.q_proj": (queries, shape.hidden),
        "self_attn.k_proj": (keys, shape.hidden),
        "self_attn.v_proj": (keys, shape.hidden),
        "self_attn.q_norm": (shape.head_dim,),
        "self_attn.k_norm": (shape.head_dim,),
        "self_attn.o_proj": (shape.hidden, queries),
        "post_attention_layernorm": (shape.hidden,),
        "pre_feedforward_layernorm": (shape.hidden,),
        "mlp.gate_proj": (shape.ffn, shape.hidden),
        "mlp.up_proj": (shape.ffn, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.ffn),
        "post_feedforward_layernorm": (shape.hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab, shape.hidden)}
    for number in range(shape.layers):
        shapes |= {f"model.layers.{number}.{part}.weight": size for part, size in layer.items()}
    shapes["model.norm.weight"] = (shape.hidden,)
    if not shape.tied_head:
        shapes["lm_head.weight"] = (shape.vocab, shape.hidden)
    return shapes
