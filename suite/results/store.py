"""The result store: one DuckDB file, read briefly and replaced whole.

A writer holds ``NAME.lock``, builds ``NAME.<pid>.tmp`` beside the file and
renames it, so that a reader sees the old file or the new one, and a writer
that is killed leaves the old one. Files are foreign data: they are opened
read-only, without access to other files, extensions or settings.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from suite.errors import UserError
from suite.results.model import Campaign, Pair, PairStatus
from suite.results.rows import (
    Row,
    arm_row,
    campaign_row,
    case_row,
    pair_row,
    reference_rows,
    run_row,
)

SCHEMA_VERSION = 1
"""Raised with every change of schema.sql after the first release."""

SUITE = "weightless"

SCHEMA = Path(__file__).parent / "schema.sql"

TABLES = {
    "meta": "key",
    "campaign": "campaign_id",
    "case": "case_id",
    "pair": "campaign_id, case_id",
    "arm": "campaign_id, pair_case_id, case_id",
    "run": "run_id",
    "reference": "reference_id",
}
"""Every table with its key, each after those it refers to."""

_NO_EXTENSIONS: Mapping[str, str] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
}
_CLOSED: Mapping[str, str] = {
    **_NO_EXTENSIONS,
    "enable_external_access": "false",
    "lock_configuration": "true",
}

# Readable by DuckDB 1.3 and later; the same content gives the same bytes.
_FORMAT = "STORAGE_VERSION 'v1.3.0', BLOCK_SIZE 16384"

_DISK_FULL = ("No space left", "File too large", "quota exceeded")


@contextmanager
def connect(database: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection for a few queries; keep it short.

    Raises:
        UserError: The file is missing, damaged, not a result store of this
            suite, or written by a newer suite or DuckDB.
    """
    if not database.is_file():
        raise UserError(f"{database} does not exist; `make bench` writes it")
    with _reading(database):
        connection = duckdb.connect(str(database), read_only=True, config=dict(_CLOSED))
    with connection:
        _require_ours(connection, database, "main.meta")
        with _reading(database):
            yield connection


def check_publishable(database: Path) -> None:
    """Raises UserError where `publish` to this existing file would."""
    _refuse_wal(database)
    with connect(database) as connection:
        for table in TABLES:
            # A view that does not bind, or columns that differ, show here already.
            connection.execute(f'SELECT * FROM "{table}" LIMIT 0')


def create_empty(database: Path) -> None:
    """Writes a store that holds no campaign, only the published reference figures.

    Raises:
        UserError: There is a file already, or the folder cannot be written.
    """
    with _locked(database):
        if database.exists():
            raise UserError(f"{database} exists already; move it away to start an empty one")
        _rebuild(database, None, ())


def publish(database: Path, campaign: Campaign, pairs: Sequence[Pair]) -> None:
    """Adds a campaign and its pairs to the store, creating the file if need be.

    Pairs that the store holds for this campaign are replaced, except that one
    that is ok stays when the new one is not; all else is kept. Waits for other
    writers.

    Raises:
        UserError: The file cannot be read or written, see `connect`; or it
            holds a case with the same id and other content. The file is then
            left as it was.
    """
    with _locked(database):
        _rebuild(database, campaign, pairs)


def _rebuild(database: Path, campaign: Campaign | None, pairs: Sequence[Pair]) -> None:
    temporary = database.with_name(f"{database.name}.{os.getpid()}.tmp")
    # The lock is ours, so any other temporary file is left from a killed writer.
    for stale in database.parent.glob(f"{database.name}.*.tmp*"):
        stale.unlink()
    old_bytes = database.stat().st_size if database.exists() else 0
    needed_bytes = old_bytes + 2**17 + 16 * sum(len(r.events) for p in pairs for r in p.runs)
    try:
        with (
            _writing(database, needed_bytes),
            duckdb.connect(config=dict(_NO_EXTENSIONS)) as connection,
        ):
            _attach(connection, database, temporary)
            _stage(connection, database, campaign, pairs)
            _write(connection, temporary)
            temporary.replace(database)
            _sync(database.parent)
    finally:
        temporary.unlink(missing_ok=True)
        temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)


