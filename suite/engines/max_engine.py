"""MAX as an engine: one worker process for timing, more of them to compile ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from suite.engines.compiled import is_compiled, mark_compiled
from suite.engines.engine import ArmFailed, LoadRequest, Timed
from suite.engines.worker_process import WorkerProcess
from suite.errors import UserError
from suite.models import ModelShape, decode
from suite.plan import ArmPath, Case
from suite.results.model import Arm, PairStatus

CONTEXT_STEP = 256
"""Maximum sequence lengths are rounded up to this, so that plans share graphs."""

TIMEOUT_S = 1800
"""No single answer may take longer: a cold compile is minutes, a run seconds."""

COMPILE_MEMORY_FACTOR = 7
"""Memory that building an arm takes, in sizes of the weights' files (seen: 5 for float32)."""


class MaxEngine:
    """MAX in processes of its own, so that a crash is a row and not the end."""

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
        self._worker: WorkerProcess | None = None
        self._loaded: dict[str, Case] = {}
        self._ahead_s: dict[str, float] = {}

    @property
    def name(self) -> str:
        return f"max {version('max')}"

    def check(self, cases: Sequence[Case], shape: ModelShape) -> None:
        asked = [switches(case) for case in cases]
        try:
            answer = self._ask("check", switches=asked, shape=asdict(shape))
        except ArmFailed as failure:
            tail = self._log.read_text().strip().splitlines()[-1:] if self._log.exists() else []
            raise UserError(
                f"MAX does not start: {failure.reason}: {' '.join(tail)}; run `make setup`"
            ) from None
        for case, problem in zip(cases, answer["problems"], strict=True):
            if problem:
                raise UserError(f"{case.label}: {problem}")

    def prepare(self, requests: Sequence[LoadRequest]) -> None:
        cold = [r for r in requests if not is_compiled(_load_arguments(r))]
        if not any(request in cold for request in requests[:2]):
            return
        batch = cold[: _side_by_side(requests[0].folder)]
        if len(batch) < 2:
            return
        workers = [self._start() for _ in batch]
        try:
            for worker, request in zip(workers, batch, strict=True):
                with suppress(ArmFailed):
                    worker.ask("compile", **_load_arguments(request))
            for worker, request in zip(workers, batch, strict=True):
                try:
                    answer = self._await(worker)
                except ArmFailed:
                    # Loading it for good will fail again and say so in its row.
                    continue
                self._ahead_s[request.case.case_id] = answer["compile_s"]
                mark_compiled(_load_arguments(request))
        finally:
            for worker in workers:
                worker.kill()

    def load(self, arm: str, request: LoadRequest) -> Arm:
        case, prompt = request.case, request.prompt_ids
        arguments = _load_arguments(request)
        answer = self._ask(
            "load",
            **arguments,
            arm=arm,
            probe_ids=list(prompt),
            context_tokens=len(prompt) + case.workload.new_tokens / 2,
        )
        mark_compiled(arguments)
        self._loaded[arm] = case
        answer["compile_s"] += self._ahead_s.pop(case.case_id, 0.0)
        text = decode(request.folder, answer.pop("probe_ids")[len(prompt) :])
        return Arm(case=case, greedy_text=text, tags=(), **answer)

    def run(self, arm: str, prompt_ids: Sequence[int], new_tokens: int) -> Timed:
        answer = self._ask("run", arm=arm, tokens=list(prompt_ids), new_tokens=new_tokens)
        return Timed(
            t_send=answer["t_send"],
            events=tuple((t, n) for t, n in answer["events"]),
            output_ids=tuple(answer["output_ids"]),
            cached_tokens=answer["cached_tokens"],
        )

    def loaded(self, arm: str) -> Case | None:
        return self._loaded.get(arm)

    def unload(self, arm: str) -> None:
        if self._loaded.pop(arm, None):
            self._ask("unload", arm=arm)

    def close(self) -> None:
        self._loaded.clear()
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _start(self) -> WorkerProcess:
        return WorkerProcess(log=self._log, cache_dir=self._cache_dir)

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self._worker = self._worker or self._start()
        try:
            self._worker.ask(operation, **arguments)
            return self._await(self._worker)
        except ArmFailed:
            if not self._worker.alive:
                self.close()
            raise

    def _await(self, worker: WorkerProcess) -> dict[str, Any]:
        for waited in range(TIMEOUT_S):
            answer = worker.answer(timeout_s=1)
            if answer is not None:
                return answer
            self._waiting(waited + 1)
        worker.kill()
        raise ArmFailed(PairStatus.TIMEOUT, f"no answer from the worker in {TIMEOUT_S} s")


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
    chosen = {name: str(int(value)) for name, value in optional.items() if value is not None}
    return {"WEIGHTLESS_RANK": str(case.rank), **chosen}


def _load_arguments(request: LoadRequest) -> dict[str, Any]:
    """What the graph of an arm depends on."""
    case = request.case
    needed = len(request.prompt_ids) + case.workload.new_tokens
    return {
        "path": str(case.path),
        "environment": switches(case),
        "folder": str(request.folder),
        "device": case.device,
        "capture": case.capture,
        "max_length": -(-needed // CONTEXT_STEP) * CONTEXT_STEP,
    }


def _side_by_side(folder: Path) -> int:
    """How many arms may be built at once on this machine's processors and memory."""
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    fit = psutil.virtual_memory().available // max(1, COMPILE_MEMORY_FACTOR * weights)
    return min(len(os.sched_getaffinity(0)), fit)
