"""Reads back what an arm is, and checks its logits before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from max.dtype import DType

from weightless_fw.core.bytes_per_token import kv_bytes, weight_terms
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.custom_op import OP_NAME
from weightless_fw.core.factors import Array
from weightless_fw.core.select import Path
from weightless_fw.models.gemma3.model import WeightlessGemma3Model
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.gemma3.reference import ReferenceModel, logits
from weightless_fw.models.gemma3.scheme import (
    PROJECTIONS,
    LayerFactors,
    dimensions_of,
    factorize_model,
    perturb_model,
)

TOLERANCE = {DType.float32: 1e-4, DType.bfloat16: 5e-2}
"""Largest logit difference to the reference, relative to the largest logit."""

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
    factors = [f for layer in model.factors for f in layer.values()] if weightless else []
    return ArmFacts(
        path_ran=path_of(bound, facts.custom_operations),
        path_reason=config.selection.reason if weightless else "MAX's own graph",
        groups_ran=_distinct_w0(model.factors) if weightless else None,
        dtype=config.dtype.name,
        graph_ops=facts.operations,
        custom_ops=facts.custom_operations,
        weight_shapes=_shapes(bound),
        resident_bytes=sum(sizes.values()),
        bytes_per_token_terms=terms,
        zero_factors=not any(f.u.any() for f in factors) if weightless else None,
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
    config, tolerance = model.network.config, TOLERANCE[model.network.config.dtype]
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

    scheme, layers = model.network.scheme, config.num_hidden_layers
    factors = factorize_model(checkpoint, scheme, layers, FILE_PREFIX)
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
    shared = [name for name in names if name.startswith("bands.")]
    if not shared:
        return {}
    banding = model.network.scheme.banding
    return {name: len(banding.layers(int(name.split(".")[1]))) for name in shared}


def _distinct_w0(factors: tuple[LayerFactors, ...]) -> int:
    """Bands, counted from the W0 arrays that the layers really hold."""
    return len({id(layer[PROJECTIONS[0]].w0) for layer in factors})


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
