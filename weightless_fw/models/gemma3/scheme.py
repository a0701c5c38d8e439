"""The sizes of Gemma 3 and the projections that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from max.pipelines.architectures.gemma3.model_config import Gemma3Config

from weightless_fw.models.scheme import LayerKinds, Shapes


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Sizes of one Gemma 3 text model."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_types: tuple[str, ...]
    """"sliding_attention" or "full_attention" of each layer."""

    @classmethod
    def of_pattern(cls, *, pattern: int, **sizes: int) -> Dimensions:
        """Dimensions of a model whose every ``pattern``-th layer is global."""
        kinds = tuple(
            "sliding_attention" if (layer + 1) % pattern else "full_attention"
            for layer in range(sizes["layers"])
        )
        return cls(attention_types=kinds, **sizes)

    @property
    def projections(self) -> Shapes:
        """(N, K) of each projection; all layers have the same."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (q, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, q),
            "mlp.gate_proj": (self.ffn, self.hidden),
            "mlp.up_proj": (self.ffn, self.hidden),
            "mlp.down_proj": (self.hidden, self.ffn),
        }

    @property
    def layer_kinds(self) -> LayerKinds:
        kinds = dict.fromkeys(self.attention_types)
        return LayerKinds(self.attention_types, dict.fromkeys(kinds, self.projections))


def dimensions_of(config: Gemma3Config) -> Dimensions:
    """The sizes in a MAX configuration."""
    return Dimensions.of_pattern(
        pattern=config.sliding_window_pattern,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
