"""The commands ``compress`` and ``inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from weightless_fw.compress.plan import DEFAULT_RANK, CompressOptions
from weightless_fw.compress.report import inspect
from weightless_fw.core.band_fit import ITERATIONS, Method
from weightless_fw.core.banding import GRAMMAR
from weightless_fw.core.calibration import DEFAULT_TOKENS
from weightless_fw.core.nvfp4 import ScaleChoice
from weightless_fw.core.quantize import Quant


def add_compress_command(subparsers: Any) -> None:
    """Adds ``compress`` to the subcommands of an argparse parser."""
    parser = subparsers.add_parser(
        "compress",
        help="write a compressed checkpoint",
        description="Fits (W0, s, U, V) to a dense checkpoint and writes them as a checkpoint. "
        "Interrupted, it goes on where it was when the same command is run again.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", type=Path, help="a folder with config.json and *.safetensors")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder to write")
    add("--groups", metavar="SPEC", help=f"{GRAMMAR}; default: one band per layer")
    add("--rank", metavar="R", type=int, help=f"columns of U and V, 0 for none ({DEFAULT_RANK})")
    add(
        "--rank-budget",
        metavar="FRACTION",
        type=float,
        help="instead of --rank: bytes of all factors as a share of the projections' bfloat16 "
        "bytes, spent where a column gains most",
    )
    add("--quant", choices=[str(q) for q in Quant], default="none", help="how W0 is stored (none)")
    add(
        "--scale-choice",
        choices=[str(c) for c in ScaleChoice],
        help="NVFP4 scales (gptq with --calibration, else sweep)",
    )
    add("--calibration", metavar="FILE", type=Path, help="a plain text, UTF-8")
    add(
        "--calibration-tokens",
        metavar="N",
        type=int,
        default=DEFAULT_TOKENS,
        help=f"read at most so many tokens of it ({DEFAULT_TOKENS})",
    )
    add(
        "--method",
        choices=[str(m) for m in Method],
        default="whitened",
        help="what the fit minimises (whitened, which needs --calibration)",
    )
    add(
        "--iterations",
        metavar="N",
        type=int,
        default=ITERATIONS,
        help=f"turns over the blocks of a band ({ITERATIONS})",
    )
    add("--force", action="store_true", help="replace a compressed checkpoint at DIR")
    parser.set_defaults(run=_compress)


def add_inspect_command(subparsers: Any) -> None:
    """Adds ``inspect`` to the subcommands of an argparse parser."""
    parser = subparsers.add_parser(
        "inspect", help="show scheme, bytes by term and error by layer of a compressed checkpoint"
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--json", action="store_true", help="strict JSON")
    parser.set_defaults(run=_inspect)


def _compress(arguments: argparse.Namespace) -> None:
    # Imported here: it brings the model code, which takes seconds.
    from weightless_fw.compress.driver import compress

    options = CompressOptions(
        model=arguments.model,
        out=arguments.out,
        groups=arguments.groups,
        rank=arguments.rank,
        rank_budget=arguments.rank_budget,
        quant=Quant(arguments.quant),
        scale_choice=arguments.scale_choice and ScaleChoice(arguments.scale_choice),
        calibration=arguments.calibration,
        calibration_tokens=arguments.calibration_tokens,
        method=Method(arguments.method),
        iterations=arguments.iterations,
        force=arguments.force,
    )
    print(inspect(compress(options)).as_text())


def _inspect(arguments: argparse.Namespace) -> None:
    seen = inspect(arguments.folder)
    print(seen.as_json() if arguments.json else seen.as_text())
