"""NVFP4 against MAX's own numpy implementation and against the format's tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from max.pipelines.weights import fp4_quantization as oracle

from weightless_fw.core.nvfp4 import (
    E4M3_VALUES,
    Nvfp4,
    Nvfp4Error,
    ScaleChoice,
    encode_e2m1,
    encode_e4m3,
    global_scale,
    pack,
    stack,
    unpack,
)
from weightless_fw.core.quantize import block_scales, quantize

FORMAT = oracle.FP4Format.NVFP4


def matrix(n: int, k: int, seed: int) -> np.ndarray:
    """Heavy-tailed, so that block scales span many codes."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, (n, k)) * np.exp(rng.normal(size=(n, 1)))).astype(np.float32)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 9), blocks=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_amax_is_max_bit_for_bit(n: int, blocks: int, seed: int) -> None:
    weight = matrix(n, 16 * blocks, seed)
    packed, scales, decode_scale = oracle.quantize_nvfp4(weight, FORMAT)
    ours = quantize(weight, ScaleChoice.AMAX, global_scale=np.float32(decode_scale))
    np.testing.assert_array_equal(ours.scales, scales.reshape(ours.scales.shape))
    np.testing.assert_array_equal(ours.packed, packed)
    assert ours.global_scale == pytest.approx(global_scale([weight]), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 9), blocks=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_decoding_is_max_bit_for_bit(n: int, blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (n, 8 * blocks), np.uint8)
    scales = rng.integers(0, 127, (n, blocks), np.uint8)
    scale = np.float32(rng.uniform(1e-5, 2))
    expected = oracle.unpack_pairs_e2m1_to_fp32(packed.ravel()).reshape(n, blocks, 16)
    expected = expected * (oracle.unpack_e4m3_uint8_to_fp32(scales) * scale)[..., None]
    np.testing.assert_array_equal(
        Nvfp4(packed, scales, scale).dense(), expected.reshape(n, -1).astype(np.float32)
    )


def test_every_e4m3_code_survives_and_the_oracle_rounds_alike() -> None:
    np.testing.assert_array_equal(encode_e4m3(E4M3_VALUES[:127]), np.arange(127))
    middles = (E4M3_VALUES[1:127] + E4M3_VALUES[:126]) / 2
    values = np.concatenate(
        [middles, np.nextafter(middles, 0), np.nextafter(middles, 999), [449, 1e9, 0]]
    ).astype(np.float32)
    np.testing.assert_array_equal(encode_e4m3(values), oracle.encode_f32_to_e4m3(values))


def test_ties_go_to_the_even_code() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0], np.float32)
    np.testing.assert_array_equal(encode_e2m1(ties), [0, 2, 2, 4, 4, 6, 6, 7])
    np.testing.assert_array_equal(encode_e2m1(-ties), [8, 10, 10, 12, 12, 14, 14, 15])


def test_packing_puts_the_even_column_low_and_comes_back() -> None:
    codes = np.arange(16, dtype=np.uint8)[None]
    assert pack(codes)[0, 0] == 0x10
    np.testing.assert_array_equal(unpack(pack(codes)), codes)


@settings(deadline=None, max_examples=30)
@given(blocks=st.integers(1, 5), seed=st.integers(0, 10_000), exponent=st.integers(-30, 30))
def test_each_choice_is_at_least_as_good_as_the_one_before(
    blocks: int, seed: int, exponent: int
) -> None:
    weight = matrix(4, 16 * blocks, seed) * np.float32(2.0**exponent)
    scale = global_scale([weight])
    previous = None
    for choice in (ScaleChoice.AMAX, ScaleChoice.FOUR_OVER_SIX, ScaleChoice.SWEEP):
        dense = quantize(weight, choice, global_scale=scale).dense().astype(np.float64)
        error = np.square(dense - weight).reshape(4, blocks, 16).sum(axis=-1)
        if previous is not None:
            assert (error <= previous * (1 + 1e-5) + 1e-30).all()
        previous = error


def test_the_sweep_finds_the_best_code_of_all() -> None:
    """Brute force over all 126 scales: no block has a better one outside the sweep."""
    weight = matrix(6, 64, 5)
    blocks, scale = weight.reshape(6, 4, 16), global_scale([weight])
    swept = quantize(weight, ScaleChoice.SWEEP, global_scale=scale).dense()
    least = np.full((6, 4), np.inf)
    for code in range(1, 127):
        step = E4M3_VALUES[code] * scale
        decoded = oracle.round_to_e2m1(blocks / step) * step
        least = np.minimum(least, np.square(decoded - blocks, dtype=np.float64).sum(-1))
    error = np.square(swept - weight, dtype=np.float64).reshape(6, 4, 16).sum(-1)
    np.testing.assert_allclose(error, least, rtol=1e-4)


