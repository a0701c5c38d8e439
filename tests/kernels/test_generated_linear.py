"""`generated_linear` inside a MAX graph on the CPU against float64, and the Mojo tests of its arithmetic."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops

from kernels.package import compiled_package, compiler_environment, mojo_command

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
OP_SHAPES = [(37, 53, 3), (8, 64, 4), (1, 1, 1), (203, 397, 5), (640, 1025, 32)]
"""Outputs N, inputs K, rank R of the instances that share one graph."""
NAMES = ("x", "w0", "s", "u", "vt")

Arrays = dict[str, np.ndarray]


def tensor_type(*shape: int | str) -> TensorType:
    return TensorType(DType.float32, shape, DeviceRef.CPU())


def generated_linear(
    x: TensorValue, w0: TensorValue, s: TensorValue, u: TensorValue, vt: TensorValue
) -> TensorValue:
    y_type = TensorType(DType.float32, [x.shape[0], w0.shape[0]], DeviceRef.CPU())
    return ops.custom("generated_linear", DeviceRef.CPU(), [x, w0, s, u, vt], out_types=[y_type])[
        0
    ].tensor


def load_model(package: Path) -> Model:
    """One graph, to compile once: an instance a shape of OP_SHAPES, and a last one of which no size is known before the run.

    The last one takes x as a column slice and V as [K, R], so that the operation is given views of other tensors.
    """
    types = [
        tensor_type("t", "wide_k"),
        tensor_type("n", "k"),
        tensor_type("s_n"),
        tensor_type("u_n", "u_r"),
        tensor_type("v_k", "v_r"),
    ]
    for index, (n, k, r) in enumerate(OP_SHAPES):
        types += [
            tensor_type(f"t{index}", k),
            tensor_type(n, k),
            tensor_type(n),
            tensor_type(n, r),
            tensor_type(r, k),
        ]
    with Graph("generated_linear", input_types=types, custom_extensions=[package]) as graph:
        inputs = [value.tensor for value in graph.inputs]
        results = [generated_linear(*inputs[i : i + 5]) for i in range(5, len(inputs), 5)]
        wide_x, w0, s, u, v = inputs[:5]
        graph.output(*results, generated_linear(wide_x[:, 1:], w0, s, u, ops.transpose(v, 0, 1)))
    return InferenceSession(devices=[CPU()]).load(graph)


def random_arrays(t: int, n: int, k: int, r: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng([seed, t, n, k, r])
    shapes = {"x": (t, k), "w0": (n, k), "s": (n,), "u": (n, r), "vt": (r, k)}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def run(model: Model, calls: list[Arrays], free_call: Arrays) -> list[np.ndarray]:
    """Outputs of the instances of OP_SHAPES, then of the one whose shapes are free."""
    before_x = np.full((len(free_call["x"]), 1), np.nan, np.float32)
    wide_x = np.concatenate([before_x, free_call["x"]], axis=1)
    free = [
        wide_x,
        free_call["w0"],
        free_call["s"],
        free_call["u"],
        np.ascontiguousarray(free_call["vt"].T),
    ]
    results = model.execute(*free, *(call[name] for call in calls for name in NAMES))
    return [result.to_numpy() for result in results]


def run_shapes(model: Model, calls: list[Arrays]) -> list[np.ndarray]:
    return run(model, calls, random_arrays(1, 2, 3, 1))[:-1]


def run_free(model: Model, call: Arrays) -> np.ndarray:
    return run(model, [random_arrays(0, *shape) for shape in OP_SHAPES], call)[-1]


def assert_matches_float64(y: np.ndarray, arrays: Arrays, rel: float = 1e-5) -> None:
    """|y - exact| <= rel * the same sums over absolute values: the bound that cancellation cannot break."""
    x, w0, s, u, vt = (arrays[name].astype(np.float64) for name in NAMES)
    exact = s * (x @ w0.T) + (x @ vt.T) @ u.T
    size = abs(s) * (abs(x) @ abs(w0).T) + (abs(x) @ abs(vt).T) @ abs(u).T
    assert y.shape == exact.shape
    assert y.dtype == np.float32
    worst = np.max(abs(y - exact) - rel * size, initial=-1.0)
    assert worst <= 0, f"off by {worst:.2e} more than {rel:.0e} of the size of the sums"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_package(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def model(package: Path) -> Model:
    return load_model(package)


def test_mojo_tests_pass(tmp_path: Path) -> None:
    command = [mojo_command(), "run", "-I", "kernels", "kernels/tests/test_generated_linear.mojo"]
    result = subprocess.run(
        command,
        check=False,
        cwd=REPOSITORY,
        env=compiler_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 failed" in result.stdout and "Running 0 tests" not in result.stdout, result.stdout


@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 17])
def test_matches_float64_at_every_shape(model: Model, tokens: int) -> None:
    calls = [random_arrays(tokens, *shape) for shape in OP_SHAPES]
    for y, arrays in zip(run_shapes(model, calls), calls, strict=True):
        assert_matches_float64(y, arrays)


def test_instances_of_one_graph_may_have_different_token_counts(model: Model) -> None:
    calls = [
        random_arrays(tokens, *shape)
        for tokens, shape in zip([3, 0, 130, 1, 6], OP_SHAPES, strict=True)
    ]
    for y, arrays in zip(run_shapes(model, calls), calls, strict=True):
        assert_matches_float64(y, arrays)


@pytest.mark.parametrize("w0_scale, x_scale", [(1e18, 1e17), (1e-12, 1e-18), (1e30, 1e-30)])
def test_huge_and_small_values(model: Model, w0_scale: float, x_scale: float) -> None:
    calls = [random_arrays(5, *shape) for shape in OP_SHAPES]
    for arrays in calls:
        arrays["w0"] *= np.float32(w0_scale)
        arrays["vt"] *= np.float32(w0_scale)
        arrays["x"] *= np.float32(x_scale)
    for y, arrays in zip(run_shapes(model, calls), calls, strict=True):
        assert np.isfinite(y).all()
        assert_matches_float64(y, arrays)


def test_every_output_is_written_on_reused_memory(model: Model) -> None:
    """A run that leaves NaN in the freed outputs, then a good one: an output that is skipped would show the NaN."""
    bad = [random_arrays(17, *shape) for shape in OP_SHAPES]
    for arrays in bad:
        arrays["x"][:] = np.nan
    assert all(np.isnan(y).all() for y in run_shapes(model, bad))
    good = [random_arrays(17, *shape) for shape in OP_SHAPES]
    for y, arrays in zip(run_shapes(model, good), good, strict=True):
        assert_matches_float64(y, arrays)


def test_nan_stays_in_its_token_and_its_row(model: Model) -> None:
    calls = [random_arrays(5, *shape) for shape in OP_SHAPES]
    for arrays in calls:
        arrays["x"][2, -1] = np.nan
        arrays["w0"][-1, 0] = np.nan
    for y in run_shapes(model, calls):
        expected = np.zeros(y.shape, dtype=bool)
        expected[2, :] = expected[:, -1] = True
        np.testing.assert_array_equal(np.isnan(y), expected)


def test_each_term_counts(model: Model) -> None:
    """s = 0 leaves the factors alone, U = 0 leaves the scaled W0 alone; the sum of both is the whole."""
    whole, factors, scaled = ([random_arrays(2, *shape) for shape in OP_SHAPES] for _ in range(3))
    for arrays in factors:
        arrays["s"][:] = 0
    for arrays in scaled:
        arrays["u"][:] = 0
    for calls in (whole, factors, scaled):
        for y, arrays in zip(run_shapes(model, calls), calls, strict=True):
            assert_matches_float64(y, arrays)


def test_views_and_shapes_known_only_at_run_time(model: Model) -> None:
    for t, n, k, r in [(1, 37, 53, 3), (17, 203, 397, 5), (4, 5, 8, 1)]:
        arrays = random_arrays(t, n, k, r)
        assert_matches_float64(run_free(model, arrays), arrays)


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("x", (3, 7), r"K of w0 \[N, K\] is 8, but K of x \[T, K\] is 7"),
        ("vt", (2, 9), r"K of vt \[R, K\] is 9, but K of x \[T, K\] is 8"),
        ("s", (4,), r"N of s \[N\] is 4, but N of w0 \[N, K\] is 5"),
        ("u", (6, 2), r"N of u \[N, R\] is 6, but N of w0 \[N, K\] is 5"),
        ("u", (5, 3), r"R of u \[N, R\] is 3, but R of vt \[R, K\] is 2"),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    model: Model, name: str, shape: tuple[int, ...], message: str
) -> None:
    arrays = random_arrays(3, 5, 8, 2)
    arrays[name] = np.ones(shape, np.float32)
    with pytest.raises(Exception, match=message):
        run_free(model, arrays)


def test_rank_zero_is_refused(model: Model) -> None:
    with pytest.raises(Exception, match="the rank must be at least 1"):
        run_free(model, random_arrays(3, 5, 8, 0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_bits_do_not_depend_on_the_number_of_threads(package: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    hashes = [hash_on_cpus({first}, package), hash_on_cpus({first, second}, package)]
    assert hashes[0] == hashes[1]


def hash_on_cpus(cpus: set[int], package: Path) -> str:
    """Runs this file in a process that never had more than `cpus`; the runtime starts a thread for each it sees."""
    result = subprocess.run(
        [sys.executable, __file__, str(package)],
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def output_hash(package: Path) -> str:
    """Hash of all output bytes at 1 and 7 tokens."""
    model = load_model(package)
    digest = hashlib.sha256()
    for tokens in (1, 7):
        for y in run_shapes(model, [random_arrays(tokens, *shape) for shape in OP_SHAPES]):
            digest.update(y.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(output_hash(Path(sys.argv[1])))
