"""The store: what is kept, what is replaced, and what every broken file is told."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import re
import resource
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pytest

from suite.errors import UserError
from suite.plan import ArmPath
from suite.results import store
from suite.results.model import CampaignStatus, PairStatus
from suite.results.store import SCHEMA, TABLES, connect, create_empty, publish
from tests.builders import START, arm, campaign, case, pair, run

GEMM, CUSTOM = case(), case(ArmPath.CUSTOM_OP)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "results.duckdb"


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of no campaign and one of campaign c1."""
    folder = tmp_path_factory.mktemp("templates")
    create_empty(folder / "empty.duckdb")
    publish(folder / "stored.duckdb", campaign(), [pair()])
    return folder


@pytest.fixture
def empty(templates: Path, database: Path) -> Path:
    return Path(shutil.copy(templates / "empty.duckdb", database))


@pytest.fixture
def stored(templates: Path, database: Path) -> Path:
    return Path(shutil.copy(templates / "stored.duckdb", database))


def digest(database: Path) -> str:
    """A hash of every row, whatever the bytes of the file."""
    content = hashlib.sha256()
    with connect(database) as connection:
        for table, key in TABLES.items():
            rows = connection.execute(f'SELECT * FROM "{table}" ORDER BY {key}').fetchall()
            content.update(repr(rows).encode())
    return content.hexdigest()


def rows(database: Path, query: str) -> list[tuple[object, ...]]:
    with connect(database) as connection:
        return connection.execute(query).fetchall()


FAILED: dict[str, Any] = {"status": PairStatus.OOM, "reason": "out of memory"}


def test_what_is_published_is_read_back(database: Path) -> None:
    publish(database, campaign(), [pair(GEMM), pair(CUSTOM)])
    assert rows(database, "SELECT campaign_id, cpus_allowed FROM campaign") == [("c1", "[0, 1]")]
    query = 'SELECT label, status FROM pair JOIN "case" USING (case_id) ORDER BY 1'
    assert rows(database, query) == [(CUSTOM.label, "ok"), (GEMM.label, "ok")]
    assert rows(database, "SELECT count(*) FROM arm") == [(4,)]
    assert rows(database, "SELECT count(*), sum(warmup::INTEGER) FROM run") == [(24, 4)]
    first = next(r for r in pair(CUSTOM).runs if not r.warmup and r.case == CUSTOM)
    query = f"SELECT event_t, event_n FROM run WHERE case_id = '{CUSTOM.case_id}' AND NOT warmup"
    times, tokens = zip(*first.events, strict=True)
    assert (list(times), list(tokens)) in rows(database, query)


def test_times_are_utc(database: Path) -> None:
    east = timezone(timedelta(hours=2))
    publish(database, campaign(started_at=START.astimezone(east)), [pair()])
    found = rows(database, "SELECT strftime(started_at, '%H:%M'), typeof(started_at) FROM campaign")
    assert found == [("12:00", "TIMESTAMP")]


def test_publishing_the_same_again_changes_nothing(database: Path) -> None:
    publish(database, campaign(), [pair(GEMM), pair(CUSTOM)])
    before, content = digest(database), database.read_bytes()
    publish(database, campaign(), [pair(CUSTOM), pair(GEMM)])
    assert digest(database) == before
    assert database.read_bytes() == content


def test_the_order_of_publishing_does_not_matter(tmp_path: Path) -> None:
    one, two = tmp_path / "one.duckdb", tmp_path / "two.duckdb"
    campaigns = [campaign("c1"), campaign("c2")]
    for database, order in ((one, campaigns), (two, campaigns[::-1])):
        for each in order:
            publish(database, each, [pair()])
    assert digest(one) == digest(two)


def test_pairs_of_a_campaign_may_come_one_by_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one.duckdb", tmp_path / "two.duckdb"
    publish(one, campaign(), [pair(GEMM), pair(CUSTOM)])
    started = campaign(status=CampaignStatus.INTERRUPTED, ended_at=None)
    publish(two, started, [pair(GEMM)])
    publish(two, campaign(), [pair(CUSTOM)])
    assert digest(one) == digest(two)


def test_a_failed_retry_never_replaces_what_is_ok(stored: Path) -> None:
    before = digest(stored)
    publish(stored, campaign(), [pair(**FAILED)])
    assert digest(stored) == before


