"""Which cases an interrupted series has already measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suite.results.model import Campaign, CampaignStatus, PairStatus
from suite.results.rows import campaign_row
from suite.results.store import connect

SAME = (
    "plan_key",
    "method_version",
    "engine",
    "weights_sha256",
    "code_sha256",
    "lock_sha256",
    "image",
    "os_kernel",
    "cpu_model",
    "cpus_allowed",
    "memory_bytes",
)
"""Columns in which a campaign must equal the one it continues."""


@dataclass(frozen=True)
class Unfinished:
    """A series that did not come to its end, and the cases of it that are done."""

    series_id: str
    case_ids: frozenset[str]


def unfinished_series(database: Path, campaign: Campaign) -> Unfinished | None:
    """The newest series that ``campaign`` would continue; None where there is none.

    Raises:
        UserError: The store cannot be read.
    """
    if not database.exists():
        return None
    row = campaign_row(campaign)
    # JSON columns compare as text; NULL equals NULL here.
    same = " AND ".join(f"{name}::VARCHAR IS NOT DISTINCT FROM ?::VARCHAR" for name in SAME)
    with connect(database) as connection:
        newest = connection.execute(
            f"SELECT series_id, status FROM campaign WHERE {same} "
            "ORDER BY started_at DESC, campaign_id DESC LIMIT 1",
            [row[name] for name in SAME],
        ).fetchone()
        if newest is None or newest[1] == CampaignStatus.COMPLETE:
            return None
        done = connection.execute(
            "SELECT case_id FROM pair JOIN campaign USING (campaign_id) "
            "WHERE series_id = ? AND pair.status = ?",
            [newest[0], str(PairStatus.OK)],
        ).fetchall()
    return Unfinished(newest[0], frozenset(case_id for (case_id,) in done))
