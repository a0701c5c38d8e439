"""References a user may type, GGUF files among them."""

from __future__ import annotations

import errno
import os

import pytest

from suite.errors import UserError
from suite.models import WeightsKind, encode, resolve_model


@pytest.fixture
def resolve(tmp_path, silent):
    return lambda reference: resolve_model(
        str(reference), cache_dir=tmp_path / "cache", progress=silent
    )


def unfinished(tmp_path):
    made = [*(tmp_path / "cache" / "models").glob("*"), *(tmp_path / "cache" / "staging").glob("*")]
    return [path.name for path in made]


def test_a_gguf_becomes_a_folder_once(tmp_path, write_gguf, resolve, monkeypatch):
    write_gguf(tmp_path / "own.gguf")
    model = resolve(tmp_path / "own.gguf")
    assert (model.name, model.weights) == ("own", WeightsKind.DEQUANTISED_Q4_K_M)
    assert (model.shape.layers, model.shape.hidden, model.shape.tied_head) == (2, 256, True)
    assert encode(model.folder, " the")[0] == 2
    monkeypatch.setattr("suite.models.resolve.convert_gguf", lambda *_: pytest.fail("made again"))
    assert resolve(tmp_path / "own.gguf") == model


def test_another_gguf_of_the_same_name_is_another_model(tmp_path, write_gguf, resolve):
    write_gguf(tmp_path / "own.gguf")
    first = resolve(tmp_path / "own.gguf")
    write_gguf(tmp_path / "own.gguf", file_type=7)
    second = resolve(tmp_path / "own.gguf")
    assert first.folder != second.folder
    assert second.weights is WeightsKind.DEQUANTISED_GGUF


def test_a_truncated_gguf_leaves_nothing(tmp_path, write_gguf, resolve):
    path = tmp_path / "own.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        resolve(path)
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_an_interrupted_conversion_leaves_nothing(
    tmp_path, write_gguf, resolve, monkeypatch, failure
):
    write_gguf(tmp_path / "own.gguf")
    with monkeypatch.context() as patch:
        # The config and the tokenizer are on disk by then, and half of the weights.
        synced = os.fsync
        patch.setattr("os.fsync", lambda number: (synced(number), raise_(failure)))
        with pytest.raises((KeyboardInterrupt, UserError)) as caught:
            resolve(tmp_path / "own.gguf")
    if isinstance(failure, OSError):
        assert "needs about" in str(caught.value)
    assert unfinished(tmp_path) == []
    assert resolve(tmp_path / "own.gguf").shape.layers == 2


def raise_(failure):
    raise failure


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("gemma", "'gemma' is unknown; pass gemma-3-270m"),
        ("", "'' is unknown"),
        ("/no/such/folder", "/no/such/folder does not exist"),
        ("./no-such-folder", "no-such-folder does not exist"),
        ("no/such.gguf", "gguf no/such.gguf does not exist"),
    ],
)
def test_other_references_are_refused_in_one_line(resolve, reference, message):
    with pytest.raises(UserError, match=message) as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(tmp_path, resolve):
    (tmp_path / "a.bin").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        resolve(tmp_path / "a.bin")
