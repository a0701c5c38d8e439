"""The switches, read once from the environment into one frozen object.

The table of docs/runtime-configuration.md is generated from the fields below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weightless_fw.core.banding import GRAMMAR, BandingError, Groups, parse_groups

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_BOOLEANS = "1, true, yes, on, 0, false, no, off"


class SettingsError(ValueError):
    """A switch has a value it cannot have; the message names both."""


def _integer(least: int) -> Callable[[str, str], int]:
    def parse(variable: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise SettingsError(f"{variable}={text}: must be an integer of at least {least}")
        return value

    return parse


def _boolean(variable: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingsError(f"{variable}={text}: must be one of {_BOOLEANS}")


def _groups(variable: str, text: str) -> Groups:
    try:
        return parse_groups(text)
    except BandingError as error:
        raise SettingsError(f"{variable}={text}: {error}") from None


def _switch(
    parse: Callable[[str, str], Any], values: str, meaning: str, unset: str = ""
) -> Mapping[str, Any]:
    """How a variable's text is read, and what the documentation says of it."""
    return {"parse": parse, "values": values, "meaning": meaning, "unset": unset}


_ON_OFF = "1, true, yes, on / 0, false, no, off"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How weightless layers are built. Each field is one WEIGHTLESS_ variable."""

    rank: int = field(
        default=4,
        metadata=_switch(
            _integer(1), "1 to the smaller side of the smallest projection", "columns of U and V"
        ),
    )
    groups: Groups | None = field(
        default=None,
        metadata=_switch(
            _groups, GRAMMAR, "the bands of layers that share a W0", "one band per layer"
        ),
    )
    gemm: bool | None = field(
        default=None,
        metadata=_switch(_boolean, _ON_OFF, "the GEMM path, or the custom op", "chosen, see Paths"),
    )
    precompute_outside: bool = field(
        default=False,
        metadata=_switch(
            _boolean, _ON_OFF, "build W_eff at load, run one matmul; excludes `WEIGHTLESS_GEMM`"
        ),
    )
    qkv_fuse: bool = field(
        default=True,
        metadata=_switch(
            _boolean, _ON_OFF, "query, key and value in one matrix (GEMM, precompute)"
        ),
    )
    gate_up_fuse: bool = field(
        default=True,
        metadata=_switch(_boolean, _ON_OFF, "gate and up in one matrix (GEMM, precompute)"),
    )
    bf16_combine: bool = field(
        default=False,
        metadata=_switch(
            _boolean, _ON_OFF, "GEMM path: scale and add in bfloat16 instead of float32"
        ),
    )

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SettingsError(f"WEIGHTLESS_RANK={self.rank}: must be an integer of at least 1")
        if self.precompute_outside and self.gemm is not None:
            raise SettingsError(
                f"WEIGHTLESS_PRECOMPUTE_OUTSIDE=1 with WEIGHTLESS_GEMM={int(self.gemm)}: "
                "precompute outside leaves no factors to run; unset one of them"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Reads the WEIGHTLESS_ variables of ``environment``.

        Raises:
            SettingsError: A value is malformed, or a variable is unknown.
        """
        known = {variable_of(f.name): f for f in fields(cls)}
        values: dict[str, object] = {}
        for variable, text in environment.items():
            if not variable.startswith("WEIGHTLESS_") or variable in NOT_SWITCHES:
                continue
            if variable not in known:
                raise SettingsError(
                    f"{variable}={text}: unknown switch; known are {', '.join(sorted(known))}"
                )
            if text.strip():
                switch = known[variable]
                values[switch.name] = switch.metadata["parse"](variable, text.strip())
        return cls(**values)  # type: ignore[arg-type]


# Where caches and results lie; not switches of the layers.
NOT_SWITCHES = frozenset({"WEIGHTLESS_HOME", "WEIGHTLESS_DB"})


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return f"WEIGHTLESS_{name.upper()}"


def markdown_table() -> str:
    """The switches as the table of docs/runtime-configuration.md."""
    lines = ["| variable | values | default | meaning |", "|---|---|---|---|"]
    for switch in fields(Settings):
        meta, default = switch.metadata, switch.default
        if isinstance(default, bool):
            default = "on" if default else "off"
        shown = meta["unset"] or str(default)
        lines.append(
            f"| `{variable_of(switch.name)}` | {meta['values']} | {shown} | {meta['meaning']} |"
        )
    return "\n".join(lines) + "\n"