def test_what_is_ok_replaces_a_failure_and_its_runs(tmp_path: Path) -> None:
    database, fresh = tmp_path / "results.duckdb", tmp_path / "fresh.duckdb"
    partial = pair(**FAILED, arms=(arm(GEMM),), runs=(run(GEMM, GEMM, round=7),))
    publish(database, campaign(), [partial, pair(CUSTOM)])
    publish(database, campaign(), [pair()])
    publish(fresh, campaign(), [pair(), pair(CUSTOM)])
    assert digest(database) == digest(fresh)


def test_a_failure_of_another_campaign_stands_beside(stored: Path) -> None:
    publish(stored, campaign("c2"), [pair(**FAILED)])
    assert rows(stored, "SELECT campaign_id, status FROM pair ORDER BY 1") == [
        ("c1", "ok"),
        ("c2", "oom"),
    ]


def test_the_same_case_with_other_content_is_an_error(stored: Path) -> None:
    with duckdb.connect(str(stored)) as connection:
        connection.execute("""UPDATE "case" SET label = 'other' WHERE label <> 'native-dense'""")
    before = stored.read_bytes()
    with pytest.raises(UserError, match=r"other content: label 'other' there, 'gemm r=4 G=layers'"):
        publish(stored, campaign("c2"), [pair()])
    assert stored.read_bytes() == before


def test_an_empty_store_holds_the_published_figures(empty: Path) -> None:
    assert rows(empty, "SELECT count(*) FROM campaign") == [(0,)]
    query = "SELECT decode_tok_s FROM reference ORDER BY 1"
    assert [value for (value,) in rows(empty, query)] == [
        15.0,
        66.9,
        83.4,
        120.0,
        144.6,
        166.1,
        213.9,
        282.0,
        458.0,
        691.0,
    ]
    with pytest.raises(UserError, match="exists already"):
        create_empty(empty)


def test_every_publication_brings_the_published_figures_up_to_date(empty: Path) -> None:
    with duckdb.connect(str(empty)) as connection:
        connection.execute("DELETE FROM reference WHERE rank = 4")
    publish(empty, campaign(), [pair()])
    assert rows(empty, "SELECT count(*) FROM reference") == [(10,)]


# Broken files


def truncated(database: Path) -> None:
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])


