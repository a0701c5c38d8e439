"""The streaming writer, read back with the safetensors package."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from suite.models.safetensors_file import TensorSpec, write_safetensors


def test_the_package_reads_what_is_written(tmp_path):
    first, second = np.arange(6, dtype="<f4").reshape(2, 3), np.ones(5, dtype="<f4")
    specs = [
        TensorSpec(name="b", shape=(2, 3), dtype="F32"),
        TensorSpec(name="a", shape=(5,), dtype="F32"),
    ]
    data = first.tobytes() + second.tobytes()
    write_safetensors(tmp_path / "m", specs, [data[:7], data[7:30], data[30:]])
    read = load_file(tmp_path / "m")
    assert read.keys() == {"a", "b"}
    np.testing.assert_array_equal(read["b"], first)
    np.testing.assert_array_equal(read["a"], second)
    table_bytes = int.from_bytes((tmp_path / "m").read_bytes()[:8], "little")
    assert table_bytes % 8 == 0


@pytest.mark.parametrize("size_bytes", [8, 16])
def test_pieces_that_do_not_add_up_are_refused(tmp_path, size_bytes):
    spec = TensorSpec(name="a", shape=(3,), dtype="F32")
    with pytest.raises(ValueError, match=f"got {size_bytes} bytes of tensors, its table says 12"):
        write_safetensors(tmp_path / "m", [spec], [bytes(size_bytes)])
