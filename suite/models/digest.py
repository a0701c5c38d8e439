"""SHA-256 of weights, remembered so that a second look costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from suite.models.config_json import write_json


def sha256_of(files: Sequence[Path]) -> str:
    """SHA-256 over the bytes of `files`, one after the other."""
    digest = hashlib.sha256()
    block = bytearray(1 << 20)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(block):
                digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def remembered_sha256(files: Sequence[Path], cache_dir: Path) -> str:
    """Like `sha256_of`, but read from CACHE/sha256 while the files look the same.

    The same means name, size and modification time. The note lies in the cache
    and not beside the files, whose folder may be read-only.
    """
    key = hashlib.sha256("\n".join(str(file.absolute()) for file in files).encode()).hexdigest()[
        :32
    ]
    note = cache_dir / "sha256" / f"{key}.json"
    stats = [(file.name, file.stat()) for file in files]
    seen = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    try:
        remembered = json.loads(note.read_text(encoding="utf-8"))
        if remembered["files"] == seen:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        # No note, or an unreadable one: it is only ever a shortcut.
        pass
    digest = sha256_of(files)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(f".{os.getpid()}.tmp")
        write_json(draft, {"sha256": digest, "files": seen})
        draft.replace(note)
    except OSError:
        # A full or read-only cache costs the shortcut, not the answer.
        pass
    return digest
