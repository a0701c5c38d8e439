"""What an engine must do for the harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from suite.models import ModelShape
from suite.plan import Case
from suite.results.model import Arm, PairStatus


class ArmFailed(Exception):
    """An arm could not be built, checked or run; the pair becomes a row with this."""

    def __init__(self, status: PairStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """Everything an engine needs to build an arm."""

    case: Case
    folder: Path
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The raw outcome of one request, times in seconds on the monotonic clock."""

    t_send: float
    events: tuple[tuple[float, int], ...]
    output_ids: tuple[int, ...]
    cached_tokens: int | None
    """Prompt tokens served from a prefix cache; None if unknown."""


class Engine(Protocol):
    """Loads arms side by side, under names, and times single requests on them.

    Any method may raise ArmFailed; the engine stays usable after it, if need
    be by starting anew with no arm loaded.
    """

    @property
    def name(self) -> str:
        """Program and version."""

    def check(self, cases: Sequence[Case], shape: ModelShape) -> None:
        """Refuses cases that cannot be built for a model of this shape.

        Raises:
            UserError: A rank or a number of bands does not fit.
        """

    def prepare(self, requests: Sequence[LoadRequest]) -> None:
        """Compiles ahead, side by side, while nothing is timed; may do nothing.

        Args:
            requests: Arms in the order they will be loaded; the first two are next.
        """

    def load(self, arm: str, request: LoadRequest) -> Arm:
        """Builds and checks ``request.case`` as ``arm``."""

    def run(self, arm: str, prompt_ids: Sequence[int], new_tokens: int) -> Timed:
        """Generates ``new_tokens`` tokens, greedy, end of text ignored."""

    def loaded(self, arm: str) -> Case | None:
        """The case that ``arm`` holds now."""

    def unload(self, arm: str) -> None:
        """Frees the arm, if it is loaded."""

    def close(self) -> None:
        """Frees everything."""
