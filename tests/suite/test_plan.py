from dataclasses import replace
from pathlib import Path

import pytest

from suite.errors import UserError
from suite.plan import ArmPath, Case, Plan, Workload, load_plan, plan_names

WORKLOAD = Workload(prompt="x", new_tokens=8)


def case(**changes: object) -> Case:
    fields = {"model": "m", "path": ArmPath.GEMM, "workload": WORKLOAD, "rank": 4, **changes}
    return Case(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", plan_names())
def test_every_shipped_plan_resolves(name: str) -> None:
    plan = load_plan(name)
    assert plan.cases
    assert all(c.native.path is ArmPath.NATIVE for c in plan.cases)


def test_the_default_plan_measures_each_path_at_one_rank() -> None:
    plan = load_plan("default")
    assert {c.path for c in plan.cases} == {ArmPath.CUSTOM_OP, ArmPath.GEMM, ArmPath.PRECOMPUTE}
    assert len({c.rank for c in plan.cases}) == 1
    assert plan.rounds >= 5
    assert plan.cases[0].workload.new_tokens == 128


def test_the_full_plan_has_the_ranks_one_band_and_the_fusion_switches() -> None:
    cases = load_plan("full").cases
    for path in (ArmPath.GEMM, ArmPath.CUSTOM_OP):
        assert {c.rank for c in cases if c.path is path and c.groups is None} == {4, 8, 16, 32}
        assert any(c.path is path and c.groups == 1 for c in cases)
    assert any(c.qkv_fuse is False for c in cases)
    assert any(c.gate_up_fuse is False for c in cases)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other"},
        {"path": ArmPath.PRECOMPUTE},
        {"workload": replace(WORKLOAD, new_tokens=9)},
        {"workload": replace(WORKLOAD, prompt="y")},
        {"device": "gpu:0"},
        {"rank": 5},
        {"groups": 1},
        {"qkv_fuse": False},
        {"gate_up_fuse": True},
        {"capture": True},
    ],
)
def test_every_field_is_part_of_the_id(changes: dict[str, object]) -> None:
    assert case(**changes).case_id != case().case_id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": None}, "needs a rank"),
        ({"rank": 0}, "rank=0: must be an integer of at least 1"),
        ({"rank": 2.5}, "rank=2.5: must be an integer"),
        ({"groups": 0}, "groups=0: must be an integer of at least 1"),
        ({"quant": "nvfp4"}, "quant=nvfp4: only none is supported"),
        ({"path": ArmPath.CUSTOM_OP, "qkv_fuse": False}, "the custom op never fuses"),
        ({"path": ArmPath.NATIVE}, "native-dense has no rank"),
    ],
)
def test_impossible_cases_cannot_be_built(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        case(**changes)


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(UserError, match="holds no case"):
        Plan(name="p", rounds=5, cases=())


def test_a_case_twice_is_refused() -> None:
    with pytest.raises(UserError, match="twice"):
        Plan(name="p", rounds=5, cases=(case(), case()))


def test_an_unknown_plan_names_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="unknown plan 'nope'; known are default, full, noise-audit, smoke"
    ):
        load_plan("nope")


def test_an_unknown_case_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="has no case 'nope'; it has 'custom-op r=4 G=layers'"):
        load_plan("default").only("nope")


@pytest.mark.parametrize(
    "text",
    [
        "rounds: 5",
        "model: m\nrounds: 2.5\nworkload: {prompt: x, new_tokens: 8}\ncases: [{path: gemm, rank: 4}]",
        "model: m\nrounds: 5\nworkload: {prompt: x, new_tokens: 8}\ncases: [gemm]",
        "[1, 2]",
        "model: m\nrounds: 5\nworkload: {prompt: x, new_tokens: 8}\ncases: [{path: warp}]",
        "model: m\nrounds: 5\nworkload: {prompt: x, new_tokens: 8}\ncases: [{path: gemm, rnak: 4}]",
        "model: m\nrounds: 5\nworkload: {prompt: x}\ncases: [{path: gemm, rank: 4}]",
        "a: [",
    ],
)
def test_a_malformed_plan_is_one_line_with_its_path(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        load_plan(str(file))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
