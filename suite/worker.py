"""The process that imports MAX: loads arms, checks them, times single requests.

Reads one JSON request a line on standard input and answers with one JSON line
on standard output; whatever else is printed goes to standard error. The suite
starts it (``suite.engines.max_engine``) and never imports it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import numpy as np
from max.engine import InferenceSession
from max.pipelines.architectures.gemma3.arch import gemma3_arch
from max.pipelines.lib.auto_model import AutoModel
from max.pipelines.lib.registry import PIPELINE_REGISTRY

import weightless_fw
from weightless_fw.core.banding import BandingError
from weightless_fw.core.factorize import RankError
from weightless_fw.core.select import select_path
from weightless_fw.models.gemma3.native_cpu import native_cpu_arch
from weightless_fw.models.gemma3.probe import check_arm, read_facts
from weightless_fw.models.gemma3.scheme import Dimensions
from weightless_fw.models.scheme import SchemeError, resolve_scheme
from weightless_fw.settings import Settings, SettingsError

MESSAGE_CHARACTERS = 500

PROBE_TOKENS = 8
"""Tokens generated for the check against the reference: one prefill, seven decodes."""


class CompileClock:
    """Seconds spent in MAX's compiler, nested calls counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name in ("compile", "compile_reusing_mefs", "load"):
            setattr(InferenceSession, name, self._timed(getattr(InferenceSession, name)))

    def _timed(self, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.monotonic() - start

        return timed


class Worker:
    """The loaded arms and what can be asked of them."""

    def __init__(self) -> None:
        self.arms: dict[str, AutoModel] = {}
        self.compiler = CompileClock()

    def check(self, *, switches: list[dict[str, str]], shape: dict[str, Any]) -> dict[str, Any]:
        """Says for each set of switches why it cannot be built, or null."""
        dimensions = Dimensions.of_pattern(
            layers=shape["layers"],
            hidden=shape["hidden"],
            ffn=shape["ffn"],
            heads=shape["heads"],
            kv_heads=shape["kv_heads"],
            head_dim=shape["head_dim"],
            pattern=shape["sliding_pattern"],
        )

        def problem(environment: dict[str, str]) -> str | None:
            if not environment:
                return None
            try:
                settings = Settings.from_environment(environment)
                # Whichever path it is: ranks and bands are limited alike.
                path = select_path(settings, "cpu").path
                resolve_scheme(settings, path, dimensions.layer_kinds)
            except (SettingsError, BandingError, RankError, SchemeError) as error:
                return str(error)
            return None

        return {"problems": [problem(environment) for environment in switches]}

    def compile(self, **arguments: Any) -> dict[str, Any]:
        """Builds an arm into the compile cache and drops it."""
        model, seconds = self._build(**arguments)
        model.close()
        return seconds

    def load(
        self, *, arm: str, probe_ids: list[int], context_tokens: float, **arguments: Any
    ) -> dict[str, Any]:
        """Builds an arm and checks it against the numpy reference."""
        model, seconds = self._build(**arguments)
        started = time.monotonic()
        pipeline_model = model.pipeline._pipeline_model
        facts = read_facts(pipeline_model, context_tokens=context_tokens)

        def generate(count: int) -> tuple[list[int], np.ndarray]:
            with model.generate_iter(
                [probe_ids],
                max_new_tokens=count,
                temperature=0.0,
                top_k=1,
                ignore_eos=True,
                output_logits=True,
            ) as batch:
                for _ in batch:
                    pass
            assert batch.logits is not None
            return batch.sequences[0], np.asarray(batch.logits[0])

        folder = Path(arguments["folder"])
        try:
            check = check_arm(pipeline_model, folder, generate, len(probe_ids), PROBE_TOKENS)
        except BaseException:
            model.close()
            raise
        self.arms[arm] = model
        check_s = time.monotonic() - started
        return {**facts.as_json(), **check.as_json(), **seconds, "check_s": check_s}

    def _build(
        self,
        *,
        path: str,
        environment: dict[str, str],
        folder: str,
        device: str,
        capture: bool,
        max_length: int,
    ) -> tuple[AutoModel, dict[str, float]]:
        """Builds the pipeline; seconds in the compiler and outside it."""
        started, compiled = time.monotonic(), self.compiler.seconds
        with _environment(environment):
            _register(path == "native-dense", device)
            model = AutoModel(
                folder,
                devices=device,
                device_graph_capture=capture,
                max_length=max_length,
                quantization_encoding="float32" if device == "cpu" else "bfloat16",
            )
        compile_s = self.compiler.seconds - compiled
        return model, {
            "compile_s": compile_s,
            "load_s": time.monotonic() - started - compile_s,
        }

    def run(self, *, arm: str, tokens: list[int], new_tokens: int) -> dict[str, Any]:
        """Times one greedy request; every event is one step's tokens."""
        model = self.arms[arm]
        events: list[tuple[float, int]] = []
        # Collected beforehand, so that no collection falls into the timing.
        gc.collect()
        gc.disable()
        try:
            t_send = time.monotonic()
            with model.generate_iter(
                [tokens], max_new_tokens=new_tokens, temperature=0.0, top_k=1, ignore_eos=True
            ) as batch:
                for step in batch:
                    events.append((time.monotonic(), sum(len(ids) for ids in step.values())))
        finally:
            gc.enable()
        return {
            "t_send": t_send,
            "events": events,
            "output_ids": batch.sequences[0][len(tokens) :],
            "cached_tokens": None if _caches_prefixes(model) else 0,
        }

    def unload(self, *, arm: str) -> dict[str, Any]:
        self.arms.pop(arm).close()
        gc.collect()
        return {}


def _caches_prefixes(model: AutoModel) -> bool:
    """Whether a prompt may be served from an earlier one, as the built pipeline says."""
    return bool(model.pipeline_config.model.kv_cache.enable_prefix_caching)


def _register(native: bool, device: str) -> None:
    """Puts the wanted architecture under the name the checkpoint asks for."""
    stock = native_cpu_arch if device == "cpu" else gemma3_arch
    for architecture in [stock] if native else weightless_fw.ARCHITECTURES:
        PIPELINE_REGISTRY.register(architecture, allow_override=True)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Exactly these WEIGHTLESS_ switches while an arm is built."""
    kept = dict(os.environ)
    for name in kept:
        if name.startswith("WEIGHTLESS_") and name != "WEIGHTLESS_HOME":
            del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers requests until standard input ends."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        operation = getattr(worker, request.pop("op"))
        try:
            answer = {"ok": True, **operation(**request)}
        except MemoryError as error:
            answer = {"ok": False, "kind": "oom", "message": f"out of memory: {error}"}
        except Exception as error:
            # An arm's failure is a result; the trace goes to the log.
            sys.excepthook(type(error), error, error.__traceback__)
            answer = {"ok": False, "kind": "failed", "message": _one_line(error)}
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()


def _one_line(error: Exception) -> str:
    """The error for a row: short, and without the user's home."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message.replace(str(Path.home()), "~")[:MESSAGE_CHARACTERS]


def main() -> None:
    # MAX prints to standard output; the protocol keeps its own copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
