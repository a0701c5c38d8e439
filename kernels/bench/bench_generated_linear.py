"""Times `generated_linear` at one token against the stock dense matmul of the same W0, on the CPU.

    python kernels/bench/bench_generated_linear.py [--shapes qkv,o,...] [--ranks 4,32] [--rounds 10]

Each graph passes over a set of distinct weights larger than four third-level caches, one operation a weight, each input
depending on the output before, so every weight comes from memory. The two graphs take turns in the order A B B A.
Stock reads W0 alone: the ratio is what the factors and the scale cost on top of, or less than, a dense layer.
Nothing is timed before it matches numpy in float64.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops

sys.path.insert(0, str(Path(__file__).parents[2]))
from kernels.package import compiled_package

# Gemma 3 270M, outputs x inputs; qk is the fused projection without V.
SHAPES = {
    "qkv": (1536, 640),
    "qk": (1280, 640),
    "gate": (2048, 640),
    "down": (640, 2048),
    "o": (640, 1024),
}
WORKING_SET_BYTES = 288 << 20
CACHE_DIR = (
    Path(os.environ.get("WEIGHTLESS_HOME", Path.home() / ".cache" / "weightless")) / "kernels"
)


@dataclass(frozen=True)
class Layer:
    """One weight of the working set, as arrays by name: w0 [N, K], s [N], u [N, R], vt [R, K]."""

    w0: np.ndarray
    s: np.ndarray
    u: np.ndarray
    vt: np.ndarray

    @property
    def dense_bytes(self) -> int:
        return self.w0.nbytes

    @property
    def generated_bytes(self) -> int:
        return self.w0.nbytes + self.s.nbytes + self.u.nbytes + self.vt.nbytes


def random_layers(outputs: int, inputs: int, rank: int) -> list[Layer]:
    """As many layers as the working set holds, with outputs of about unit size."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    count = -(-WORKING_SET_BYTES // (outputs * inputs * 4))
    return [
        Layer(
            w0=normal(outputs, inputs) * inputs**-0.5,
            s=1 + normal(outputs) / 10,
            u=normal(outputs, rank) * rank**-0.5,
            vt=normal(rank, inputs) * inputs**-0.5,
        )
        for _ in range(count)
    ]


def weight_value(
    graph: Graph, registry: dict[str, np.ndarray], name: str, array: np.ndarray
) -> TensorValue:
    """Adds `array` to the graph as a weight that is bound at load, as a model's weights are."""
    registry[name] = array
    return graph.add_weight(Weight(name, DType.float32, array.shape, DeviceRef.CPU()))


def build(
    session: InferenceSession, kind: str, layers: list[Layer], extensions: list[Path]
) -> Model:
    """Compiles the pass over all layers; the outputs are the first and the last layer's."""
    outputs, inputs = layers[0].w0.shape
    device = DeviceRef.CPU()
    registry: dict[str, np.ndarray] = {}
    graph = Graph(
        f"bench_{kind}",
        input_types=[TensorType(DType.float32, ["tokens", inputs], device)],
        custom_extensions=extensions,
    )
    with graph:
        x = graph.inputs[0].tensor
        results = []
        current = x
        for index, layer in enumerate(layers):
            w0 = weight_value(graph, registry, f"w0.{index}", layer.w0)
            if kind == "stock":
                y = current @ w0.T
            else:
                rest = [
                    weight_value(graph, registry, f"{name}.{index}", getattr(layer, name))
                    for name in ("s", "u", "vt")
                ]
                y_type = TensorType(DType.float32, [x.shape[0], outputs], device)
                y = ops.custom(
                    "generated_linear", device, [current, w0, *rest], out_types=[y_type]
                )[0].tensor
            results.append(y)
            # The next layer waits for this one; the term is too small to change a bit of x.
            current = x + y[:, :1] * 1e-30
        graph.output(results[0], results[-1])
    return session.load(graph, weights_registry=registry)


def check(kind: str, model: Model, x: np.ndarray, layers: list[Layer]) -> None:
    """Compares the first and last layer's outputs with float64.

    Raises:
        SystemExit: they differ by more than float32 sums may.
    """
    for result, layer in zip(model.execute(x), (layers[0], layers[-1]), strict=True):
        w0, s, u, vt, x64 = (
            a.astype(np.float64) for a in (layer.w0, layer.s, layer.u, layer.vt, x)
        )
        expected = x64 @ w0.T if kind == "stock" else s * (x64 @ w0.T) + (x64 @ vt.T) @ u.T
        error = np.abs(result.to_numpy() - expected).max() / np.abs(expected).max()
        if not error < 1e-5:
            raise SystemExit(
                f"{kind}: relative error {error:.1e} against float64; not timing a wrong result"
            )


def pass_seconds(model: Model, x: np.ndarray) -> float:
    start = time.perf_counter()
    model.execute(x)
    return time.perf_counter() - start


def compare(name: str, rank: int, rounds: int, extensions: list[Path]) -> str:
    """Times one shape and rank; returns its row of the table."""
    outputs, inputs = SHAPES[name]
    layers = random_layers(outputs, inputs, rank)
    x = np.random.default_rng(1).standard_normal((1, inputs), dtype=np.float32)
    session = InferenceSession(devices=[CPU()])
    models = {
        "stock": build(session, "stock", layers, []),
        "generated": build(session, "generated", layers, extensions),
    }
    for kind, model in models.items():
        check(kind, model, x, layers)

    seconds: dict[str, list[float]] = {kind: [] for kind in models}
    for _ in range(rounds):
        for kind in ("stock", "generated", "generated", "stock"):
            seconds[kind].append(pass_seconds(models[kind], x))

    layer_us = {
        kind: statistics.median(values) / len(layers) * 1e6 for kind, values in seconds.items()
    }
    ratios = [g / s for g, s in zip(seconds["generated"], seconds["stock"], strict=True)]
    low, middle, high = (float(np.quantile(ratios, q)) for q in (0.1, 0.5, 0.9))
    return (
        f"{name:6} [{outputs:4} x {inputs:4}] {rank:4} {len(layers):7}"
        f" {layer_us['stock']:9.0f} {layers[0].dense_bytes / layer_us['stock'] / 1e3:6.1f}"
        f" {layer_us['generated']:9.0f} {layers[0].generated_bytes / layer_us['generated'] / 1e3:6.1f}"
        f"   {middle:5.2f} ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes", default=",".join(SHAPES), help="comma-separated, of: %(default)s"
    )
    parser.add_argument("--ranks", default="4,32")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()

    extensions = [compiled_package(CACHE_DIR)]
    print(
        f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f} at the start, float32, one token"
    )
    print(
        "shape  [ out x   in] rank  layers  stock us   GB/s    own us   GB/s   own/stock (10th to 90th percentile)"
    )
    for name in arguments.shapes.split(","):
        for rank in arguments.ranks.split(","):
            print(compare(name, int(rank), arguments.rounds, extensions), flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
