"""What a folder must hold to be a model: each absence has its own line."""

from __future__ import annotations

import json
import shutil

import pytest

from suite.errors import UserError
from suite.models import WeightsKind, resolve_model
from suite.models.config_json import sliding_pattern
from suite.models.digest import remembered_sha256, sha256_of


@pytest.fixture
def tiny(tmp_path, silent):
    return resolve_model("synthetic:gemma-3-tiny", cache_dir=tmp_path / "cache", progress=silent)


@pytest.fixture
def checkpoint(tmp_path, tiny):
    """A copy of the tiny model as someone else would have saved it."""
    folder = tmp_path / "my-model"
    shutil.copytree(tiny.folder, folder)
    (folder / "weightless.json").unlink()
    return folder


@pytest.fixture
def resolve(tmp_path, silent):
    return lambda path: resolve_model(str(path), cache_dir=tmp_path / "cache", progress=silent)


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_a_whole_folder_is_a_checkpoint(checkpoint, tiny, resolve):
    model = resolve(checkpoint)
    assert (model.name, model.folder, model.weights) == (
        "my-model",
        checkpoint,
        WeightsKind.CHECKPOINT,
    )
    assert (model.shape, model.weights_sha256) == (tiny.shape, tiny.weights_sha256)


def test_a_folder_made_here_keeps_its_kind_under_its_path(tiny, resolve):
    assert resolve(tiny.folder).weights is WeightsKind.RANDOM


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", r"has no \*.safetensors"),
        ("tokenizer.json", "has no tokenizer.json"),
    ],
)
def test_a_missing_file_is_named(checkpoint, resolve, file, message):
    (checkpoint / file).unlink()
    with pytest.raises(UserError, match=message) as caught:
        resolve(checkpoint)
    assert "\n" not in str(caught.value)


def test_other_architectures_are_answered_with_the_supported(checkpoint, resolve):
    edit_config(checkpoint, architectures=["LlamaForCausalLM"])
    with pytest.raises(UserError, match="LlamaForCausalLM; supported: Gemma3ForCausalLM"):
        resolve(checkpoint)


def test_a_missing_size_is_named(checkpoint, resolve):
    edit_config(checkpoint, head_dim=...)
    with pytest.raises(UserError, match="no usable 'head_dim'"):
        resolve(checkpoint)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_config_is_named(checkpoint, resolve, text):
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config.json is no JSON object"):
        resolve(checkpoint)


def test_a_truncated_safetensors_file_is_named(checkpoint, resolve):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model.safetensors is damaged or cut short at \d+ bytes"):
        resolve(checkpoint)


def test_a_missing_shard_is_named(checkpoint, resolve):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"lacks 1 of 2 .* the first model-2.safetensors"):
        resolve(checkpoint)


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ({"sliding_window_pattern": 4}, 4),
        ({"_sliding_window_pattern": 3}, 3),
        ({"layer_types": ["sliding_attention", "full_attention"]}, 2),
        ({}, 6),
    ],
)
def test_the_pattern_is_found_however_it_is_said(config, pattern):
    assert sliding_pattern(config) == pattern


def test_the_digest_is_over_the_files_in_turn(tmp_path):
    (tmp_path / "a").write_bytes(b"ab")
    (tmp_path / "b").write_bytes(b"c")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of([tmp_path / "a", tmp_path / "b"]) == abc


def test_the_digest_is_remembered_until_a_file_changes(tmp_path, monkeypatch):
    file = tmp_path / "a"
    file.write_bytes(b"one")
    first = remembered_sha256([file], tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("suite.models.digest.sha256_of", lambda files: pytest.fail("read again"))
        assert remembered_sha256([file], tmp_path / "cache") == first
    file.write_bytes(b"other")
    assert remembered_sha256([file], tmp_path / "cache") == sha256_of([file]) != first
    for note in (tmp_path / "cache").rglob("*.json"):
        note.write_text("{}")
    assert remembered_sha256([file], tmp_path / "cache") == sha256_of([file])
