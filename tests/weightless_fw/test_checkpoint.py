import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from weightless_fw.core.checkpoint import Checkpoint


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


def write_raw(path: Path, dtype: str, data: bytes) -> None:
    entry = {"dtype": dtype, "shape": [5], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
