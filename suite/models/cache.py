"""Model folders under the cache directory: each is made once, whole or not at all.

CACHE/models/NAME       finished folders
CACHE/staging/NAME      one being made; whatever lies here is unfinished
CACHE/locks/NAME.lock   held while NAME is being made
CACHE/sha256/KEY.json   digests of weights, see digest.py
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.errors import UserError

Progress = Callable[[str], None]


def default_cache_dir() -> Path:
    """$WEIGHTLESS_HOME, else weightless under $XDG_CACHE_HOME, else ~/.cache/weightless."""
    if home := os.environ.get("WEIGHTLESS_HOME"):
        return Path(home).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weightless"


def cached_folder(
    cache_dir: Path,
    name: str,
    *,
    needed_bytes: int,
    build: Callable[[Path], Path],
    progress: Progress,
) -> Path:
    """The finished folder CACHE/models/NAME, made by `build` where it is not there yet.

    `build` gets an empty staging folder and returns the folder within it that is
    to be kept; the rest is deleted. A second process waits for the first.
    Raises UserError where the disk lacks `needed_bytes` at the start or fills up.
    """
    finished = cache_dir / "models" / name
    if finished.is_dir():
        return finished
    staging = cache_dir / "staging" / name
    try:
        with locked(cache_dir / "locks" / f"{name}.lock", progress):
            if finished.is_dir():
                return finished
            # The lock is ours, so anything here is left from a run that was killed.
            shutil.rmtree(staging, ignore_errors=True)
            try:
                staging.mkdir(parents=True)
                finished.parent.mkdir(parents=True, exist_ok=True)
                require_space(cache_dir, name, needed_bytes)
                build(staging).rename(finished)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(cache_dir, name, needed_bytes) from None
        raise UserError(
            f"model {name} cannot be kept in {cache_dir}: {problem};"
            " set WEIGHTLESS_HOME to a folder you may write to"
        ) from None
    return finished


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock on `path`, which the system drops if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that is making {path.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_space(cache_dir: Path, name: str, needed_bytes: int) -> None:
    """UserError where the disk under `cache_dir` has fewer than `needed_bytes` free."""
    if free_bytes(cache_dir) < needed_bytes:
        raise no_space(cache_dir, name, needed_bytes)


def no_space(cache_dir: Path, name: str, needed_bytes: int) -> UserError:
    """The error for a disk that is, or has become, too full."""
    return UserError(
        f"model {name} needs about {needed_bytes} bytes in {cache_dir}, where"
        f" {free_bytes(cache_dir)} are free;"
        " make room or set WEIGHTLESS_HOME to a folder on a larger disk"
    )


def free_bytes(cache_dir: Path) -> int:
    """Room on the disk of `cache_dir`, or of the nearest folder above it that exists."""
    existing = next(path for path in (cache_dir, *cache_dir.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free
