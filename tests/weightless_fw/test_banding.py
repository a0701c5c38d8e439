import pytest

from weightless_fw.core.banding import BandingError, band_layers

GEMMA_270M = tuple(
    "sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(18)
)


def test_no_number_is_one_band_per_layer() -> None:
    banding = band_layers(GEMMA_270M, None)
    assert banding.band_of == tuple(range(18))
    assert not banding.shared


def test_one_band_holds_every_layer() -> None:
    banding = band_layers(GEMMA_270M, 1)
    assert banding.layers(0) == tuple(range(18))
    assert banding.shared


def test_six_bands_keep_attention_types_apart() -> None:
    banding = band_layers(GEMMA_270M, 6)
    members = [banding.layers(band) for band in range(6)]
    assert members == [
        (0, 1, 2),
        (3, 4, 6),
        (5, 11, 17),
        (7, 8, 9),
        (10, 12, 13),
        (14, 15, 16),
    ]
    for band in members:
        assert len({GEMMA_270M[layer] for layer in band}) == 1


@pytest.mark.parametrize("groups", [2, 9, 17, 19, 100])
def test_an_impossible_number_says_what_is_possible(groups: int) -> None:
    with pytest.raises(BandingError) as error:
        band_layers(GEMMA_270M, groups)
    assert f"groups={groups}" in str(error.value)
    assert "15 sliding_attention and 3 full_attention" in str(error.value)
    assert "possible are 1, 6, 18" in str(error.value)
