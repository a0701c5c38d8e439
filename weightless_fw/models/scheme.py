"""How a model's projections are bundled, banded and factored.

Shared by every architecture: a model says which projections its layers have
and of which shapes, the switches say the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weightless_fw.core.banding import Banding, BandingError, resolve_bands
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


def is_projection_tensor(name: str) -> bool:
    """Whether a checkpoint's tensor belongs to a projection of a layer."""
    return "layers." in name and any(f".{projection}." in name for projection in PROJECTIONS)


class SchemeError(ValueError):
    """The switches do not fit the model or each other."""


Shapes = Mapping[str, tuple[int, int]]
"""(N, K) of each projection that a layer has, by name."""


@dataclass(frozen=True)
class LayerKinds:
    """The layers of a model: the attention type of each, and each type's projections."""

    attention_types: tuple[str, ...]
    """"sliding_attention" or "full_attention" of each layer."""

    shapes: Mapping[str, Shapes]
    """By attention type; a projection may be missing in one of them."""

    def of_layer(self, layer: int) -> Shapes:
        return self.shapes[self.attention_types[layer]]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Path, bands, ranks and fusions, resolved for one model."""

    path: Path
    kinds: LayerKinds
    bands: Mapping[str, Banding]
    """Which layers share a W0, by projection."""

    ranks: Mapping[str, Mapping[str, int]]
    """Columns of U, by attention type and projection."""

    fused: frozenset[str] = frozenset()
    """Names of the bundles that run as one matrix."""

    bf16_combine: bool = False

    def bundles(self, kind: str) -> Mapping[str, tuple[str, ...]]:
        """The bundles of a layer of one attention type, by the name of their matrix."""
        shapes, bundles = self.kinds.shapes[kind], {}
        for bundle, names in BUNDLES.items():
            present = tuple(name for name in names if name in shapes)
            if len(names) == 1 or bundle in self.fused:
                bundles[bundle] = present
            else:
                bundles |= {name: (name,) for name in present}
        return bundles

    @property
    def uses_custom_ops(self) -> bool:
        """Whether the graph holds operations of ours."""
        return self.path is Path.CUSTOM_OP

    @property
    def shared(self) -> bool:
        return any(banding.shared for banding in self.bands.values())

    def binds_shared_w0(self, projection: str) -> bool:
        """Whether the graph takes the projection's W0 once per band."""
        return self.bands[projection].shared and self.path is not Path.PRECOMPUTE

    def layers(self, projection: str, band: int) -> tuple[int, ...]:
        """The layers of a band that have the projection."""
        return tuple(
            layer
            for layer in self.bands[projection].layers(band)
            if projection in self.kinds.of_layer(layer)
        )


def resolve_scheme(settings: Settings, path: Path, kinds: LayerKinds) -> Scheme:
    """Checks the switches against the model and fixes what they mean for it.

    Raises:
        BandingError: The bands cannot be formed.
        RankError: The rank does not fit the smallest projection.
        SchemeError: Fused projections have different bands.
    """
    for shapes in kinds.shapes.values():
        for shape in shapes.values():
            check_rank(settings.rank, shape)
    bands = resolve_bands(settings.groups, kinds.attention_types, PROJECTIONS)
    ranks = {kind: dict.fromkeys(shapes, settings.rank) for kind, shapes in kinds.shapes.items()}
    return checked(
        Scheme(
            path=path,
            kinds=kinds,
            bands=bands,
            ranks=ranks,
            fused=_fused(settings, path),
            bf16_combine=settings.bf16_combine and path is Path.GEMM,
        )
    )


def stored_scheme(
    settings: Settings, path: Path, kinds: LayerKinds, stored: Mapping[str, Any]
) -> Scheme:
    """The scheme of a compressed checkpoint: its bands and ranks, our path and fusions.

    Args:
        settings: Give the fusions.
        path: How the factors run.
        kinds: The layers of the model.
        stored: The key "weightless" of the checkpoint's config.json.

    Raises:
        SchemeError: The checkpoint's factors cannot run on this path.
    """
    return checked(
        Scheme(
            path=path,
            kinds=kinds,
            bands={name: Banding(tuple(bands)) for name, bands in stored["bands"].items()},
            ranks={
                kind: {name: stored["ranks"][name][kind] for name in shapes}
                for kind, shapes in kinds.shapes.items()
            },
            fused=_fused(settings, path),
            bf16_combine=settings.bf16_combine and path is Path.GEMM,
        )
    )


def compressed_settings(
    settings: Settings, stored: Mapping[str, Any], environment: Mapping[str, str]
) -> Settings:
    """The switches beside a compressed checkpoint, whose rank chooses the path.

    Raises:
        SchemeError: A switch asks for what the checkpoint has decided.
    """
    for variable in ("WEIGHTLESS_RANK", "WEIGHTLESS_GROUPS"):
        if environment.get(variable, "").strip():
            raise SchemeError(
                f"{variable}={environment[variable]}: this checkpoint is compressed and brings "
                "its own bands and ranks; unset it, or compress the dense model again"
            )
    ranks = [rank for kinds in stored["ranks"].values() for rank in kinds.values()]
    return replace(settings, rank=max(1, *ranks))


