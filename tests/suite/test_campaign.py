"""What happens around the measuring: failures, interruptions, resuming, refusals."""

import fcntl
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from suite.campaign import BenchRequest, bench
from suite.engines import ArmFailed, Engine, LoadRequest, Timed
from suite.engines.fake_engine import FakeEngine
from suite.errors import UserError
from suite.plan import ArmPath, Case
from suite.progress import Progress
from suite.results.model import Arm, PairStatus
from suite.results.store import connect
from suite.results.summary import summarise

PLAN = """
model: synthetic:gemma-3-tiny
rounds: 4
workload: {prompt: weightless, new_tokens: 4}
cases:
  - {path: precompute, rank: 4}
  - {path: gemm, rank: 4}
  - {path: custom-op, rank: 4}
"""


def steady(case: Case, run: int) -> float:
    return 0.01 + 0.0001 * run


class Troubled(FakeEngine):
    """Fails, or is interrupted, at the load or the n-th run of one path."""

    def __init__(
        self,
        path: ArmPath,
        error: Callable[[], BaseException],
        at_run: int | None = None,
        drop_tokens: int = 0,
    ) -> None:
        super().__init__(steady)
        self._path, self._error, self._at_run, self._drop = path, error, at_run, drop_tokens

    def load(self, arm: str, request: LoadRequest) -> Arm:
        if request.case.path is self._path and self._at_run is None:
            raise self._error()
        return super().load(arm, request)

    def run(self, arm: str, prompt_ids: Sequence[int], new_tokens: int) -> Timed:
        if self._loaded[arm].path is self._path and self._runs[arm] == self._at_run:
            if not self._drop:
                raise self._error()
            timed = super().run(arm, prompt_ids, new_tokens)
            return replace(timed, events=timed.events[: -self._drop])
        return super().run(arm, prompt_ids, new_tokens)


@pytest.fixture
def request_(tmp_path: Path) -> BenchRequest:
    plan = tmp_path / "three.yaml"
    plan.write_text(PLAN)
    return BenchRequest(
        plan=str(plan),
        case=None,
        model=None,
        rounds=None,
        database=tmp_path / "results.duckdb",
        bundles=tmp_path / "bundles",
        argv=("suite", "bench", "--plan", "/home/someone/three.yaml"),
    )


def measure(request: BenchRequest, engine: Engine) -> tuple[bool, str]:
    shown = io.StringIO()
    return bench(request, Progress(shown), lambda log: engine), shown.getvalue()


def statuses(request: BenchRequest) -> dict[str, str]:
    return {row.path: row.status for row in summarise(request.database)}


def query(request: BenchRequest, sql: str) -> list[tuple[object, ...]]:
    with connect(request.database) as connection:
        return connection.execute(sql).fetchall()


def test_rounds_alternate_which_arm_comes_first(request_: BenchRequest) -> None:
    measure(request_, FakeEngine(steady))
    rows = query(
        request_,
        """SELECT c.path FROM run r JOIN "case" c USING (case_id)
           JOIN "case" p ON p.case_id = r.pair_case_id
           WHERE NOT warmup AND p.path = 'gemm' ORDER BY round, slot""",
    )
    a, b = "native-dense", "gemm"
    assert [path for (path,) in rows] == [a, b, b, a, a, b, b, a]


def test_a_warm_up_is_stored_and_enters_no_aggregate(request_: BenchRequest) -> None:
    measure(request_, FakeEngine(lambda case, run: 1.0 if run == 0 else 0.01 + 0.0001 * run))
    assert query(request_, "SELECT count(*) FROM run WHERE warmup")[0][0] == 6
    assert all(row.tpot_ms is not None and row.tpot_ms < 20 for row in summarise(request_.database))


@pytest.mark.parametrize("status", [PairStatus.FAILED, PairStatus.OOM, PairStatus.TIMEOUT])
def test_a_failed_case_is_a_row_and_the_rest_is_measured(
    request_: BenchRequest, status: PairStatus
) -> None:
    engine = Troubled(ArmPath.GEMM, lambda: ArmFailed(status, "it broke"))
    all_well, shown = measure(request_, engine)
    assert not all_well
    assert statuses(request_) == {
        "native-dense": "ok",
        "precompute": "ok",
        "gemm": str(status),
        "custom-op": "ok",
    }
    assert "it broke" in shown


def test_a_run_of_another_length_fails_its_case(request_: BenchRequest) -> None:
    engine = Troubled(ArmPath.GEMM, RuntimeError, at_run=2, drop_tokens=1)
    assert not measure(request_, engine)[0]
    assert statuses(request_)["gemm"] == "failed"
    assert query(request_, "SELECT reason FROM pair WHERE status = 'failed'") == [
        ("1 of 10 runs: 3 tokens instead of 4",)
    ]


def test_a_graph_of_another_path_than_asked_fails(request_: BenchRequest) -> None:
    class Liar(FakeEngine):
        def load(self, arm: str, request: LoadRequest) -> Arm:
            return replace(super().load(arm, request), path_ran="native-dense")

    assert not measure(request_, Liar(steady))[0]
    reasons = {reason for (reason,) in query(request_, "SELECT reason FROM pair")}
    assert "asked for gemm, the graph is native-dense" in reasons


