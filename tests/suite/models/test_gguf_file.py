"""The header reader against the gguf package's own, and on damaged files."""

from __future__ import annotations

import gguf
import pytest

from suite.errors import UserError
from suite.models.gguf_file import read_gguf


def test_agrees_with_the_gguf_package(tmp_path, write_gguf):
    path = tmp_path / "a.gguf"
    write_gguf(path, kinds={"ffn_up": gguf.GGMLQuantizationType.Q4_K})
    theirs, ours = gguf.GGUFReader(path), read_gguf(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == {name: field.contents() for name, field in fields.items()}
    assert [
        (tensor.name, tensor.kind, tensor.offset_bytes, tensor.size_bytes, tensor.shape)
        for tensor in ours.tensors
    ] == [
        (t.name, t.tensor_type, t.data_offset, t.n_bytes, tuple(reversed(t.shape.tolist())))
        for t in theirs.tensors
    ]


def test_numbers_read_back_as_written(tmp_path, write_gguf):
    write_gguf(tmp_path / "a.gguf")
    assert read_gguf(tmp_path / "a.gguf").number("gemma3.attention.layer_norm_rms_epsilon") == 1e-6


@pytest.mark.parametrize("key", ["gemma3.nothing", "tokenizer.ggml.tokens"])
def test_a_missing_number_is_named(tmp_path, write_gguf, key):
    write_gguf(tmp_path / "a.gguf")
    with pytest.raises(UserError, match=key):
        read_gguf(tmp_path / "a.gguf").integer(key)


def test_a_truncated_file_says_how_much_is_there(tmp_path, write_gguf):
    path = tmp_path / "a.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(UserError, match=rf"has {len(whole) - 1000} bytes of {len(whole)}"):
        read_gguf(path)
    for size in (0, 3, 20, 5000):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=f"cut short: {size} bytes"):
            read_gguf(path)


def test_other_bytes_are_refused(tmp_path):
    path = tmp_path / "a.gguf"
    for contents in (b"PK\3\4" * 100, b"GGUF" + b"\xff" * 100, b"GGUF\3\0\0\0" + b"\xff" * 100):
        path.write_bytes(contents)
        with pytest.raises(UserError, match="cannot be read"):
            read_gguf(path)
