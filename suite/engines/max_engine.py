"""Drives ``suite.worker``, the process that imports MAX."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from suite.engines.engine import ArmFailed, LoadRequest, Timed
from suite.errors import UserError
from suite.models import ModelShape, decode
from suite.plan import ArmPath, Case
from suite.results.model import Arm, PairStatus

CONTEXT_STEP = 256
"""Maximum sequence lengths are rounded up to this, so that plans share graphs."""

TIMEOUT_S = 1800
"""No single answer may take longer: a cold compile is minutes, a run seconds."""

SIGKILL = 9


class MaxEngine:
    """MAX in a process of its own, so that its crash is a row and not the end."""

    def __init__(self, *, log: Path, cache_dir: Path, waiting: Callable[[float], None]) -> None:
        """Starts nothing yet.

        Args:
            log: Receives what MAX and the kernels print.
            cache_dir: Where compiled kernels are kept.
            waiting: Called about once a second while an answer is awaited,
                with the seconds waited so far.
        """
        self._log = log
        self._cache_dir = cache_dir
        self._waiting = waiting
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._loaded: set[str] = set()

    @property
    def name(self) -> str:
        return f"max {version('max')}"

    def check(self, cases: Sequence[Case], shape: ModelShape) -> None:
        answer = self._ask(
            "check", switches=[switches(case) for case in cases], shape=asdict(shape)
        )
        for case, problem in zip(cases, answer["problems"], strict=True):
            if problem:
                raise UserError(f"{case.label}: {problem}")

    def load(self, request: LoadRequest) -> Arm:
        case, prompt = request.case, request.prompt_ids
        needed = len(prompt) + case.workload.new_tokens
        answer = self._ask(
            "load",
            arm=case.case_id,
            path=str(case.path),
            environment=switches(case),
            folder=str(request.folder),
            device=case.device,
            capture=case.capture,
            max_length=-(-needed // CONTEXT_STEP) * CONTEXT_STEP,
            probe_ids=list(prompt),
            context_tokens=len(prompt) + case.workload.new_tokens / 2,
        )
        self._loaded.add(case.case_id)
        probe = answer.pop("probe_ids")
        text = decode(request.folder, probe[len(prompt) :])
        return Arm(case=case, greedy_text=text, tags=(), **answer)

    def run(self, case: Case, prompt_ids: Sequence[int]) -> Timed:
        answer = self._ask(
            "run",
            arm=case.case_id,
            tokens=list(prompt_ids),
            new_tokens=case.workload.new_tokens,
        )
        return Timed(
            t_send=answer["t_send"],
            events=tuple((t, n) for t, n in answer["events"]),
            output_ids=tuple(answer["output_ids"]),
        )

    def loaded(self, case: Case) -> bool:
        return case.case_id in self._loaded

    def unload(self, case: Case) -> None:
        if self.loaded(case):
            self._loaded.discard(case.case_id)
            self._ask("unload", arm=case.case_id)

    def close(self) -> None:
        self._loaded.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(process) from None
        answer: dict[str, Any] = json.loads(self._await_line(process, operation))
        if not answer.pop("ok"):
            raise ArmFailed(PairStatus(answer["kind"]), answer["message"])
        return answer

    def _await_line(self, process: subprocess.Popen[str], operation: str) -> str:
        for waited in range(TIMEOUT_S):
            try:
                line = self._answers.get(timeout=1)
            except queue.Empty:
                self._waiting(waited + 1)
                continue
            if line:
                return line
            raise self._ended(process)
        self.close()
        raise ArmFailed(PairStatus.TIMEOUT, f"{operation} took longer than {TIMEOUT_S} s")

    def _ended(self, process: subprocess.Popen[str]) -> ArmFailed:
        """The worker is gone: what its exit says, and a fresh start next time."""
        code = process.wait()
        self.close()
        if code == -SIGKILL:
            reason = "the worker was killed (signal 9), as the kernel does when memory runs out"
            return ArmFailed(PairStatus.OOM, reason)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ArmFailed(PairStatus.FAILED, f"the worker ended with {how}; see {self._log.name}")

    def _start(self) -> subprocess.Popen[str]:
        self._answers = queue.Queue()
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "suite.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "WEIGHTLESS_HOME": str(self._cache_dir)},
                cwd=Path(__file__).parents[2],
                # Ctrl-C is for the harness, which then ends the worker itself.
                start_new_session=True,
            )
        assert process.stdout is not None
        threading.Thread(target=_forward, args=(process.stdout, self._answers), daemon=True).start()
        self._process = process
        return process


def _forward(lines: IO[str], answers: queue.Queue[str]) -> None:
    """Moves lines to the queue; an empty one says that the stream ended."""
    for line in lines:
        answers.put(line)
    answers.put("")


def switches(case: Case) -> dict[str, str]:
    """The WEIGHTLESS_ variables that make MAX build ``case``."""
    if case.path is ArmPath.NATIVE:
        return {}
    optional = {
        "WEIGHTLESS_GROUPS": case.groups,
        "WEIGHTLESS_QKV_FUSE": case.qkv_fuse,
        "WEIGHTLESS_GATE_UP_FUSE": case.gate_up_fuse,
        "WEIGHTLESS_GEMM": {ArmPath.GEMM: True, ArmPath.CUSTOM_OP: False}.get(case.path),
        "WEIGHTLESS_PRECOMPUTE_OUTSIDE": True if case.path is ArmPath.PRECOMPUTE else None,
    }
    set_ones = {name: str(int(value)) for name, value in optional.items() if value is not None}
    return {"WEIGHTLESS_RANK": str(case.rank), **set_ones}
