"""Models with true shapes and random weights: what they cost is real, what they say is not."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suite.errors import UserError
from suite.models.cache import Progress, cached_folder
from suite.models.config_json import GemmaConstants, write_config
from suite.models.folder import write_weights_kind
from suite.models.gemma_270m import default_model_folder
from suite.models.model import ModelShape, WeightsKind
from suite.models.safetensors_file import BYTES_PER_VALUE, TensorSpec, write_safetensors
from suite.models.tensors import is_norm, tensor_shapes
from suite.models.tiny_tokenizer import write_tiny_tokenizer

PREFIX = "synthetic:"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
BESIDE_WEIGHTS_BYTES = 16 << 20
PIECE_VALUES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """One model that can be made from nothing."""

    shape: ModelShape
    dtype: str
    """"BF16" or "F32"."""

    own_tokenizer: bool
    """Whether it has the 512-entry tokenizer made here, or that of gemma-3-270m."""


GEMMA_3_270M = ModelShape(
    layers=18, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, vocab=262_144,
    sliding_window=512, sliding_pattern=6, tied_head=True,
)  # fmt: skip
GEMMA_3_1B = ModelShape(
    layers=26, hidden=1152, ffn=6912, heads=4, kv_heads=1, head_dim=256, vocab=262_144,
    sliding_window=512, sliding_pattern=6, tied_head=True,
)  # fmt: skip
GEMMA_3_TINY = ModelShape(
    layers=4, hidden=64, ffn=128, heads=4, kv_heads=1, head_dim=32, vocab=512,
    sliding_window=512, sliding_pattern=2, tied_head=True,
)  # fmt: skip

SYNTHETIC = {
    "gemma-3-1b": Synthetic(shape=GEMMA_3_1B, dtype="BF16", own_tokenizer=False),
    "gemma-3-270m": Synthetic(shape=GEMMA_3_270M, dtype="BF16", own_tokenizer=False),
    "gemma-3-tiny": Synthetic(shape=GEMMA_3_TINY, dtype="F32", own_tokenizer=True),
}


def synthetic_folder(reference: str, cache_dir: Path, progress: Progress) -> Path:
    """The folder of ``synthetic:NAME``, made where the cache has none.

    Raises UserError for a name that is not in SYNTHETIC, and where the tokenizer
    has to be downloaded and cannot be.
    """
    name = reference.removeprefix(PREFIX)
    if name not in SYNTHETIC:
        known = ", ".join(PREFIX + known for known in SYNTHETIC)
        raise UserError(f"model {reference!r} is not one of {known}")
    model = SYNTHETIC[name]

    def build(staging: Path) -> Path:
        if model.own_tokenizer:
            write_tiny_tokenizer(staging, model.shape.vocab)
        else:
            default = default_model_folder(cache_dir, progress)
            for file in TOKENIZER_FILES:
                shutil.copyfile(default / file, staging / file)
        progress(f"{reference}: making random weights")
        write_random_model(staging, reference, model)
        return staging

    return cached_folder(
        cache_dir,
        reference.replace(":", "-"),
        needed_bytes=weights_bytes(model) + BESIDE_WEIGHTS_BYTES,
        build=build,
        progress=progress,
    )


def write_random_model(folder: Path, seed: str, model: Synthetic) -> None:
    """Writes config.json, model.safetensors and weightless.json into `folder`."""
    constants = GemmaConstants(query_pre_attn_scalar=model.shape.head_dim)
    write_config(
        folder, model.shape, constants, dtype={"BF16": "bfloat16", "F32": "float32"}[model.dtype]
    )
    specs = [
        TensorSpec(name=name, shape=shape, dtype=model.dtype)
        for name, shape in tensor_shapes(model.shape).items()
    ]
    encode = ENCODERS[model.dtype]
    pieces = (encode(values) for spec in specs for values in random_values(spec, seed))
    write_safetensors(folder / "model.safetensors", specs, pieces)
    write_weights_kind(folder, WeightsKind.RANDOM)


def weights_bytes(model: Synthetic) -> int:
    """Size of all tensors."""
    values = sum(int(np.prod(shape)) for shape in tensor_shapes(model.shape).values())
    return values * BYTES_PER_VALUE[model.dtype]


def random_values(spec: TensorSpec, seed: str) -> Iterator[NDArray[np.float32]]:
    """The tensor's float32 values in order, a few million at a time.

    Matrices are normal with deviation 1/sqrt(in), so what has unit size going in
    has it coming out. Norms are zero, to which Gemma adds one. The values depend
    on `seed` and the tensor's name alone.
    """
    count = int(np.prod(spec.shape))
    if is_norm(spec.name):
        yield np.zeros(count, dtype=np.float32)
        return
    digest = hashlib.sha256(f"{seed}/{spec.name}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    scale = np.float32(spec.shape[-1] ** -0.5)
    for start in range(0, count, PIECE_VALUES):
        values = generator.standard_normal(min(PIECE_VALUES, count - start), dtype=np.float32)
        values *= scale
        yield values


def float32_bytes(values: NDArray[np.float32]) -> bytes:
    """Little-endian."""
    return values.astype("<f4", copy=False).tobytes()


def bfloat16_bytes(values: NDArray[np.float32]) -> bytes:
    """Little-endian, rounded to nearest, ties to even; `values` are finite."""
    bits = values.view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype("<u2").tobytes()


ENCODERS: dict[str, Callable[[NDArray[np.float32]], bytes]] = {
    "F32": float32_bytes,
    "BF16": bfloat16_bytes,
}
