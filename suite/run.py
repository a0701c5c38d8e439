"""The main path: a plan becomes measured pairs.

For each case, native dense and the case are loaded side by side in one
process, warmed up, and timed in rounds, A B, B A, A B, ...: each round holds
one run of either, and a drift of the machine falls on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from suite.engines import ArmFailed, Engine, LoadRequest
from suite.metrics import run_metrics
from suite.models import Model, WeightsKind
from suite.plan import ArmPath, Case, Plan
from suite.progress import Progress
from suite.provenance import ids_sha256
from suite.results.model import Arm, Pair, PairStatus, Run, RunStatus

REFERENCE, MEASURED = "reference", "measured"
"""The two arms of a pair, as the engine knows them."""

WARMUP_ROUNDS = 1

WARMUP_TOKENS = 16
"""Enough to touch every weight, cache and thread; the checks before ran the arm as well."""


@dataclass(frozen=True)
class Session:
    """What every pair of a campaign shares."""

    engine: Engine
    model: Model
    prompt_ids: tuple[int, ...]
    progress: Progress


class Interrupted(Exception):
    """Ctrl-C during a pair; what ran of it is in ``pair``."""

    def __init__(self, pair: Pair) -> None:
        super().__init__("interrupted")
        self.pair = pair


def measure_plan(
    plan: Plan, session: Session, *, finished: Callable[[Pair], None], skip: frozenset[str]
) -> None:
    """Measures the cases of ``plan`` that are not in ``skip``, in order.

    Args:
        plan: The cases and the number of rounds.
        session: Engine, model, prompt and progress.
        finished: Called with each pair as it ends, failed ones included.
        skip: Ids of cases that are already measured.

    Raises:
        KeyboardInterrupt: The user stopped; pairs that ended were handed over.
    """
    remaining = [case for case in plan.cases if case.case_id not in skip]
    session.progress.start(total=len(plan.cases), done=len(plan.cases) - len(remaining))
    for position, case in enumerate(remaining):
        try:
            _compile_ahead([case.native, *remaining[position:]], session)
            finished(measure_pair(case, plan.rounds, session))
        except Interrupted as stop:
            finished(stop.pair)
            raise KeyboardInterrupt from None
        session.progress.case_done()


def _compile_ahead(cases: Sequence[Case], session: Session) -> None:
    """Uses every core to compile what comes next, while nothing is timed."""
    session.progress.step(f"{cases[1].label}: compile")
    session.engine.prepare([_request(case, session) for case in cases])


def _request(case: Case, session: Session) -> LoadRequest:
    return LoadRequest(case=case, folder=session.model.folder, prompt_ids=session.prompt_ids)


def measure_pair(case: Case, rounds: int, session: Session) -> Pair:
    """Measures one case against native dense.

    A failure of either arm ends the pair and becomes its status; the engine
    stays usable for the next one. Native dense itself may be the case: that
    is an audit of the noise, with the same graph loaded twice.

    Raises:
        Interrupted: Ctrl-C; carries the pair as far as it came.
    """
    arms: list[Arm] = []
    runs: list[Run] = []

    def ended(status: PairStatus, reason: str | None) -> Pair:
        complete = sum(not run.warmup and run.status is RunStatus.OK for run in runs) // 2
        return Pair(
            case=case,
            status=status,
            reason=reason,
            rounds=complete,
            finished_at=datetime.now(UTC),
            arms=tuple({arm.case.case_id: arm for arm in arms}.values()),
            runs=tuple(runs),
        )

    try:
        for name, member in ((REFERENCE, case.native), (MEASURED, case)):
            if session.engine.loaded(name) != member:
                arms.append(_load(name, member, session))
        for warmup, number, order in _schedule(rounds):
            session.progress.round(case, number, rounds, warmup=warmup)
            for slot, name in enumerate(order):
                runs.append(_timed_run(name, case, number, slot, warmup, session))
    except ArmFailed as failure:
        _unload(session)
        return ended(failure.status, failure.reason)
    except KeyboardInterrupt:
        # The engine may be busy with a run; it is closed, not asked.
        raise Interrupted(ended(PairStatus.INTERRUPTED, "stopped by the user")) from None
    _unload(session)
    short = [run for run in runs if run.status is not RunStatus.OK]
    if short:
        return ended(PairStatus.FAILED, f"{len(short)} of {len(runs)} runs: {short[0].reason}")
    return ended(PairStatus.OK, None)


def _schedule(rounds: int) -> Iterator[tuple[bool, int, tuple[str, str]]]:
    """(warm-up, round, order of the arms): A B, B A, A B, ..."""
    forward, backward = (REFERENCE, MEASURED), (MEASURED, REFERENCE)
    for number in range(WARMUP_ROUNDS):
        yield True, number, forward
    for number in range(rounds):
        yield False, number, forward if number % 2 == 0 else backward


def _load(name: str, case: Case, session: Session) -> Arm:
    session.progress.step(f"{case.label}: load and check")
    arm = session.engine.load(name, _request(case, session))
    if case.path is not ArmPath.AUTO and arm.path_ran != case.path:
        raise ArmFailed(PairStatus.FAILED, f"asked for {case.path}, the graph is {arm.path_ran}")
    arm = replace(arm, tags=tags(arm, session.model))
    session.progress.loaded(arm)
    return arm


def tags(arm: Arm, model: Model) -> tuple[str, ...]:
    """What a reader must know beside an arm's numbers."""
    found = []
    if model.weights is WeightsKind.RANDOM:
        found.append("random weights: speed only")
    if arm.zero_factors:
        found.append("pass-through: U is zero by construction")
    if arm.groups_ran is not None and arm.groups_ran < model.shape.layers:
        found.append("W0 shared without training: incoherent text")
    return tuple(found)


def _timed_run(
    name: str, pair_case: Case, number: int, slot: int, warmup: bool, session: Session
) -> Run:
    case = pair_case if name == MEASURED else pair_case.native
    started_at = datetime.now(UTC)
    wanted = case.workload.new_tokens
    if warmup:
        wanted = min(WARMUP_TOKENS, wanted)
    timed = session.engine.run(name, session.prompt_ids, wanted)
    tokens = sum(n for _, n in timed.events)
    short = None if tokens == wanted else f"{tokens} tokens instead of {wanted}"
    metrics = run_metrics(
        timed.t_send,
        timed.events,
        prompt_tokens=len(session.prompt_ids),
        cached_tokens=timed.cached_tokens,
    )
    session.progress.ran(case, metrics.decode_tok_s)
    return Run(
        case=case,
        pair_case=pair_case,
        round=number,
        slot=slot,
        warmup=warmup,
        started_at=started_at,
        t_send=timed.t_send,
        events=timed.events,
        prompt_tokens=len(session.prompt_ids),
        cached_tokens=timed.cached_tokens,
        prompt_ids_sha256=ids_sha256(session.prompt_ids),
        output_ids_sha256=ids_sha256(timed.output_ids),
        status=RunStatus.SHORT if short else RunStatus.OK,
        reason=short,
    )


def _unload(session: Session) -> None:
    """Frees the measured arm; an engine that cannot starts anew, its pair has ended."""
    try:
        session.engine.unload(MEASURED)
    except ArmFailed:
        session.engine.close()
