"""Remembers which graphs MAX's compile cache holds, so that only cold ones are compiled ahead."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from suite.provenance import sources_sha256

SOURCES = ("weightless_fw", "kernels/ops")


def is_compiled(request: Mapping[str, Any]) -> bool:
    """Whether the graph of a load request was compiled into the present cache."""
    return _marker(request).is_file()


def mark_compiled(request: Mapping[str, Any]) -> None:
    """Notes that it was. The note lies in the cache itself and goes with it."""
    marker = _marker(request)
    # Without the note the next start compiles ahead for nothing, and no more.
    with suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _marker(request: Mapping[str, Any]) -> Path:
    """A file named for what the graph depends on; a false one costs only time."""
    fields = ("path", "environment", "device", "capture", "max_length")
    config = Path(request["folder"]) / "config.json"
    content = json.dumps(
        [*(request[field] for field in fields), config.read_text(), _code_hash()], sort_keys=True
    )
    cache = Path(os.environ.get("MODULAR_CACHE_DIR") or Path.home() / ".cache" / "modular")
    return cache / "weightless" / hashlib.sha256(content.encode()).hexdigest()[:32]


@functools.cache
def _code_hash() -> str:
    return f"{version('max')} {version('mojo')} {sources_sha256(SOURCES)}"
