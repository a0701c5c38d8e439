"""What one decode step must read from memory, by term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TERMS = ("projections", "factors", "scales", "norms", "head", "kv")


def weight_terms(
    sizes: Mapping[str, int], reads: Mapping[str, int], tied_head: bool
) -> dict[str, int]:
    """Sorts the bytes of bound weights into terms.

    Every weight is read as often as it is used: a W0 shared by a band once
    per layer of the band. An embedding that is not also the head contributes
    one row, which is left out.

    Args:
        sizes: Bytes of each bound weight, by name.
        reads: How often a step reads a weight, where it is not once.
        tied_head: Whether the embedding serves as the vocabulary projection.
    """
    terms = dict.fromkeys(TERMS, 0)
    for name, size in sizes.items():
        term = _term(name, tied_head)
        if term:
            terms[term] += size * reads.get(name, 1)
    return terms


def _term(name: str, tied_head: bool) -> str | None:
    last = name.rpartition(".")[2]
    if "embed_tokens" in name:
        return "head" if tied_head else None
    if "lm_head" in name:
        return "head"
    if "norm" in name:
        return "norms"
    if last == "scale":
        return "scales"
    return "factors" if last in ("u", "v_t", "up") else "projections"


def kv_bytes(
    *,
    attention_types: Iterable[str],
    kv_heads: int,
    head_dim: int,
    sliding_window: int,
    context_tokens: float,
    element_bytes: int,
) -> int:
    """Bytes of keys and values that a step at ``context_tokens`` reads."""
    tokens = sum(
        min(context_tokens, sliding_window) if kind == "sliding_attention" else context_tokens
        for kind in attention_types
    )
    return round(2 * tokens * kv_heads * head_dim * element_bytes)
