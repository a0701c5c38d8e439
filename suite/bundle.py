"""The folder a campaign leaves behind: its raw outcome beside the store.

A bundle holds ``campaign.json``, one ``pair-N.json`` per finished case and
``worker.log``. Every file is written whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from suite.errors import UserError
from suite.results.model import Campaign, Pair

CAMPAIGN_FILE = "campaign.json"


@contextmanager
def only_harness(folder: Path) -> Iterator[None]:
    """Holds the bundle folder for one harness: two at once would disturb each other.

    Raises:
        UserError: Another harness holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = (folder / ".lock").open("a+")
    except OSError as error:
        raise UserError(
            f"bundles cannot be written to {folder} ({error.strerror}); name another with --bundles"
        ) from None
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another benchmark is running (it holds {folder / '.lock'}); "
                "two at once would slow each other down, wait for it to end"
            ) from None
        yield


def write_campaign(bundle: Path, campaign: Campaign) -> None:
    """Writes or replaces the campaign's own file."""
    bundle.mkdir(parents=True, exist_ok=True)
    _write_json(bundle / CAMPAIGN_FILE, asdict(campaign))


def write_pair(bundle: Path, pair: Pair) -> None:
    """Adds a finished case."""
    number = len(list(bundle.glob("pair-*.json")))
    content = {"case_id": pair.case.case_id, **asdict(pair)}
    _write_json(bundle / f"pair-{number:03}.json", content)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("w") as file:
            json.dump(content, file, default=_plain, allow_nan=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror}; free space there and run the command again"
        ) from None


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no place in a bundle")
