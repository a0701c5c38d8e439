"""Checks that a folder holds a whole model, and says what is in it."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from suite.errors import UserError
from suite.models.config_json import read_shape, write_json
from suite.models.digest import remembered_sha256
from suite.models.model import Model, WeightsKind

KIND_FILE = "weightless.json"
"""In folders made here only: without it, expanded weights would pass for a checkpoint."""


def write_weights_kind(folder: Path, kind: WeightsKind) -> None:
    """Notes in `folder` where its weights came from."""
    write_json(folder / KIND_FILE, {"weights": kind.value})


def read_weights_kind(folder: Path) -> WeightsKind:
    """What `write_weights_kind` noted; a folder without a note is a checkpoint."""
    try:
        return WeightsKind(json.loads((folder / KIND_FILE).read_text(encoding="utf-8"))["weights"])
    except FileNotFoundError:
        return WeightsKind.CHECKPOINT
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / KIND_FILE} is damaged; delete {folder} and run again") from None


def model_in(folder: Path, *, name: str, cache_dir: Path) -> Model:
    """The model in `folder`.

    Raises UserError, one for each, where the folder has no config.json, an
    architecture the suite cannot run, no safetensors file, fewer than its index
    lists, one that is cut short, or no tokenizer.json.
    """
    shape = read_shape(folder)
    files = weight_files(folder)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"model folder {folder} has no tokenizer.json;"
            " fetch the checkpoint again with its tokenizer"
        )
    return Model(
        name=name,
        folder=folder,
        weights=read_weights_kind(folder),
        weights_sha256=remembered_sha256(files, cache_dir),
        shape=shape,
    )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files in the order of their names, none missing or cut short."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"model folder {folder} has no *.safetensors file;"
            " convert the weights to safetensors first"
        )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{index} is damaged; fetch the checkpoint again") from None
        missing = listed - {file.name for file in files}
        if missing:
            raise UserError(
                f"model folder {folder} lacks {len(missing)} of {len(listed)} files that its"
                f" index lists, the first {min(missing)}; fetch the checkpoint again"
            )
    for file in files:
        try:
            # Opening reads the table of contents and compares it with the file's length.
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as problem:
            raise UserError(
                f"{file} is damaged or cut short at {file.stat().st_size} bytes ({problem});"
                " fetch the checkpoint again"
            ) from None
    return files
