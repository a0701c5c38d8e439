"""The recorded logits belong to the tiny models as they are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transformers.tiny_models import MODELS, TinyModel, golden_path, weights_digest


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_recording_is_of_these_weights(model: TinyModel) -> None:
    with np.load(golden_path(model)) as recorded:
        assert str(recorded["weights_sha256"]) == weights_digest(model), (
            "tiny_models.py changed: run tests/transformers/record.py again"
        )