def flipped(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[9000] ^= 255
    database.write_bytes(content)


def foreign(database: Path) -> None:
    database.unlink()
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE run (a INTEGER)")


def foreign_meta(database: Path) -> None:
    database.unlink()
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE meta (key VARCHAR, value VARCHAR)")
        connection.execute("INSERT INTO meta VALUES ('schema_version', '1')")


def spying(database: Path) -> None:
    """A view that would read another file."""
    foreign(database)
    with duckdb.connect(str(database)) as connection:
        query = "SELECT column0 AS key, column0 AS value FROM read_csv('/etc/hosts', header=false)"
        connection.execute(f"CREATE VIEW meta AS {query}")


def other_columns(database: Path) -> None:
    with duckdb.connect(str(database)) as connection:
        connection.execute("ALTER TABLE campaign ADD COLUMN colour VARCHAR")


def newer_schema(database: Path) -> None:
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE meta SET value = '9' WHERE key = 'schema_version'")


def newer_duckdb(database: Path) -> None:
    """Storage version 200, with the checksum that DuckDB says it misses."""
    content = bytearray(database.read_bytes())
    content[12:20] = struct.pack("<Q", 200)
    database.write_bytes(content)
    with pytest.raises(duckdb.Error) as error:
        duckdb.connect(str(database), read_only=True)
    checksum = re.search(r"computed checksum (\d+)", str(error.value))
    assert checksum is not None
    content[:8] = struct.pack("<Q", int(checksum[1]))
    database.write_bytes(content)


Breakage = Callable[[Path], object]

BROKEN: list[tuple[Breakage, str]] = [
    (truncated, "is damaged; restore it"),
    (flipped, "is damaged; restore it"),
    (lambda path: path.write_bytes(b"PK" * 4000), "is not a DuckDB file"),
    (lambda path: path.write_bytes(b""), "is not a DuckDB file"),
    (foreign, "not a result store of this suite"),
    (foreign_meta, "not a result store of this suite"),
    (spying, "not a result store of this suite"),
    (newer_schema, "was written by schema 9, this suite knows 1; update the suite"),
    (newer_duckdb, "needs a newer DuckDB than"),
]


@pytest.mark.parametrize(("breakage", "message"), BROKEN)
def test_a_broken_file_is_named_and_left_alone(
    stored: Path, breakage: Breakage, message: str
) -> None:
    breakage(stored)
    before = stored.read_bytes()
    with pytest.raises(UserError, match=message) as reading, connect(stored):
        pass
    with pytest.raises(UserError, match=message) as writing:
        publish(stored, campaign(), [pair()])
    for error in (reading, writing):
        assert str(stored) in str(error.value)
        assert "\n" not in str(error.value)
    assert stored.read_bytes() == before
    assert left(stored) == []


def left(database: Path) -> list[str]:
    """Files beside the store, its lock aside."""
    ours = {database.name, f"{database.name}.lock"}
    return [path.name for path in database.parent.iterdir() if path.name not in ours]


def test_a_damaged_block_shows_when_it_is_read(stored: Path) -> None:
    content = bytearray(stored.read_bytes())
    start = content.index(b"The capital of France is")
    content[start] ^= 255
    stored.write_bytes(content)
    with (
        pytest.raises(UserError, match="is damaged"),
        connect(stored) as connection,
    ):
        connection.execute('SELECT * FROM "case"').fetchall()
    with pytest.raises(UserError, match="is damaged"):
        publish(stored, campaign("c2"), [pair()])
    assert stored.read_bytes() == content


def test_a_column_that_is_not_ours_is_not_dropped(stored: Path) -> None:
    other_columns(stored)
    before = stored.read_bytes()
    with pytest.raises(UserError, match="other tables or columns than schema 1"):
        publish(stored, campaign("c2"), [pair()])
    assert stored.read_bytes() == before
    assert left(stored) == []


def test_a_missing_file_names_the_command(database: Path) -> None:
    with (
        pytest.raises(UserError, match=r"results\.duckdb does not exist; `make bench` writes it"),
        connect(database),
    ):
        pass
    assert not database.exists()


def test_a_mistake_in_a_query_is_not_blamed_on_the_file(empty: Path) -> None:
    with pytest.raises(duckdb.CatalogException), connect(empty) as connection:
        connection.execute("SELECT * FROM nowhere")


def test_changes_of_another_program_are_not_thrown_away(empty: Path) -> None:
    wal = empty.with_name("results.duckdb.wal")
    wal.write_bytes(b"unfinished")
    with pytest.raises(UserError, match=r"results\.duckdb\.wal holds changes"):
        publish(empty, campaign(), [pair()])
    assert wal.read_bytes() == b"unfinished"


# Failures to write


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit_bytes", [0, 100_000])
def test_a_full_disk_leaves_the_store_and_nothing_else(empty: Path, limit_bytes: int) -> None:
    before = empty.read_bytes()
    with (
        file_size_limit(limit_bytes),
        pytest.raises(UserError, match=r"needs about \d+ bytes in .*, where \d+ are free"),
    ):
        publish(empty, campaign(), [pair()])
    assert empty.read_bytes() == before
    assert left(empty) == []


def test_a_disk_that_fills_up_at_the_last_moment(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = empty.read_bytes()

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_sync", full)
    with pytest.raises(UserError, match="make room"):
        publish(empty, campaign(), [pair()])
    assert empty.read_bytes() == before
    assert left(empty) == []


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that this process may not write, even where it runs as root."""
    folder = Path(tempfile.mkdtemp())
    create_empty(folder / "results.duckdb")
    (folder / "results.duckdb.lock").unlink()
    (folder / "results.duckdb").chmod(0o444)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder_can_be_read_and_says_it_cannot_be_written(
    read_only_folder: Path,
) -> None:
    database = read_only_folder / "results.duckdb"
    before = database.read_bytes()
    with pytest.raises(UserError, match="cannot be written"):
        publish(database, campaign(), [pair()])
    assert database.read_bytes() == before
    assert rows(database, "SELECT count(*) FROM campaign") == [(0,)]
    assert [path.name for path in read_only_folder.iterdir()] == ["results.duckdb"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        publish(tmp_path / "no" / "results.duckdb", campaign(), [])


def test_what_a_killed_writer_left_is_removed(empty: Path) -> None:
    for name in ("results.duckdb.123.tmp", "results.duckdb.123.tmp.wal"):
        empty.with_name(name).write_bytes(b"half")
    publish(empty, campaign(), [pair()])
    assert left(empty) == []


@pytest.mark.parametrize("killed_in", ["_stage", "_write", "_sync"])
def test_an_interrupted_writer_leaves_the_old_file(
    empty: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    before = empty.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, killed_in, stop)
    with pytest.raises(KeyboardInterrupt):
        publish(empty, campaign(), [pair()])
    assert empty.read_bytes() == before
    assert left(empty) == []


def test_a_row_that_breaks_the_schema_leaves_the_old_file(empty: Path) -> None:
    before = empty.read_bytes()
    with pytest.raises(duckdb.ConstraintException):
        publish(empty, campaign(load_start=float("inf")), [pair()])
    assert empty.read_bytes() == before
    assert left(empty) == []


# Several at once


def _publish_one(database: Path, number: int) -> None:
    publish(database, campaign(f"c{number}"), [pair()])


def test_writers_wait_for_each_other(database: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_publish_one, args=(database, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert rows(database, "SELECT campaign_id FROM campaign ORDER BY 1") == [
        ("c0",),
        ("c1",),
        ("c2",),
        ("c3",),
    ]


def test_a_reader_does_not_hinder_a_writer(stored: Path) -> None:
    with connect(stored) as reader:
        context = multiprocessing.get_context("fork")
        writer = context.Process(target=_publish_one, args=(stored, 2))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        publish(stored, campaign("c3"), [pair()])
        assert reader.execute("SELECT count(*) FROM campaign").fetchall() == [(1,)]
    assert rows(stored, "SELECT count(*) FROM campaign") == [(3,)]


# What a reader may do


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/hosts')",
        "ATTACH '/tmp/other.duckdb'",
        "COPY run TO '/tmp/stolen.csv'",
        "SET enable_external_access = true",
        "SET threads = 1",
        "INSTALL httpfs",
        "LOAD httpfs",
        "DELETE FROM run",
        "CREATE TABLE other (a INTEGER)",
    ],
)
def test_a_reader_reads_this_file_and_nothing_else(empty: Path, statement: str) -> None:
    with connect(empty) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement)


@pytest.mark.parametrize("name", ["main.duckdb", "memory.db", "it's", "a-b"])
def test_the_file_may_have_any_name(stored: Path, name: str) -> None:
    database = stored.rename(stored.with_name(name))
    publish(database, campaign("c2"), [pair()])
    assert rows(database, "SELECT count(*) FROM measured_runs") == [(20,)]


def test_older_duckdb_can_read_the_file(empty: Path) -> None:
    (storage_version,) = struct.unpack("<Q", empty.read_bytes()[12:20])
    assert storage_version <= 67, "DuckDB 1.3 reads up to 67"


# The schema


@pytest.fixture(scope="module")
def schema() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(SCHEMA.read_text())
        yield connection


def test_every_table_view_and_column_is_described(schema: duckdb.DuckDBPyConnection) -> None:
    tables = schema.execute("SELECT table_name, comment FROM duckdb_tables()").fetchall()
    views = schema.execute("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal")
    columns = schema.execute(
        "SELECT table_name || '.' || column_name, comment FROM duckdb_columns()"
        " WHERE table_name IN (SELECT table_name FROM duckdb_tables())"
    ).fetchall()
    assert {name for name, _ in tables} == set(TABLES)
    assert [name for name, comment in [*tables, *views.fetchall(), *columns] if not comment] == []


@pytest.mark.parametrize(
    "events",
    [
        ((1000.5, -1),),
        ((1000.5, 1), (1000.4, 1)),
        ((999.0, 1),),
        ((float("nan"), 1),),
        ((float("inf"), 1),),
    ],
)
def test_events_that_cannot_be_are_refused(
    database: Path, events: tuple[tuple[float, int], ...]
) -> None:
    wrong = replace(pair(), runs=(run(GEMM, GEMM, events=events),))
    with pytest.raises(duckdb.ConstraintException):
        publish(database, campaign(), [wrong])


def test_infinite_numbers_are_refused(database: Path) -> None:
    wrong = replace(pair(), arms=(arm(GEMM, compile_s=float("nan")),))
    with pytest.raises(duckdb.ConstraintException):
        publish(database, campaign(), [wrong])
    assert not database.exists()
