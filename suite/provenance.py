"""Which code measured, and identifiers for what it measured."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from suite.results.model import Provenance

ROOT = Path(__file__).parents[1]
SOURCES = ("suite", "weightless_fw", "kernels")
PACKAGES = ("max", "mojo", "numpy", "duckdb", "transformers", "tokenizers", "safetensors")


def read_provenance(argv: Sequence[str]) -> Provenance:
    """Reads commit, lock and package versions.

    Args:
        argv: The command line; of paths only the last part is kept.
    """
    commit = _git("rev-parse", "HEAD")
    # What `make bench` and `make readme` write says nothing about the code.
    written = (":!results.duckdb", ":!README.md")
    status = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    lock = ROOT / "uv.lock"
    return Provenance(
        git_commit=commit,
        git_dirty=None if status is None else bool(status),
        code_sha256=_code_sha256(),
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        image="native",
        packages={name: found for name in PACKAGES if (found := _version(name))},
        argv=tuple(Path(word).name if "/" in word else word for word in argv),
    )


def new_campaign_id(now: datetime) -> str:
    """A sortable identifier: UTC start and random bits."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def ids_sha256(ids: Sequence[int]) -> str:
    """Hash of token ids, written as decimals with spaces between."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()


def _code_sha256() -> str:
    """Hash of every source that a number can depend on, committed or not."""
    return sources_sha256(SOURCES)


def sources_sha256(folders: Sequence[str]) -> str:
    """Hash of the names and bytes of the sources in these folders of the project."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".mojo", ".sql", ".yaml"):
                digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
