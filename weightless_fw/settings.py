"""The switches, read once from the environment into one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_BOOLEANS = "1, true, yes, on, 0, false, no, off"


class SettingsError(ValueError):
    """A switch has a value it cannot have; the message names both."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How weightless layers are built. Each field is one WEIGHTLESS_ variable."""

    rank: int = 4
    """WEIGHTLESS_RANK: columns of U and V, at least 1."""

    groups: int | None = None
    """WEIGHTLESS_GROUPS: bands that share a W0; unset is one band per layer."""

    gemm: bool | None = None
    """WEIGHTLESS_GEMM: true forces the GEMM path, false the custom op, unset chooses."""

    qkv_fuse: bool = True
    """WEIGHTLESS_QKV_FUSE: query, key and value in one matrix (GEMM, precompute)."""

    gate_up_fuse: bool = True
    """WEIGHTLESS_GATE_UP_FUSE: gate and up in one matrix (GEMM, precompute)."""

    precompute_outside: bool = False
    """WEIGHTLESS_PRECOMPUTE_OUTSIDE: build W_eff at load, run one stock matmul."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SettingsError(f"WEIGHTLESS_RANK={self.rank}: must be an integer of at least 1")
        if self.groups is not None and self.groups < 1:
            raise SettingsError(
                f"WEIGHTLESS_GROUPS={self.groups}: must be an integer of at least 1"
            )
        if self.precompute_outside and self.gemm is not None:
            raise SettingsError(
                "WEIGHTLESS_PRECOMPUTE_OUTSIDE=1 leaves no factors to run, so "
                "WEIGHTLESS_GEMM must be unset beside it"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Reads the WEIGHTLESS_ variables of ``environment``.

        Raises:
            SettingsError: A value is malformed, or a variable is unknown.
        """
        known = {f"WEIGHTLESS_{field.name.upper()}": field.name for field in fields(cls)}
        parse = {"rank": _integer, "groups": _integer}
        values: dict[str, object] = {}
        for variable, text in environment.items():
            if not variable.startswith("WEIGHTLESS_") or variable in _NOT_OURS:
                continue
            if variable not in known:
                raise SettingsError(
                    f"{variable}={text}: unknown switch; known are {', '.join(sorted(known))}"
                )
            if text.strip():
                name = known[variable]
                values[name] = parse.get(name, _boolean)(variable, text.strip())
        return cls(**values)  # type: ignore[arg-type]


# Where caches and results lie; not switches of the layers.
_NOT_OURS = frozenset({"WEIGHTLESS_HOME", "WEIGHTLESS_DB"})


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{variable}={text}: must be an integer of at least 1") from None


def _boolean(variable: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingsError(f"{variable}={text}: must be one of {_BOOLEANS}")
