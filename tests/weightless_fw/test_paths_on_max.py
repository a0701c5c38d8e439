"""Every path, fused and not, sharing W0 and not, in one MAX graph against numpy.

One graph, since a compile takes a minute; the sizes repeat so that few kernels
are instantiated.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops
from max.nn.layer import LayerList, Module

from kernels.package import compiled_package
from suite.models import default_cache_dir
from weightless_fw.core.custom_op import CustomOpLinear, generated_linear
from weightless_fw.core.factorize import pass_through, perturb
from weightless_fw.core.factors import Factors
from weightless_fw.core.gemm_formulation import GemmLinear, padded
from weightless_fw.core.graph_facts import GraphFacts, read_graph
from weightless_fw.core.placement import placed
from weightless_fw.core.precompute import PrecomputedLinear
from weightless_fw.core.reference import linear
from weightless_fw.core.weightless_linear import (
    BundleShape,
    WeightlessLinear,
    stacked_w0,
)

WIDTH = 64
CPU_REF = DeviceRef.CPU()

pytestmark = pytest.mark.slow

LINEARS: dict[str, tuple[type[WeightlessLinear], BundleShape]] = {
    "precompute": (PrecomputedLinear, BundleShape((40,), WIDTH, (8,), shared=False)),
    "precompute fused": (PrecomputedLinear, BundleShape((24, 16), WIDTH, (4, 4), shared=False)),
    "gemm": (GemmLinear, BundleShape((40,), WIDTH, (8,), shared=False)),
    "gemm fused": (GemmLinear, BundleShape((24, 16), WIDTH, (4, 4), shared=False)),
    "gemm fused, shared W0": (GemmLinear, BundleShape((24, 16), WIDTH, (4, 4), shared=True)),
    "custom op": (CustomOpLinear, BundleShape((40,), WIDTH, (8,), shared=False)),
    "custom op, shared W0": (CustomOpLinear, BundleShape((40,), WIDTH, (8,), shared=True)),
}


def factors_of(shape: BundleShape, seed: int) -> tuple[Factors, ...]:
    """Perturbed, so that s, U and V all matter."""
    rng = np.random.default_rng(seed)
    return tuple(
        perturb(
            pass_through(rng.standard_normal((n, shape.width), np.float32), rank, seed + i),
            seed + i,
        )
        for i, (n, rank) in enumerate(zip(shape.outs, shape.ranks, strict=True))
    )


class AllPaths(Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = LayerList(
            [kind(shape, DType.float32, CPU_REF) for kind, shape in LINEARS.values()]
        )

    def __call__(self, x: TensorValue, w0: list[TensorValue]) -> list[TensorValue]:
        remaining = iter(w0)
        return [
            linear(x, (next(remaining),) if shape.shared else None)
            for linear, (_, shape) in zip(self.linears, LINEARS.values(), strict=True)
        ]


ALL_FACTORS = {
    name: factors_of(shape, 10 * i) for i, (name, (_, shape)) in enumerate(LINEARS.items())
}
SHARED_W0 = [stacked_w0(ALL_FACTORS[n]) for n, (_, shape) in LINEARS.items() if shape.shared]


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Model, GraphFacts]]:
    network = AllPaths()
    state = {
        f"linears.{i}.{key}": placed(value)
        for i, (linear, factors) in enumerate(
            zip(network.linears, ALL_FACTORS.values(), strict=True)
        )
        for key, value in linear.pack(factors).items()
    }
    network.load_state_dict(state)
    inputs = [TensorType(DType.float32, ["tokens", WIDTH], CPU_REF)]
    inputs += [TensorType(DType.float32, w.shape, CPU_REF) for w in SHARED_W0]
    package = compiled_package(default_cache_dir() / "kernels")
    with Graph("all_paths", input_types=inputs, custom_extensions=[package]) as graph:
        x, *w0 = (value.tensor for value in graph.inputs)
        graph.output(*network(x, w0))
    session = InferenceSession(devices=[CPU()])
    yield session.load(graph, weights_registry=network.state_dict()), read_graph(graph)


@pytest.mark.parametrize("tokens", [1, 5])
def test_every_path_agrees_with_numpy(built: tuple[Model, GraphFacts], tokens: int) -> None:
    model, _ = built
    x = np.random.default_rng(tokens).standard_normal((tokens, WIDTH)).astype(np.float32)
    outputs = model.execute(x, *(placed(w) for w in SHARED_W0))
    for (name, factors), output in zip(ALL_FACTORS.items(), outputs, strict=True):
        expected = np.concatenate([linear(x, f) for f in factors], axis=1)
        difference = np.abs(output.to_numpy() - expected).max() / np.abs(expected).max()
        assert difference < 1e-5, f"{name}: {difference:.1e}"


def test_the_graph_holds_what_the_paths_promise(built: tuple[Model, GraphFacts]) -> None:
    """One matmul for precompute, two for GEMM, three with a shared W0, none for the op."""
    _, facts = built
    assert facts.matmuls == 2 * 1 + 2 * 2 + 1 * 3
    assert facts.custom_operations == {"generated_linear": 2}


def test_fused_gemm_is_padded_to_128_bytes() -> None:
    assert padded(1536 + 12, DType.float32) == 1568
    assert padded(1536, DType.float32) == 1536
    assert padded(1536 + 12, DType.bfloat16) == 1600


@pytest.mark.parametrize(
    ("changed", "dims", "said"),
    [
        ("x", ["tokens", 63], "x is"),
        ("s", [41], "s is"),
        ("u", [40, 9], "u is"),
        ("v_t", [8, 60], "v_t is"),
    ],
)
def test_the_op_refuses_shapes_while_the_graph_is_built(
    changed: str, dims: list[str | int], said: str
) -> None:
    shapes: dict[str, list[str | int]] = {
        "x": ["tokens", 64],
        "w0": [40, 64],
        "s": [40],
        "u": [40, 8],
        "v_t": [8, 64],
    }
    types = [TensorType(DType.float32, (shapes | {changed: dims})[n], CPU_REF) for n in shapes]
    with (
        pytest.raises(ValueError, match=said),
        Graph("refused", input_types=types) as graph,
    ):
        generated_linear(*(value.tensor for value in graph.inputs))
        graph.output(ops.constant(0, DType.float32, CPU_REF))


def test_the_op_refuses_another_dtype() -> None:
    shapes = ([1, 64], [40, 64], [40], [40, 8], [8, 64])
    types = [TensorType(DType.bfloat16, shape, CPU_REF) for shape in shapes]
    with (
        pytest.raises(ValueError, match=r"x is DType\.bfloat16, the op takes float32"),
        Graph("refused", input_types=types) as graph,
    ):
        generated_linear(*(value.tensor for value in graph.inputs))
        graph.output(ops.constant(0, DType.float32, CPU_REF))
