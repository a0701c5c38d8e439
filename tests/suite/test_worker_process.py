"""The conversation with a worker, held with small stand-ins for it."""

import sys
from pathlib import Path

import pytest

from suite.engines import ArmFailed
from suite.engines.worker_process import WorkerProcess
from suite.results.model import PairStatus


def worker(tmp_path: Path, program: str) -> WorkerProcess:
    command = [sys.executable, "-u", "-c", program]
    return WorkerProcess(
        log=tmp_path / "bundle" / "worker.log", cache_dir=tmp_path, command=command
    )


def outcome(tmp_path: Path, program: str) -> ArmFailed:
    process = worker(tmp_path, program)
    with pytest.raises(ArmFailed) as failure:
        process.ask("load", arm="a")
        process.answer(timeout_s=30)
    process.kill()
    return failure.value


def test_an_answer_comes_back(tmp_path: Path) -> None:
    process = worker(
        tmp_path,
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'ok': True, 'heard': json.loads(line)}))\n",
    )
    process.ask("load", arm="a")
    assert process.answer(timeout_s=30) == {"heard": {"op": "load", "arm": "a"}}
    assert process.answer(timeout_s=0.01) is None
    assert process.alive
    process.kill()
    assert not process.alive


def test_a_refusal_keeps_its_kind_and_reason(tmp_path: Path) -> None:
    failed = outcome(
        tmp_path, """input(); print('{"ok": false, "kind": "oom", "message": "too big"}')"""
    )
    assert (failed.status, failed.reason) == (PairStatus.OOM, "too big")


def test_a_worker_that_is_killed_ran_out_of_memory(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "import os; input(); os.kill(os.getpid(), 9)")
    assert failed.status is PairStatus.OOM
    assert "signal 9" in failed.reason


def test_a_worker_that_crashes_names_the_signal_and_the_log(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "import os; input(); os.kill(os.getpid(), 11)")
    assert failed.status is PairStatus.FAILED
    assert failed.reason == "the worker ended with signal 11; see bundle/worker.log"


def test_a_worker_that_never_started_is_a_failure(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "raise SystemExit(3)")
    assert "exit code 3" in failed.reason


def test_killing_ends_what_the_worker_started(tmp_path: Path) -> None:
    process = worker(
        tmp_path,
        "import subprocess, json\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(json.dumps({'ok': True, 'pid': child.pid}))\n"
        "input()\ninput()\n",
    )
    process.ask("load")
    answer = process.answer(timeout_s=30)
    assert answer is not None
    process.kill()
    state = Path(f"/proc/{answer['pid']}/stat")
    assert not state.exists() or state.read_text().split(") ")[1].startswith("Z")
