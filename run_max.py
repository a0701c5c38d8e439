"""``max`` with the weightless architectures registered.

    .venv/bin/python run_max.py generate --model FOLDER --prompt "The capital of France is" --max-new-tokens 32

Takes every argument of ``max``; the WEIGHTLESS_ variables choose the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from max._entrypoints.pipelines import main

OPTION = "--custom-architectures"
COMMANDS = {"generate", "serve", "encode", "warm-cache", "benchmark"}

if __name__ == "__main__":
    package = str(Path(__file__).parent / "weightless_fw")
    if COMMANDS & set(sys.argv[1:2]) and not any(a.startswith(OPTION) for a in sys.argv):
        sys.argv += [OPTION, package]
    try:
        main()
    except ValueError as error:
        # A switch or a checkpoint that cannot be: the message says what to do.
        if not type(error).__module__.startswith("weightless_fw."):
            raise
        print(f"run_max: {error}", file=sys.stderr)
        sys.exit(2)
