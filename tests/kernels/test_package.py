"""The cache of precompiled operations: one build a set of sources, whoever asks and however many ask at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.package import OPS_DIR, compiled_package, package_key

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A package of one function: quick to compile."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "__init__.mojo").write_text("from .one import one\n")
    (folder / "one.mojo").write_text("def one() -> Int:\n    return 1\n")
    return folder


def test_second_call_returns_the_same_file_unbuilt(sources: Path, tmp_path: Path) -> None:
    first = compiled_package(tmp_path / "cache", sources)
    written_ns = first.stat().st_mtime_ns
    assert first.name == "small.mojoc"
    assert compiled_package(tmp_path / "cache", sources) == first
    assert first.stat().st_mtime_ns == written_ns


def test_key_follows_names_and_contents(sources: Path) -> None:
    keys = {package_key(sources), package_key(OPS_DIR)}
    (sources / "one.mojo").write_text("def one() -> Int:\n    return 2\n")
    keys.add(package_key(sources))
    (sources / "one.mojo").rename(sources / "two.mojo")
    keys.add(package_key(sources))
    assert len(keys) == 4


def test_key_ignores_where_the_sources_lie(sources: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(sources, tmp_path / "elsewhere" / "small")
    assert package_key(elsewhere) == package_key(sources)


def test_processes_that_build_at_once_agree(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    program = (
        "import sys; from pathlib import Path; from kernels.package import compiled_package;"
        "print(compiled_package(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(cache), str(sources)]
    # MAX, once imported, changes the C environment that children inherit by default.
    processes = [
        subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert Path(outputs[0]).is_file()
    assert not list(cache.glob("build-*")), "a build folder was left behind"


def test_sources_that_do_not_compile_leave_nothing(sources: Path, tmp_path: Path) -> None:
    (sources / "one.mojo").write_text("def one() -> Int:\n    return missing_name\n")
    with pytest.raises(RuntimeError, match="missing_name"):
        compiled_package(tmp_path / "cache", sources)
    assert not list((tmp_path / "cache").rglob("*.mojoc"))


def test_a_folder_that_is_no_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"it has no __init__\.mojo"):
        compiled_package(tmp_path / "cache", tmp_path)
