"""Reads back what an arm is, and checks its logits before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from max.dtype import DType

from weightless_fw.compress.read import is_compressed, load_compressed
from weightless_fw.core.bytes_per_token import kv_bytes, weight_terms
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array
from weightless_fw.core.graph_ops import OP_NAME
from weightless_fw.core.select import Path
from weightless_fw.models.gemma3.model import WeightlessGemma3Model
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.gemma3.reference import ReferenceModel, logits
from weightless_fw.models.gemma3.scheme import dimensions_of
from weightless_fw.models.scheme import (
    BUNDLES,
    LayerFactors,
    Scheme,
    factorize_model,
    perturb_model,
)

TOLERANCE = {DType.float32: 1e-4, DType.bfloat16: 5e-2}
"""Largest logit difference to the reference, relative to the largest logit."""

BF16_COMBINE_TOLERANCE = 2e-2
"""The same where a float32 model scales and adds in bfloat16, 8 bits of mantissa."""

VISIBLE_EFFECT = 10
"""A perturbation must move the logits by this many tolerances to count as read."""

FILE_PREFIX = "model.layers."
"""What stands before the layer number in a checkpoint."""

Projection = Callable[[int, str], Array]
"""(layer, name) -> effective weight [N, K]."""

Generate = Callable[[int], tuple[list[int], Array]]
"""count -> (prompt and generated ids, [count, vocabulary] logits)."""


class CheckError(Exception):
    """An arm disagrees with its reference or ignores its factors."""


@dataclass(frozen=True)
class ArmFacts:
    """What the built graph and the bound weights say of themselves."""

    path_ran: str
    path_reason: str
    groups_ran: int | None
    dtype: str
    graph_ops: Mapping[str, int]
    custom_ops: Mapping[str, int]
    weight_shapes: Mapping[str, str]
    resident_bytes: int
    bytes_per_token_terms: Mapping[str, int]
    zero_factors: bool | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """Agreement with the reference, relative to the largest logit."""

    agreement: float
    agreement_perturbed: float | None
    perturbation_effect: float | None
    tolerance: float
    probe_ids: tuple[int, ...]
    """Prompt and greedy continuation of the probe."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_facts(model: Any, *, context_tokens: float) -> ArmFacts:
    """Reads path, operations and bytes from a loaded pipeline model.

    Args:
        model: A WeightlessGemma3Model or a native one with ``network``.
        context_tokens: Mean context of the timed decode steps, for the KV term.
    """
    network, weightless = model.network, isinstance(model, WeightlessGemma3Model)
    config, facts = network.config, network.facts
    bound = {
        name: weight if hasattr(weight, "shape") else np.from_dlpack(weight)
        for name, weight in network.state_dict(auto_initialize=False).items()
    }
    sizes = {name: _nbytes(weight) for name, weight in bound.items()}
    terms = weight_terms(sizes, _reads(model, sizes), tied_head=config.tie_word_embeddings)
    d = dimensions_of(config)
    terms["kv"] = kv_bytes(
        attention_types=d.attention_types,
        kv_heads=d.kv_heads,
        head_dim=d.head_dim,
        sliding_window=config.sliding_window,
        context_tokens=context_tokens,
        element_bytes=config.dtype.size_in_bytes,
    )
    return ArmFacts(
        path_ran=path_of(bound, facts.custom_operations),
        path_reason=config.selection.reason if weightless else "MAX's own graph",
        groups_ran=_groups(network.scheme, bound) if weightless else None,
        dtype=config.dtype.name,
        graph_ops=facts.operations,
        custom_ops=facts.custom_operations,
        weight_shapes=_shapes(bound),
        resident_bytes=sum(sizes.values()),
        bytes_per_token_terms=terms,
        zero_factors=model.bound.zero_factors if weightless else None,
    )


def path_of(bound: Iterable[str], custom_operations: Mapping[str, int]) -> str:
    """The path of a graph, from its custom ops and the names of its bound weights."""
    last = {name.rpartition(".")[2] for name in bound}
    if any(name.startswith("language_model.") for name in bound):
        return "native-dense"
    if OP_NAME in custom_operations:
        return str(Path.CUSTOM_OP)
    return str(Path.GEMM if "up" in last else Path.PRECOMPUTE)


