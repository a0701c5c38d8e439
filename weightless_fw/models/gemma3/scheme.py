"""The projections of Gemma 3, and how a scheme bundles and factors them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from max.pipelines.architectures.gemma3.model_config import Gemma3Config

from weightless_fw.core.banding import Banding, band_layers
from weightless_fw.core.factorize import check_rank, pass_through, perturb, share
from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.select import Path
from weightless_fw.settings import Settings

BUNDLES: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""Projections that read the same input, by the name of the fused matrix."""

PROJECTIONS = tuple(name for names in BUNDLES.values() for name in names)


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

    def projection(self, name: str) -> tuple[int, int]:
        """(N, K) of a projection."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (q, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, q),
            "mlp.gate_proj": (self.ffn, self.hidden),
            "mlp.up_proj": (self.ffn, self.hidden),
            "mlp.down_proj": (self.hidden, self.ffn),
        }[name]


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


@dataclass(frozen=True)
class Scheme:
    """A path, a banding and the bundles, resolved for one model."""

    path: Path
    rank: int
    banding: Banding
    bundles: Mapping[str, tuple[str, ...]]

    @property
    def binds_shared_w0(self) -> bool:
        """Whether the graph takes W0 once per band."""
        return self.banding.shared and self.path is not Path.PRECOMPUTE


def resolve_scheme(settings: Settings, path: Path, dimensions: Dimensions) -> Scheme:
    """Checks the switches against the model and fixes what they mean for it.

    Raises:
        BandingError: The bands cannot be formed.
        RankError: The rank does not fit the smallest projection.
    """
    for name in PROJECTIONS:
        check_rank(settings.rank, dimensions.projection(name))
    fused = {
        "self_attn.qkv_proj": settings.qkv_fuse and path is not Path.CUSTOM_OP,
        "mlp.gate_up_proj": settings.gate_up_fuse and path is not Path.CUSTOM_OP,
    }
    bundles: dict[str, tuple[str, ...]] = {}
    for bundle, names in BUNDLES.items():
        if len(names) == 1 or fused[bundle]:
            bundles[bundle] = names
        else:
            bundles |= {name: (name,) for name in names}
    banding = band_layers(dimensions.attention_types, settings.groups)
    return Scheme(path, settings.rank, banding, bundles)


LayerFactors = Mapping[str, Factors]
"""The factors of one layer, by projection."""


def factorize_model(
    weights: Mapping[str, Array], scheme: Scheme, layers: int, prefix: str
) -> tuple[LayerFactors, ...]:
    """Factors every projection: pass-through where each layer is its own band.

    Args:
        weights: Dense [N, K] float32 weights, named ``{prefix}{layer}.{projection}.weight``.
        scheme: Rank and bands.
        layers: Number of layers.
        prefix: What stands before the layer number.
    """
    result: list[dict[str, Factors]] = [{} for _ in range(layers)]
    for index, name in enumerate(PROJECTIONS):
        for band in range(scheme.banding.groups):
            members = scheme.banding.layers(band)
            dense = [weights[f"{prefix}{layer}.{name}.weight"] for layer in members]
            if len(members) == 1:
                seed = 1000 * members[0] + index
                fitted: tuple[Factors, ...] = (pass_through(dense[0], scheme.rank, seed),)
            else:
                fitted = share(dense, scheme.rank)
            for layer, factors in zip(members, fitted, strict=True):
                result[layer][name] = factors
    return tuple(result)


def perturb_model(factors: tuple[LayerFactors, ...], seed: int) -> tuple[LayerFactors, ...]:
    """Moves s, U and V of every projection; W0 stays as it is."""
    seeds = _seeds(seed)
    return tuple({name: perturb(f, next(seeds)) for name, f in layer.items()} for layer in factors)


def _seeds(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield int(rng.integers(2**31))
