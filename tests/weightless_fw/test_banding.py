import pytest

from weightless_fw.core.banding import (
    Banding,
    BandingError,
    band_layers,
    parse_groups,
    resolve_bands,
)

PROJECTIONS = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")

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


@pytest.mark.parametrize("groups", range(2, 19))
def test_every_number_from_the_types_to_the_layers_can_be_met(groups: int) -> None:
    banding = band_layers(GEMMA_270M, groups)
    members = [banding.layers(band) for band in range(banding.groups)]
    assert len(members) == groups
    assert sorted(layer for band in members for layer in band) == list(range(18))
    for kind in set(GEMMA_270M):
        of_kind = [layer for layer in range(18) if GEMMA_270M[layer] == kind]
        bands = [band for band in members if GEMMA_270M[band[0]] == kind]
        # Consecutive among the layers of their type, and as equal as can be.
        assert [layer for band in bands for layer in band] == of_kind
        assert max(map(len, bands)) - min(map(len, bands)) <= 1


@pytest.mark.parametrize("groups", [19, 100])
def test_an_impossible_number_says_what_is_possible(groups: int) -> None:
    with pytest.raises(BandingError) as error:
        band_layers(GEMMA_270M, groups)
    assert f"groups={groups}" in str(error.value)
    assert "15 sliding_attention and 3 full_attention" in str(error.value)
    assert "1 band or 2 to 18 bands" in str(error.value)


def test_sizes_fill_the_sliding_layers_then_the_global_ones() -> None:
    banding = resolved("5+10+3")
    assert [len(banding.layers(band)) for band in range(3)] == [5, 3, 10]
    assert banding.layers(0) == (0, 1, 2, 3, 4)
    assert banding.layers(1) == (5, 11, 17)


def test_a_map_is_taken_as_it_is() -> None:
    text = ",".join("1" if kind == "full_attention" else "0" for kind in GEMMA_270M)
    assert resolved(text).layers(1) == (5, 11, 17)


def test_projections_may_have_bands_of_their_own() -> None:
    bands = resolve_bands(parse_groups("mlp=6;mlp.down_proj=2;9"), GEMMA_270M, PROJECTIONS)
    assert {name: banding.groups for name, banding in bands.items()} == {
        "self_attn.q_proj": 9,
        "mlp.up_proj": 6,
        "mlp.down_proj": 2,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("six", "'six' is none of a number of bands"),
        ("0", "must be at least 1"),
        ("mlp=6;mlp=3", "'mlp' is empty or named twice"),
        ("6;9", "two entries without a projection's name"),
        ("moe=3", "unknown projection 'moe'; known are mlp, mlp.down_proj"),
        ("6+6+6", "the sliding_attention layers are not filled exactly"),
        ("5+10+3+1", "adds up to 19, the model has 18 layers"),
        ("0,1", "2 entries, the model has 18 layers"),
        (",".join(["0"] * 9 + ["1"] * 9), "band 0 mixes full_attention and sliding_attention"),
        (",".join(["0"] * 17 + ["2"]), "band 1 holds no layer"),
    ],
)
def test_bad_bands_are_named(text: str, said: str) -> None:
    with pytest.raises(BandingError, match="groups") as error:
        resolved(text)
    assert said in str(error.value)


def resolved(text: str) -> Banding:
    return resolve_bands(parse_groups(text), GEMMA_270M, PROJECTIONS)["self_attn.q_proj"]
