"""Precompiles the Mojo operations once, so that a graph does not compile the folder again each time it is built.

Used as `Graph(..., custom_extensions=[compiled_package(cache_dir)])`.
"""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

OPS_DIR = Path(__file__).parent / "ops"


def compiled_package(cache_dir: Path, source_dir: Path = OPS_DIR) -> Path:
    """Returns the precompiled package of `source_dir`, building it if the cache has none for these sources and compiler.

    Layout: `<cache_dir>/<key>/<source_dir name>.mojoc` (a package is called what its file is called), the key being a
    hash of the sources, the version of Mojo and the kind of processor. The compiler's own cache is
    `<cache_dir>/mojo_cache`: the command and MAX inside Python remove each other's files in a shared one.

    Safe to call from several processes at once: each builds in a folder of its own, and one rename publishes the result.

    Raises:
        RuntimeError: `source_dir` is no Mojo package, there is no `mojo` command, or the sources do not compile.
    """
    cache_dir = cache_dir.resolve()
    published = cache_dir / package_key(source_dir) / f"{source_dir.name}.mojoc"
    if published.is_file():
        return published

    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache_dir) as build_dir:
        built = Path(build_dir) / "package" / published.name
        built.parent.mkdir()
        precompile(source_dir, built, compiler_cache_dir=cache_dir / "mojo_cache")
        try:
            built.parent.rename(published.parent)
        except OSError:
            # Another process published the same sources first; its file is as good as ours.
            if not published.is_file():
                raise
    return published


def package_key(source_dir: Path) -> str:
    """Hash of everything the package depends on: names and bytes of the sources, the version of Mojo, the processor kind.

    The processor is named for safety only: a package holds code that MAX specialises for the host when it builds a graph.
    """
    if not (source_dir / "__init__.mojo").is_file():
        raise RuntimeError(f"{source_dir} is no Mojo package: it has no __init__.mojo")
    digest = hashlib.sha256(f"{importlib.metadata.version('mojo')} {platform.machine()}".encode())
    for source in sorted(source_dir.rglob("*.mojo")):
        content = source.read_bytes()
        digest.update(f"\n{source.relative_to(source_dir).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def precompile(source_dir: Path, output: Path, *, compiler_cache_dir: Path) -> None:
    """Runs `mojo precompile`; warnings of the compiler are dropped, its errors are in the exception."""
    command = [mojo_command(), "precompile", str(source_dir), "-o", str(output)]
    result = subprocess.run(
        command,
        check=False,
        env=compiler_environment(compiler_cache_dir),
        capture_output=True,
        text=True,
    )
    if result.returncode != 0 or not output.is_file():
        raise RuntimeError(
            f"{' '.join(command)} failed with status {result.returncode}:\n{result.stderr}{result.stdout}"
        )


def mojo_command() -> str:
    """Path of the `mojo` command of this Python environment, else of the one on PATH."""
    command = shutil.which("mojo", path=sysconfig.get_path("scripts")) or shutil.which("mojo")
    if command is None:
        raise RuntimeError(
            "no `mojo` command in this Python environment or on PATH; install the package `mojo`"
        )
    return command


def compiler_environment(compiler_cache_dir: Path) -> dict[str, str]:
    """This process's environment, with a cache for the `mojo` command that MAX inside Python does not use."""
    return {**os.environ, "MODULAR_CACHE_DIR": str(compiler_cache_dir)}
