"""What the user sees while a plan runs: step, elapsed time, cases to go."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from suite.plan import ArmPath, Case
from suite.results.model import Arm

HEARTBEAT_S = 15
"""On a stream that is no terminal, a long step says this often that it lives."""


class Progress:
    """Writes one line per event; on a terminal the running step updates in place."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._step = ""
        self._step_started = self._started
        self._total = 0
        self._done = 0
        self._native_rate: float | None = None

    def start(self, *, total: int, done: int) -> None:
        """Begins a plan of ``total`` cases, ``done`` of them already measured."""
        self._total, self._done = total, done
        if done:
            self.note(f"continuing: {done} of {total} cases are already measured")

    def note(self, text: str) -> None:
        """One line that stays."""
        self._clear()
        print(f"[{clock(time.monotonic() - self._started)}] {text}", file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Begins something that takes long."""
        remaining = self._total - self._done
        self._step = f"{text} ({remaining} case{'s' if remaining != 1 else ''} to go)"
        self._step_started = time.monotonic()
        self.note(self._step)

    def waiting(self, seconds: float) -> None:
        """Called about once a second during a step."""
        spent = time.monotonic() - self._step_started
        if self._live:
            self._clear()
            self._stream.write(f"  ... {self._step} {clock(spent)}")
            self._stream.flush()
        elif seconds % HEARTBEAT_S == 0:
            self.note(f"  ... {clock(spent)} in this step")

    def loaded(self, arm: Arm) -> None:
        self.note(
            f"  compile {arm.compile_s:.1f} s, load {arm.load_s:.1f} s, "
            f"check {arm.check_s:.1f} s: logits within {arm.agreement:.0e} of the reference"
            + (
                f", {arm.agreement_perturbed:.0e} with perturbed factors"
                if arm.agreement_perturbed is not None
                else ""
            )
        )

    def round(self, case: Case, number: int, rounds: int, *, warmup: bool) -> None:
        name = "warm-up" if warmup else f"round {number + 1} of {rounds}"
        self.step(f"{case.label}: {name}")

    def ran(self, case: Case, decode_tok_s: float | None) -> None:
        rate = "no decode rate" if decode_tok_s is None else f"{decode_tok_s:.2f} tok/s"
        name = "native dense" if case.path is ArmPath.NATIVE else case.label
        self.note(f"  {name}: {rate}")

    def case_done(self) -> None:
        self._done += 1

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\033[K")


def clock(seconds: float) -> str:
    """Minutes and seconds, as in 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
