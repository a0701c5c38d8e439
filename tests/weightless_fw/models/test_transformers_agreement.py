"""The numpy references of Gemma 3 and Gemma 4 against transformers.

Arms in MAX are checked against the references, so the chain ends at
transformers.

The logits that transformers computed lie in ``tests/transformers/golden``;
``tests/transformers`` computes them again where PyTorch is installed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.transformers.tiny_models import (
    GEMMA3,
    GEMMA4,
    MODELS,
    TOKENS,
    Array,
    TinyModel,
    golden_path,
    weights_digest,
)
from tests.weightless_fw.models.tiny_references import reference_logits, relative

TRANSFORMERS_TOLERANCE = 1e-3


def golden(model: TinyModel) -> Array:
    with np.load(golden_path(model)) as recorded:
        assert str(recorded["weights_sha256"]) == weights_digest(model), (
            "tiny_models.py changed: run tests/transformers/record.py again"
        )
        return recorded["logits"]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_numpy_reference_agrees_with_transformers(model: TinyModel) -> None:
    assert relative(reference_logits(model, list(TOKENS)), golden(model)) < 1e-5


def changed(model: TinyModel, **values: Any) -> TinyModel:
    return replace(model, config={**model.config, **values})


def with_rope(model: TinyModel, **values: Any) -> TinyModel:
    rope = model.config["rope_parameters"]
    full = {**rope["full_attention"], **values}
    return changed(model, rope_parameters={**rope, "full_attention": full})


FEATURES = {
    "gemma3 window": changed(GEMMA3, sliding_window=64),
    "gemma3 rope factor": with_rope(GEMMA3, factor=1.0),
    "gemma4 window": changed(GEMMA4, sliding_window=64),
    "gemma4 window by one": changed(GEMMA4, sliding_window=17),
    "gemma4 partial rotation": with_rope(GEMMA4, partial_rotary_factor=1.0),
    "gemma4 soft cap": changed(GEMMA4, final_logit_softcapping=None),
}


@pytest.mark.parametrize("wrong", FEATURES.values(), ids=FEATURES)
def test_the_recording_notices_every_feature(wrong: TinyModel) -> None:
    """With one of them different the logits leave the tolerance."""
    difference = relative(reference_logits(wrong, list(TOKENS)), golden(MODELS[wrong.name]))
    assert difference > 10 * TRANSFORMERS_TOLERANCE
