"""Puts the fits of a work folder together as a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weightless_fw.compress.plan import BandOf, Plan, Ranks
from weightless_fw.compress.read import VERSION
from weightless_fw.compress.report import REPORT_FILE
from weightless_fw.compress.source import SourceModel
from weightless_fw.compress.work_folder import WorkFolder
from weightless_fw.core.band_fit import BandFit
from weightless_fw.core.calibration import CalibrationText
from weightless_fw.core.factors import Array
from weightless_fw.core.nvfp4 import Nvfp4
from weightless_fw.core.safetensors_writer import OutputTensor, encoded, write_safetensors
from weightless_fw.models.scheme import is_projection_tensor

_COPIED = {".json", ".txt", ".model", ".md", ".html", ".jinja", ""}
_OWN = {"config.json", "model.safetensors.index.json", REPORT_FILE}


def write_result(
    work: WorkFolder,
    source: SourceModel,
    plan: Plan,
    ranks: Ranks,
    *,
    groups: str | None,
    text: CalibrationText | None,
) -> None:
    """Writes the whole checkpoint below the work folder, ready to be renamed."""
    folder = work.path / "result"
    folder.mkdir()
    for path in sorted(source.folder.iterdir()):
        if path.is_file() and path.suffix in _COPIED and path.name not in _OWN:
            shutil.copyfile(path, folder / path.name)
    fits = {band: work.fit(band) for unit in plan.units for band in unit.bands}
    tensors = [*_rest(source), *_projections(source, fits)]
    write_safetensors(folder / "model.safetensors", tensors)
    config = dict(source.config) | {"weightless": _scheme(plan, ranks, groups, text)}
    _write_json(folder / "config.json", config)
    _write_json(folder / REPORT_FILE, _report(source, fits))


def _scheme(
    plan: Plan, ranks: Ranks, groups: str | None, text: CalibrationText | None
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "groups": groups,
        "bands": {name: list(banding.band_of) for name, banding in plan.bands.items()},
        "ranks": {name: dict(by_kind) for name, by_kind in ranks.items()},
        "quant": str(plan.quant),
        "scale_choice": None if plan.scale_choice is None else str(plan.scale_choice),
        "method": str(plan.method),
        "calibration": None if text is None else {"sha256": text.sha256, "tokens": text.tokens},
    }


def _report(source: SourceModel, fits: Mapping[BandOf, BandFit]) -> dict[str, Any]:
    errors: dict[str, dict[str, float]] = {}
    for band, fit in fits.items():
        for layer, error in zip(band.layers, fit.errors, strict=True):
            errors.setdefault(str(layer), {})[band.projection] = error
    return {
        "version": VERSION,
        "bf16_bytes": {
            "projections": 2 * source.projection_values,
            "everything": 2 * sum(_size(source, name) for name in source.checkpoint),
        },
        "errors": {layer: errors[layer] for layer in sorted(errors, key=int)},
        "histories": {band.name: list(fit.history) for band, fit in fits.items()},
    }


def _size(source: SourceModel, name: str) -> int:
    return int(np.prod(source.checkpoint.entry(name).shape))


def _rest(source: SourceModel) -> Iterator[OutputTensor]:
    """Everything that is no projection, bit for bit."""
    for name in source.checkpoint:
        if not is_projection_tensor(name):
            entry = source.checkpoint.entry(name)
            read = partial(source.checkpoint.raw, name)
            yield OutputTensor(name, entry.dtype, entry.shape, read)


def _projections(source: SourceModel, fits: Mapping[BandOf, BandFit]) -> Iterator[OutputTensor]:
    for band, fit in fits.items():
        first = band.layers[0]
        dtype = source.dtype(first, band.projection)
        stem = f"{source.prefix}{first}.{band.projection}"
        w0 = fit.factors[0].w0
        if isinstance(w0, Nvfp4):
            yield from _nvfp4(stem, w0)
        else:
            yield _tensor(f"{stem}.weight", w0, dtype)
        for layer, f in zip(band.layers, fit.factors, strict=True):
            stem = f"{source.prefix}{layer}.{band.projection}"
            if (f.s != 1).any():
                yield _tensor(f"{stem}.s", f.s, "F32")
            if f.rank:
                yield _tensor(f"{stem}.u", f.u, dtype)
                yield _tensor(f"{stem}.v_t", f.v.T, dtype)


def _nvfp4(stem: str, w0: Nvfp4) -> Iterator[OutputTensor]:
    """The names that ModelOpt gives; activations are not quantised, so their scale is 1."""
    yield _tensor(f"{stem}.weight", w0.packed, "U8")
    yield _tensor(f"{stem}.weight_scale", w0.scales, "F8_E4M3")
    yield _tensor(f"{stem}.weight_scale_2", np.array(w0.global_scale, np.float32), "F32")
    yield _tensor(f"{stem}.input_scale", np.array(1, np.float32), "F32")


def _tensor(name: str, array: Array | np.ndarray, dtype: str) -> OutputTensor:
    # Converted when its turn comes, not before.
    return OutputTensor(name, dtype, array.shape, partial(encoded, array, dtype))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
