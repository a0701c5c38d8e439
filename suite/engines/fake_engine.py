"""An engine that generates nothing and takes the time it is told: for tests of the harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suite.engines.engine import LoadRequest, Timed
from suite.models import ModelShape
from suite.plan import ArmPath, Case
from suite.results.model import Arm

Pace = Callable[[Case, int], float]
"""(case, how many runs of it came before) -> seconds per token."""


class FakeEngine:
    """Answers at once, with events at a pace of the test's choosing."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._runs: dict[str, int] = {}
        self._loaded: dict[str, Case] = {}
        self._now = 0.0

    @property
    def name(self) -> str:
        return "fake 0"

    def check(self, cases: Sequence[Case], shape: ModelShape) -> None:
        return None

    def prepare(self, requests: Sequence[LoadRequest]) -> None:
        return None

    def load(self, arm: str, request: LoadRequest) -> Arm:
        case = request.case
        self._runs[arm] = 0
        self._loaded[arm] = case
        native = case.path is ArmPath.NATIVE
        return Arm(
            case=case,
            path_ran=str(case.path),
            path_reason="fake",
            groups_ran=None if native else case.groups or 4,
            dtype="float32",
            compile_s=0.0,
            load_s=0.0,
            check_s=0.0,
            graph_ops={"rmo.matmul": 1},
            custom_ops={},
            weight_shapes={"layers.mlp.down_proj.weight": "64 x 128"},
            resident_bytes=1000,
            bytes_per_token_terms={"projections": 1000},
            agreement=0.0,
            agreement_perturbed=None if native else 0.0,
            perturbation_effect=None if native else 1.0,
            tolerance=1e-4,
            zero_factors=None if native else True,
            greedy_text="",
            tags=(),
        )

    def run(self, arm: str, prompt_ids: Sequence[int], new_tokens: int) -> Timed:
        step = self._pace(self._loaded[arm], self._runs[arm])
        self._runs[arm] += 1
        t_send = self._now
        events = tuple((t_send + 2 * step + i * step, 1) for i in range(new_tokens))
        self._now = events[-1][0] + 1.0
        return Timed(
            t_send=t_send, events=events, output_ids=tuple(range(new_tokens)), cached_tokens=0
        )

    def loaded(self, arm: str) -> Case | None:
        return self._loaded.get(arm)

    def unload(self, arm: str) -> None:
        self._loaded.pop(arm, None)

    def close(self) -> None:
        self._loaded.clear()
