"""What an unfinished compression keeps on disk, so that the same command goes on.

DIR.partial/key.json          what is being computed; another key is refused
DIR.partial/lock              held by the process that writes
DIR.partial/moments/          E[x x^T], one file per layer and input
DIR.partial/states.npz        hidden states after the last layer that was calibrated
DIR.partial/ranks.json        the ranks that a budget bought
DIR.partial/fits/             factors, one file per projection and band
DIR.partial/result/           the checkpoint; renamed to DIR when it is whole
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weightless_fw.compress.errors import CompressError
from weightless_fw.compress.plan import BandOf
from weightless_fw.core.band_fit import BandFit
from weightless_fw.core.checkpoint import Checkpoint
from weightless_fw.core.factors import Array, Factors
from weightless_fw.core.nvfp4 import Nvfp4
from weightless_fw.core.safetensors_writer import OutputTensor, tensor_of, write_safetensors
from weightless_fw.core.whitening import Array64


class WorkFolder:
    """DIR.partial of one compression. Every file in it is whole or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def opened(cls, out: Path, key: Mapping[str, Any], *, force: bool) -> Iterator[WorkFolder]:
        """The work folder for ``out``, ours until the block ends.

        Raises:
            CompressError: It belongs to another compression, or another process has it.
        """
        folder = cls(out.with_name(out.name + ".partial"))
        folder.path.mkdir(parents=True, exist_ok=True)
        with (folder.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CompressError(
                    f"another process is compressing to {out}; wait for it"
                ) from None
            folder._claim(key, force)
            yield folder

    def _claim(self, key: Mapping[str, Any], force: bool) -> None:
        stored = self.path / "key.json"
        wanted = json.loads(json.dumps(key))
        found = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else None
        if found is not None and found != wanted:
            changed = sorted(name for name in wanted if found.get(name) != wanted[name])
            if not force:
                raise CompressError(
                    f"{self.path} holds an unfinished compression with another "
                    f"{', '.join(changed)}; run that command again, or add --force to drop it"
                )
            for name in ("moments", "fits", "result"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for name in ("states.npz", "ranks.json"):
                (self.path / name).unlink(missing_ok=True)
        for name in ("moments", "fits"):
            (self.path / name).mkdir(exist_ok=True)
        shutil.rmtree(self.path / "result", ignore_errors=True)
        _written(stored, json.dumps(wanted).encode())

    def save_calibrated(
        self, layer: int, moments: Mapping[str, Array64], states: Sequence[Array]
    ) -> None:
        """Keeps a layer's moments, then the states after it: the order makes it resumable."""
        for name, matrix in moments.items():
            _save_array(self._moments(layer, name), matrix)
        _save_array(self.path / "states.npz", np.stack(states), layer=layer)

    def calibrated(self) -> tuple[int, list[Array]] | None:
        """(layers done, hidden states after them), or None before the first."""
        path = self.path / "states.npz"
        if not path.exists():
            return None
        with np.load(path) as stored:
            return int(stored["layer"]) + 1, list(stored["array"])

    def moments(self, layer: int, name: str) -> Array64:
        """[K, K] of a layer's input."""
        return np.load(self._moments(layer, name))

    def _moments(self, layer: int, name: str) -> Path:
        return self.path / "moments" / f"{layer}.{name}.npy"

    def save_fit(self, band: BandOf, fit: BandFit) -> None:
        """Keeps the factors of one band."""
        first = fit.factors[0].w0
        tensors: list[OutputTensor] = []
        if isinstance(first, Nvfp4):
            tensors += [
                tensor_of("packed", first.packed, "U8"),
                tensor_of("scales", first.scales, "F8_E4M3"),
                tensor_of("global_scale", np.array([first.global_scale]), "F32"),
            ]
        else:
            tensors.append(tensor_of("w0", first, "F32"))
        for layer, f in zip(band.layers, fit.factors, strict=True):
            tensors += [
                tensor_of(f"{layer}.s", f.s, "F32"),
                tensor_of(f"{layer}.u", f.u, "F32"),
                tensor_of(f"{layer}.v", f.v, "F32"),
            ]
        said = {"history": json.dumps(fit.history), "errors": json.dumps(fit.errors)}
        self._fit(band).parent.mkdir(exist_ok=True)
        write_safetensors(self._fit(band) / "fit.safetensors", tensors, said)

    def has_fit(self, band: BandOf) -> bool:
        return (self._fit(band) / "fit.safetensors").exists()

    def fit(self, band: BandOf) -> BandFit:
        """The factors of one band, memory-mapped."""
        stored = Checkpoint(self._fit(band))
        w0: Array | Nvfp4
        if "w0" in stored:
            w0 = stored["w0"]
        else:
            packed, scales = stored.raw("packed"), stored.raw("scales")
            w0 = Nvfp4(packed, scales, np.float32(stored["global_scale"][0]))
        factors = tuple(
            Factors(w0=w0, s=stored[f"{i}.s"], u=stored[f"{i}.u"], v=stored[f"{i}.v"])
            for i in band.layers
        )
        said = {name: tuple(json.loads(stored.metadata[name])) for name in ("history", "errors")}
        return BandFit(factors, said["history"], said["errors"])

    def _fit(self, band: BandOf) -> Path:
        folder = self.path / "fits" / band.name
        folder.mkdir(exist_ok=True)
        return folder

    def load_json(self, name: str) -> Any:
        """What ``save_json`` kept, or None."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def save_json(self, name: str, value: Any) -> None:
        _written(self.path / f"{name}.json", json.dumps(value, allow_nan=False).encode())

    def publish(self, out: Path) -> None:
        """Renames the result to ``out``; what stood there goes once the new one is in place."""
        result, old = self.path / "result", self.path / "replaced"
        if out.exists():
            out.rename(old)
        result.rename(out)
        shutil.rmtree(self.path)


def _save_array(path: Path, array: np.ndarray, **more: int) -> None:
    unfinished = path.with_name(path.name + ".writing")
    with unfinished.open("wb") as file:
        if more:
            np.savez(file, array=array, **more)
        else:
            np.save(file, array)
    unfinished.rename(path)


def _written(path: Path, data: bytes) -> None:
    unfinished = path.with_name(path.name + ".writing")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
