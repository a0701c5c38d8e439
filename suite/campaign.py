"""One start of the harness: environment in, bundle and store out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from suite.bundle import only_harness, write_campaign, write_pair
from suite.engines import Engine
from suite.errors import UserError
from suite.machine import load_average, read_machine
from suite.models import Model, default_cache_dir, encode, resolve_model
from suite.plan import METHOD_VERSION, Plan, load_plan
from suite.progress import Progress
from suite.provenance import new_campaign_id, read_provenance
from suite.report import table
from suite.results.model import Campaign, CampaignStatus, Pair, PairStatus
from suite.results.series import unfinished_series
from suite.results.store import check_publishable, publish
from suite.results.summary import summarise
from suite.run import Session, measure_plan

MakeEngine = Callable[[Path], Engine]


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What the user asked ``bench`` for."""

    plan: str
    case: str | None
    model: str | None
    rounds: int | None
    database: Path
    bundles: Path
    argv: tuple[str, ...]


def bench(request: BenchRequest, progress: Progress, make_engine: MakeEngine) -> bool:
    """Measures a plan and publishes each case as it ends.

    Args:
        request: What to measure and where to put it.
        progress: Where to report.
        make_engine: Makes the engine, given the file for its log.

    Returns:
        Whether every case ended well.

    Raises:
        UserError: Something the user can mend; nothing that was there is lost.
        KeyboardInterrupt: Ctrl-C; what was finished is published.
    """
    plan = _plan(request, load_plan(request.plan, model=request.model))
    with only_harness(request.bundles):
        _check_store(request.database)
        progress.note(f"plan {plan.name}, model {plan.cases[0].model}")
        model = resolve_model(
            plan.cases[0].model, cache_dir=default_cache_dir(), progress=progress.note
        )
        # Rows hold the model's name, never a path of the user.
        plan = _plan(request, load_plan(request.plan, model=model.name))
        prompt_ids = encode(model.folder, plan.cases[0].workload.prompt)
        now = datetime.now(UTC)
        bundle = request.bundles / new_campaign_id(now)
        engine = make_engine(bundle / "worker.log")
        try:
            engine.check(plan.cases, model.shape)
        except BaseException:
            engine.close()
            # Nothing was measured, so nothing is left behind.
            shutil.rmtree(bundle, ignore_errors=True)
            raise
        campaign = _new_campaign(bundle.name, now, plan, model, engine, request)
        earlier = unfinished_series(request.database, campaign)
        if earlier:
            campaign = replace(campaign, series_id=earlier.series_id)
        write_campaign(bundle, campaign)
        session = Session(engine, model, prompt_ids, progress)
        return _measure(
            plan, campaign, session, request, bundle, earlier.case_ids if earlier else frozenset()
        )


def _measure(
    plan: Plan,
    campaign: Campaign,
    session: Session,
    request: BenchRequest,
    bundle: Path,
    skip: frozenset[str],
) -> bool:
    pairs: list[Pair] = []

    def finished(pair: Pair) -> None:
        pairs.append(pair)
        write_pair(bundle, pair)
        publish(request.database, campaign, pairs)
        session.progress.note(
            f"finished {pair.case.label}: {pair.status}\n{_own_table(pair, request)}"
        )

    status = CampaignStatus.FAILED
    try:
        measure_plan(plan, session, finished=finished, skip=skip)
        status = CampaignStatus.COMPLETE
    except KeyboardInterrupt:
        status = CampaignStatus.INTERRUPTED
        raise
    finally:
        session.engine.close()
        ended = replace(
            campaign, ended_at=datetime.now(UTC), status=status, load_end=load_average()
        )
        write_campaign(bundle, ended)
        publish(request.database, ended, pairs)
    asked = {case.case_id for case in plan.cases}
    rows = [row for row in summarise(request.database) if row.case_id in asked]
    return all(row.status == PairStatus.OK for row in rows)


def _own_table(pair: Pair, request: BenchRequest) -> str:
    """The pair's two lines of the result table."""
    ids = (pair.case.native.case_id, pair.case.case_id)
    return table([row for row in summarise(request.database) if row.case_id in ids])


def _plan(request: BenchRequest, plan: Plan) -> Plan:
    if request.case is not None:
        plan = plan.only(request.case)
    return plan if request.rounds is None else replace(plan, rounds=request.rounds)


def _check_store(database: Path) -> None:
    """Refuses a store that could not take the results, before anything is measured."""
    if not os.access(database.absolute().parent, os.W_OK):
        raise UserError(f"{database.parent} is no folder you may write to; name another with --db")
    if database.exists():
        check_publishable(database)


def _new_campaign(
    campaign_id: str,
    now: datetime,
    plan: Plan,
    model: Model,
    engine: Engine,
    request: BenchRequest,
) -> Campaign:
    return Campaign(
        campaign_id=campaign_id,
        series_id=campaign_id,
        plan=plan.name,
        plan_key=plan.key,
        method_version=METHOD_VERSION,
        engine=engine.name,
        started_at=now,
        ended_at=None,
        # What a reader should think if the harness dies now.
        status=CampaignStatus.INTERRUPTED,
        model_name=model.name,
        model_weights=str(model.weights),
        weights_sha256=model.weights_sha256,
        machine=read_machine(),
        provenance=read_provenance(request.argv),
        load_start=load_average(),
        load_end=None,
    )
