"""What is to be measured: cases, workloads and plans, all resolved and immutable."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from suite.errors import UserError

METHOD_VERSION = 1
"""Part of every comparison key: raised whenever the way of measuring changes."""

PLAN_FOLDER = Path(__file__).parent / "plans"

MIN_ROUNDS = 2


class ArmPath(StrEnum):
    """How the projections of an arm run."""

    NATIVE = "native-dense"
    CUSTOM_OP = "custom-op"
    GEMM = "gemm"
    PRECOMPUTE = "precompute"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One request, the same for every arm: greedy, end of text ignored."""

    prompt: str
    new_tokens: int

    def __post_init__(self) -> None:
        if type(self.new_tokens) is not int or self.new_tokens < 2:
            raise UserError(
                f"new_tokens={self.new_tokens}: at least 2 are needed for a decode rate"
            )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fully resolved configuration. Native dense has no factors, so no rank."""

    model: str
    path: ArmPath
    workload: Workload
    device: str = "cpu"
    rank: int | None = None
    groups: int | None = None
    """Bands that share a W0; None is one band per layer."""
    quant: str = "none"
    qkv_fuse: bool | None = None
    gate_up_fuse: bool | None = None
    capture: bool = False

    def __post_init__(self) -> None:
        native = self.path is ArmPath.NATIVE
        factor_fields = (self.rank, self.groups, self.qkv_fuse, self.gate_up_fuse)
        if native and any(value is not None for value in factor_fields):
            raise UserError("native-dense has no rank, groups or fusion switches; remove them")
        if not native and self.rank is None:
            raise UserError(f"a case with path {self.path} needs a rank")
        for name, value in (("rank", self.rank), ("groups", self.groups)):
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{name}={value}: must be an integer of at least 1")
        if self.quant != "none":
            raise UserError(f"quant={self.quant}: only none is supported")
        fusions = (self.qkv_fuse, self.gate_up_fuse)
        if self.path is ArmPath.CUSTOM_OP and any(value is not None for value in fusions):
            raise UserError("the custom op never fuses; remove qkv_fuse and gate_up_fuse")

    @property
    def case_id(self) -> str:
        """Hash of every field and of the method: equal ids may be compared."""
        content = json.dumps([METHOD_VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A short name, unique within a plan."""
        if self.path is ArmPath.NATIVE:
            return str(self.path)
        groups = "layers" if self.groups is None else str(self.groups)
        off = [
            name
            for name, on in (("qkv", self.qkv_fuse), ("gate-up", self.gate_up_fuse))
            if on is False
        ]
        return f"{self.path} r={self.rank} G={groups}" + "".join(f" no-{name}-fuse" for name in off)

    @property
    def native(self) -> Case:
        """The reference arm of this case: same model, device and workload."""
        return Case(
            model=self.model,
            path=ArmPath.NATIVE,
            workload=self.workload,
            device=self.device,
            capture=self.capture,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A named list of cases, each measured against native dense."""

    name: str
    rounds: int
    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        if type(self.rounds) is not int or self.rounds < MIN_ROUNDS:
            raise UserError(
                f"plan {self.name}: rounds={self.rounds}, an integer of at least "
                f"{MIN_ROUNDS} is needed"
            )
        if not self.cases:
            raise UserError(f"plan {self.name} holds no case; nothing would be measured")
        labels = [case.label for case in self.cases]
        for label in labels:
            if labels.count(label) > 1:
                raise UserError(f"plan {self.name} holds the case {label!r} twice")

    def only(self, label: str) -> Plan:
        """The plan with one case, named by its label."""
        chosen = tuple(case for case in self.cases if case.label == label)
        if not chosen:
            known = ", ".join(repr(case.label) for case in self.cases)
            raise UserError(f"plan {self.name} has no case {label!r}; it has {known}")
        return replace(self, cases=chosen)

    @property
    def key(self) -> str:
        """Hash of everything in the plan."""
        content = json.dumps([self.name, self.rounds, [c.case_id for c in self.cases]])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def plan_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PLAN_FOLDER.glob("*.yaml")))


def load_plan(name: str, *, model: str | None = None) -> Plan:
    """Reads ``plans/NAME.yaml`` and resolves it.

    In ``cases``, a list stands for one case per value; lists multiply.

    Args:
        name: A plan's name, or the path of a YAML file.
        model: Replaces the plan's model.

    Raises:
        UserError: The plan is unknown or malformed.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PLAN_FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"unknown plan {name!r}; known are {', '.join(plan_names())}")
    try:
        content = yaml.safe_load(path.read_text())
        return _resolve(path.stem, content, model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a plan: {type(error).__name__} {reason}") from None


def _resolve(name: str, content: Mapping[str, Any], model: str | None) -> Plan:
    workload = Workload(**content["workload"])
    cases = []
    for entry in content["cases"]:
        axes = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
        for values in itertools.product(*axes.values()):
            fields = dict(zip(axes, values, strict=True))
            fields["path"] = ArmPath(fields["path"])
            cases.append(Case(model=model or content["model"], workload=workload, **fields))
    return Plan(name=name, rounds=content["rounds"], cases=tuple(cases))
