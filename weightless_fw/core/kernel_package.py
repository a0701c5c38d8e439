"""The compiled Mojo kernels that the custom-op path links against."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.package import compiled_package


def kernel_package() -> Path:
    """Returns the compiled package, building it on first use."""
    home = os.environ.get("WEIGHTLESS_HOME")
    cache = Path(home) if home else Path.home() / ".cache" / "weightless"
    return compiled_package(cache / "kernels")
