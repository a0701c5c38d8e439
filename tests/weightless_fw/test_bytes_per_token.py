from weightless_fw.core.bytes_per_token import kv_bytes, weight_terms


def test_a_shared_w0_is_read_once_per_layer() -> None:
    sizes = {
        "bands.0.mlp.down_proj": 100,
        "layers.0.mlp.down_proj.scale": 4,
        "layers.0.mlp.down_proj.up": 8,
        "layers.0.mlp.down_proj.v_t": 16,
        "layers.0.input_layernorm.weight": 2,
        "embed_tokens.weight": 1000,
    }
    terms = weight_terms(sizes, {"bands.0.mlp.down_proj": 3}, tied_head=True)
    assert terms == {
        "projections": 300,
        "factors": 24,
        "scales": 4,
        "norms": 2,
        "head": 1000,
        "kv": 0,
    }


def test_an_embedding_that_is_no_head_is_one_row_and_left_out() -> None:
    sizes = {"embed_tokens.weight": 1000, "lm_head.weight": 900}
    assert weight_terms(sizes, {}, tied_head=False)["head"] == 900


def test_sliding_layers_read_no_more_than_their_window() -> None:
    kinds = ("sliding_attention", "full_attention")
    read = kv_bytes(
        attention_types=kinds,
        kv_heads=1,
        head_dim=256,
        sliding_window=512,
        context_tokens=1000,
        element_bytes=4,
    )
    assert read == 2 * (512 + 1000) * 256 * 4