def test_the_weighted_sweep_is_better_in_its_own_norm() -> None:
    weight, rng = matrix(64, 128, 3), np.random.default_rng(0)
    moments = np.diag(np.exp(rng.normal(scale=2, size=128)))
    errors = {
        choice: weighted_error(weight, quantize(weight, choice, hessian=moments), moments)
        for choice in (ScaleChoice.SWEEP, ScaleChoice.HESSIAN_SWEEP)
    }
    assert errors[ScaleChoice.HESSIAN_SWEEP] < errors[ScaleChoice.SWEEP]


def test_gptq_uses_the_correlations_of_the_inputs() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((512, 24)) @ rng.standard_normal((24, 160))
    x += 0.3 * rng.standard_normal((512, 160))
    moments = x.T @ x / len(x)
    weight = matrix(48, 160, 2)
    errors = [
        weighted_error(weight, quantize(weight, choice, hessian=moments), moments)
        for choice in (ScaleChoice.GPTQ, ScaleChoice.HESSIAN_SWEEP, ScaleChoice.AMAX)
    ]
    assert errors[0] < 0.7 * min(errors[1:])


def weighted_error(weight: np.ndarray, codes: Nvfp4, moments: np.ndarray) -> float:
    """tr(D H D^T): the mean squared error of the output."""
    difference = (codes.dense() - weight).astype(np.float64)
    return float(np.einsum("nk,kl,nl->", difference, moments, difference))


def test_gptq_with_white_inputs_is_the_sweep() -> None:
    """No correlations, nothing to pass on."""
    weight = matrix(8, 48, 4)
    white = quantize(weight, ScaleChoice.GPTQ, hessian=np.eye(48))
    np.testing.assert_array_equal(white.dense(), quantize(weight, ScaleChoice.SWEEP).dense())


@pytest.mark.parametrize("choice", [ScaleChoice.AMAX, ScaleChoice.FOUR_OVER_SIX, ScaleChoice.SWEEP])
def test_zero_and_vanishing_blocks_decode_to_zero(choice: ScaleChoice) -> None:
    weight = np.zeros((3, 48), np.float32)
    weight[0, :16] = 100
    weight[1, 16:32] = 1e-30
    codes = quantize(weight, choice)
    assert (codes.scales <= 126).all()
    dense = codes.dense()
    assert np.isfinite(dense).all()
    np.testing.assert_allclose(dense[0, :16], 100, rtol=1e-6)
    assert (dense[2] == 0).all()
    assert np.abs(dense[1]).max() < 1e-3
    assert (quantize(np.zeros((2, 16), np.float32), choice).dense() == 0).all()


def test_decoded_values_are_a_fixed_point() -> None:
    once = quantize(matrix(5, 64, 9), ScaleChoice.AMAX)
    again = quantize(once.dense(), ScaleChoice.AMAX, global_scale=once.global_scale)
    np.testing.assert_array_equal(again.dense(), once.dense())


def test_fused_matrices_share_the_scale_of_the_largest() -> None:
    small, large = matrix(4, 32, 1), 50 * matrix(6, 32, 2)
    common = global_scale([small, large])
    parts = [quantize(w, ScaleChoice.SWEEP, global_scale=common) for w in (small, large)]
    stacked = stack(parts)
    np.testing.assert_array_equal(stacked.dense(), np.concatenate([part.dense() for part in parts]))
    assert common == global_scale([np.concatenate([small, large])])
    with pytest.raises(Nvfp4Error, match="cannot be stacked"):
        stack([quantize(small, ScaleChoice.AMAX), quantize(large, ScaleChoice.AMAX)])


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (np.zeros((4, 24), np.float32), r"\[4, 24\].*multiple of 16"),
        (np.full((2, 16), np.nan, np.float32), r"32 of 32 weights are NaN.*\[0, 0\]"),
        (np.diag(np.full(16, -np.inf, np.float32)), "16 of 256 weights are NaN or infinite"),
    ],
)
def test_what_cannot_be_quantised_is_named(weight: np.ndarray, said: str) -> None:
    with pytest.raises(Nvfp4Error, match=said):
        quantize(weight, ScaleChoice.AMAX)


@pytest.mark.parametrize("choice", [ScaleChoice.HESSIAN_SWEEP, ScaleChoice.GPTQ])
def test_second_moments_are_required_and_checked(choice: ScaleChoice) -> None:
    weight = matrix(2, 16, 0)
    with pytest.raises(Nvfp4Error, match="give a calibration"):
        quantize(weight, choice)
    with pytest.raises(Nvfp4Error, match=r"must be finite, \[16, 16\]"):
        quantize(weight, choice, hessian=np.eye(8))
    with pytest.raises(Nvfp4Error, match="not symmetric"):
        quantize(weight, choice, hessian=np.triu(np.ones((16, 16))))


def test_scales_of_one_block_follow_its_size() -> None:
    block = np.full((1, 1, 16), 6.0, np.float32)
    assert block_scales(block, ScaleChoice.AMAX, np.float32(1))[0, 0] == 0x38
