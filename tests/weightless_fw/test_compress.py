import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from weightless_fw.__main__ import main
from weightless_fw.compress import driver
from weightless_fw.compress.plan import CompressOptions, resolve_plan
from weightless_fw.compress.read import load_compressed
from weightless_fw.compress.source import open_source
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.nvfp4 import Nvfp4
from weightless_fw.core.safetensors_writer import tensor_of, write_safetensors

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "bos_token_id": 2,
}
SHAPES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}
VOCABULARY = 40


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {"model.embed_tokens.weight": rng.standard_normal((VOCABULARY, 32)) / 4}
    found["model.norm.weight"] = np.zeros(32)
    for layer in range(4):
        for name, shape in SHAPES.items():
            found[f"model.layers.{layer}.{name}.weight"] = rng.standard_normal(shape) / 6
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            found[f"model.layers.{layer}.{norm}_layernorm.weight"] = np.zeros(32)
        for norm in "qk":
            found[f"model.layers.{layer}.self_attn.{norm}_norm.weight"] = np.zeros(16)
    return {name: array.astype(np.float32) for name, array in found.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), folder / "model.safetensors")
    vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    words = np.random.default_rng(3).integers(3, VOCABULARY, 600)
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{i}" for i in words))
    return path


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def effective(folder: Path, layer: int, name: str) -> np.ndarray:
    return load_compressed(folder).layers[layer][name].effective_weight


def dense(layer: int, name: str) -> np.ndarray:
    return tensors()[f"model.layers.{layer}.{name}.weight"]


