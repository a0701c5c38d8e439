"""Folders in the cache are whole or absent, whatever happens while they are made."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.errors import UserError
from suite.models.cache import cached_folder, default_cache_dir

REPOSITORY = Path(__file__).parents[3]


def make(cache_dir, build, *, needed_bytes=10, progress=lambda line: None):
    return cached_folder(
        cache_dir, "thing", needed_bytes=needed_bytes, build=build, progress=progress
    )


def build_ok(staging):
    (staging / "scrap").write_text("left over")
    (staging / "folder").mkdir()
    (staging / "folder" / "a").write_text("done")
    return staging / "folder"


def left_behind(cache_dir):
    return [path for path in cache_dir.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_only_the_finished_folder_stays(tmp_path):
    folder = make(tmp_path, build_ok)
    assert left_behind(tmp_path) == [folder / "a"]


def test_a_finished_folder_is_not_made_again(tmp_path):
    folder = make(tmp_path, build_ok)
    assert make(tmp_path, lambda staging: pytest.fail("made again")) == folder


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("bug"), UserError("mistake")])
def test_an_interrupted_one_leaves_nothing(tmp_path, failure):
    def build(staging):
        (staging / "a").write_text("half")
        raise failure

    with pytest.raises(type(failure)):
        make(tmp_path, build)
    assert left_behind(tmp_path) == []
    assert (make(tmp_path, build_ok) / "a").read_text() == "done"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch, code):
    def build(staging):
        (staging / "a").write_text("half")
        raise OSError(code, os.strerror(code))

    usage = SimpleNamespace(total=100, used=50, free=777)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs about 10 bytes in .*, where 777 are free"):
        make(tmp_path, build)
    assert left_behind(tmp_path) == []


def test_too_little_room_is_noticed_before_the_start(tmp_path, monkeypatch):
    usage = SimpleNamespace(total=100, used=50, free=9)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs about 10 bytes in .*, where 9 are free"):
        make(tmp_path / "new", lambda staging: pytest.fail("started"))
    assert left_behind(tmp_path) == []


def test_a_cache_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="WEIGHTLESS_HOME"):
        make(tmp_path / "file", build_ok)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from suite.models.cache import cached_folder

def build(staging):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    (staging / "a").write_text("half")
    if sys.argv[3] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    (staging / "a").write_text("done")
    return staging

print(cached_folder(Path(sys.argv[1]), "thing", needed_bytes=1, build=build, progress=print))
"""


def start(tmp_path, what):
    command = [sys.executable, "-c", SCRIPT, tmp_path / "cache", tmp_path / "log", what]
    # MAX, once imported, changes the C environment that children inherit by default.
    environment = dict(os.environ)
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment
    )


def test_two_processes_make_it_once(tmp_path):
    both = [start(tmp_path, "finish") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert {output[-1] for output in outputs} == {str(tmp_path / "cache" / "models" / "thing")}
    assert (tmp_path / "log").read_text() == "built\n"
    assert (tmp_path / "cache" / "models" / "thing" / "a").read_text() == "done"


def test_a_killed_process_leaves_nothing_that_counts(tmp_path):
    killed = start(tmp_path, "die")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "cache" / "models" / "thing").exists()
    assert (make(tmp_path / "cache", build_ok) / "a").read_text() == "done"
    assert len(left_behind(tmp_path / "cache")) == 1


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("WEIGHTLESS_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path("/home/someone/.cache/weightless")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert default_cache_dir() == Path("/var/x/weightless")
    monkeypatch.setenv("WEIGHTLESS_HOME", "/big/disk")
    assert default_cache_dir() == Path("/big/disk")
