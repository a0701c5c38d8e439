import pytest

from weightless_fw.core.select import Path, select_path
from weightless_fw.settings import Settings


@pytest.mark.parametrize(
    ("accelerator", "rank", "path"),
    [
        ("cuda", 1, Path.GEMM),
        ("cuda", 32, Path.GEMM),
        ("hip", 4, Path.GEMM),
        ("metal", 7, Path.CUSTOM_OP),
        ("metal", 8, Path.GEMM),
        # No accelerator, or one we do not know: Metal's rule.
        ("cpu", 7, Path.CUSTOM_OP),
        ("cpu", 8, Path.GEMM),
        ("", 4, Path.CUSTOM_OP),
    ],
)
def test_the_documented_rule(accelerator: str, rank: int, path: Path) -> None:
    assert select_path(Settings(rank=rank), accelerator).path is path


@pytest.mark.parametrize("accelerator", ["cuda", "metal", "cpu"])
def test_an_explicit_value_wins(accelerator: str) -> None:
    assert select_path(Settings(gemm=False, rank=32), accelerator).path is Path.CUSTOM_OP
    assert select_path(Settings(gemm=True, rank=1), accelerator).path is Path.GEMM


def test_the_reason_names_the_switch() -> None:
    selection = select_path(Settings(precompute_outside=True), "cuda")
    assert selection.path is Path.PRECOMPUTE
    assert "WEIGHTLESS_PRECOMPUTE_OUTSIDE" in selection.reason
