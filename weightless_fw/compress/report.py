"""What a compressed checkpoint is: scheme, bytes by term, error by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weightless_fw.compress.errors import CompressError
from weightless_fw.compress.read import read_scheme
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.models.scheme import is_projection_tensor

REPORT_FILE = "weightless_report.json"

_TERM_OF_SUFFIX = {
    "weight": "W0",
    "weight_scale": "block scales",
    "weight_scale_2": "block scales",
    "input_scale": "block scales",
    "s": "row scales",
    "u": "factors",
    "v_t": "factors",
}

TERMS = ("W0", "block scales", "row scales", "factors", "head and embedding", "norms", "other")
_OF_PROJECTIONS = TERMS[:4]


@dataclass(frozen=True)
class Inspection:
    """What ``inspect`` shows."""

    folder: str
    scheme: Mapping[str, Any]
    bytes_by_term: Mapping[str, int]
    bf16_bytes: Mapping[str, int]
    """Of the dense model: its projections, and everything."""

    errors: Mapping[str, Mapping[str, float]]
    """||(W - W_eff) H^(1/2)|| / ||W H^(1/2)|| by layer and projection; without a
    calibration H is the identity."""

    @property
    def projection_bytes(self) -> int:
        return sum(self.bytes_by_term[term] for term in _OF_PROJECTIONS)

    def as_json(self) -> str:
        """Strict JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    def as_text(self) -> str:
        """The tables that a reader sees."""
        return "\n".join([*_scheme_lines(self), "", *_byte_lines(self), "", *_error_lines(self)])


def inspect(folder: Path) -> Inspection:
    """Reads headers and the report; no weight is touched.

    Raises:
        CompressError: ``folder`` is no compressed checkpoint, or its report is gone.
    """
    scheme = read_scheme(folder)
    path = folder / REPORT_FILE
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        bf16_bytes, errors = report["bf16_bytes"], report["errors"]
    except FileNotFoundError:
        raise CompressError(f"{path} is missing; compress the model again") from None
    except (ValueError, KeyError, TypeError):
        raise CompressError(f"{path} is damaged; compress the model again") from None
    checkpoint = Checkpoint(folder)
    terms = dict.fromkeys(TERMS, 0)
    for name in checkpoint:
        terms[term_of(name)] += checkpoint.entry(name).nbytes
    return Inspection(str(folder), scheme, terms, bf16_bytes, errors)


def term_of(name: str) -> str:
    """The term that a tensor's bytes count to."""
    if is_projection_tensor(name):
        return _TERM_OF_SUFFIX.get(name.rpartition(".")[2], "other")
    if "embed_tokens" in name or "lm_head" in name:
        return "head and embedding"
    return "norms" if "norm" in name else "other"


def _scheme_lines(seen: Inspection) -> list[str]:
    scheme = seen.scheme
    quant = scheme["quant"]
    if scheme.get("scale_choice"):
        quant += f" ({scheme['scale_choice']})"
    text = scheme.get("calibration")
    calibration = f"{text['tokens']} tokens, sha256 {text['sha256'][:12]}" if text else "none"
    lines = [
        f"{seen.folder}: scheme version {scheme['version']}",
        f"  method       {scheme['method']}",
        f"  W0           {quant}",
        f"  calibration  {calibration}",
        "",
        f"  {'projection':<20} {'bands':>5}  rank",
    ]
    for name, band_of in scheme["bands"].items():
        ranks = scheme["ranks"][name]
        kinds = [f"{rank} ({kind})" for kind, rank in ranks.items()]
        rank = (
            str(next(iter(ranks.values()))) if len(set(ranks.values())) == 1 else ", ".join(kinds)
        )
        lines.append(f"  {name:<20} {len(set(band_of)):>5}  {rank}")
    return lines


def _byte_lines(seen: Inspection) -> list[str]:
    lines = [f"  {'bytes':<20} {'MB':>10}"]
    lines += [f"  {t:<20} {b / 1e6:>10.2f}" for t, b in seen.bytes_by_term.items() if b]
    for name, now in (
        ("projections", seen.projection_bytes),
        ("everything", sum(seen.bytes_by_term.values())),
    ):
        dense = seen.bf16_bytes[name]
        share = f"{now / dense:.3f} of {dense / 1e6:.2f} MB in bfloat16"
        lines.append(f"  {name:<20} {now / 1e6:>10.2f}  {share}")
    return lines


def _error_lines(seen: Inspection) -> list[str]:
    names = list(seen.scheme["bands"])
    short = [name.partition(".")[2].removesuffix("_proj") for name in names]
    weighed = "outputs" if seen.scheme.get("calibration") else "weights"
    lines = [
        f"  relative error of the {weighed}, by layer",
        "  layer " + "".join(f"{name:>8}" for name in short),
    ]
    for layer, errors in seen.errors.items():
        cells = (f"{errors[name]:>8.4f}" if name in errors else f"{'-':>8}" for name in names)
        lines.append(f"  {layer:>5} " + "".join(cells))
    return lines
