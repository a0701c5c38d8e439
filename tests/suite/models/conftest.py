"""A Gemma 3 GGUF small enough to write in every test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 256, 512, 2, 1, 256, 2

PIECES = [
    "\u2581t",
    "he",
    "\u2581the",
    "at",
    "\u2581c",
    "\u2581cat",
    "in",
    "th",
    "\u2581",
    *"abcdehint.,",
]
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
VOCABULARY = (
    [(token, CONTROL, -1000.0) for token in ("<pad>", "<eos>", "<bos>", "<unk>")]
    + [("\n", USER_DEFINED, -1000.0), ("  ", USER_DEFINED, -1000.0)]
    + [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    + [(piece, NORMAL, -float(rank)) for rank, piece in enumerate(PIECES)]
)

SHAPES = {
    "token_embd.weight": (len(VOCABULARY), HIDDEN),
    "output_norm.weight": (HIDDEN,),
} | {
    f"blk.{layer}.{name}.weight": shape
    for layer in range(LAYERS)
    for name, shape in {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_q_norm": (HEAD_DIM,),
        "attn_k_norm": (HEAD_DIM,),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "post_attention_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
        "post_ffw_norm": (HIDDEN,),
    }.items()
}

Packed = dict[str, tuple[GGMLQuantizationType, NDArray[np.uint8]]]
WriteGguf = Callable[..., Packed]

HALVES = {
    GGMLQuantizationType.F16: range(0, 2, 2),
    GGMLQuantizationType.Q8_0: range(0, 2, 2),
    GGMLQuantizationType.Q5_0: range(0, 2, 2),
    GGMLQuantizationType.Q4_K: range(0, 4, 2),
    GGMLQuantizationType.Q6_K: range(208, 210, 2),
}
"""Where a block holds float16 numbers, which random bytes could make infinite."""


def random_packed(
    kind: GGMLQuantizationType, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Any valid contents of a tensor: [..., row bytes]."""
    if kind is GGMLQuantizationType.F32:
        return generator.standard_normal(shape, dtype=np.float32).view(np.uint8)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = (*shape[:-1], shape[-1] // block, block_bytes)
    packed = generator.integers(0, 256, blocks, dtype=np.uint8)
    for start in HALVES[kind]:
        half = generator.uniform(-2, 2, (*blocks[:-1], 1)).astype(np.float16)
        packed[..., start : start + 2] = half.view(np.uint8)
    return packed.reshape(*shape[:-1], -1)


@pytest.fixture
def write_gguf() -> WriteGguf:
    """write_gguf(path, kinds={"attn_q": Q5_0}) gives back the packed tensors by their GGUF names.

    `kinds` sets how the tensors whose names contain a key are stored; the rest are float32.
    """

    def write(
        path: Path,
        *,
        kinds: Mapping[str, GGMLQuantizationType] | None = None,
        architecture: str = "gemma3",
        file_type: int = 15,
        drop: str | None = None,
    ) -> Packed:
        generator = np.random.default_rng(7)
        writer = GGUFWriter(str(path), architecture)
        writer.add_context_length(4096)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e6)
        writer.add_sliding_window(128)
        writer.add_file_type(file_type)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([token for token, _, _ in VOCABULARY])
        writer.add_token_types([kind for _, kind, _ in VOCABULARY])
        writer.add_token_scores([score for _, _, score in VOCABULARY])
        packed: Packed = {}
        for name, shape in SHAPES.items():
            if name == drop:
                continue
            kind = next(
                (kind for part, kind in (kinds or {}).items() if f"{part}.weight" in name),
                GGMLQuantizationType.F32,
            )
            data = random_packed(kind, shape, generator)
            packed[name] = (kind, data)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return packed

    return write


@pytest.fixture
def silent() -> Callable[[str], None]:
    """A progress function that says nothing."""
    return lambda line: None
