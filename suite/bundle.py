"""The folder a campaign leaves behind; the store is built from bundles.

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
from suite.results.model import Campaign, CampaignStatus, Pair, PairStatus

CAMPAIGN_FILE = "campaign.json"


@contextmanager
def only_harness(folder: Path) -> Iterator[None]:
    """Holds the bundle folder for one harness: two at once would disturb each other.

    Raises:
        UserError: Another harness holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
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


def finished_cases(bundles: Path, plan_key: str, weights_sha256: str, code: str) -> dict[str, str]:
    """The cases that an interrupted series of the same plan has already measured.

    Args:
        bundles: Folder of bundles.
        plan_key: Hash of the plan.
        weights_sha256: Hash of the model's weights.
        code: Commit, lock and dirty flag, which must be the same to continue.

    Returns:
        The ids of the cases that ended well, each with the series they belong
        to; empty when there is nothing to continue.
    """
    series: dict[str, list[tuple[str, set[str]]]] = {}
    for path in sorted(bundles.glob(f"*/{CAMPAIGN_FILE}")):
        campaign = json.loads(path.read_text())
        same = (
            campaign["plan_key"] == plan_key
            and campaign["weights_sha256"] == weights_sha256
            and code_identity(campaign["provenance"]) == code
        )
        if same:
            measured = {
                pair["case_id"]
                for pair in map(_read_pair, path.parent.glob("pair-*.json"))
                if pair["status"] == PairStatus.OK
            }
            series.setdefault(campaign["series_id"], []).append((campaign["status"], measured))
    if not series:
        return {}
    newest = max(series)
    if series[newest][-1][0] != CampaignStatus.INTERRUPTED:
        return {}
    return {case: newest for _, measured in series[newest] for case in measured}


def code_identity(provenance: dict[str, Any]) -> str:
    """What must not change between the parts of a continued series."""
    fields = ("git_commit", "git_dirty", "lock_sha256", "image")
    return json.dumps([provenance[field] for field in fields])


def _read_pair(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


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
