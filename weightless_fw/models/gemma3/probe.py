"""Reads back what an arm is, and checks its logits before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from max.dtype import DType

from weightless_fw.core.bytes_per_token import kv_bytes, weight_terms
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array
from weightless_fw.models.gemma3.model import WeightlessGemma3Model
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.gemma3.reference import ReferenceModel, logits
from weightless_fw.models.gemma3.scheme import LayerFactors, dimensions_of, perturb_model

TOLERANCE = {DType.float32: 1e-4, DType.bfloat16: 5e-2}
"""Largest logit difference to the reference, relative to the largest logit."""

VISIBLE_EFFECT = 10
"""A perturbation must move the logits by this many tolerances to count as read."""

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
    network = model.network
    weightless = isinstance(model, WeightlessGemma3Model)
    config = network.config
    bound = {
        name: np.from_dlpack(w) if not hasattr(w, "shape") else w
        for name, w in network.state_dict(auto_initialize=False).items()
    }
    sizes = {name: _nbytes(weight) for name, weight in bound.items()}
    reads: dict[str, int] = {}
    if weightless and network.scheme.binds_shared_w0:
        banding = network.scheme.banding
        for name in sizes:
            if name.startswith("bands."):
                reads[name] = len(banding.layers(int(name.split(".")[1])))
    d = dimensions_of(config)
    terms = weight_terms(sizes, reads, tied_head=config.tie_word_embeddings)
    terms["kv"] = kv_bytes(
        attention_types=d.attention_types,
        kv_heads=d.kv_heads,
        head_dim=d.head_dim,
        sliding_window=config.sliding_window,
        context_tokens=context_tokens,
        element_bytes=config.dtype.size_in_bytes,
    )
    facts = network.facts
    selection = config.selection if weightless else None
    return ArmFacts(
        path_ran=str(selection.path) if selection else "native-dense",
        path_reason=selection.reason if selection else "MAX's own graph",
        groups_ran=network.scheme.banding.groups if weightless else None,
        dtype=config.dtype.name,
        graph_ops=facts.operations,
        custom_ops=facts.custom_operations,
        weight_shapes=_shapes(bound),
        resident_bytes=sum(sizes.values()),
        bytes_per_token_terms=terms,
        zero_factors=not any(f.u.any() for layer in model.factors for f in layer.values())
        if weightless
        else None,
    )


def check_arm(
    model: Any, folder: Path, generate: Generate, prompt_tokens: int, count: int
) -> Check:
    """Compares an arm's logits with numpy, as bound and with perturbed factors.

    Raises:
        CheckError: A difference exceeds the tolerance, or the perturbation
            does not show in the logits.
    """
    checkpoint = Checkpoint(folder)
    weights = {name.removeprefix("model."): name for name in checkpoint}
    network = model.network
    weightless = isinstance(model, WeightlessGemma3Model)
    config = network.config
    tolerance = TOLERANCE[config.dtype]

    def compare(factors: tuple[LayerFactors, ...] | None) -> tuple[float, list[int], Array]:
        ids, got = generate(count)

        def projection(layer: int, name: str) -> Array:
            if factors is None:
                return checkpoint[weights[f"layers.{layer}.{name}.weight"]]
            return factors[layer][name].effective_weight

        reference = _reference(
            config, projection, {k: checkpoint[v] for k, v in weights.items() if "_proj." not in k}
        )
        want = logits(reference, ids[:-1])[prompt_tokens - 1 :]
        difference = float(np.abs(got - want).max() / np.abs(want).max())
        if not difference <= tolerance:
            what = "with perturbed factors " if perturbing else ""
            raise CheckError(
                f"logits {what}differ from the numpy reference by {difference:.2e} "
                f"of the largest logit, tolerance {tolerance:.0e}"
            )
        return difference, ids, got

    perturbing = False
    agreement, ids, bound_logits = compare(model.factors if weightless else None)
    if not weightless:
        return Check(agreement, None, None, tolerance, tuple(ids))
    perturbing = True
    moved = perturb_model(model.factors, seed=7)
    with model.rebound(moved):
        agreement_perturbed, _, moved_logits = compare(moved)
    # The first step alone: later ones follow different tokens.
    effect = float(np.abs(moved_logits[0] - bound_logits[0]).max() / np.abs(bound_logits[0]).max())
    if effect < VISIBLE_EFFECT * tolerance:
        raise CheckError(f"perturbed factors move the logits by {effect:.2e} only: not read")
    return Check(agreement, agreement_perturbed, effect, tolerance, tuple(ids))


def _reference(
    config: WeightlessGemma3Config,
    projection: Callable[[int, str], Array],
    weights: Mapping[str, Array],
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
    return int(np.prod(weight.shape)) * int(
        weight.dtype.itemsize if hasattr(weight.dtype, "itemsize") else weight.dtype.size_in_bytes
    )


def _shapes(bound: Mapping[str, Any]) -> dict[str, str]:
    """Distinct shapes of projection weights and factors, layer numbers dropped."""
    shapes: dict[str, set[str]] = {}
    for name, weight in bound.items():
        if "norm" in name or "embed" in name:
            continue
        short = ".".join(part for part in name.split(".") if not part.isdigit())
        shapes.setdefault(short, set()).add(" x ".join(map(str, weight.shape)))
    return {name: ", ".join(sorted(values)) for name, values in sorted(shapes.items())}
