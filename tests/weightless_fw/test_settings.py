from pathlib import Path

import pytest

from weightless_fw.settings import Settings, SettingsError, markdown_table


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_environment({"PATH": "/bin", "WEIGHTLESS_HOME": "/somewhere"})
    assert settings == Settings(
        rank=4,
        groups=None,
        gemm=None,
        qkv_fuse=True,
        gate_up_fuse=True,
        precompute_outside=False,
    )


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_true_words(text: str) -> None:
    assert Settings.from_environment({"WEIGHTLESS_GEMM": text}).gemm is True


@pytest.mark.parametrize("text", ["0", "false", "no", "OFF"])
def test_false_words(text: str) -> None:
    assert Settings.from_environment({"WEIGHTLESS_GEMM": text}).gemm is False


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("WEIGHTLESS_RANK", "0", "at least 1"),
        ("WEIGHTLESS_RANK", "four", "must be an integer"),
        ("WEIGHTLESS_GROUPS", "-2", "at least 1"),
        ("WEIGHTLESS_GEMM", "maybe", "true, yes, on"),
        ("WEIGHTLESS_RNAK", "4", "unknown switch"),
        ("WEIGHTLESS_QUANT", "nvfp4", "unknown switch"),
    ],
)
def test_a_bad_value_is_named_with_its_variable(variable: str, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_environment({variable: text})
    assert variable in str(error.value)
    assert text in str(error.value)
    assert said in str(error.value)


def test_contradictory_switches_are_refused() -> None:
    environment = {"WEIGHTLESS_PRECOMPUTE_OUTSIDE": "1", "WEIGHTLESS_GEMM": "0"}
    with pytest.raises(SettingsError, match="unset one of them"):
        Settings.from_environment(environment)


def test_the_documentation_holds_the_table_of_the_switches() -> None:
    """docs/runtime-configuration.md must say what the code reads."""
    page = (Path(__file__).parents[2] / "docs" / "runtime-configuration.md").read_text()
    assert markdown_table() in page