def check_arm(
    model: Any, folder: FilePath, generate: Generate, prompt_tokens: int, count: int
) -> Check:
    """Compares an arm's logits with numpy, as bound and with perturbed factors.

    The reference starts from the checkpoint's file: it shares neither the
    loader, nor the packing, nor the graph with the arm.

    Raises:
        CheckError: A difference exceeds the tolerance, or the perturbation
            does not show in the logits.
    """
    checkpoint = Checkpoint(folder)
    config = model.network.config
    tolerance = TOLERANCE[config.dtype]
    if isinstance(model, WeightlessGemma3Model) and model.network.scheme.bf16_combine:
        tolerance = max(tolerance, BF16_COMBINE_TOLERANCE)
    rest = {
        name.removeprefix("model."): checkpoint[name] for name in checkpoint if "_proj." not in name
    }

    def compare(what: str, projection: Projection) -> tuple[float, list[int], Array]:
        ids, got = generate(count)
        want = logits(_reference(config, projection, rest), ids[:-1])[prompt_tokens - 1 :]
        difference = _relative(got - want, want)
        if not difference <= tolerance:
            raise CheckError(
                f"logits{what} differ from the numpy reference by {difference:.2e} "
                f"of the largest logit, tolerance {tolerance:.0e}"
            )
        return difference, ids, got

    if not isinstance(model, WeightlessGemma3Model):
        agreement, ids, _ = compare(
            "", lambda layer, name: checkpoint[f"{FILE_PREFIX}{layer}.{name}.weight"]
        )
        return Check(agreement, None, None, tolerance, tuple(ids))

    scheme = model.network.scheme
    if is_compressed(folder):
        factors: tuple[LayerFactors, ...] = load_compressed(folder).layers
    else:
        factors = factorize_model(checkpoint, scheme, FILE_PREFIX)
    agreement, ids, bound = compare("", lambda layer, name: factors[layer][name].effective_weight)
    moved = perturb_model(factors, seed=7)
    with model.rebound(moved):
        perturbed, _, shifted = compare(
            " with perturbed factors", lambda layer, name: moved[layer][name].effective_weight
        )
    # The first step alone: later ones follow different tokens.
    effect = _relative(shifted[0] - bound[0], bound[0])
    if effect < VISIBLE_EFFECT * tolerance:
        raise CheckError(f"perturbed factors move the logits by {effect:.2e} only: not read")
    return Check(agreement, perturbed, effect, tolerance, tuple(ids))


def _relative(difference: Array, scale: Array) -> float:
    return float(np.abs(difference).max() / np.abs(scale).max())


def _reads(model: Any, names: Iterable[str]) -> dict[str, int]:
    """How often a step reads a weight: a band's W0 once per layer of the band."""
    reads = {}
    for name in names:
        if name.startswith("bands."):
            _, band, bundle, _ = _band_parts(name)
            scheme = model.network.scheme
            reads[name] = len(scheme.layers(BUNDLES.get(bundle, (bundle,))[0], band))
    return reads


def _band_parts(name: str) -> tuple[str, int, str, str]:
    """("bands", band, bundle, weight) of a bound name."""
    head, band, rest = name.split(".", 2)
    bundle, _, weight = rest.rpartition(".")
    return head, int(band), bundle, weight


def _groups(scheme: Scheme, bound: Iterable[str]) -> int:
    """Bands, counted from the W0 that the graph really binds; W_eff keeps none."""
    bands = {_band_parts(name)[1] for name in bound if name.startswith("bands.")}
    if bands or scheme.path is not Path.PRECOMPUTE:
        return len(bands) or len(scheme.kinds.attention_types)
    return max(banding.groups for banding in scheme.bands.values())


def _reference(
    config: WeightlessGemma3Config, projection: Projection, weights: Mapping[str, Array]
) -> ReferenceModel:
    return ReferenceModel(
        dimensions=dimensions_of(config),
        projection=projection,
        weights=weights,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_local_theta=config.rope_local_base_freq,
        rope_linear_factor=config.rope_scaling.factor if config.rope_scaling else 1.0,
        sliding_window=config.sliding_window,
    )


def _nbytes(weight: Any) -> int:
    item = getattr(weight.dtype, "itemsize", None) or weight.dtype.size_in_bytes
    return int(np.prod(weight.shape)) * int(item)


def _shapes(bound: Mapping[str, Any]) -> dict[str, str]:
    """Distinct shapes of projection weights and factors, layer numbers dropped."""
    shapes: dict[str, set[str]] = {}
    for name, weight in bound.items():
        if "norm" in name or "embed" in name:
            continue
        short = ".".join(part for part in name.split(".") if not part.isdigit())
        shapes.setdefault(short, set()).add(" x ".join(map(str, weight.shape)))
    return {name: ", ".join(sorted(values)) for name, values in sorted(shapes.items())}
