"""Stores for tests of the dashboard, by what they hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import duckdb

from suite.plan import ArmPath
from suite.results.model import Pair, PairStatus
from suite.results.store import create_empty, publish
from tests import builders

ZERO = "factors are zero by construction"
INCOHERENT = "incoherent: W0 shared without training"
RANDOM = "random weights"
OUT_OF_MEMORY = "the worker needed 21 GB of 8.6 GB"

REFERENCES = """\
reference_id,source,hardware,model,path,rank,groups,quant,capture,decode_tok_s,native_decode_tok_s,note
b1,A published document,NVIDIA B200,Gemma 3 1B,custom-op,4,,none,,144.6,458,single stream
b2,A published document,NVIDIA B200,Gemma 3 1B,gemm,4,,none,,213.9,458,single stream
b3,A published document,NVIDIA B200,Gemma 3 1B,native-dense,,,none,,458,,single stream
"""


def full(database: Path, *, best: float = 0.98) -> None:
    """Two models, every path, every kind of tag, one failure, published figures."""
    csv = database.with_suffix(".csv")
    csv.write_text(REFERENCES)
    with patch("suite.results.rows.REFERENCE_CSV", csv):
        publish(
            database,
            builders.campaign("c1", started_at=builders.START - timedelta(days=1)),
            [_tiny_pair()],
        )
        publish(
            database,
            builders.campaign("c2"),
            [
                tagged(ArmPath.GEMM, 0.93, ZERO),
                tagged(ArmPath.GEMM, 0.9, INCOHERENT, groups=1),
                tagged(ArmPath.CUSTOM_OP, 0.42, ZERO),
                tagged(ArmPath.CUSTOM_OP, 0.37, ZERO, rank=32),
                tagged(ArmPath.PRECOMPUTE, best, ZERO),
                tagged(ArmPath.PRECOMPUTE, 0.95, ZERO, gate_up_fuse=False),
                failed(ArmPath.CUSTOM_OP, PairStatus.OOM, OUT_OF_MEMORY, rank=8),
            ],
        )


def empty(database: Path) -> None:
    create_empty(database)


def one_row(database: Path, *, ratio: float = 1.25) -> None:
    """One case against native dense."""
    publish(database, builders.campaign(), [builders.pair(ratio=ratio)])


def all_failed(database: Path) -> None:
    """Two cases, neither of which loaded."""
    publish(
        database,
        builders.campaign(),
        [
            failed(ArmPath.GEMM, PairStatus.FAILED, "the graph did not compile"),
            failed(ArmPath.CUSTOM_OP, PairStatus.OOM, OUT_OF_MEMORY),
        ],
    )


def corrupt(database: Path) -> None:
    database.write_bytes(b"this is not a database " * 1000)


def newer(database: Path) -> None:
    """Written by a suite with a schema that does not exist yet."""
    create_empty(database)
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")


def tagged(path: ArmPath, ratio: float, tag: str, **fields: object) -> Pair:
    of = builders.case(path, **fields)
    arms = (builders.arm(of.native), builders.arm(of, tags=(tag,)))
    return builders.pair(of, ratio=ratio, arms=arms)


def failed(path: ArmPath, status: PairStatus, reason: str, **fields: object) -> Pair:
    return builders.pair(builders.case(path, **fields), status=status, reason=reason)


def _tiny_pair() -> Pair:
    of = builders.case(model="synthetic:gemma-3-tiny")
    arms = (builders.arm(of.native, tags=(RANDOM,)), builders.arm(of, tags=(RANDOM, ZERO)))
    return builders.pair(of, ratio=0.8, arms=arms, finished_at=builders.START - timedelta(days=1))
