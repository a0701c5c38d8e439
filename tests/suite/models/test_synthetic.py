"""Random models: true shapes, honest labels, numbers that stay finite."""

from __future__ import annotations

import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from suite.errors import UserError
from suite.models import WeightsKind, encode, resolve_model
from suite.models.synthetic import SYNTHETIC, bfloat16_bytes, weights_bytes
from suite.models.tensors import is_norm, tensor_shapes


def test_tiny_is_made_in_under_a_second(tmp_path, silent):
    start = time.perf_counter()
    model = resolve_model("synthetic:gemma-3-tiny", cache_dir=tmp_path, progress=silent)
    assert time.perf_counter() - start < 1
    assert model.name == "synthetic:gemma-3-tiny"
    assert model.weights is WeightsKind.RANDOM
    assert model.shape == SYNTHETIC["gemma-3-tiny"].shape
    assert encode(model.folder, "the cat")[0] == 2


def test_tiny_is_the_same_every_time(tmp_path, silent):
    digests = {
        resolve_model(
            "synthetic:gemma-3-tiny", cache_dir=tmp_path / name, progress=silent
        ).weights_sha256
        for name in "ab"
    }
    assert digests == {"dd931421331b2f18b8b60bbc71f90ff96be850109865ae24a94a23e5d8608e8f"}


def test_weights_keep_unit_size(tmp_path, silent):
    model = resolve_model("synthetic:gemma-3-tiny", cache_dir=tmp_path, progress=silent)
    tensors = load_file(model.folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == tensor_shapes(model.shape)
    matrices = {name: tensor for name, tensor in tensors.items() if not is_norm(name)}
    for name, tensor in matrices.items():
        assert np.isfinite(tensor).all()
        assert np.std(tensor) * tensor.shape[1] ** 0.5 == pytest.approx(1, abs=0.05), name
    assert not any(tensors[name].any() for name in tensors.keys() - matrices.keys())
    first, second = (tensors[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1


def test_transformers_can_load_tiny(tmp_path, silent):
    from transformers import AutoConfig, AutoTokenizer

    folder = resolve_model("synthetic:gemma-3-tiny", cache_dir=tmp_path, progress=silent).folder
    config = AutoConfig.from_pretrained(folder)
    assert config._sliding_window_pattern == 2
    assert config.layer_types == ["sliding_attention", "full_attention"] * 2
    text = "the cat\n"
    assert tuple(AutoTokenizer.from_pretrained(folder)(text).input_ids) == encode(folder, text)


@pytest.mark.parametrize(
    ("name", "parameters"), [("gemma-3-1b", 999_885_952), ("gemma-3-270m", 268_098_176)]
)
def test_shapes_add_up_to_the_published_sizes(name, parameters):
    assert weights_bytes(SYNTHETIC[name]) == 2 * parameters


def test_bfloat16_rounds_to_nearest_even():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0], dtype=np.float32)
    expected = np.array([0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000], dtype="<u2")
    assert bfloat16_bytes(values) == expected.tobytes()


def test_unknown_names_are_answered_with_the_list(tmp_path, silent):
    with pytest.raises(UserError) as caught:
        resolve_model("synthetic:gemma-9", cache_dir=tmp_path, progress=silent)
    for name in SYNTHETIC:
        assert f"synthetic:{name}" in str(caught.value)
