"""What a compression is to do, checked against the model before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weightless_fw.compress.errors import CompressError
from weightless_fw.compress.source import SourceModel
from weightless_fw.core.band_fit import ITERATIONS, Method
from weightless_fw.core.banding import Banding, parse_groups, resolve_bands
from weightless_fw.core.calibration import DEFAULT_TOKENS
from weightless_fw.core.nvfp4 import BLOCK, ScaleChoice
from weightless_fw.core.quantize import Quant
from weightless_fw.models.scheme import BUNDLES, PROJECTIONS, LayerKinds

DEFAULT_RANK = 16

NEEDS_MOMENTS = (ScaleChoice.HESSIAN_SWEEP, ScaleChoice.GPTQ)

Ranks = Mapping[str, Mapping[str, int]]
"""Columns of U, by projection and attention type."""


@dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """The command line of ``compress``."""

    model: Path
    out: Path
    groups: str | None = None
    rank: int | None = None
    rank_budget: float | None = None
    """Bytes of all factors, as a share of the projections' bfloat16 bytes."""

    quant: Quant = Quant.NONE
    scale_choice: ScaleChoice | None = None
    calibration: Path | None = None
    calibration_tokens: int = DEFAULT_TOKENS
    method: Method = Method.WHITENED
    iterations: int = ITERATIONS
    force: bool = False


@dataclass(frozen=True)
class BandOf:
    """One W0: a projection's band and the layers that share it."""

    projection: str
    band: int
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.projection}.{self.band}"


@dataclass(frozen=True)
class Unit:
    """Bands whose W0 share one NVFP4 global scale: projections of one input."""

    source: str
    """Name of the fused projections, which is that of their input."""

    bands: tuple[BandOf, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Bands, ranks and quantisation, resolved for one model."""

    bands: Mapping[str, Banding]
    rank: int | None
    """One rank for all projections; None where a budget decides."""

    rank_budget_bytes: int | None
    quant: Quant
    scale_choice: ScaleChoice | None
    """None where nothing is quantised."""

    method: Method
    iterations: int
    units: tuple[Unit, ...]


def resolve_plan(options: CompressOptions, source: SourceModel) -> Plan:
    """Checks the options against each other and the model.

    Raises:
        CompressError: They contradict each other or do not fit the model.
        BandingError: The bands cannot be formed.
    """
    groups = None if options.groups is None else parse_groups(options.groups)
    kinds = source.kinds
    present = [p for p in PROJECTIONS if any(p in shapes for shapes in kinds.shapes.values())]
    bands = resolve_bands(groups, kinds.attention_types, present)
    rank, budget = _rank(options, source)
    plan = Plan(
        bands=bands,
        rank=rank,
        rank_budget_bytes=budget,
        quant=options.quant,
        scale_choice=_scale_choice(options),
        method=options.method,
        iterations=options.iterations,
        units=_units(bands, kinds),
    )
    _check(plan, options, kinds)
    return plan


def _rank(options: CompressOptions, source: SourceModel) -> tuple[int | None, int | None]:
    if options.rank is not None and options.rank_budget is not None:
        raise CompressError("--rank and --rank-budget exclude each other; give one of them")
    if options.method is Method.PASS_THROUGH:
        if options.rank or options.rank_budget is not None:
            raise CompressError("--method pass-through has no factors; drop the rank")
        return 0, None
    if options.rank_budget is not None:
        if not 0 <= options.rank_budget <= 1:
            raise CompressError(
                f"--rank-budget {options.rank_budget}: a share of the projections' bfloat16 "
                "bytes, from 0 to 1"
            )
        return None, int(options.rank_budget * 2 * source.projection_values)
    rank = DEFAULT_RANK if options.rank is None else options.rank
    for shapes in source.kinds.shapes.values():
        for name, (n, k) in shapes.items():
            if not 0 <= rank <= min(n, k):
                raise CompressError(
                    f"--rank {rank}: {name} is {n} x {k} and takes ranks 0 to {min(n, k)}"
                )
    return rank, None


def _scale_choice(options: CompressOptions) -> ScaleChoice | None:
    choice = options.scale_choice
    if options.quant is not Quant.NVFP4:
        if choice is not None:
            raise CompressError(f"--scale-choice {choice} without --quant nvfp4: nothing to scale")
        return None
    if choice in NEEDS_MOMENTS and options.calibration is None:
        raise CompressError(
            f"--scale-choice {choice} needs --calibration FILE; without it take sweep"
        )
    default = ScaleChoice.GPTQ if options.calibration else ScaleChoice.SWEEP
    return choice or default


def _check(plan: Plan, options: CompressOptions, kinds: LayerKinds) -> None:
    if plan.method is Method.WHITENED and options.calibration is None:
        raise CompressError(
            "--method whitened needs --calibration FILE, a plain text of the kind the model will "
            "read; without one take --method svd"
        )
    if options.iterations < 1:
        raise CompressError(f"--iterations {options.iterations}: must be at least 1")
    for name, banding in plan.bands.items():
        if plan.method is Method.PASS_THROUGH and banding.shared:
            raise CompressError(
                f"--method pass-through keeps every weight, but {name} has {banding.groups} bands "
                f"for {len(banding.band_of)} layers; drop --groups or take another method"
            )
    for unit in plan.units:
        for band in unit.bands:
            shapes = {kinds.of_layer(layer)[band.projection] for layer in band.layers}
            if len(shapes) > 1:
                raise CompressError(
                    f"--groups {options.groups}: band {band.band} of {band.projection} holds "
                    f"layers of different shapes {sorted(shapes)}"
                )
            width = next(iter(shapes))[1]
            if plan.quant is Quant.NVFP4 and width % BLOCK:
                raise CompressError(
                    f"--quant nvfp4: {band.projection} has K={width}, not a multiple of {BLOCK}"
                )


def _units(bands: Mapping[str, Banding], kinds: LayerKinds) -> tuple[Unit, ...]:
    """Bands of projections with one input, joined wherever they meet in a layer."""
    units = []
    for bundle, names in BUNDLES.items():
        groups: list[tuple[set[int], list[BandOf]]] = []
        for name in (n for n in names if n in bands):
            for band in range(bands[name].groups):
                layers = tuple(i for i in bands[name].layers(band) if name in kinds.of_layer(i))
                if not layers:
                    continue
                touching = [g for g in groups if g[0] & set(layers)]
                groups = [g for g in groups if not g[0] & set(layers)]
                joined = set(layers).union(*(g[0] for g in touching))
                members = [b for g in touching for b in g[1]]
                groups.append((joined, [*members, BandOf(name, band, layers)]))
        ordered = sorted(groups, key=lambda g: min(g[0]))
        units += [Unit(bundle, tuple(members)) for _, members in ordered]
    return tuple(units)
