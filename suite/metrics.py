"""What one run's events say: pure arithmetic, no statistics over runs.

The view ``run_metrics`` of the store holds the same formulas in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Event = tuple[float, int]
"""(seconds on the monotonic clock, tokens that became readable then)."""


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The metrics of one run; None where there is nothing to measure, never 0."""

    tokens: int
    ttft_ms: float | None
    """Time to first token: t_1 - t_send."""
    tpot_ms: float | None
    """Time per output token: (t_end - t_1) / (N - n_1); None unless positive."""
    decode_tok_s: float | None
    """Tokens per second after the first event: 1 / TPOT."""
    prefill_tok_s: float | None
    """Prompt tokens really computed per second until the first token."""
    e2e_ms: float | None
    """End to end: t_end - t_send; None for a failed run."""


def run_metrics(
    t_send: float,
    events: Sequence[Event],
    *,
    prompt_tokens: int,
    cached_tokens: int | None,
    failed: bool = False,
) -> RunMetrics:
    """Derives the metrics of one run.

    Args:
        t_send: Seconds on the clock of the events when the call was entered,
            the prompt already tokenised.
        events: In order of time; those without tokens count for nothing.
        prompt_tokens: Length of the prompt.
        cached_tokens: Of those, served from a prefix cache; None if unknown.
        failed: Whether the run failed, which leaves no end-to-end time.
    """
    read = [(t, n) for t, n in events if n > 0]
    if not read:
        return RunMetrics(
            tokens=0,
            ttft_ms=None,
            tpot_ms=None,
            decode_tok_s=None,
            prefill_tok_s=None,
            e2e_ms=None,
        )
    (t_first, n_first), (t_end, _) = read[0], read[-1]
    tokens = sum(n for _, n in read)
    prefill_s, decode_s = t_first - t_send, t_end - t_first
    decoded = tokens - n_first
    decodes = decoded > 0 and decode_s > 0
    return RunMetrics(
        tokens=tokens,
        ttft_ms=1000 * prefill_s,
        tpot_ms=1000 * decode_s / decoded if decodes else None,
        decode_tok_s=decoded / decode_s if decodes else None,
        prefill_tok_s=(
            (prompt_tokens - cached_tokens) / prefill_s
            if cached_tokens is not None and prefill_s > 0
            else None
        ),
        e2e_ms=None if failed else 1000 * (t_end - t_send),
    )


def itl_ms(events: Sequence[Event]) -> tuple[float, ...]:
    """Inter-token latencies: each gap between events, split evenly over its tokens.

    The time to the first token is no gap, and tokens of the first event have
    none, so N - n_1 values sum to t_end - t_1.
    """
    read = [(t, n) for t, n in events if n > 0]
    return tuple(
        1000 * (t - before) / n for (before, _), (t, n) in pairwise(read) for _ in range(n)
    )
