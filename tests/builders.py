"""Campaigns that never ran, for tests of the store and of all that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from suite.plan import METHOD_VERSION, ArmPath, Case, Workload
from suite.results.model import (
    Arm,
    Campaign,
    CampaignStatus,
    Machine,
    Pair,
    PairStatus,
    Provenance,
    Run,
    RunStatus,
)

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

WORKLOAD = Workload(prompt="The capital of France is", new_tokens=16)

RATES = (100.0, 101.0, 99.0, 100.5, 99.5)
"""Decode tokens per second of native dense, by round."""


def case(path: ArmPath = ArmPath.GEMM, **fields: Any) -> Case:
    """A case of the 270M model; rank 4 unless it is native dense."""
    if path is not ArmPath.NATIVE:
        fields.setdefault("rank", 4)
    defaults: dict[str, Any] = {"model": "gemma-3-270m", "workload": WORKLOAD}
    return Case(path=path, **defaults | fields)


def campaign(campaign_id: str = "c1", **fields: Any) -> Campaign:
    """A complete campaign, an hour long."""
    started_at = fields.get("started_at", START)
    defaults: dict[str, Any] = {
        "series_id": campaign_id,
        "plan": "default",
        "plan_key": "p" * 16,
        "method_version": METHOD_VERSION,
        "engine": "max 26.7.0",
        "started_at": started_at,
        "ended_at": started_at + timedelta(hours=1),
        "status": CampaignStatus.COMPLETE,
        "model_name": "gemma-3-270m",
        "model_weights": "dequantised Q4_K_M",
        "weights_sha256": "a" * 64,
        "machine": Machine(
            os_kernel="6.1.0",
            cpu_model="Example CPU",
            cpu_flags_sha256="b" * 64,
            cpus_online=2,
            cpus_allowed=(0, 1),
            governor=None,
            memory_bytes=8 * 2**30,
        ),
        "provenance": Provenance(
            git_commit="0123456789abcdef0123456789abcdef01234567",
            git_dirty=False,
            code_sha256="e" * 64,
            lock_sha256="d" * 64,
            image="native",
            packages={"max": "26.7.0"},
            argv=("bench",),
        ),
        "load_start": 0.1,
        "load_end": 0.2,
    }
    return Campaign(campaign_id=campaign_id, **defaults | fields)


def arm(of: Case, **fields: Any) -> Arm:
    """What ran for `of`: as asked, fused unless it is the custom operation."""
    native = of.path is ArmPath.NATIVE
    fused = not native and of.path is not ArmPath.CUSTOM_OP
    qkv = "qkv_proj" if fused and of.qkv_fuse is not False else "q_proj"
    gate_up = "gate_up_proj" if fused and of.gate_up_fuse is not False else "gate_proj"
    weight = "weight" if native else "w0"
    defaults: dict[str, Any] = {
        "path_ran": str(of.path),
        "path_reason": "asked for",
        "groups_ran": None if native else of.groups or 18,
        "dtype": "float32",
        "compile_s": 3.0,
        "load_s": 2.0,
        "check_s": 1.0,
        "graph_ops": {"rmo.matmul": 73},
        "custom_ops": {"generated_linear": 126} if of.path is ArmPath.CUSTOM_OP else {},
        "weight_shapes": {
            f"layers.self_attn.{qkv}.{weight}": "1536 x 640",
            f"layers.mlp.{gate_up}.{weight}": "4096 x 640",
        },
        "resident_bytes": 1_000_000_000,
        "bytes_per_token_terms": {"projections": 400_000_000, "head": 600_000_000, "kv": 1_000_000},
        "agreement": 1e-6,
        "agreement_perturbed": None if native else 1e-6,
        "perturbation_effect": None if native else 0.1,
        "tolerance": 1e-4,
        "zero_factors": None if native else True,
        "greedy_text": "Paris",
        "tags": (),
    }
    return Arm(case=of, **defaults | fields)


def run(of: Case, pair_case: Case, *, tok_s: float = 100.0, **fields: Any) -> Run:
    """A run that decodes at `tok_s`; its first token comes after five intervals."""
    t_send = fields.setdefault("t_send", 1000.0)
    count = fields.pop("new_tokens", of.workload.new_tokens)
    defaults: dict[str, Any] = {
        "round": 0,
        "slot": 0,
        "warmup": False,
        "started_at": START,
        "events": tuple((t_send + (5 + i) / tok_s, 1) for i in range(count)),
        "prompt_tokens": 6,
        "cached_tokens": 0,
        "prompt_ids_sha256": "e" * 64,
        "output_ids_sha256": "f" * 64,
        "status": RunStatus.OK,
        "reason": None,
    }
    return Run(case=of, pair_case=pair_case, **defaults | fields)


def runs(
    of: Case, *, arm_tok_s: Sequence[float], native_tok_s: Sequence[float], **fields: Any
) -> tuple[Run, ...]:
    """One warm-up and the measured rounds of a pair, interleaved A B B A; A is native."""
    made = []
    for index in range(-1, len(arm_tok_s)):
        warmup, number = index < 0, max(index, 0)
        sides = [(of.native, native_tok_s[number]), (of, arm_tok_s[number])]
        if number % 2:
            sides.reverse()
        for slot, (side, tok_s) in enumerate(sides):
            place: dict[str, Any] = {"round": number, "slot": slot, "warmup": warmup}
            made.append(run(side, of, tok_s=tok_s / 2 if warmup else tok_s, **place | fields))
    return tuple(made)


def pair(
    of: Case | None = None,
    *,
    ratio: float = 1.25,
    native_tok_s: Sequence[float] = RATES,
    **fields: Any,
) -> Pair:
    """A measured pair whose arm is `ratio` times as fast as native dense, give or take.

    With ``status`` and ``reason``, a pair that failed before its arms were built.
    """
    of = of or case()
    failed = fields.get("status", PairStatus.OK) is not PairStatus.OK
    arm_tok_s = [ratio * rate * (1 + 0.002 * (i % 3 - 1)) for i, rate in enumerate(native_tok_s)]
    defaults: dict[str, Any] = {
        "status": PairStatus.OK,
        "reason": None,
        "rounds": 0 if failed else len(native_tok_s),
        "finished_at": START + timedelta(minutes=30),
        "arms": () if failed else tuple(arm(side) for side in dict.fromkeys((of, of.native))),
        "runs": () if failed else runs(of, arm_tok_s=arm_tok_s, native_tok_s=native_tok_s),
    }
    return Pair(case=of, **defaults | fields)
