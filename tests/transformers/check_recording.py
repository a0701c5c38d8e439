"""The recorded logits are what transformers computes, in the environment of requirements.txt.

Not collected with the other tests, since it needs PyTorch:
``python -m pytest tests/transformers/check_recording.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.transformers.record import transformers_logits
from tests.transformers.tiny_models import MODELS, TinyModel, golden_path


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_recording_is_what_transformers_computes_here(model: TinyModel) -> None:
    with np.load(golden_path(model)) as recorded:
        want = recorded["logits"]
    got = transformers_logits(model)
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
