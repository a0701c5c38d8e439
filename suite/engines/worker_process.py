"""A running ``suite.worker`` and the conversation with it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from suite.engines.engine import ArmFailed
from suite.results.model import PairStatus

ROOT = Path(__file__).parents[2]

COMMAND = (sys.executable, "-m", "suite.worker")


class WorkerProcess:
    """One worker; ask, then wait for the answer."""

    def __init__(self, *, log: Path, cache_dir: Path, command: Sequence[str] = COMMAND) -> None:
        """Starts the process.

        Args:
            log: Receives what MAX and the kernels print.
            cache_dir: Where compiled kernels are kept.
            command: What to start.
        """
        self._log = log
        self._answers: queue.Queue[str] = queue.Queue()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, "WEIGHTLESS_HOME": str(cache_dir)},
                cwd=ROOT,
                # Ctrl-C is for the harness, which then ends the worker itself.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        threading.Thread(
            target=_forward, args=(self._process.stdout, self._answers), daemon=True
        ).start()

    def ask(self, operation: str, **arguments: Any) -> None:
        """Sends a request.

        Raises:
            ArmFailed: The process is gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the answer, or None if there is none within ``timeout_s``.

        Raises:
            ArmFailed: The request failed, or the process ended instead.
        """
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise ArmFailed(PairStatus(answer["kind"]), answer["message"])
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process and what it started, a compiler say."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ended(self) -> ArmFailed:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            reason = "the worker was killed (signal 9), as the kernel does when memory runs out"
            return ArmFailed(PairStatus.OOM, reason)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ArmFailed(
            PairStatus.FAILED,
            f"the worker ended with {how}; see {self._log.parent.name}/{self._log.name}",
        )


def _forward(lines: IO[str], answers: queue.Queue[str]) -> None:
    """Moves lines to the queue; an empty one says that the stream ended."""
    for line in lines:
        answers.put(line)
    answers.put("")
