"""The compression itself: calibrate, choose ranks, fit band by band, publish."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from weightless_fw.compress.errors import CompressError
from weightless_fw.compress.gemma3 import LayerwiseForward
from weightless_fw.compress.output import write_result
from weightless_fw.compress.plan import (
    NEEDS_MOMENTS,
    BandOf,
    CompressOptions,
    Plan,
    Ranks,
    Unit,
    resolve_plan,
)
from weightless_fw.compress.read import is_compressed
from weightless_fw.compress.source import SourceModel, open_source, weights_sha256
from weightless_fw.compress.work_folder import WorkFolder
from weightless_fw.core.band_fit import BandFit, fit_band, quantized_fit, spectrum
from weightless_fw.core.calibration import CalibrationText, layer_moments, read_calibration
from weightless_fw.core.factors import Array
from weightless_fw.core.nvfp4 import Nvfp4, global_scale
from weightless_fw.core.quantize import Quant, quantize
from weightless_fw.core.rank_budget import RankUnit, spend
from weightless_fw.core.whitening import Whitener, identity_whitener

FORMAT = 1
"""Raised when the same options would give other factors: unfinished work is then redone."""


def compress(options: CompressOptions) -> Path:
    """Writes the compressed checkpoint that ``options`` ask for and returns its folder.

    Interrupted, it leaves ``OUT.partial``; the same call goes on from there.

    Raises:
        ValueError: One of the package's own, each a sentence: a mistake of the caller's.
        OSError: The disk is full or not to be written to.
    """
    _check_out(options)
    source = open_source(options.model)
    plan = resolve_plan(options, source)
    text = _calibration(options, source)
    with WorkFolder.opened(options.out, _key(options, plan, text), force=options.force) as work:
        if text is not None:
            _calibrate(source, text, work)
        fitter = Fitter(source, plan, work, calibrated=text is not None)
        ranks = fitter.ranks()
        fitter.fit_all(ranks)
        write_result(work, source, plan, ranks, groups=options.groups, text=text)
        work.publish(options.out)
    return options.out


def _check_out(options: CompressOptions) -> None:
    out, model = options.out.resolve(), options.model.resolve()
    if out == model or out in model.parents:
        raise CompressError(f"--out {options.out} would replace the model; choose another folder")
    if not options.out.exists():
        return
    if not options.force:
        raise CompressError(f"--out {options.out} exists; choose another folder or add --force")
    if not is_compressed(options.out):
        raise CompressError(
            f"--out {options.out} is no compressed checkpoint; --force replaces only those"
        )


def _calibration(options: CompressOptions, source: SourceModel) -> CalibrationText | None:
    if options.calibration is None:
        return None
    path = options.model / "tokenizer.json"
    if not path.is_file():
        raise CompressError(f"{options.model} has no tokenizer.json, which --calibration needs")
    tokenizer = Tokenizer.from_file(str(path))
    return read_calibration(
        options.calibration,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        bos=source.config.get("bos_token_id", 2),
        limit_tokens=options.calibration_tokens,
    )


def _key(options: CompressOptions, plan: Plan, text: CalibrationText | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": weights_sha256(options.model),
        "groups": options.groups,
        "rank": plan.rank,
        "rank-budget": options.rank_budget,
        "quant": plan.quant,
        "scale-choice": plan.scale_choice,
        "method": plan.method,
        "iterations": plan.iterations,
        "calibration": None if text is None else [text.sha256, text.tokens],
    }


def _calibrate(source: SourceModel, text: CalibrationText, work: WorkFolder) -> None:
    forward = LayerwiseForward(source.config, source.folder, source.checkpoint)
    layers = len(source.kinds.attention_types)
    done, states = work.calibrated() or (0, [forward.start(chunk) for chunk in text.chunks])
    with _bar("calibrating, layers", layers, done) as bar:
        for layer, found in layer_moments(states, range(done, layers), forward.advance):
            work.save_calibrated(layer, found, states)
            bar.update()


def _bar(what: str, total: int, done: int = 0) -> tqdm:
    """A progress bar on standard error; standard output stays free for results."""
    return tqdm(desc=what, total=total, initial=done, file=sys.stderr, mininterval=0.5)


class Fitter:
    """Fits the bands of a plan, one unit at a time, and keeps each when it is done."""

    def __init__(
        self, source: SourceModel, plan: Plan, work: WorkFolder, *, calibrated: bool
    ) -> None:
        self.source = source
        self.plan = plan
        self.work = work
        self.calibrated = calibrated

    def ranks(self) -> Ranks:
        """Columns of U by projection and attention type: as asked, or bought by the budget."""
        kinds = self.source.kinds
        if self.plan.rank is not None:
            return {
                name: {k: self.plan.rank for k, shapes in kinds.shapes.items() if name in shapes}
                for name in self.plan.bands
            }
        stored = self.work.load_json("ranks")
        if stored is None:
            stored = self._bought()
            self.work.save_json("ranks", stored)
        return stored

    def _bought(self) -> dict[str, dict[str, int]]:
        """Spends the budget on what fits of rank 0 leave over."""
        kinds, gains = self.source.kinds, {}
        count = sum(len(unit.bands) for unit in self.plan.units)
        columns: dict[tuple[str, str], int] = {}
        with _bar("choosing ranks, bands", count) as bar:
            for unit in self.plan.units:
                whiteners = self._whiteners(unit)
                zero = {band.name: 0 for band in unit.bands}
                for band, fit in zip(unit.bands, self._fit(unit, whiteners, zero), strict=True):
                    own = self._weights(band)
                    total = spectrum(fit, own, [whiteners[i] for i in band.layers])
                    # A band of several attention types has one shape: its first layer's serves.
                    key = (band.projection, kinds.attention_types[band.layers[0]])
                    n, k = own[0].shape
                    gains[key] = gains.get(key, 0) + total
                    columns[key] = columns.get(key, 0) + 2 * (n + k) * len(band.layers)
                    bar.update()
        budget = self.plan.rank_budget_bytes
        assert budget is not None
        spent = spend({key: RankUnit(gains[key], columns[key]) for key in gains}, budget)
        ranks: dict[str, dict[str, int]] = {}
        for name in self.plan.bands:
            bought = {kind: rank for (own, kind), rank in spent.items() if own == name}
            present = [kind for kind, shapes in kinds.shapes.items() if name in shapes]
            # G = 1 joins the attention types: what one of them got, both get.
            ranks[name] = {k: bought.get(k, max(bought.values())) for k in present}
        return ranks

    def fit_all(self, ranks: Ranks) -> None:
        """Fits every band that the work folder does not hold yet."""
        kinds = self.source.kinds.attention_types
        count = sum(len(unit.bands) for unit in self.plan.units)
        with _bar("fitting, bands", count) as bar:
            for unit in self.plan.units:
                if not all(self.work.has_fit(band) for band in unit.bands):
                    of_band = {
                        band.name: ranks[band.projection][kinds[band.layers[0]]]
                        for band in unit.bands
                    }
                    fits = self._fit(unit, self._whiteners(unit), of_band)
                    for band, fit in zip(unit.bands, fits, strict=True):
                        self.work.save_fit(band, fit)
                bar.update(len(unit.bands))

    def _fit(
        self, unit: Unit, whiteners: Mapping[int, Whitener], ranks: Mapping[str, int]
    ) -> list[BandFit]:
        """Fits the bands of a unit; all W0 first, since their global scale is common."""
        plan, fits = self.plan, []
        for band in unit.bands:
            moments = [whiteners[i] for i in band.layers]
            fits.append(
                fit_band(
                    self._weights(band),
                    moments,
                    ranks[band.name],
                    method=plan.method,
                    iterations=plan.iterations,
                )
            )
        if plan.quant is not Quant.NVFP4:
            return fits
        scale = global_scale([fit.factors[0].dense_w0 for fit in fits])
        for index, band in enumerate(unit.bands):
            moments = [whiteners[i] for i in band.layers]
            fits[index] = quantized_fit(
                fits[index],
                self._weights(band),
                moments,
                ranks[band.name],
                method=plan.method,
                quantize=self._quantizer(moments, scale),
                iterations=plan.iterations,
            )
        return fits

    def _quantizer(
        self, moments: Sequence[Whitener], scale: np.float32
    ) -> Callable[[Array], Nvfp4]:
        choice = self.plan.scale_choice
        assert choice is not None
        hessian = None
        if choice in NEEDS_MOMENTS:
            # One W0 serves all layers of the band: their mean input.
            hessian = np.mean([w.h for w in moments if w.h is not None], axis=0)
        return lambda w0: quantize(w0, choice, global_scale=scale, hessian=hessian)

    def _weights(self, band: BandOf) -> list[Array]:
        return [self.source.weight(layer, band.projection) for layer in band.layers]

    def _whiteners(self, unit: Unit) -> dict[int, Whitener]:
        layers = sorted({layer for band in unit.bands for layer in band.layers})
        if not self.calibrated:
            first = unit.bands[0]
            _, width = self.source.kinds.of_layer(first.layers[0])[first.projection]
            return dict.fromkeys(layers, identity_whitener(width))
        return {i: Whitener.of(self.work.moments(i, unit.source)) for i in layers}