def test_an_interrupted_plan_keeps_what_is_done_and_continues(request_: BenchRequest) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(request_, Troubled(ArmPath.GEMM, KeyboardInterrupt, at_run=2))
    assert statuses(request_)["precompute"] == "ok"
    assert statuses(request_)["gemm"] == "interrupted"

    class Counting(FakeEngine):
        loads: list[str]

        def load(self, arm: str, request: LoadRequest) -> Arm:
            self.loads.append(str(request.case.path))
            return super().load(arm, request)

    engine = Counting(steady)
    engine.loads = []
    all_well, shown = measure(request_, engine)
    assert all_well
    assert "continuing: 1 of 3 cases are already measured" in shown
    assert engine.loads == ["native-dense", "gemm", "custom-op"]
    assert set(statuses(request_).values()) == {"ok"}
    assert query(request_, "SELECT count(DISTINCT series_id) FROM campaign") == [(1,)]
    assert query(request_, "SELECT status FROM campaign ORDER BY started_at") == [
        ("interrupted",),
        ("complete",),
    ]


def test_a_complete_plan_starts_anew(request_: BenchRequest) -> None:
    measure(request_, FakeEngine(steady))
    _, shown = measure(request_, FakeEngine(steady))
    assert "continuing" not in shown
    assert query(request_, "SELECT count(DISTINCT series_id) FROM campaign") == [(2,)]


def test_a_second_harness_is_refused(request_: BenchRequest) -> None:
    request_.bundles.mkdir()
    with (request_.bundles / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another benchmark is running"):
            measure(request_, FakeEngine(steady))
    assert not request_.database.exists()


@pytest.mark.parametrize("kind", ["garbage", "foreign"])
def test_a_store_that_is_none_is_refused_before_measuring(
    request_: BenchRequest, kind: str
) -> None:
    if kind == "garbage":
        request_.database.write_bytes(b"not a database at all" * 1000)
    else:
        with duckdb.connect(str(request_.database)) as connection:
            connection.execute("CREATE TABLE theirs (x INTEGER)")
    before = request_.database.read_bytes()

    def never(log: Path) -> Engine:
        raise AssertionError("nothing may be measured")

    with pytest.raises(UserError) as error:
        bench(request_, Progress(io.StringIO()), never)
    assert str(request_.database) in str(error.value)
    assert request_.database.read_bytes() == before


def test_a_full_disk_is_one_line_and_loses_nothing(
    request_: BenchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(request_, FakeEngine(steady))
    before = request_.database.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("suite.bundle.os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        measure(request_, FakeEngine(steady))
    assert request_.database.read_bytes() == before


def test_rows_hold_no_path_of_the_user(request_: BenchRequest) -> None:
    measure(request_, FakeEngine(steady))
    (argv,) = query(request_, "SELECT argv FROM campaign")[0]
    assert json.loads(str(argv)) == ["suite", "bench", "--plan", "three.yaml"]


def test_progress_names_step_time_and_cases_to_go(request_: BenchRequest) -> None:
    _, shown = measure(request_, FakeEngine(steady))
    assert "precompute r=4 G=layers: round 1 of 4 (3 cases to go)" in shown
    assert "custom-op r=4 G=layers: round 4 of 4 (1 case to go)" in shown
    assert shown.startswith("[0:0")


def test_an_unfinished_series_is_not_continued_by_other_code(
    request_: BenchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(request_, Troubled(ArmPath.GEMM, KeyboardInterrupt, at_run=2))
    monkeypatch.setattr("suite.provenance._code_sha256", lambda: "0" * 64)
    _, shown = measure(request_, FakeEngine(steady))
    assert "continuing" not in shown


def test_a_case_that_the_store_does_not_hold_is_measured_again(request_: BenchRequest) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(request_, Troubled(ArmPath.GEMM, KeyboardInterrupt, at_run=2))
    request_.database.unlink()
    all_well, shown = measure(request_, FakeEngine(steady))
    assert all_well
    assert "continuing" not in shown
    assert len(statuses(request_)) == 4


def test_a_plan_that_broke_off_continues_too(
    request_: BenchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is no reason to measure again what was published."""

    def full(*_: object) -> None:
        raise UserError("no room")

    class Filling(FakeEngine):
        def load(self, arm: str, request: LoadRequest) -> Arm:
            if request.case.path is ArmPath.GEMM:
                monkeypatch.setattr("suite.campaign.write_pair", full)
            return super().load(arm, request)

    with pytest.raises(UserError, match="no room"):
        measure(request_, Filling(steady))
    monkeypatch.undo()
    _, shown = measure(request_, FakeEngine(steady))
    # The case whose bundle could not be written had been measured and is in the store.
    assert "continuing: 2 of 3" in shown


def test_native_dense_against_itself_is_the_noise_of_the_machine(
    request_: BenchRequest, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.yaml"
    audit.write_text(
        "model: synthetic:gemma-3-tiny\nrounds: 6\n"
        "workload: {prompt: weightless, new_tokens: 4}\ncases: [{path: native-dense}]\n"
    )
    assert measure(replace(request_, plan=str(audit)), FakeEngine(steady))[0]
    measure(request_, FakeEngine(steady))
    rows = {row.path: row for row in summarise(request_.database)}
    assert rows["gemm"].noise_floor is not None
    assert rows["native-dense"].ratio is None


def test_an_invalid_row_is_no_success(request_: BenchRequest) -> None:
    """An engine whose rates never vary did not measure."""
    assert not measure(request_, FakeEngine(lambda case, run: 1 / 128))[0]
    assert statuses(request_)["gemm"] == "invalid"
