import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from weightless_fw.core.checkpoint import Checkpoint, CheckpointError


def test_float32_and_float16_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 5)).astype(np.float32)
    b = rng.standard_normal(7).astype(np.float16)
    save_file({"a": a}, tmp_path / "model-1.safetensors")
    save_file({"b": b}, tmp_path / "model-2.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint) == ["a", "b"]
    np.testing.assert_array_equal(checkpoint["a"], a)
    np.testing.assert_array_equal(checkpoint["b"], b.astype(np.float32))


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0, 1e30], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    write_raw(tmp_path / "m.safetensors", "BF16", halves.tobytes())
    np.testing.assert_array_equal(Checkpoint(tmp_path)["w"], expected)
    np.testing.assert_allclose(expected, values, rtol=2**-7)


def test_another_dtype_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path / "m.safetensors", "I8", bytes(5))
    with pytest.raises(ValueError, match="tensor w has dtype I8"):
        Checkpoint(tmp_path)["w"]


def test_bytes_come_back_as_they_are_stored(tmp_path: Path) -> None:
    write_raw(tmp_path / "m.safetensors", "F8_E4M3", bytes(range(5)))
    checkpoint = Checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.raw("w"), np.arange(5, dtype=np.uint8))
    assert checkpoint.entry("w").nbytes == 5
    # Asking whether it is there must not try to read it as numbers.
    assert "w" in checkpoint
    assert "v" not in checkpoint
    with pytest.raises(CheckpointError, match="tensor w has dtype F8_E4M3"):
        checkpoint["w"]


def test_a_scalar_keeps_its_shape(tmp_path: Path) -> None:
    save_file({"w": np.array(2.5, np.float32)}, tmp_path / "m.safetensors")
    assert Checkpoint(tmp_path)["w"].shape == ()
    assert float(Checkpoint(tmp_path)["w"]) == 2.5


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"])
def test_a_damaged_header_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.safetensors: damaged"):
        Checkpoint(tmp_path)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": np.zeros(9, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short within tensor a"):
        Checkpoint(tmp_path)


def write_raw(path: Path, dtype: str, data: bytes) -> None:
    entry = {"dtype": dtype, "shape": [5], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
