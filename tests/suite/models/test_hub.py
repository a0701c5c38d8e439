"""Hugging Face ids, with huggingface_hub's answers played."""

from __future__ import annotations

import errno

import httpx
import pytest
from huggingface_hub import errors

from suite.errors import UserError
from suite.models import WeightsKind, resolve_model

SECRET = "hf_secretsecretsecret"


@pytest.fixture
def resolve(tmp_path, silent, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)

    def resolve_with(download):
        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        return resolve_model("org/name", cache_dir=tmp_path / "cache", progress=silent)

    return resolve_with


def response(status):
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/org/name"))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (errors.GatedRepoError(SECRET, response=response(403)), "is gated; accept its terms"),
        (errors.RepositoryNotFoundError(SECRET, response=response(404)), "is not on Hugging Face"),
        (errors.HfHubHTTPError(SECRET, response=response(503)), "HTTP status 503"),
        (errors.LocalEntryNotFoundError(SECRET), "huggingface.co was not reached"),
        (errors.OfflineModeIsEnabled(SECRET), "huggingface.co was not reached"),
        (errors.HFValidationError(SECRET), "is no Hugging Face id"),
        (httpx.ReadTimeout(SECRET), r"broke off while being fetched \(ReadTimeout\)"),
        (OSError(errno.ENOSPC, SECRET), "does not fit on the disk"),
        (OSError(errno.EACCES, SECRET), "Permission denied"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_become_one_line_without_the_token(resolve, failure, message):
    def download(model_id, *, allow_patterns):
        raise failure

    with pytest.raises(UserError, match=message) as caught:
        resolve(download)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--model FOLDER" in str(caught.value)


def test_the_configuration_is_checked_before_the_weights_are_fetched(tmp_path, resolve):
    asked = []

    def download(model_id, *, allow_patterns):
        asked.append(allow_patterns)
        (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        return str(tmp_path)

    with pytest.raises(UserError, match="LlamaForCausalLM"):
        resolve(download)
    assert asked == [["config.json"]]


def test_a_fetched_snapshot_is_a_checkpoint(tmp_path, resolve, silent):
    tiny = resolve_model("synthetic:gemma-3-tiny", cache_dir=tmp_path / "cache", progress=silent)
    (tiny.folder / "weightless.json").unlink()
    model = resolve(lambda model_id, *, allow_patterns: str(tiny.folder))
    assert (model.name, model.weights) == ("org/name", WeightsKind.CHECKPOINT)
