from pathlib import Path

import numpy as np
import pytest

from weightless_fw.core.calibration import (
    CHUNK_TOKENS,
    CalibrationError,
    SecondMoments,
    layer_moments,
    read_calibration,
)
from weightless_fw.core.factors import Array
from weightless_fw.models.gemma3.reference import ReferenceModel, embedded, layer_output, logits
from weightless_fw.models.gemma3.scheme import Dimensions

BODY = CHUNK_TOKENS - 1


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_chunks_begin_with_the_begin_of_text_token(tmp_path: Path) -> None:
    text = "abc" * 300
    found = read_calibration(written(tmp_path, text), letters, bos=2, limit_tokens=8192)
    assert [len(chunk) for chunk in found.chunks] == [CHUNK_TOKENS] * 3
    assert all(chunk[0] == 2 for chunk in found.chunks)
    assert [t for chunk in found.chunks for t in chunk[1:]] == letters(text)[: 3 * BODY]
    assert found.tokens == 3 * CHUNK_TOKENS


def test_the_limit_counts_every_token(tmp_path: Path) -> None:
    path = written(tmp_path, "x" * 10_000)
    assert read_calibration(path, letters, bos=2, limit_tokens=600).tokens == 2 * CHUNK_TOKENS


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        ("x" * (BODY - 1), 8192, f"{BODY - 1} tokens; at least {BODY} are needed"),
        (b"fine \xff", 8192, "byte 5 is not UTF-8"),
        ("x" * 1000, 100, "--calibration-tokens 100: must be at least 256"),
    ],
)
def test_a_text_that_does_not_serve_is_refused(
    tmp_path: Path, text: str | bytes, limit: int, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        read_calibration(written(tmp_path, text), letters, bos=2, limit_tokens=limit)


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"nowhere\.txt: No such file"):
        read_calibration(tmp_path / "nowhere.txt", letters, bos=2, limit_tokens=8192)


def test_moments_are_the_mean_outer_product() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((t, 5)).astype(np.float32) for t in (3, 7)]
    moments = SecondMoments()
    for part in parts:
        moments.add("in", part)
    expected = sum(np.outer(x, x) for x in np.concatenate(parts).astype(np.float64)) / 10
    np.testing.assert_allclose(moments.means()["in"], expected, rtol=1e-12)


def test_inputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"inputs of mlp\.down_proj are NaN or infinite"):
        SecondMoments().add("mlp.down_proj", np.full((2, 3), np.inf, np.float32))


def tiny_gemma() -> ReferenceModel:
    rng = np.random.default_rng(1)
    d = Dimensions.of_pattern(
        pattern=2, layers=2, hidden=16, ffn=24, heads=2, kv_heads=1, head_dim=8
    )
    weights: dict[str, Array] = {"embed_tokens.weight": rng.standard_normal((30, 16))}
    norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
    for layer in range(2):
        for norm in norms:
            weights[f"layers.{layer}.{norm}_layernorm.weight"] = rng.standard_normal(16) / 8
        for norm in "qk":
            weights[f"layers.{layer}.self_attn.{norm}_norm.weight"] = rng.standard_normal(8) / 8
    weights["norm.weight"] = rng.standard_normal(16) / 8
    weights = {name: w.astype(np.float32) for name, w in weights.items()}
    projections = {
        (layer, name): (rng.standard_normal(shape) / 4).astype(np.float32)
        for layer in range(2)
        for name, shape in d.projections.items()
    }
    return ReferenceModel(
        dimensions=d,
        projection=lambda layer, name: projections[layer, name],
        weights=weights,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_local_theta=1e4,
        rope_linear_factor=1.0,
        sliding_window=4,
    )


def test_the_inputs_seen_are_those_that_the_projections_get() -> None:
    """An input times its projection's weight, caught in the product itself."""
    model = tiny_gemma()
    seen: dict[str, Array] = {}
    used: list[str] = []

    def spying(layer: int, name: str) -> Array:
        used.append(name)
        return model.projection(layer, name)

    spy = ReferenceModel(**{**vars(model), "projection": spying})
    state = embedded(model, [2, 5, 7, 9, 11, 3])
    out = layer_output(spy, 0, state, lambda layer, name, x: seen.update({name: x}))
    assert sorted(used) == sorted(model.dimensions.projections)
    assert {name: x.shape for name, x in seen.items()} == {
        "self_attn.qkv_proj": (6, 16),
        "self_attn.o_proj": (6, 16),
        "mlp.gate_up_proj": (6, 16),
        "mlp.down_proj": (6, 24),
    }
    # The MLP's input and output determine the rest of the layer's output.
    down = seen["mlp.down_proj"].astype(np.float64) @ model.projection(0, "mlp.down_proj").T
    scale = 1.0 + model.weights["layers.0.post_feedforward_layernorm.weight"]
    normed = down / np.sqrt(np.mean(down**2, -1, keepdims=True) + 1e-6) * scale
    attention = seen["self_attn.o_proj"].astype(np.float64)
    attention = attention @ model.projection(0, "self_attn.o_proj").T
    scale = 1.0 + model.weights["layers.0.post_attention_layernorm.weight"]
    mean_square = np.mean(attention**2, -1, keepdims=True)
    between = state + attention / np.sqrt(mean_square + 1e-6) * scale
    np.testing.assert_allclose(out, between + normed, rtol=1e-4, atol=1e-4)


def test_layer_by_layer_ends_where_the_whole_forward_does() -> None:
    model = tiny_gemma()
    tokens = ([2, 5, 7, 9, 11, 3], [2, 8, 8, 1])
    states = [embedded(model, t) for t in tokens]
    found = dict(
        layer_moments(states, range(2), lambda i, h, observe: layer_output(model, i, h, observe))
    )
    assert sorted(found) == [0, 1]
    embedding = model.weights["embed_tokens.weight"]
    for state, t in zip(states, tokens, strict=True):
        scale = 1.0 + model.weights["norm.weight"]
        normed = state / np.sqrt(np.mean(state**2, -1, keepdims=True) + 1e-6) * scale
        np.testing.assert_allclose(normed @ embedding.T, logits(model, t), rtol=1e-4, atol=1e-4)
    for moments in found.values():
        assert all((np.linalg.eigvalsh(h) > -1e-9).all() for h in moments.values())
