"""The rows of a campaign, one mapping of column to value each."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.plan import Case
from suite.results.model import Arm, Campaign, Pair, Run

Row = Mapping[str, Any]

REFERENCE_CSV = Path(__file__).parent / "reference.csv"


def campaign_row(campaign: Campaign) -> Row:
    machine, provenance = campaign.machine, campaign.provenance
    return {
        "campaign_id": campaign.campaign_id,
        "series_id": campaign.series_id,
        "plan": campaign.plan,
        "plan_key": campaign.plan_key,
        "method_version": campaign.method_version,
        "engine": campaign.engine,
        "started_at": _utc(campaign.started_at),
        "ended_at": None if campaign.ended_at is None else _utc(campaign.ended_at),
        "status": campaign.status.value,
        "model_name": campaign.model_name,
        "model_weights": campaign.model_weights,
        "weights_sha256": campaign.weights_sha256,
        "git_commit": provenance.git_commit,
        "git_dirty": provenance.git_dirty,
        "code_sha256": provenance.code_sha256,
        "lock_sha256": provenance.lock_sha256,
        "image": provenance.image,
        "packages": _json(dict(provenance.packages)),
        "argv": _json(provenance.argv),
        "os_kernel": machine.os_kernel,
        "cpu_model": machine.cpu_model,
        "cpu_flags_sha256": machine.cpu_flags_sha256,
        "cpus_online": machine.cpus_online,
        "cpus_allowed": _json(machine.cpus_allowed),
        "governor": machine.governor,
        "memory_bytes": machine.memory_bytes,
        "stream_bytes_s": campaign.stream_bytes_s,
        "load_start": campaign.load_start,
        "load_end": campaign.load_end,
    }


def case_row(case: Case) -> Row:
    return {
        "case_id": case.case_id,
        "label": case.label,
        "model": case.model,
        "device": case.device,
        "path": case.path.value,
        "groups": case.groups,
        "rank": case.rank,
        "quant": case.quant,
        "qkv_fuse": case.qkv_fuse,
        "gate_up_fuse": case.gate_up_fuse,
        "capture": case.capture,
        "prompt": case.workload.prompt,
        "new_tokens": case.workload.new_tokens,
    }


def pair_row(campaign: Campaign, pair: Pair) -> Row:
    return {
        "campaign_id": campaign.campaign_id,
        "case_id": pair.case.case_id,
        "reference_case_id": pair.case.native.case_id,
        "status": pair.status.value,
        "reason": pair.reason,
        "rounds": pair.rounds,
        "finished_at": _utc(pair.finished_at),
    }


def arm_row(campaign: Campaign, pair: Pair, arm: Arm) -> Row:
    return {
        "campaign_id": campaign.campaign_id,
        "pair_case_id": pair.case.case_id,
        "case_id": arm.case.case_id,
        "path_ran": arm.path_ran,
        "path_reason": arm.path_reason,
        "groups_ran": arm.groups_ran,
        "dtype": arm.dtype,
        "compile_s": arm.compile_s,
        "load_s": arm.load_s,
        "check_s": arm.check_s,
        "graph_ops": _json(dict(arm.graph_ops)),
        "custom_ops": _json(dict(arm.custom_ops)),
        "weight_shapes": _json(dict(arm.weight_shapes)),
        "resident_bytes": arm.resident_bytes,
        "bytes_per_token_terms": _json(dict(arm.bytes_per_token_terms)),
        "agreement": arm.agreement,
        "agreement_perturbed": arm.agreement_perturbed,
        "perturbation_effect": arm.perturbation_effect,
        "tolerance": arm.tolerance,
        "zero_factors": arm.zero_factors,
        "greedy_text": arm.greedy_text,
        "tags": _json(arm.tags),
    }


def run_row(campaign: Campaign, run: Run) -> Row:
    place = f"{campaign.campaign_id}/{run.pair_case.case_id}/{run.round:04d}/{run.slot}"
    return {
        "run_id": place + ("/warmup" if run.warmup else ""),
        "campaign_id": campaign.campaign_id,
        "pair_case_id": run.pair_case.case_id,
        "case_id": run.case.case_id,
        "round": run.round,
        "slot": run.slot,
        "warmup": run.warmup,
        "status": run.status.value,
        "reason": run.reason,
        "started_at": _utc(run.started_at),
        "t_send": run.t_send,
        "event_t": [t for t, _ in run.events],
        "event_n": [n for _, n in run.events],
        "prompt_tokens": run.prompt_tokens,
        "cached_tokens": run.cached_tokens,
        "prompt_ids_sha256": run.prompt_ids_sha256,
        "output_ids_sha256": run.output_ids_sha256,
    }


def reference_rows() -> Iterator[Row]:
    """The figures published elsewhere, from ``reference.csv``; blank is NULL."""
    with REFERENCE_CSV.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {column: value or None for column, value in row.items()}


def _utc(moment: datetime) -> datetime:
    """UTC without a zone, as the store keeps it; a moment without a zone is UTC."""
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