def test_one_band_per_layer_gives_the_weights_back(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("compress", model, "--rank", 2, "--calibration", text, "--out", out) == 0
    for layer in range(4):
        for name in SHAPES:
            np.testing.assert_array_equal(effective(out, layer, name), dense(layer, name))


def test_the_checkpoint_is_as_documented(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = run(
        "compress", model, "--groups", 2, "--rank", 3, "--calibration", text, "--out", out
    )  # fmt: skip
    assert code == 0
    scheme = json.loads((out / "config.json").read_text())["weightless"]
    assert scheme == {
        "version": 1,
        "groups": "2",
        "bands": {name: [0, 1, 0, 1] for name in SHAPES},
        "ranks": {
            name: {"sliding_attention": 3, "full_attention": 3} for name in SHAPES
        },
        "quant": "none",
        "scale_choice": None,
        "method": "whitened",
        "calibration": {
            "sha256": hashlib.sha256(text.read_bytes()).hexdigest(),
            "tokens": 512,
        },
    }  # fmt: skip
    found = Checkpoint(out)
    assert "model.layers.0.mlp.up_proj.weight" in found
    assert "model.layers.2.mlp.up_proj.weight" not in found
    assert found.entry("model.layers.2.mlp.up_proj.v_t").shape == (3, 32)
    assert found.entry("model.layers.2.mlp.up_proj.u").shape == (48, 3)
    assert found.entry("model.layers.2.mlp.up_proj.s").shape == (48,)
    for name, array in tensors().items():
        if "_proj." not in name:
            np.testing.assert_array_equal(found[name], array)
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert not (tmp_path / "out.partial").exists()


def test_layers_of_a_band_share_one_object(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("compress", model, "--groups", 2, "--rank", 1, "--method", "svd", "--out", out)
    layers = load_compressed(out).layers
    first, second, third = (layers[i]["mlp.up_proj"] for i in (0, 1, 2))
    assert first.w0 is third.w0
    assert first.w0 is not second.w0
    assert "model.embed_tokens.weight" in load_compressed(out).rest


def test_nvfp4_projections_of_one_input_have_one_global_scale(
    model: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = run(
        "compress", model, "--rank", 2, "--quant", "nvfp4", "--calibration", text, "--out", out
    )  # fmt: skip
    assert code == 0
    loaded = load_compressed(out)
    assert loaded.scheme["scale_choice"] == "gptq"
    for layer in loaded.layers:
        held = {name: layer[name].w0 for name in SHAPES}
        assert all(isinstance(w0, Nvfp4) for w0 in held.values())
        scales = {name: w0.global_scale for name, w0 in held.items()}
        assert len({scales[f"self_attn.{p}_proj"] for p in "qkv"}) == 1
        assert scales["mlp.gate_proj"] == scales["mlp.up_proj"]
    found = Checkpoint(out)
    stem = "model.layers.1.mlp.down_proj"
    assert found.entry(f"{stem}.weight").dtype == "U8"
    assert found.entry(f"{stem}.weight").shape == (32, 24)
    assert found.entry(f"{stem}.weight_scale").dtype == "F8_E4M3"
    assert found.entry(f"{stem}.weight_scale").shape == (32, 3)
    assert found.entry(f"{stem}.weight_scale_2").shape == ()
    assert float(found[f"{stem}.input_scale"]) == 1


def test_bands_that_differ_are_joined_to_one_global_scale(model: Path, tmp_path: Path) -> None:
    options = CompressOptions(
        model=model, out=tmp_path / "o", groups="2;self_attn.q_proj=4", method="svd"
    )
    units = resolve_plan(options, open_source(model)).units
    qkv = [unit for unit in units if unit.source == "self_attn.qkv_proj"]
    names = [{band.name for band in unit.bands} for unit in qkv]
    q, k, v = (f"self_attn.{p}_proj" for p in "qkv")
    assert names == [
        {f"{q}.0", f"{q}.2", f"{k}.0", f"{v}.0"},
        {f"{q}.1", f"{q}.3", f"{k}.1", f"{v}.1"},
    ]


def test_the_stored_errors_are_those_of_the_stored_factors(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("compress", model, "--groups", 2, "--rank", 4, "--method", "svd", "--out", out)
    errors = json.loads((out / "weightless_report.json").read_text())["errors"]
    for layer in range(4):
        for name in SHAPES:
            weight = dense(layer, name)
            expected = np.linalg.norm(weight - effective(out, layer, name)) / np.linalg.norm(weight)
            assert errors[str(layer)][name] == pytest.approx(expected, rel=1e-4)


def test_a_budget_is_spent_and_not_exceeded(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = run(
        "compress", model, "--rank-budget", 0.1, "--quant", "nvfp4", "--calibration", text,
        "--out", out,
    )  # fmt: skip
    assert code == 0
    loaded = load_compressed(out)
    values = sum(4 * n * k for n, k in SHAPES.values())
    spent = sum(2 * (f.u.size + f.v.size) for layer in loaded.layers for f in layer.values())
    assert 0.07 * 2 * values < spent <= 0.1 * 2 * values
    for name, by_kind in loaded.scheme["ranks"].items():
        for layer, kind in enumerate(CONFIG["layer_types"]):
            assert loaded.layers[layer][name].rank == by_kind[kind]


def test_bfloat16_stays_bfloat16(model: Path, tmp_path: Path) -> None:
    found = tensors()
    (model / "model.safetensors").unlink()
    write_safetensors(
        model / "model.safetensors", [tensor_of(n, a, "BF16") for n, a in found.items()]
    )
    out = tmp_path / "out"
    assert run("compress", model, "--method", "pass-through", "--out", out) == 0
    source, written = Checkpoint(model), Checkpoint(out)
    assert sorted(source) == sorted(written)
    for name in source:
        assert written.entry(name).dtype == "BF16"
        np.testing.assert_array_equal(written.raw(name), source.raw(name))


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch, what: str) -> list[int]:
    """Lets a function of the driver be called so often, then has the user press Ctrl-C."""
    original: Callable[..., Any] = getattr(driver, what)
    calls: list[int] = []

    def counted(*arguments: Any, **named: Any) -> Any:
        if len(calls) == count:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*arguments, **named)

    monkeypatch.setattr(driver, what, counted)
    return calls


def test_an_interrupted_run_goes_on_where_it_was(
    model: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["compress", model, "--groups", 2, "--rank", 2, "--calibration", text, "--out"]
    out, whole = tmp_path / "out", tmp_path / "whole"
    with monkeypatch.context() as patch:
        interrupted_after(8, patch, "fit_band")
        assert run(*command, out) == 130
    assert "run the same command again" in capsys.readouterr().err
    assert not out.exists()
    with monkeypatch.context() as patch:
        # Seven projections of two bands; q, k, v and o of both are done already.
        calls = interrupted_after(99, patch, "fit_band")
        assert run(*command, out) == 0
    assert len(calls) == 14 - 8
    assert run(*command, whole) == 0
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_calibrating_goes_on_at_the_next_layer(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = driver.LayerwiseForward.advance

    def counted(self: Any, layer: int, *arguments: Any) -> Any:
        if layer == 2 and 2 not in seen:
            seen.append(layer)
            raise KeyboardInterrupt
        seen.append(layer)
        return original(self, layer, *arguments)

    monkeypatch.setattr(driver.LayerwiseForward, "advance", counted)
    command = ["compress", model, "--rank", 2, "--calibration", text, "--quant", "nvfp4", "--out"]
    assert run(*command, tmp_path / "out") == 130
    assert run(*command, tmp_path / "out") == 0
    # Two sequences a layer; the first layers are not run again.
    assert seen == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert run(*command, tmp_path / "whole") == 0
    written = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("out", "whole")]
    assert written[0] == written[1]


def test_other_options_do_not_reuse_unfinished_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_after(3, patch, "fit_band")
        assert run("compress", model, "--rank", 2, "--method", "svd", "--out", out) == 130
    assert run("compress", model, "--rank", 3, "--method", "svd", "--out", out) == 2
    assert "an unfinished compression with another rank" in capsys.readouterr().err
    assert run("compress", model, "--rank", 3, "--method", "svd", "--out", out, "--force") == 0
    assert load_compressed(out).layers[0]["mlp.up_proj"].rank == 3


def test_an_existing_folder_is_replaced_only_by_force(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ("compress", model, "--method", "pass-through", "--out")
    assert run(*command, out) == 0
    assert run(*command, out) == 2
    assert "exists; choose another folder or add --force" in capsys.readouterr().err
    assert run(*command, out, "--force") == 0
    (tmp_path / "precious").mkdir()
    assert run(*command, tmp_path / "precious", "--force") == 2
    assert "--force replaces only those" in capsys.readouterr().err
    assert run(*command, model, "--force") == 2
    assert "would replace the model" in capsys.readouterr().err
    assert (model / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "--method whitened needs --calibration FILE"),
        (["--method", "svd", "--rank", "17"], "self_attn.k_proj is 16 x 32 and takes ranks 0 to 16"),
        (["--method", "svd", "--rank", "-1"], "--rank -1"),
        (["--method", "svd", "--groups", "9"], "4 layers"),
        (["--method", "svd", "--groups", "x"], "groups=x"),
        (["--method", "svd", "--groups", "nose=2"], "unknown projection 'nose'"),
        (["--method", "svd", "--scale-choice", "amax"], "without --quant nvfp4"),
        (["--method", "svd", "--quant", "nvfp4", "--scale-choice", "gptq"], "take sweep"),
        (["--method", "svd", "--rank", "2", "--rank-budget", ".1"], "exclude each other"),
        (["--method", "svd", "--rank-budget", "1.5"], "--rank-budget 1.5"),
        (["--method", "svd", "--iterations", "0"], "--iterations 0"),
        (["--method", "pass-through", "--rank", "2"], "drop the rank"),
        (["--method", "pass-through", "--groups", "2"], "drop --groups"),
    ],
)  # fmt: skip
def test_contradictions_change_nothing_on_disk(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    assert run("compress", model, "--out", tmp_path / "out", *extra) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def spoiled(model: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    found = tensors()
    change(found)
    save_file(found, model / "model.safetensors")


def test_weights_that_are_no_numbers_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    spoiled(model, lambda found: found[name].__setitem__((0, slice(0, 2)), [np.nan, np.inf]))
    assert run("compress", model, "--method", "svd", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert name in error
    assert "2 values that are NaN or infinite" in error


def test_missing_and_misshaped_tensors_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.2.self_attn.o_proj.weight"
    spoiled(model, lambda found: found.update({name: found[name][:5]}))
    assert run("compress", model, "--method", "svd", "--out", tmp_path / "out") == 2
    assert f"tensor {name} is [5, 32]; config.json needs [32, 32]" in capsys.readouterr().err
    spoiled(model, lambda found: found.__delitem__(name))
    assert run("compress", model, "--method", "svd", "--out", tmp_path / "out") == 2
    assert f"tensor {name} is missing" in capsys.readouterr().err


def test_an_unsupported_model_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert run("compress", model, "--method", "svd", "--out", tmp_path / "out") == 2
    assert "LlamaForCausalLM cannot be compressed; supported is Gemma3" in capsys.readouterr().err
    assert run("compress", tmp_path / "nothing", "--method", "svd", "--out", tmp_path / "o") == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "free some space and run the same"),
        (PermissionError(errno.EACCES, "Permission denied", "/out"), "/out: Permission denied"),
    ],
)
def test_a_disk_that_refuses_is_one_line(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: OSError,
    message: str,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(driver, "write_result", refuse)
    out = tmp_path / "out"
    assert run("compress", model, "--rank", 1, "--method", "svd", "--out", out) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


def test_inspect_shows_every_byte(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run("compress", model, "--rank", 2, "--quant", "nvfp4", "--calibration", text, "--out", out)
    capsys.readouterr()
    assert run("inspect", out, "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    values = sum(4 * n * k for n, k in SHAPES.values())
    found = Checkpoint(out)
    assert sum(seen["bytes_by_term"].values()) == sum(found.entry(n).nbytes for n in found)
    assert seen["bytes_by_term"]["W0"] == values // 2
    # One byte per 16 weights, and two float32 scalars per projection.
    assert seen["bytes_by_term"]["block scales"] == values // 16 + 8 * 4 * len(SHAPES)
    assert seen["bytes_by_term"]["factors"] == 4 * 4 * sum(2 * (n + k) for n, k in SHAPES.values())
    assert seen["bf16_bytes"]["projections"] == 2 * values
    assert run("inspect", out) == 0
    shown = capsys.readouterr().out
    assert "nvfp4 (gptq)" in shown
    assert "relative error of the outputs, by layer" in shown


def test_what_is_not_compressed_cannot_be_inspected(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", model) == 2
    assert "no key weightless" in capsys.readouterr().err
    config = {**CONFIG, "weightless": {"version": 99}}
    (model / "config.json").write_text(json.dumps(config))
    assert run("inspect", model) == 2
    assert "version 99 of the scheme, this release reads 1" in capsys.readouterr().err


def test_a_tensor_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> np.ndarray:
        raise OSError(errno.ENOSPC, "No space left on device")

    good = tensor_of("a", np.arange(4, dtype=np.float32), "F32")
    bad = type(good)("b", "F32", (4,), fail)
    with pytest.raises(OSError, match="No space"):
        write_safetensors(tmp_path / "m.safetensors", [good, bad])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="a stands twice"):
        write_safetensors(tmp_path / "m.safetensors", [good, good])
    write_safetensors(tmp_path / "m.safetensors", [good], {"said": "so"})
    assert Checkpoint(tmp_path).metadata["said"] == "so"
    np.testing.assert_array_equal(Checkpoint(tmp_path)["a"], np.arange(4))
