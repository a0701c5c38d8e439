"""The converter against decoders written here from the layout of each block."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from suite.errors import UserError
from suite.models.folder import read_weights_kind
from suite.models.gguf_file import read_gguf
from suite.models.gguf_folder import convert_gguf, folder_bytes
from suite.models.model import WeightsKind

KINDS = {
    "token_embd": Kind.Q8_0,
    "attn_q": Kind.Q5_0,
    "attn_k": Kind.F16,
    "attn_output": Kind.Q4_K,
    "ffn_gate": Kind.Q4_K,
    "ffn_down": Kind.Q6_K,
}


def half(block, start):
    return np.float32(block[start : start + 2].view(np.float16)[0])


def decode_q8_0(block):
    return half(block, 0) * block[2:].view(np.int8).astype(np.float32)


def decode_q5_0(block):
    high = int(block[2:6].view("<u4")[0])
    values = [0.0] * 32
    for j, byte in enumerate(int(byte) for byte in block[6:]):
        values[j] = (byte & 15 | (high >> j & 1) << 4) - 16
        values[j + 16] = (byte >> 4 | (high >> j + 16 & 1) << 4) - 16
    return half(block, 0) * np.array(values, dtype=np.float32)


def decode_q4_k(block):
    scale, minimum = half(block, 0), half(block, 2)
    packed = [int(byte) for byte in block[4:16]]
    values = []
    for j in range(8):
        if j < 4:
            s, m = packed[j] & 63, packed[j + 4] & 63
        else:
            s = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
            m = packed[j + 4] >> 4 | packed[j] >> 6 << 4
        nibbles = block[16 + 32 * (j // 2) :][:32] >> (4 * (j % 2)) & 15
        values.append(scale * np.float32(s) * nibbles.astype(np.float32) - minimum * np.float32(m))
    return np.concatenate(values)


def decode_q6_k(block):
    low, high, scales = block[:128], block[128:192], block[192:208].view(np.int8)
    values = np.empty(256, dtype=np.float32)
    for half_block in range(2):
        for quarter in range(4):
            bits = low[64 * half_block + 32 * (quarter % 2) :][:32] >> (4 * (quarter // 2)) & 15
            top = high[32 * half_block :][:32] >> (2 * quarter) & 3
            numbers = (bits | top << 4).astype(np.float32) - 32
            scale = scales[8 * half_block + 2 * quarter :][:2].repeat(16).astype(np.float32)
            values[128 * half_block + 32 * quarter :][:32] = half(block, 208) * scale * numbers
    return values


DECODERS = {
    Kind.F32: (4, lambda block: block.view("<f4")),
    Kind.F16: (2, lambda block: block.view("<f2").astype(np.float32)),
    Kind.Q8_0: (34, decode_q8_0),
    Kind.Q5_0: (22, decode_q5_0),
    Kind.Q4_K: (144, decode_q4_k),
    Kind.Q6_K: (210, decode_q6_k),
}


def decode(kind, packed):
    block_bytes, decoder = DECODERS[kind]
    blocks = packed.reshape(-1, block_bytes)
    return np.concatenate([decoder(block) for block in blocks]).reshape(*packed.shape[:-1], -1)


PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hugging_face(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.weight"


def test_every_tensor_is_what_its_blocks_say(tmp_path, write_gguf, silent, monkeypatch):
    # 19 rows at a time, so that every matrix ends in a shorter piece.
    monkeypatch.setattr("suite.models.gguf_folder.PIECE_VALUES", 19 * 256)
    packed = write_gguf(tmp_path / "a.gguf", kinds=KINDS)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "a.gguf", folder, silent)
    written = load_file(folder / "model.safetensors")
    assert written.keys() == {hugging_face(name) for name in packed}
    assert {kind for kind, _ in packed.values()} == DECODERS.keys()
    for name, (kind, data) in packed.items():
        expected = decode(kind, data)
        if "norm" in name:
            expected = expected - 1
        found = written[hugging_face(name)]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_config_comes_from_the_metadata(tmp_path, write_gguf, silent):
    from transformers import AutoConfig

    write_gguf(tmp_path / "a.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "a.gguf", folder, silent)
    config = AutoConfig.from_pretrained(folder)
    assert type(config).__name__ == "Gemma3TextConfig"
    assert config.architectures == ["Gemma3ForCausalLM"]
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (2, 256, 512)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 1, 256)
    assert (config.sliding_window, config._sliding_window_pattern) == (128, 6)
    assert config.max_position_embeddings == 4096
    assert config.rms_norm_eps == 1e-6
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1_000_000
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 10_000
    assert config.query_pre_attn_scalar == 256
    assert config.hidden_activation == "gelu_pytorch_tanh"
    assert config.tie_word_embeddings is True
    assert str(config.dtype).removeprefix("torch.") == "float32"
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (0, 1, 2)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 1


@pytest.mark.parametrize(
    ("file_type", "kind"), [(15, WeightsKind.DEQUANTISED_Q4_K_M), (7, WeightsKind.DEQUANTISED_GGUF)]
)
def test_weights_are_named_after_the_file_type(tmp_path, write_gguf, silent, file_type, kind):
    write_gguf(tmp_path / "a.gguf", file_type=file_type)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "a.gguf", folder, silent)
    assert read_weights_kind(folder) == kind


def test_folder_bytes_is_an_upper_bound(tmp_path, write_gguf, silent):
    write_gguf(tmp_path / "a.gguf", kinds=KINDS)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "a.gguf", folder, silent)
    taken = sum(file.stat().st_size for file in folder.iterdir())
    assert taken < folder_bytes(read_gguf(tmp_path / "a.gguf"))


def convert_error(gguf: Path, folder: Path) -> str:
    folder.mkdir()
    with pytest.raises(UserError) as caught:
        convert_gguf(gguf, folder, lambda line: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_architectures_are_refused(tmp_path, write_gguf):
    write_gguf(tmp_path / "a.gguf", architecture="llama")
    assert "architecture 'llama'" in convert_error(tmp_path / "a.gguf", tmp_path / "folder")


def test_a_missing_tensor_is_named(tmp_path, write_gguf):
    write_gguf(tmp_path / "a.gguf", drop="blk.1.ffn_up.weight")
    message = convert_error(tmp_path / "a.gguf", tmp_path / "folder")
    assert "lacks 1 tensors, the first model.layers.1.mlp.up_proj.weight" in message
