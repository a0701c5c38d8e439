"""Records what transformers computes for the tiny models, for tests that have no PyTorch.

    python -m venv /tmp/transformers && /tmp/transformers/bin/pip install \\
        -r tests/transformers/requirements.txt
    /tmp/transformers/bin/python tests/transformers/record.py

rewrites ``tests/transformers/golden/*.npz``: float32 logits of every position,
with the versions they came from. Run it after a change of ``tiny_models.py``;
``python -m pytest tests/transformers/check_recording.py`` there only compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.transformers.tiny_models import (
    MODELS,
    TOKENS,
    Array,
    TinyModel,
    golden_path,
    weights_digest,
)

CLASSES = {
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM),
}


def transformers_logits(model: TinyModel, tokens: tuple[int, ...] = TOKENS) -> Array:
    """[T, vocabulary] float32 logits of ``tokens`` by transformers, eager attention.

    Raises RuntimeError where a tensor of ``model`` has no place in transformers' model.
    """
    config_class, model_class = CLASSES[model.name]
    config = config_class(**model.config)
    config._attn_implementation = "eager"
    reference = model_class(config).to(torch.float32).eval()
    state = {f"model.{name}": torch.from_numpy(v) for name, v in model.weights.items()}
    missing, unexpected = reference.load_state_dict(state, strict=False)
    if set(missing) != {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"{model.name}: missing {missing}, unexpected {unexpected}")
    reference.tie_weights()
    with torch.no_grad():
        return reference(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def main() -> None:
    for model in MODELS.values():
        path = golden_path(model)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(
            path,
            logits=transformers_logits(model),
            tokens=np.array(TOKENS),
            weights_sha256=weights_digest(model),
            torch=torch.__version__,
            transformers=transformers.__version__,
        )
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
