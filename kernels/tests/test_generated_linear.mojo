"""`generated_linear`: the tiled version against the plain one, on shapes that no tile divides.

    mojo run -I kernels kernels/tests/test_generated_linear.mojo [--only test_name]
"""

from std.testing import TestSuite, assert_equal, assert_true
from std.utils.numerics import isnan, nan

from ops.generated_linear import (
    Operands,
    check_same,
    linear_reference,
    linear_tiled,
    task_count,
)

comptime CORES = 2
comptime GUARD = 5
"""Values kept free before and after every tensor: they notice a write out of bounds, and make every row unaligned."""


def fill(mut seed: UInt64) -> Float32:
    """Next value of a linear congruential generator, in [-1, 1)."""
    seed = seed * 6364136223846793005 + 1442695040888963407
    return Float32(Int(seed >> 40)) / Float32(1 << 23) - 1


struct Sample[dtype: DType](Movable):
    """Random tensors of one shape, each between guards, and an output full of NaN."""

    var y: List[Scalar[Self.dtype]]
    var x: List[Scalar[Self.dtype]]
    var w0: List[Scalar[Self.dtype]]
    var s: List[Float32]
    var u: List[Scalar[Self.dtype]]
    var vt: List[Scalar[Self.dtype]]
    var tokens: Int
    var outputs: Int
    var inputs: Int
    var rank: Int

    def __init__(out self, tokens: Int, outputs: Int, inputs: Int, rank: Int):
        var seed = UInt64(tokens * 7919 + outputs * 104729 + inputs * 1299709 + rank)

        def values[of: DType](count: Int) {mut seed} -> List[Scalar[of]]:
            var list = List[Scalar[of]](length=count + 2 * GUARD, fill=nan[of]())
            for i in range(count):
                list[GUARD + i] = fill(seed).cast[of]()
            return list^

        self.x = values[Self.dtype](tokens * inputs)
        self.w0 = values[Self.dtype](outputs * inputs)
        self.s = values[DType.float32](outputs)
        self.u = values[Self.dtype](outputs * rank)
        self.vt = values[Self.dtype](rank * inputs)
        self.y = List[Scalar[Self.dtype]](length=tokens * outputs + 2 * GUARD, fill=nan[Self.dtype]())
        self.tokens = tokens
        self.outputs = outputs
        self.inputs = inputs
        self.rank = rank

    def operands(mut self) -> Operands[Self.dtype]:
        return Operands[Self.dtype](
            self.y.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.x.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.w0.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.s.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.u.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.vt.unsafe_ptr().unsafe_offset(GUARD).unsafe_origin_cast[MutUntrackedOrigin](),
            self.tokens,
            self.outputs,
            self.inputs,
            self.rank,
        )

    def result(mut self) raises -> List[Scalar[Self.dtype]]:
        """Takes y out, checks that the guards around it are whole, and poisons it again."""
        var count = self.tokens * self.outputs
        for i in range(GUARD):
            assert_true(isnan(self.y[i]), "a value before y was overwritten")
            assert_true(
                isnan(self.y[GUARD + count + i]),
                "a value after y was overwritten",
            )
        var values = List[Scalar[Self.dtype]](capacity=count)
        for i in range(count):
            values.append(self.y[GUARD + i])
            self.y[GUARD + i] = nan[Self.dtype]()
        return values^


def check_shape[dtype: DType](tokens: Int, outputs: Int, inputs: Int, rank: Int) raises:
    """Tiled against reference; the bound grows with the number of products, each at most 1 in size."""
    var sample = Sample[dtype](tokens, outputs, inputs, rank)
    linear_reference(sample.operands())
    var expected = sample.result()
    linear_tiled(sample.operands(), CORES)
    var actual = sample.result()
    # One rounding of an f32 sum is 6e-8 of it; of the output's type, 4e-3 for bfloat16.
    var rounding = 8e-3 if dtype == DType.bfloat16 else 1e-6
    for i in range(tokens * outputs):
        var distance = abs(actual[i].cast[DType.float64]() - expected[i].cast[DType.float64]())
        var bound = rounding * abs(expected[i].cast[DType.float64]()) + 1e-7 * Float64(inputs * (rank + 1))
        # A NaN fails the comparison too: an output that was never written.
        assert_true(
            distance <= bound,
            String(
                "shape [",
                tokens,
                ", ",
                outputs,
                ", ",
                inputs,
                "] rank ",
                rank,
                " output ",
                i,
                ": ",
                actual[i],
                " for ",
                expected[i],
            ),
        )