def _attach(connection: duckdb.DuckDBPyConnection, database: Path, temporary: Path) -> None:
    """Opens the published file as ``old``, the temporary one as ``new``, and nothing after."""
    if database.exists():
        _refuse_wal(database)
        with _reading(database):
            connection.execute(f"ATTACH {_quoted(database)} AS old (READ_ONLY)")
    connection.execute(f"ATTACH {_quoted(temporary)} AS new ({_FORMAT})")
    # In one transaction: each statement on its own would wait for the disk.
    schema = SCHEMA.read_text(encoding="utf-8")
    connection.execute(f"USE new; BEGIN; {schema}; COMMIT; USE memory")
    for setting in ("enable_external_access = false", "threads = 1", "lock_configuration = true"):
        connection.execute(f"SET {setting}")
    if database.exists():
        _require_ours(connection, database, "old.main.meta")


def _refuse_wal(database: Path) -> None:
    wal = database.with_name(f"{database.name}.wal")
    if wal.exists():
        raise UserError(
            f"{wal} holds changes another program has not finished;"
            f" open {database} with it and run CHECKPOINT, or delete {wal.name}"
        )


def _stage(
    connection: duckdb.DuckDBPyConnection,
    database: Path,
    campaign: Campaign | None,
    pairs: Sequence[Pair],
) -> None:
    """Fills tables in memory with what is kept of ``old`` and what is added.

    They have no constraints; those of ``new`` are checked when it is written.
    """
    for table in TABLES:
        connection.execute(f'CREATE TABLE "{table}" AS FROM new.main."{table}" LIMIT 0')
    connection.begin()
    meta = {"schema_version": str(SCHEMA_VERSION), "suite": SUITE}
    _insert(connection, "meta", ({"key": key, "value": value} for key, value in meta.items()))
    _insert(connection, "reference", reference_rows())
    if campaign is not None:
        _insert(connection, "campaign", [campaign_row(campaign)])
    if database.exists():
        if campaign is not None:
            pairs = _without_worse(connection, campaign, pairs)
        try:
            with _reading(database):
                _keep(connection, campaign, pairs)
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ConversionException):
            raise UserError(
                f"{database} has other tables or columns than schema {SCHEMA_VERSION};"
                " restore it with `git checkout` or name another one with --db"
            ) from None
    if campaign is not None:
        _insert_cases(connection, database, pairs)
        _insert(connection, "pair", (pair_row(campaign, pair) for pair in pairs))
        _insert(
            connection, "arm", (arm_row(campaign, pair, arm) for pair in pairs for arm in pair.arms)
        )
        _insert(connection, "run", (run_row(campaign, run) for pair in pairs for run in pair.runs))
    connection.commit()


def _without_worse(
    connection: duckdb.DuckDBPyConnection, campaign: Campaign, pairs: Sequence[Pair]
) -> Sequence[Pair]:
    """The pairs without those that are not ok where the store's one is."""
    query = "SELECT case_id FROM old.pair WHERE campaign_id = ? AND status = 'ok'"
    kept = {row[0] for row in connection.execute(query, [campaign.campaign_id]).fetchall()}
    return [p for p in pairs if p.status is PairStatus.OK or p.case.case_id not in kept]


def _keep(
    connection: duckdb.DuckDBPyConnection, campaign: Campaign | None, pairs: Sequence[Pair]
) -> None:
    campaign_id = campaign.campaign_id if campaign else None
    replaced: list[object] = [campaign_id, [pair.case.case_id for pair in pairs]]
    kept: dict[str, tuple[str, list[object]]] = {
        "campaign": ("campaign_id IS DISTINCT FROM ?", [campaign_id]),
        "case": ("true", []),
        "pair": ("campaign_id IS DISTINCT FROM ? OR NOT list_contains(?, case_id)", replaced),
        "arm": ("campaign_id IS DISTINCT FROM ? OR NOT list_contains(?, pair_case_id)", replaced),
        "run": ("campaign_id IS DISTINCT FROM ? OR NOT list_contains(?, pair_case_id)", replaced),
    }
    for table, (condition, values) in kept.items():
        connection.execute(
            f'INSERT INTO "{table}" BY NAME SELECT * FROM old.main."{table}" WHERE {condition}',
            values,
        )


