"""The compiled Mojo kernels that the custom-op path links against."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.package import compiled_package


def kernel_package() -> Path:
    """Returns the compiled package, building it on first use.

    It is kept under WEIGHTLESS_HOME, else where caches go.
    """
    home = os.environ.get("WEIGHTLESS_HOME")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return compiled_package(Path(home or Path(caches) / "weightless") / "kernels")
