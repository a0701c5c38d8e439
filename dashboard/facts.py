"""Columns of the store in words: what ran, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dashboard import style

_YES_NO = {True: "yes", False: "no"}


def describe(columns: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each column, in the order of the store; none is left out."""
    return [
        (_NAMES.get(name, name.replace("_", " ")), _written(name, value))
        for name, value in columns.items()
    ]


def _written(name: str, value: Any) -> str:
    if value is None:
        return style.ABSENT
    return _WRITERS.get(name, _plain)(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return _YES_NO[value]
    if isinstance(value, float):
        return style.number(value)
    return str(value)


def _counts(value: Mapping[str, int]) -> str:
    often = sorted(value.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ×{count}" for name, count in often) or "none"


def _pairs(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {what}" for name, what in value.items()) or "none"


def _size(value: int) -> str:
    return f"{style.number(value / 1e6)} MB"


def _terms(value: Mapping[str, int]) -> str:
    terms = ", ".join(f"{name} {_size(size)}" for name, size in value.items())
    return f"{_size(sum(value.values()))} = {terms}" if value else "none"


def _seconds(value: float) -> str:
    return f"{style.number(value)} s"


def _words(value: list[Any]) -> str:
    return " ".join(str(word) for word in value) or "none"


def _tags(value: list[str]) -> str:
    return "; ".join(value) or "none"


def _share(value: float) -> str:
    return f"{value:.3g} of the largest logit"


_WRITERS: dict[str, Callable[[Any], str]] = {
    "graph_ops": _counts,
    "custom_ops": _counts,
    "weight_shapes": _pairs,
    "packages": _pairs,
    "resident_bytes": _size,
    "memory_bytes": lambda value: f"{style.number(value / 1e9)} GB",
    "bytes_per_token_terms": _terms,
    "stream_bytes_s": lambda value: f"{style.number(value / 1e9)} GB/s",
    "compile_s": _seconds,
    "load_s": _seconds,
    "check_s": _seconds,
    "agreement": _share,
    "agreement_perturbed": _share,
    "perturbation_effect": _share,
    "tolerance": _share,
    "argv": _words,
    "cpus_allowed": _words,
    "tags": _tags,
    "started_at": style.utc,
    "ended_at": style.utc,
}

_NAMES = {
    "path_ran": "path that ran",
    "path_reason": "why this path",
    "groups_ran": "bands that ran",
    "stream_bytes_s": "stream bandwidth",
    "compile_s": "compile",
    "load_s": "load",
    "check_s": "checks",
    "resident_bytes": "resident weights",
    "bytes_per_token_terms": "read per token",
    "agreement": "difference to the reference",
    "agreement_perturbed": "the same, factors perturbed",
    "perturbation_effect": "effect of the perturbation",
    "tolerance": "tolerance of both differences",
    "zero_factors": "factors zero by construction",
    "greedy_text": "greedy continuation",
    "git_dirty": "tracked files changed",
    "git_commit": "commit",
    "os_kernel": "kernel",
    "cpu_model": "CPU",
    "cpu_flags_sha256": "CPU flags sha256",
    "cpus_online": "CPUs online",
    "cpus_allowed": "CPUs allowed",
    "memory_bytes": "memory",
    "load_start": "load average at start",
    "load_end": "load average at end",
    "started_at": "started",
    "ended_at": "ended",
    "model_name": "model",
    "model_weights": "weights",
    "argv": "command line",
}