def _insert_cases(
    connection: duckdb.DuckDBPyConnection, database: Path, pairs: Sequence[Pair]
) -> None:
    """Adds the cases that are not there; one that is there must be the same."""
    cases = {case.case_id: case for p in pairs for case in (p.case, p.case.native)}
    for case_id, case in cases.items():
        new = dict(case_row(case))
        found = connection.execute(
            f'SELECT {", ".join(new)} FROM "case" WHERE case_id = ?', [case_id]
        ).fetchone()
        if found is None:
            _insert(connection, "case", [new])
            continue
        old = dict(zip(new, found, strict=True))
        differing = [name for name in new if new[name] != old[name]]
        if differing:
            shown = "; ".join(
                f"{name} {old[name]!r} there, {new[name]!r} here" for name in differing
            )
            raise UserError(
                f"{database} holds case {case_id} with other content: {shown};"
                " publish to another file with --db"
            )


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Row]) -> None:
    made = list(rows)
    if made:
        columns, marks = ", ".join(made[0]), ", ".join("?" * len(made[0]))
        statement = f'INSERT INTO "{table}" ({columns}) VALUES ({marks})'
        connection.executemany(statement, [list(row.values()) for row in made])


def _write(connection: duckdb.DuckDBPyConnection, temporary: Path) -> None:
    """Copies the tables in memory to ``new`` in key order and closes it safely."""
    connection.begin()
    for table, key in TABLES.items():
        connection.execute(
            f'INSERT INTO new.main."{table}" SELECT * FROM memory.main."{table}" ORDER BY {key}'
        )
    connection.commit()
    connection.execute("CHECKPOINT new")
    connection.execute("DETACH new")
    _sync(temporary)


def _require_ours(connection: duckdb.DuckDBPyConnection, database: Path, meta: str) -> None:
    """UserError where an open file is not a store that this suite can read."""
    try:
        rows = connection.execute(f"SELECT key, value FROM {meta}").fetchall()
        facts = dict(rows)
        version = int(facts["schema_version"]) if facts.get("suite") == SUITE else 0
    except (duckdb.Error, KeyError, ValueError):
        version = 0
    if version < 1:
        raise UserError(
            f"{database} is a DuckDB file, but not a result store of this suite;"
            " name another one with --db"
        )
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{database} was written by schema {version}, this suite knows {SCHEMA_VERSION};"
            " update the suite with `git pull && make setup`"
        )


@contextmanager
def _reading(database: Path) -> Iterator[None]:
    """Turns what DuckDB says of an unreadable file into a UserError."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        if "newer version of DuckDB" in text:
            problem = f"needs a newer DuckDB than {duckdb.__version__}; update with `make setup`"
        elif "not a valid DuckDB" in text:
            problem = "is not a DuckDB file; name another one with --db"
        elif "Could not set lock" in text or "onflicting lock" in text:
            problem = "is open for writing in another program; close it there and try again"
        elif "ermission denied" in text:
            problem = "may not be read by you; change its permissions or name another with --db"
        elif "orrupt" in text or isinstance(error, duckdb.IOException):
            problem = "is damaged; restore it with `git checkout` or a copy"
        else:
            raise
        raise UserError(f"{database} {problem}") from None


@contextmanager
def _writing(database: Path, needed_bytes: int) -> Iterator[None]:
    """Turns a full disk and other failures to write into a UserError."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or any(sign in str(error) for sign in _DISK_FULL):
            free = shutil.disk_usage(database.absolute().parent).free
            raise UserError(
                f"{database} needs about {needed_bytes} bytes in {database.absolute().parent},"
                f" where {free} are free; make room and run the command again"
            ) from None
        if isinstance(error, OSError):
            raise _unwritable(database, error) from None
        raise


@contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Holds ``NAME.lock`` beside the file; the system drops it if the process dies."""
    try:
        file = database.with_name(f"{database.name}.lock").open("a")
    except OSError as error:
        raise _unwritable(database, error) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unwritable(database: Path, error: OSError) -> UserError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return UserError(
        f"{database} cannot be written ({reason}); name a folder you may write to with --db"
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
