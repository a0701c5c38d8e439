"""The results as text: a table for the terminal and one for the README."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from suite.errors import UserError
from suite.plan import ArmPath
from suite.results.case_summary import CaseSummary
from suite.results.summary import summarise

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"

MISSING = "-"

NO_NATIVE = "native dense is missing here: it was not measured under these conditions"

EMPTY = "no results yet; `make bench` measures the default plan"

Column = tuple[str, Callable[[CaseSummary], str]]


def table(summaries: Sequence[CaseSummary]) -> str:
    """The terminal table, one line a case, native dense first, then what went wrong.

    Milliseconds, tokens per second, seconds, and megabytes of 10^6 bytes; "-"
    is not measured. `timing s` sums the runs themselves, warm-up too.
    """
    if not summaries:
        return EMPTY
    columns: tuple[Column, ...] = (
        ("case", lambda row: row.label),
        ("tok/s", lambda row: _number(row.decode_tok_s, 1)),
        ("TTFT ms", lambda row: _number(row.ttft_ms, 1)),
        ("TPOT ms", lambda row: _number(row.tpot_ms, 2)),
        ("against native dense", _ratio),
        ("MB/token", _megabytes),
        ("compile s", lambda row: _number(row.compile_s, 1)),
        ("load s", lambda row: _number(row.load_s, 1)),
        ("timing s", lambda row: _number(row.timing_s, 1)),
        ("status", lambda row: row.status),
    )
    blocks = []
    for setting, rows in _settings(summaries):
        cells = [[name for name, _ in columns], *([cell(r) for _, cell in columns] for r in rows)]
        blocks.append("\n".join([setting, *_aligned(cells), *_remarks(rows)]))
    return "\n\n".join([*blocks, _success(summaries)])


def markdown(summaries: Sequence[CaseSummary]) -> str:
    """The README's tables: each names model, weights, CPU, engine, date, commit and rounds."""
    if not summaries:
        return f"{EMPTY[0].upper()}{EMPTY[1:]}."
    columns: tuple[Column, ...] = (
        ("case", lambda row: row.label),
        ("decode tok/s", lambda row: _number(row.decode_tok_s, 1)),
        ("TTFT ms", lambda row: _number(row.ttft_ms, 1)),
        ("TPOT ms", lambda row: _number(row.tpot_ms, 2)),
        ("against native dense", _ratio),
        ("MB/token", _megabytes),
        ("rounds", lambda row: str(row.rounds)),
        ("status", lambda row: row.status),
    )
    blocks = []
    for setting, rows in _settings(summaries):
        lines = [
            "| " + " | ".join(name for name, _ in columns) + " |",
            "|---|" + "---:|" * (len(columns) - 2) + "---|",
            *("| " + " | ".join(_escaped(cell(r)) for _, cell in columns) + " |" for r in rows),
        ]
        remarks = [f"- {_escaped(remark)}" for remark in _remarks(rows)]
        blocks += [setting, "\n".join(lines), *(["\n".join(remarks)] if remarks else [])]
    return "\n\n".join([*blocks, f"{_success(summaries)}."])


def write_readme(readme: Path, database: Path) -> None:
    """Replaces what stands between the markers of `readme` by the results of `database`.

    Raises:
        UserError: The README cannot be read or lacks its pair of markers, or
            the store cannot be read.
    """
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{readme} cannot be read: {error.strerror}") from None
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme} has no place for the results; add {BEGIN} and {END} to it")
    block = f"{begin}\n\n{markdown(summarise(database))}\n\n{end}"
    readme.write_text(head + block + tail, encoding="utf-8")


def _settings(summaries: Sequence[CaseSummary]) -> Iterator[tuple[str, list[CaseSummary]]]:
    """Rows that may be compared, native dense first, under what they have in common."""
    for _, group in groupby(sorted(summaries, key=_setting), key=_setting):
        rows = sorted(group, key=lambda row: row.path != ArmPath.NATIVE)
        yield _heading(rows), rows


def _setting(row: CaseSummary) -> tuple[str | int, ...]:
    place = (row.model, row.weights, row.device, row.cpu_model, row.engine)
    return (*place, row.capture, row.workload.new_tokens)


def _heading(rows: Sequence[CaseSummary]) -> str:
    row = rows[0]
    prompts = sorted({r.workload.prompt_tokens for r in rows if r.workload.prompt_tokens})
    days = sorted({f"{r.measured_at:%Y-%m-%d}" for r in rows})
    commits = sorted({_short(r.commit) for r in rows})
    facts = [
        f"{row.model} ({row.weights})",
        f"{row.device}: {row.cpu_model}",
        row.engine,
        *(f"{count} prompt tokens" for count in prompts),
        f"{row.workload.new_tokens} new tokens",
        f"capture {'on' if row.capture else 'off'}",
        " and ".join(days),
        f"commit {' and '.join(commits)}",
    ]
    return ", ".join(facts)


def _short(commit: str | None) -> str:
    name, _, dirty = (commit or "unknown").partition("-")
    return f"{name[:12]}-{dirty}" if dirty else name[:12]


def _ratio(row: CaseSummary) -> str:
    if row.path == ArmPath.NATIVE and row.decode_tok_s is not None:
        return "1, the reference"
    if row.ratio is None or row.ratio_low is None or row.ratio_high is None:
        return row.verdict or MISSING
    interval = f"[{row.ratio_low:.3f}, {row.ratio_high:.3f}]"
    return f"{row.ratio:.3f} {interval} {row.verdict}"


def _megabytes(row: CaseSummary) -> str:
    return _number(row.bytes_per_token and row.bytes_per_token / 1e6, 1)


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def _remarks(rows: Sequence[CaseSummary]) -> Iterator[str]:
    """What a reader of these rows must know, one line each."""
    if all(r.path != ArmPath.NATIVE or r.decode_tok_s is None for r in rows):
        yield NO_NATIVE
    yield _noise(rows)
    for row in rows:
        if row.reason is not None:
            yield f"{row.label}: {row.status}, {row.reason}"
        if row.path_ran not in (None, row.path):
            yield f"{row.label}: ran as {row.path_ran}"
    tags = {tag: [r.label for r in rows if tag in r.tags] for row in rows for tag in row.tags}
    for tag, labels in tags.items():
        yield f"{tag}: {', '.join(labels)}"


def _noise(rows: Sequence[CaseSummary]) -> str:
    """The noise floor that the verdicts of these rows used."""
    floors = {row.noise_floor for row in rows}
    if None in floors or not floors:
        return "no noise audit on this machine, so its noise counts as 0; run `make noise-audit`"
    worst = max(floor for floor in floors if floor is not None)
    return f"noise floor: native dense differs from itself by up to {100 * worst:.1f} %"


def _success(summaries: Sequence[CaseSummary]) -> str:
    done = sum(row.status == "ok" for row in summaries)
    return f"{done} of {len(summaries)} cases ok"


def _aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of equal width, words to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = {0, cells[0].index("against native dense"), len(widths) - 1}
    for line in cells:
        yield "  ".join(
            text.ljust(width) if index in words else text.rjust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
