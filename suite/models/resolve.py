"""From what the user typed to a model in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from suite.errors import UserError
from suite.models.cache import Progress, cached_folder
from suite.models.digest import remembered_sha256
from suite.models.folder import model_in
from suite.models.gemma_270m import MODEL_NAME, default_model_folder
from suite.models.gguf_file import read_gguf
from suite.models.gguf_folder import convert_gguf, folder_bytes
from suite.models.hub import hub_folder
from suite.models.model import Model
from suite.models.synthetic import PREFIX, synthetic_folder

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(reference: str, *, cache_dir: Path, progress: Progress) -> Model:
    """The model that `reference` names, made or fetched into `cache_dir` where need be.

    `reference` is ``gemma-3-270m``, ``synthetic:NAME``, a folder, a file
    ``*.gguf``, or a Hugging Face id; a folder that exists wins over an id.
    `progress` gets one line before each step that takes long. Raises UserError
    where there is no such model or it cannot be had.
    """
    path = Path(reference).expanduser()
    if reference == MODEL_NAME:
        folder, name = default_model_folder(cache_dir, progress), MODEL_NAME
    elif reference.startswith(PREFIX):
        folder, name = synthetic_folder(reference, cache_dir, progress), reference
    elif path.suffix == ".gguf":
        folder, name = gguf_model_folder(path, cache_dir, progress), path.stem
    elif reference and path.is_dir():
        folder, name = path.resolve(), path.resolve().name
    elif HUB_ID.fullmatch(reference) and not path.exists():
        folder, name = hub_folder(reference, progress), reference
    elif os.sep in reference or (reference and path.exists()):
        raise UserError(
            f"model folder {path} does not exist or is no folder; pass one with config.json in it"
        )
    else:
        raise UserError(
            f"model {reference!r} is unknown; pass {MODEL_NAME}, {PREFIX}NAME, a folder,"
            " a file *.gguf or a Hugging Face id ORGANISATION/NAME"
        )
    return model_in(folder, name=name, cache_dir=cache_dir)


def gguf_model_folder(gguf: Path, cache_dir: Path, progress: Progress) -> Path:
    """The converted folder of the user's own `gguf`, kept under the file's digest."""
    if not gguf.is_file():
        raise UserError(f"gguf {gguf} does not exist; check the path given to --model")
    source = read_gguf(gguf)

    def build(staging: Path) -> Path:
        convert_gguf(gguf, staging, progress)
        return staging

    return cached_folder(
        cache_dir,
        f"gguf-{remembered_sha256([gguf], cache_dir)[:16]}",
        needed_bytes=folder_bytes(source),
        build=build,
        progress=progress,
    )
