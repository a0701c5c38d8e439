"""``python -m weightless_fw``: commands on checkpoints, without compiling anything."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence

from weightless_fw.compress.command import add_compress_command, add_inspect_command
from weightless_fw.compress.errors import CompressError
from weightless_fw.core.band_fit import BandFitError
from weightless_fw.core.banding import BandingError
from weightless_fw.core.calibration import CalibrationError
from weightless_fw.core.checkpoint import CheckpointError
from weightless_fw.core.nvfp4 import Nvfp4Error
from weightless_fw.core.rank_budget import RankBudgetError
from weightless_fw.core.whitening import MomentsError

COMMANDS = (
    add_compress_command,
    add_inspect_command,
)
"""Each adds one subcommand and sets ``run``, which takes the parsed arguments."""

USER_ERRORS = (
    BandFitError,
    BandingError,
    CalibrationError,
    CheckpointError,
    CompressError,
    MomentsError,
    Nvfp4Error,
    RankBudgetError,
)
"""Mistakes of the user's: one line, exit code 2. Anything else is a fault of ours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m weightless_fw", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(subparsers)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except USER_ERRORS as error:
        return _failed(str(error), 2)
    except KeyboardInterrupt:
        return _failed("interrupted; run the same command again to go on from here", 130)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        advice = "; free some space and run the same command again to go on"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _failed(f"{place}{error.strerror}{advice if full else ''}", 1)
    return 0


def _failed(message: str, code: int) -> int:
    print(f"weightless_fw: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
