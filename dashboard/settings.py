"""Which cases may stand in one chart: those measured under the same conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from suite.results.summary import CaseSummary


@dataclass(frozen=True)
class Setting:
    """Everything but the path that a case's speed depends on."""

    model: str
    weights: str
    cpu_model: str
    device: str
    capture: bool
    engine: str
    new_tokens: int
    prompt_tokens: int | None
    """None where nothing ran."""

    @staticmethod
    def of(row: CaseSummary) -> Setting:
        return Setting(
            model=row.model,
            weights=row.weights,
            cpu_model=row.cpu_model,
            device=row.device,
            capture=row.capture,
            engine=row.engine,
            new_tokens=row.workload.new_tokens,
            prompt_tokens=row.workload.prompt_tokens,
        )

    def words(self) -> dict[str, str]:
        """Each condition as a reader names it."""
        prompt = "unknown" if self.prompt_tokens is None else str(self.prompt_tokens)
        return {
            "cpu_model": self.cpu_model,
            "model": f"{self.model}, {self.weights}",
            "device": f"device {self.device}",
            "capture": f"graph capture {'on' if self.capture else 'off'}",
            "engine": self.engine,
            "prompt_tokens": f"prompt {prompt} tokens",
            "new_tokens": f"{self.new_tokens} new tokens",
        }


def by_setting(rows: Iterable[CaseSummary]) -> dict[Setting, list[CaseSummary]]:
    """The rows of each setting; the setting measured last comes first.

    A case that never ran has no prompt length; it joins the newest setting
    that it agrees with in everything else.
    """
    groups: dict[Setting, list[CaseSummary]] = {}
    for row in rows:
        groups.setdefault(Setting.of(row), []).append(row)
    ordered = sorted(
        groups, key=lambda one: max(row.measured_at for row in groups[one]), reverse=True
    )
    joined: dict[Setting, list[CaseSummary]] = {}
    for setting in sorted(ordered, key=lambda one: one.prompt_tokens is None):
        like = (one for one in joined if replace(one, prompt_tokens=None) == setting)
        joined.setdefault(next(like, setting), []).extend(groups[setting])
    return {setting: joined[setting] for setting in ordered if setting in joined}


def differences(settings: Sequence[Setting]) -> dict[str, Setting]:
    """A name for each setting: the conditions in which it differs from any other."""
    differing = {
        field.name
        for field in fields(Setting)
        if len({getattr(setting, field.name) for setting in settings}) > 1
    }
    if "weights" in differing:
        differing.add("model")
    return {
        " · ".join(word for name, word in setting.words().items() if name in differing)
        or setting.model: setting
        for setting in settings
    }
