"""The sizes of Gemma 4's text model and the projections that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from weightless_fw.models.scheme import LayerKinds, Shapes

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class HeadSizes:
    """Attention of one type of layer."""

    kv_heads: int
    head_dim: int
    has_v_proj: bool
    """Without one, V is what k_proj gives, before the norm of K."""


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Sizes of one dense Gemma 4 text model."""

    hidden: int
    ffn: int
    heads: int
    sliding: HeadSizes
    full: HeadSizes
    attention_types: tuple[str, ...]
    """"sliding_attention" or "full_attention" of each layer."""

    @property
    def layers(self) -> int:
        return len(self.attention_types)

    def attention(self, kind: str) -> HeadSizes:
        return self.sliding if kind == SLIDING else self.full

    def projections(self, kind: str) -> Shapes:
        """(N, K) of each projection that a layer of one attention type has."""
        sizes = self.attention(kind)
        q, kv = self.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        value = {"self_attn.v_proj": (kv, self.hidden)} if sizes.has_v_proj else {}
        return {
            "self_attn.q_proj": (q, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            **value,
            "self_attn.o_proj": (self.hidden, q),
            "mlp.gate_proj": (self.ffn, self.hidden),
            "mlp.up_proj": (self.ffn, self.hidden),
            "mlp.down_proj": (self.hidden, self.ffn),
        }

    @property
    def layer_kinds(self) -> LayerKinds:
        kinds = dict.fromkeys(self.attention_types)
        return LayerKinds(self.attention_types, {kind: self.projections(kind) for kind in kinds})


GEMMA_4_31B = Dimensions(
    hidden=5376,
    ffn=21504,
    heads=32,
    sliding=HeadSizes(kv_heads=16, head_dim=256, has_v_proj=True),
    full=HeadSizes(kv_heads=4, head_dim=512, has_v_proj=False),
    attention_types=((SLIDING,) * 5 + (FULL,)) * 10,
)
"""As in config.json of google/gemma-4-31B-it: 60 layers, 410 projections.

Beside these: vocabulary 262,144, sliding window 1,024, logits soft-capped at
30, rotary theta 10,000 (sliding) and 1,000,000 with a quarter of the head
rotated (global), tied embeddings.
"""
