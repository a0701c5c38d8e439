"""The shapes of Gemma 4 31B, its bands and bundles, and what is refused in words."""

from __future__ import annotations

import math

import pytest

from weightless_fw.core.banding import BandingError
from weightless_fw.core.select import Path
from weightless_fw.models.gemma4.scheme import FULL, GEMMA_4_31B, SLIDING
from weightless_fw.models.scheme import Scheme, resolve_scheme
from weightless_fw.settings import Settings

KINDS = GEMMA_4_31B.layer_kinds


def scheme(groups: str | None = None, path: Path = Path.GEMM) -> Scheme:
    environment = {} if groups is None else {"WEIGHTLESS_GROUPS": groups}
    return resolve_scheme(Settings.from_environment(environment), path, KINDS)


def test_31b_has_410_projections_and_its_published_size() -> None:
    shapes = [shape for layer in range(60) for shape in KINDS.of_layer(layer).values()]
    assert len(shapes) == 50 * 7 + 10 * 6 == 410
    projections = sum(math.prod(shape) for shape in shapes)
    embedding = 262_144 * GEMMA_4_31B.hidden
    # Published as 30.7 billion parameters, of which the vision tower has half a billion.
    assert projections + embedding == pytest.approx(30.7e9, rel=0.01)


def test_only_global_layers_lack_v_proj() -> None:
    assert KINDS.shapes[SLIDING]["self_attn.v_proj"] == (16 * 256, 5376)
    assert "self_attn.v_proj" not in KINDS.shapes[FULL]
    assert KINDS.shapes[SLIDING]["self_attn.o_proj"] == (5376, 32 * 256)
    assert KINDS.shapes[FULL]["self_attn.o_proj"] == (5376, 32 * 512)
    assert [layer for layer, kind in enumerate(KINDS.attention_types) if kind == FULL] == list(
        range(5, 60, 6)
    )


def test_the_fused_matrix_holds_what_the_layer_has() -> None:
    bundles = {kind: scheme().bundles(kind) for kind in (SLIDING, FULL)}
    assert len(bundles[SLIDING]["self_attn.qkv_proj"]) == 3
    assert bundles[FULL]["self_attn.qkv_proj"] == ("self_attn.q_proj", "self_attn.k_proj")


@pytest.mark.parametrize("groups", ["2", "4", "10", "60"])
def test_bands_never_mix_attention_types(groups: str) -> None:
    for projection, banding in scheme(groups).bands.items():
        for band in range(banding.groups):
            kinds = {KINDS.attention_types[layer] for layer in banding.layers(band)}
            assert len(kinds) == 1, f"{projection}, band {band}"


def test_one_band_for_both_kinds_is_refused() -> None:
    with pytest.raises(BandingError, match="groups"):
        scheme("1")
