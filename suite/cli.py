"""The command line: ``python -m suite COMMAND``.

Exit codes: 0 all well, 1 a case failed, 2 a mistake of the user's, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.campaign import BenchRequest, bench
from suite.engines import Engine
from suite.engines.max_engine import MaxEngine
from suite.errors import UserError
from suite.models import default_cache_dir
from suite.plan import load_plan, plan_names
from suite.progress import Progress
from suite.report import table, write_readme
from suite.results.summary import summarise, to_json

OK, CASE_FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130

DATABASE = Path("results.duckdb")
BUNDLES = Path("bundles")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(words)
    # A service manager or container stops with SIGTERM what a user stops with Ctrl-C.
    signal.signal(signal.SIGTERM, _stop)
    try:
        command = {"bench": _bench, "summary": _summary, "plans": _plans, "readme": _readme}
        return command[options.command](options, words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except OSError as error:
        print(f"error: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("\nstopped; finished cases are kept, the same command continues", file=sys.stderr)
        return INTERRUPTED


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _bench(options: argparse.Namespace, words: list[str]) -> int:
    progress = Progress()

    def make_engine(log: Path) -> Engine:
        return MaxEngine(log=log, cache_dir=default_cache_dir(), waiting=progress.waiting)

    request = BenchRequest(
        plan=options.plan,
        case=options.case,
        model=options.model,
        rounds=options.rounds,
        database=options.db,
        bundles=options.bundles,
        argv=("suite", *words),
    )
    all_well = bench(request, progress, make_engine)
    print(table(summarise(options.db)))
    return OK if all_well else CASE_FAILED


def _summary(options: argparse.Namespace, words: list[str]) -> int:
    summaries = summarise(options.file or options.db)
    print(to_json(summaries) if options.json else table(summaries))
    return OK


def _plans(options: argparse.Namespace, words: list[str]) -> int:
    for name in plan_names():
        plan = load_plan(name)
        print(f"{name}: {plan.rounds} rounds, {plan.cases[0].model}")
        for case in plan.cases:
            print(f"  {case.label}")
    return OK


def _readme(options: argparse.Namespace, words: list[str]) -> int:
    write_readme(options.file, options.db)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m suite", description="Weightless layers on MAX against native dense."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("bench", help="measure a plan and publish the results")
    run.add_argument("--plan", default="default", help="name of a plan, or a YAML file")
    run.add_argument("--case", help="only the case with this label (see `plans`)")
    run.add_argument(
        "--model", help="gemma-3-270m, synthetic:gemma-3-1b, a folder, *.gguf, or a hub id"
    )
    run.add_argument("--rounds", type=int, help="instead of the plan's number of rounds")
    run.add_argument("--bundles", type=Path, default=BUNDLES, help="folder for raw bundles")

    summary = commands.add_parser("summary", help="print the results as a table or as JSON")
    summary.add_argument("file", type=Path, nargs="?", help="the result store, as --db")
    summary.add_argument("--json", action="store_true", help="strict JSON, one object per case")

    commands.add_parser("plans", help="list the plans and their cases")

    readme = commands.add_parser("readme", help="write the results table into a README")
    readme.add_argument("--file", type=Path, default=Path("README.md"))

    for command in (run, summary, readme):
        command.add_argument("--db", type=Path, default=DATABASE, help="the result store")
    return parser