def test_tiled_is_reference_on_odd_shapes() raises:
    var tokens: List[Int] = [0, 1, 2, 3, 4, 5, 6, 7, 13, 17]
    var outputs: List[Int] = [1, 3, 8, 9, 15, 37]
    var inputs: List[Int] = [1, 7, 8, 16, 19, 67]
    var ranks: List[Int] = [1, 4, 5, 11]
    for t in tokens:
        for o in outputs:
            for i in inputs:
                for r in ranks:
                    check_shape[DType.float32](t, o, i, r)


def test_tiled_is_reference_where_work_is_split() raises:
    check_shape[DType.float32](1, 1283, 641, 4)
    check_shape[DType.float32](1, 640, 2048, 32)
    check_shape[DType.float32](7, 333, 1025, 9)
    # More tokens than one block holds at this width, and a rank large enough to split x V over tasks.
    check_shape[DType.float32](41, 70, 4099, 33)


def test_tiled_is_reference_in_bfloat16() raises:
    check_shape[DType.bfloat16](1, 37, 67, 5)
    check_shape[DType.bfloat16](8, 37, 67, 5)
    check_shape[DType.bfloat16](3, 640, 643, 16)


def test_no_outputs_and_no_inputs() raises:
    check_shape[DType.float32](3, 0, 8, 2)
    check_shape[DType.float32](3, 5, 0, 2)


def test_a_token_has_the_same_bits_in_every_batch() raises:
    comptime TOKENS = 23
    var sample = Sample[DType.float32](TOKENS, 203, 397, 5)
    linear_tiled(sample.operands(), CORES)
    var together = sample.result()
    for token in range(TOKENS):
        var args = sample.operands()
        args.x = args.x.unsafe_offset(token * args.inputs)
        args.tokens = 1
        linear_tiled(args, CORES)
        var alone = sample.result()
        for o in range(203):
            assert_equal(alone[o], together[token * 203 + o])


def test_bits_do_not_depend_on_the_number_of_cores() raises:
    # Enough work in both passes to be cut into as many pieces as there are rows, and at other rows each time.
    assert_equal(task_count(19 * 333 * (2051 + 70), 42, 1), 4)
    assert_equal(task_count(19 * 333 * (2051 + 70), 42, 64), 42)
    assert_equal(task_count(19 * 70 * 2051, 19, 64), 19)
    var sample = Sample[DType.float32](19, 333, 2051, 70)
    linear_tiled(sample.operands(), 1)
    var expected = sample.result()
    var cores: List[Int] = [2, 3, 5, 64]
    for c in cores:
        linear_tiled(sample.operands(), c)
        var actual = sample.result()
        for i in range(len(expected)):
            assert_equal(actual[i], expected[i])


def test_small_work_is_one_task() raises:
    assert_equal(task_count(0, 0, 8), 1)
    assert_equal(task_count(1000, 1000, 8), 1)


def test_unequal_sizes_are_named() raises:
    check_same("K of w0 [N, K]", 4, "K of x [T, K]", 4)
    var message = String()
    try:
        check_same("K of w0 [N, K]", 640, "K of x [T, K]", 512)
    except error:
        message = String(error)
    assert_equal(
        message,
        "generated_linear: K of w0 [N, K] is 640, but K of x [T, K] is 512",
    )


def main() raises:
    TestSuite.discover_tests[__functions_in_module()]().run()
