"""Turns a GGUF of a Gemma 3 text model into a Hugging Face folder with float32 weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf.quants import dequantize

from suite.errors import UserError
from suite.models.config_json import GemmaConstants, write_config
from suite.models.folder import write_weights_kind
from suite.models.gguf_file import GgufFile, GgufTensor, read_gguf
from suite.models.model import ModelShape, WeightsKind
from suite.models.safetensors_file import TensorSpec, write_safetensors
from suite.models.tensors import hugging_face_name, is_norm, tensor_shapes
from suite.models.tokenizer import write_tokenizer

Q4_K_M_FILE_TYPE = 15
LAYERS_OF_27B = 62
PIECE_VALUES = 1 << 22
"""Values expanded at a time: 16 MiB of float32."""

BESIDE_WEIGHTS_BYTES = 64 << 20
"""Room for everything in the folder that is not weights; the tokenizer is the bulk."""


def convert_gguf(gguf: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Writes config, tokenizer and model.safetensors into `folder`, which exists and is empty.

    Every tensor is expanded to float32 a few million values at a time. Raises
    UserError where `gguf` is cut short or no Gemma 3 text model.
    """
    source = read_gguf(gguf)
    shape = gguf_shape(source)
    named = named_tensors(source, shape)
    write_config(folder, shape, gguf_constants(source, shape), dtype="float32")
    progress(f"{gguf.name}: rebuilding the tokenizer from the vocabulary")
    write_tokenizer(source, folder)
    progress(f"{gguf.name}: expanding {len(named)} tensors to float32")
    specs = [
        TensorSpec(name=name, shape=tensor.shape, dtype="F32") for name, tensor in named.items()
    ]
    pieces = (piece for name, tensor in named.items() for piece in expand(gguf, name, tensor))
    write_safetensors(folder / "model.safetensors", specs, pieces)
    write_weights_kind(folder, weights_kind(source))


def folder_bytes(source: GgufFile) -> int:
    """About how much room the converted folder takes."""
    values = sum(int(np.prod(tensor.shape)) for tensor in source.tensors)
    return 4 * values + BESIDE_WEIGHTS_BYTES


def weights_kind(source: GgufFile) -> WeightsKind:
    """How results should name the weights that come from `source`."""
    if source.metadata.get("general.file_type") == Q4_K_M_FILE_TYPE:
        return WeightsKind.DEQUANTISED_Q4_K_M
    return WeightsKind.DEQUANTISED_GGUF


def gguf_shape(source: GgufFile) -> ModelShape:
    """The model's sizes; UserError where `source` is no Gemma 3."""
    architecture = source.metadata.get("general.architecture")
    if architecture != "gemma3":
        raise UserError(
            f"gguf {source.path} is of architecture {architecture!r}; supported: 'gemma3'"
        )
    embedding = next(
        (tensor for tensor in source.tensors if tensor.name == "token_embd.weight"), None
    )
    if embedding is None:
        raise UserError(
            f"gguf {source.path} has no token_embd.weight; pass a GGUF of a whole model"
        )
    return ModelShape(
        layers=source.integer("gemma3.block_count"),
        hidden=source.integer("gemma3.embedding_length"),
        ffn=source.integer("gemma3.feed_forward_length"),
        heads=source.integer("gemma3.attention.head_count"),
        kv_heads=source.integer("gemma3.attention.head_count_kv"),
        head_dim=source.integer("gemma3.attention.key_length", 256),
        vocab=embedding.shape[0],
        sliding_window=source.integer("gemma3.attention.sliding_window"),
        sliding_pattern=source.integer("gemma3.attention.sliding_window_pattern", 6),
        tied_head=all(tensor.name != "output.weight" for tensor in source.tensors),
    )


def gguf_constants(source: GgufFile, shape: ModelShape) -> GemmaConstants:
    """Everything else that config.json needs, from the metadata where it has it."""
    stretched = source.metadata.get("gemma3.rope.scaling.type") == "linear"
    # Only 27B divides by hidden / heads; GGUF does not record it, so llama.cpp counts layers too.
    scalar = shape.hidden // shape.heads if shape.layers == LAYERS_OF_27B else shape.head_dim
    return GemmaConstants(
        max_position_embeddings=source.integer("gemma3.context_length"),
        rms_norm_eps=source.number("gemma3.attention.layer_norm_rms_epsilon"),
        rope_theta_global=source.number("gemma3.rope.freq_base", 1_000_000.0),
        rope_theta_local=source.number("gemma3.rope.freq_base_swa", 10_000.0),
        rope_factor_global=source.number("gemma3.rope.scaling.factor") if stretched else None,
        query_pre_attn_scalar=scalar,
        pad_token_id=source.integer("tokenizer.ggml.padding_token_id", 0),
        eos_token_id=source.integer("tokenizer.ggml.eos_token_id", 1),
        bos_token_id=source.integer("tokenizer.ggml.bos_token_id", 2),
    )


def named_tensors(source: GgufFile, shape: ModelShape) -> dict[str, GgufTensor]:
    """The tensors under their Hugging Face names; UserError unless they are exactly the model's."""
    named: dict[str, GgufTensor] = {}
    expected = tensor_shapes(shape)
    for tensor in source.tensors:
        name = hugging_face_name(tensor.name)
        if name is None or name not in expected:
            raise UserError(
                f"gguf {source.path} has a tensor {tensor.name}, which Gemma 3 text models have not"
            )
        if tensor.shape != expected[name]:
            raise UserError(
                f"gguf {source.path}: {tensor.name} is {tensor.shape}, its metadata say"
                f" {expected[name]}"
            )
        named[name] = tensor
    missing = expected.keys() - named.keys()
    if missing:
        raise UserError(
            f"gguf {source.path} lacks {len(missing)} tensors, the first {min(missing)};"
            " fetch it again"
        )
    return named


def expand(gguf: Path, name: str, tensor: GgufTensor) -> Iterator[bytes]:
    """The tensor's values as float32 bytes, a few rows at a time."""
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.size_bytes // rows
    rows_at_a_time = max(1, PIECE_VALUES // tensor.shape[-1])
    with gguf.open("rb") as file:
        file.seek(tensor.offset_bytes)
        for start in range(0, rows, rows_at_a_time):
            count = min(rows_at_a_time, rows - start)
            packed = np.frombuffer(file.read(count * row_bytes), dtype=np.uint8)
            try:
                values = dequantize(packed.reshape(count, row_bytes), tensor.kind)
            except NotImplementedError:
                raise UserError(
                    f"gguf {gguf} stores {tensor.name} as {tensor.kind.name},"
                    " which cannot be expanded; pass a GGUF of another quantisation, such as Q4_K_M"
                ) from None
            if is_norm(name):
                # GGUF stores 1 + w so that its norm multiplies by the weight alone;
                # Hugging Face stores w, and its Gemma adds the 1.
                values = values - np.float32(1)
            yield np.ascontiguousarray(values, dtype="<f4").tobytes()