def _fused(settings: Settings, path: Path) -> frozenset[str]:
    """The bundles that run as one matrix; the custom op never fuses."""
    switches = {
        "self_attn.qkv_proj": settings.qkv_fuse,
        "mlp.gate_up_proj": settings.gate_up_fuse,
    }
    fusing = path is not Path.CUSTOM_OP
    return frozenset(name for name, on in switches.items() if on and fusing)


def checked(scheme: Scheme) -> Scheme:
    """``scheme``, or the error that says why no graph can be built from it."""
    if scheme.path is Path.CUSTOM_OP:
        for kind, ranks in scheme.ranks.items():
            for name, rank in ranks.items():
                if not rank:
                    raise SchemeError(
                        f"{name} of {kind} layers has rank 0, which the custom op does not run; "
                        "set WEIGHTLESS_GEMM=1 or WEIGHTLESS_PRECOMPUTE_OUTSIDE=1"
                    )
    for bundle in scheme.fused:
        members = BUNDLES[bundle]
        if len({scheme.bands[name] for name in members if scheme.binds_shared_w0(name)}) > 1:
            switch = "QKV_FUSE" if "qkv" in bundle else "GATE_UP_FUSE"
            raise SchemeError(
                f"{', '.join(members)} have different bands and cannot share one matrix; "
                f"give them the same, or set WEIGHTLESS_{switch}=0"
            )
    for name, banding in scheme.bands.items():
        for band in range(banding.groups):
            layers = scheme.layers(name, band)
            if len({scheme.kinds.of_layer(layer)[name] for layer in layers}) > 1:
                raise BandingError(
                    f"groups: one band of {name} for layers of different shapes; this model "
                    f"takes {len(scheme.kinds.shapes)} to {len(banding.band_of)} bands"
                )
    return scheme


LayerFactors = Mapping[str, Factors]
"""The factors of one layer, by projection."""


def factorize_model(
    weights: Mapping[str, Array], scheme: Scheme, prefix: str
) -> tuple[LayerFactors, ...]:
    """Factors every projection: pass-through where a layer is alone in its band.

    This is what loading a dense checkpoint does. It fits nothing to data;
    ``python -m weightless_fw compress`` does.

    Args:
        weights: Dense [N, K] float32 weights, named ``{prefix}{layer}.{projection}.weight``.
        scheme: Bands and ranks.
        prefix: What stands before the layer number.
    """
    layers: list[dict[str, Factors]] = [{} for _ in scheme.kinds.attention_types]
    for names in BUNDLES.values():
        for members in _common_bands(scheme, names):
            fitted: list[dict[str, Factors]] = [{} for _ in members]
            for name in names:
                _fit_projection(weights, scheme, prefix, name, members, fitted)
            for layer, factors in zip(members, fitted, strict=True):
                layers[layer] |= factors
    return tuple({name: layer[name] for name in PROJECTIONS if name in layer} for layer in layers)


def _common_bands(scheme: Scheme, names: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Sets of layers that share no W0 of these projections with other layers."""
    bandings = [scheme.bands[name] for name in names]
    if any(banding != bandings[0] for banding in bandings):
        return [tuple(range(len(scheme.kinds.attention_types)))]
    return [bandings[0].layers(band) for band in range(bandings[0].groups)]


def _fit_projection(
    weights: Mapping[str, Array],
    scheme: Scheme,
    prefix: str,
    name: str,
    members: tuple[int, ...],
    fitted: list[dict[str, Factors]],
) -> None:
    """Adds the factors of one projection to ``fitted``, one entry per member."""
    banding = scheme.bands[name]
    for band in sorted({banding.band_of[layer] for layer in members}):
        layers = scheme.layers(name, band)
        if not layers:
            continue
        dense = [_dense(weights, f"{prefix}{i}.{name}.weight", scheme, i, name) for i in layers]
        rank = scheme.ranks[scheme.kinds.attention_types[layers[0]]][name]
        if len(layers) == 1:
            seed = 1000 * layers[0] + PROJECTIONS.index(name)
            factors: tuple[Factors, ...] = (pass_through(dense[0], rank, seed),)
        else:
            factors = share(dense, rank)
        for layer, f in zip(layers, factors, strict=True):
            fitted[members.index(layer)][name] = f


def _dense(
    weights: Mapping[str, Array], tensor: str, scheme: Scheme, layer: int, name: str
) -> Array:
    if tensor not in weights:
        raise SchemeError(f"tensor {tensor} is missing from the checkpoint")
    weight, shape = weights[tensor], scheme.kinds.of_layer(layer)[name]
    if weight.shape != shape:
        raise SchemeError(
            f"tensor {tensor} is {list(weight.shape)}; config.json needs {list(shape)}"
        )
    return weight


def perturb_model(factors: tuple[LayerFactors, ...], seed: int) -> tuple[LayerFactors, ...]:
    """Moves s, U and V of every projection; W0 stays as it is."""
    seeds = _seeds(seed)
    return tuple({name: perturb(f, next(seeds)) for name, f in layer.items()} for layer in factors)


def _seeds(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield int(rng.integers(2**31))
