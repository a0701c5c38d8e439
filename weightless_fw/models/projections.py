"""The weightless projections of a layer, whatever model the layer belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight, ops
from max.nn.activation import activation_function_from_name
from max.nn.layer import Module

from weightless_fw.core.custom_op import CustomOpLinear
from weightless_fw.core.gemm_formulation import GemmLinear
from weightless_fw.core.precompute import PrecomputedLinear
from weightless_fw.core.select import Path
from weightless_fw.core.weightless_linear import (
    W0,
    BundleShape,
    Packed,
    WeightlessLinear,
    stacked_w0,
)
from weightless_fw.models.scheme import BUNDLES, LayerFactors, Scheme

BandW0 = Mapping[str, W0]
"""The W0 of a layer's bands by bundle; a bundle whose layers hold their own is absent."""


@dataclass(frozen=True, kw_only=True)
class ProjectionSpec:
    """What the projections of the layers of one attention type have in common."""

    scheme: Scheme
    kind: str
    dtype: DType
    device: DeviceRef

    def bundle_shape(self, projections: tuple[str, ...]) -> BundleShape:
        shapes = [self.scheme.kinds.shapes[self.kind][name] for name in projections]
        return BundleShape(
            outs=tuple(n for n, _ in shapes),
            width=shapes[0][1],
            ranks=tuple(self.scheme.ranks[self.kind][name] for name in projections),
            shared=self.scheme.binds_shared_w0(projections[0]),
        )

    def linear(self, projections: tuple[str, ...]) -> WeightlessLinear:
        """The module of the scheme's path for one bundle."""
        scheme, shape = self.scheme, self.bundle_shape(projections)
        if scheme.path is Path.GEMM:
            combine = DType.bfloat16 if scheme.bf16_combine else DType.float32
            return GemmLinear(shape, self.dtype, self.device, combine)
        kind = CustomOpLinear if scheme.path is Path.CUSTOM_OP else PrecomputedLinear
        return kind(shape, self.dtype, self.device)


class Projections(Module):
    """The bundles of one half of a layer (``self_attn`` or ``mlp``).

    Attribute names follow the checkpoint, so that weights are found under
    ``self_attn.qkv_proj`` whether fused or not.
    """

    def __init__(self, spec: ProjectionSpec, half: str) -> None:
        super().__init__()
        self.half = half
        self.present = frozenset(spec.scheme.kinds.shapes[spec.kind])
        self.bundles: dict[str, tuple[str, ...]] = {}
        for bundle, projections in spec.scheme.bundles(spec.kind).items():
            owner, _, name = bundle.partition(".")
            if owner == half:
                setattr(self, name, spec.linear(projections))
                self.bundles[name] = projections

    def linear(self, name: str) -> WeightlessLinear:
        linear = getattr(self, name)
        assert isinstance(linear, WeightlessLinear)
        return linear

    def project(self, x: TensorValue, bundle: str, w0: BandW0) -> list[TensorValue]:
        """Applies the projections of ``bundle``, in one matrix where it is fused.

        Args:
            x: [T, K].
            bundle: The bundle's name in ``BUNDLES``.
            w0: The bands' W0 by bundle.

        Returns:
            One [T, N] per projection that the layer has, in the order of ``BUNDLES``.
        """
        own = bundle.partition(".")[2]
        if own not in self.bundles:
            names = [p.partition(".")[2] for p in BUNDLES[bundle] if p in self.present]
            return [self.linear(name)(x, w0.get(f"{self.half}.{name}")) for name in names]
        linear = self.linear(own)
        y = linear(x, w0.get(bundle))
        return [y] if len(linear.shape.outs) == 1 else ops.split(y, linear.shape.outs, axis=-1)

    def pack(self, factors: LayerFactors) -> Packed:
        """The bound weights of this half, by name below the layer."""
        packed = {}
        for name, projections in self.bundles.items():
            weights = self.linear(name).pack([factors[p] for p in projections])
            packed |= {f"{self.half}.{name}.{key}": value for key, value in weights.items()}
        return packed


class WeightlessMLP(Projections):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: ProjectionSpec, activation: str) -> None:
        super().__init__(spec, "mlp")
        self.activation = activation_function_from_name(activation)

    def __call__(self, x: TensorValue, w0: BandW0) -> TensorValue:
        gate, up = self.project(x, "mlp.gate_up_proj", w0)
        (y,) = self.project(self.activation(gate) * up, "mlp.down_proj", w0)
        return y


class SharedW0(Module):
    """The W0 that one band binds, for the bundles that have such a band."""

    def __init__(self, specs: Mapping[str, ProjectionSpec], band: int) -> None:
        super().__init__()
        self.weights: dict[str, tuple[Weight, ...]] = {}
        for kind, spec in specs.items():
            for bundle, projections in bundles_of_band(spec.scheme, kind, band).items():
                self.weights[bundle] = self._declare(spec, bundle, spec.bundle_shape(projections))

    def _declare(self, spec: ProjectionSpec, bundle: str, shape: BundleShape) -> tuple[Weight, ...]:
        weight = Weight(f"{bundle}.w0", spec.dtype, [shape.out, shape.width], device=spec.device)
        setattr(self, f"{bundle}.w0".replace(".", "_"), weight)
        return (weight,)

    def __call__(self) -> dict[str, W0]:
        return {
            bundle: tuple(TensorValue(weight) for weight in weights)
            for bundle, weights in self.weights.items()
        }


def bundles_of_band(scheme: Scheme, kind: str, band: int) -> dict[str, tuple[str, ...]]:
    """The bundles whose W0 the graph binds for ``band``, a band of ``kind`` layers."""
    found = {}
    for bundle, projections in scheme.bundles(kind).items():
        layers = scheme.layers(projections[0], band)
        shared = scheme.binds_shared_w0(projections[0])
        if shared and layers and scheme.kinds.attention_types[layers[0]] == kind:
            found[bundle] = projections
    return found


def shared_bands(specs: Mapping[str, ProjectionSpec]) -> list[SharedW0]:
    """One module per band; none where every layer holds its own W0."""
    scheme = next(iter(specs.values())).scheme
    counts = [b.groups for name, b in scheme.bands.items() if scheme.binds_shared_w0(name)]
    return [SharedW0(specs, band) for band in range(max(counts, default=0))]


def band_w0(scheme: Scheme, bands: list[dict[str, W0]], layer: int) -> dict[str, W0]:
    """The W0 that a layer takes from its bands, by bundle."""
    kind = scheme.kinds.attention_types[layer]
    return {
        bundle: bands[scheme.bands[projections[0]].band_of[layer]][bundle]
        for bundle, projections in scheme.bundles(kind).items()
        if scheme.binds_shared_w0(projections[0])
    }


def pack_bands(factors: tuple[LayerFactors, ...], scheme: Scheme) -> Packed:
    """The bound W0 of every band, by name below ``bands``."""
    packed = {}
    for band in range(max(b.groups for b in scheme.bands.values())):
        for kind in scheme.kinds.shapes:
            for bundle, projections in bundles_of_band(scheme, kind, band).items():
                layer = scheme.layers(projections[0], band)[0]
                of_band = [factors[layer][name] for name in projections]
                packed[f"{band}.{bundle}.w0"] = stacked_w0(of_band)
    return packed
