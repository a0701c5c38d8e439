"""`generated_linear`: a linear layer that is a shared matrix, a row scale and a low-rank correction.

    y[t,o] = s[o] * sum_i W0[o,i] x[t,i]  +  sum_k U[o,k] * sum_i V[i,k] x[t,i]

    y  [T, N]   out        x  [T, K]          w0 [N, K]   shared by a band of layers
    s  [N]      float32    u  [N, R]          vt [R, K]   V stored transposed: both dots run over contiguous K

Every sum is accumulated in float32. Nothing of size [N, K] is materialised: the weight of the layer never exists.
Bytes moved for one token (T = 1), b bytes a value: b * (N*K + N*R + R*K + K + N) + 4*N. W0 is nearly all of it, so
decode runs at the speed at which W0 can be read.

Two versions, the plain one to check against and the one that is wired in:

- `linear_reference`: the formula as written, one scalar loop an output.
- `linear_tiled`: x V once into a [T, R] scratch, then tiles of rows x tokens that share their loads, rows split over cores.

Each output has one accumulator chain in a fixed order, whatever the tile or the task it falls in: the bits of y depend
neither on the number of threads nor on how many other tokens are in the batch.
"""

from std.math import align_down, ceildiv
from std.runtime import parallelism_level
from std.sys import simd_width_of

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu

comptime WIDTH = simd_width_of[DType.float32]()
"""Float32 lanes of a vector register of the host."""
comptime DECODE_ROWS = 8
"""Rows of a one-token tile: eight chains hide the latency of a multiply-add, 4 cycles at two a cycle, and share x."""
comptime FACTOR_ROWS = 4
"""Rows of V^T that share a load of x."""
comptime PREFILL_ROWS = 4
"""Rows of a tile of several tokens."""
comptime PREFILL_TOKENS = 6 if WIDTH == 16 else 3
"""Tokens of a tile: 4 x 3 sums and 3 inputs fit sixteen vector registers; AVX-512 has thirty-two."""
comptime TOKEN_BLOCK_BYTES = 256 * 1024
"""Size of x, in float32, over which every row of a task passes at once: half of a 512 KiB second-level cache."""
comptime MIN_TASK_MACS = 64 * 1024
"""Multiply-adds below which one more task costs more to start than it saves."""
comptime TASKS_PER_CORE = 4
"""More than one, so that a core lost to another process does not hold up the rest."""


@fieldwise_init
struct Operands[dtype: DType](TrivialRegisterPassable):
    """Addresses and sizes of one call, all tensors row-major and contiguous.

    Parameters:
        dtype: Type of y, x, w0, u and vt.
    """

    var y: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    """Output, [tokens, outputs]."""
    var x: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    """Input, [tokens, inputs]."""
    var w0: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    """Shared matrix, [outputs, inputs]."""
    var s: Pointer[Float32, MutUntrackedOrigin]
    """Row scale, [outputs]."""
    var u: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    """Left factor, [outputs, rank]."""
    var vt: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    """Right factor transposed, [rank, inputs]."""
    var tokens: Int
    """T."""
    var outputs: Int
    """N."""
    var inputs: Int
    """K."""
    var rank: Int
    """R."""


@always_inline
def scale_and_add(scale: Float32, shared: Float32, correction: Float32) -> Float32:
    """Joins the two sums of one output.

    Args:
        scale: The row's s.
        shared: The dot product with W0.
        correction: The dot product of U and x V.

    Returns:
        Scale * shared + correction, rounded once.
    """
    return scale.fma(shared, correction)


def linear_reference[dtype: DType](args: Operands[dtype]):
    """The formula as written: one output at a time, one product at a time.

    Parameters:
        dtype: Type of y, x, w0, u and vt.

    Args:
        args: The call.
    """
    for t in range(args.tokens):
        for o in range(args.outputs):
            var shared = Float32(0)
            for i in range(args.inputs):
                shared += (
                    args.w0.unsafe_load(o * args.inputs + i).cast[DType.float32]()
                    * args.x.unsafe_load(t * args.inputs + i).cast[DType.float32]()
                )
            var correction = Float32(0)
            for k in range(args.rank):
                var projected = Float32(0)
                for i in range(args.inputs):
                    projected += (
                        args.vt.unsafe_load(k * args.inputs + i).cast[DType.float32]()
                        * args.x.unsafe_load(t * args.inputs + i).cast[DType.float32]()
                    )
                correction += args.u.unsafe_load(o * args.rank + k).cast[DType.float32]() * projected
            var value = scale_and_add(args.s.unsafe_load(o), shared, correction)
            args.y.unsafe_store(t * args.outputs + o, value.cast[dtype]())


@always_inline
def dot_tile[
    a_dtype: DType, b_dtype: DType, //, rows: Int, columns: Int
](
    a: Pointer[Scalar[a_dtype], MutUntrackedOrigin],
    b: Pointer[Scalar[b_dtype], MutUntrackedOrigin],
    length: Int,
) -> Array[Float32, rows * columns]:
    """Dot products of `rows` rows of a with `columns` rows of b; both have rows of `length` contiguous values.

    Parameters:
        a_dtype: Type of a.
        b_dtype: Type of b.
        rows: Rows of a.
        columns: Rows of b.

    Args:
        a: First of the rows of a.
        b: First of the rows of b.
        length: Values in a row.

    Returns:
        The product of row r of a and row c of b at index c * rows + r.
    """
    var lanes = Array[SIMD[DType.float32, WIDTH], rows * columns](fill=0)
    var vector_end = align_down(length, WIDTH)
    for i in range(0, vector_end, WIDTH):
        var a_lanes = Array[SIMD[DType.float32, WIDTH], rows](fill=0)
        comptime for r in range(rows):
            a_lanes[r] = a.unsafe_load[width=WIDTH](r * length + i).cast[DType.float32]()
        comptime for c in range(columns):
            var b_lanes = b.unsafe_load[width=WIDTH](c * length + i).cast[DType.float32]()
            comptime for r in range(rows):
                lanes[c * rows + r] = a_lanes[r].fma(b_lanes, lanes[c * rows + r])

    var sums = Array[Float32, rows * columns](fill=0)
    comptime for p in range(rows * columns):
        sums[p] = lanes[p].reduce_add()
    for i in range(vector_end, length):
        comptime for c in range(columns):
            var b_value = b.unsafe_load(c * length + i).cast[DType.float32]()
            comptime for r in range(rows):
                sums[c * rows + r] = (
                    a.unsafe_load(r * length + i).cast[DType.float32]().fma(b_value, sums[c * rows + r])
                )
    return sums^


@always_inline
def project_input[
    dtype: DType, //, rows: Int
](args: Operands[dtype], projected: Pointer[Float32, MutUntrackedOrigin], row: Int, token: Int):
    """Computes components [row, row + rows) of x V for one token.

    Parameters:
        dtype: Type of y, x, w0, u and vt.
        rows: Components of the tile.

    Args:
        args: The call.
        projected: The product x V, [T, R], written here.
        row: First component, a row of V^T.
        token: The token.
    """
    var values = dot_tile[rows, 1](
        args.vt.unsafe_offset(row * args.inputs), args.x.unsafe_offset(token * args.inputs), args.inputs
    )
    comptime for r in range(rows):
        projected.unsafe_store(token * args.rank + row + r, values[r])


@always_inline
def project_tile[
    dtype: DType, //, rows: Int, tokens: Int
](args: Operands[dtype], projected: Pointer[Float32, MutUntrackedOrigin], row: Int, token: Int):
    """Computes outputs [token, token + tokens) x [row, row + rows) of y.

    Parameters:
        dtype: Type of y, x, w0, u and vt.
        rows: Output rows of the tile.
        tokens: Tokens of the tile.

    Args:
        args: The call.
        projected: The product x V, [T, R].
        row: First output row.
        token: First token.
    """
    var shared = dot_tile[rows, tokens](
        args.w0.unsafe_offset(row * args.inputs),
        args.x.unsafe_offset(token * args.inputs),
        args.inputs,
    )
    var correction = dot_tile[rows, tokens](
        args.u.unsafe_offset(row * args.rank),
        projected.unsafe_offset(token * args.rank),
        args.rank,
    )
    comptime for t in range(tokens):
        comptime for r in range(rows):
            var value = scale_and_add(
                args.s.unsafe_load(row + r),
                shared[t * rows + r],
                correction[t * rows + r],
            )
            args.y.unsafe_store((token + t) * args.outputs + row + r, value.cast[dtype]())


@always_inline
def project_rows[
    dtype: DType, //, rows: Int
](args: Operands[dtype], projected: Pointer[Float32, MutUntrackedOrigin], row: Int, first_token: Int, end_token: Int):
    """Computes `rows` outputs of tokens [first_token, end_token), several tokens at a time where there are several.

    Parameters:
        dtype: Type of y, x, w0, u and vt.
        rows: Output rows, a multiple of PREFILL_ROWS or 1.

    Args:
        args: The call.
        projected: The product x V, [T, R].
        row: First output row.
        first_token: First token.
        end_token: One past the last token.
    """
    comptime tile_rows = min(rows, PREFILL_ROWS)
    var token = first_token
    while token + PREFILL_TOKENS <= end_token:
        comptime for r in range(0, rows, tile_rows):
            project_tile[tile_rows, PREFILL_TOKENS](args, projected, row + r, token)
        token += PREFILL_TOKENS
    while token < end_token:
        project_tile[rows, 1](args, projected, row, token)
        token += 1


def project_range[
    dtype: DType, //
](args: Operands[dtype], projected: Pointer[Float32, MutUntrackedOrigin], first_row: Int, end_row: Int):
    """Computes rows [first_row, end_row) of y for all tokens, a block of tokens at a time so that x stays in cache.

    Parameters:
        dtype: Type of y, x, w0, u and vt.

    Args:
        args: The call.
        projected: The product x V, [T, R].
        first_row: First output row.
        end_row: One past the last output row.
    """
    var fitting = TOKEN_BLOCK_BYTES // max(1, args.inputs * 4)
    var block = max(PREFILL_TOKENS, align_down(fitting, PREFILL_TOKENS))
    for first_token in range(0, args.tokens, block):
        var end_token = min(first_token + block, args.tokens)
        var row = first_row
        while row + DECODE_ROWS <= end_row:
            project_rows[DECODE_ROWS](args, projected, row, first_token, end_token)
            row += DECODE_ROWS
        while row < end_row:
            project_rows[1](args, projected, row, first_token, end_token)
            row += 1


def task_count(macs: Int, pieces: Int, cores: Int) -> Int:
    """How many tasks to split a piece of work into.

    Args:
        macs: Multiply-adds in all.
        pieces: Parts that can be computed apart.
        cores: Threads that work at the same time.

    Returns:
        At least 1, at most `pieces` and a few a core, fewer when the work is small.
    """
    return max(1, min(pieces, macs // MIN_TASK_MACS, TASKS_PER_CORE * cores))


def linear_tiled[dtype: DType](args: Operands[dtype], cores: Int):
    """Two passes: x V once for all rows, then tiles of outputs that share loads of W0 and x, rows split over cores.

    Parameters:
        dtype: Type of y, x, w0, u and vt.

    Args:
        args: The call.
        cores: Threads that work at the same time; they change the speed, never a bit of y.
    """
    if args.tokens == 0 or args.outputs == 0:
        return
    var scratch = List[Float32](length=args.tokens * args.rank, fill=0)
    var projected = scratch.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin]()

    # Always through sync_parallelize: it also sets how denormals are treated, the same for every number of tasks.
    var token_tasks = task_count(args.tokens * args.rank * args.inputs, args.tokens, cores)

    def project_inputs(task: Int) {imm}:
        for t in range(
            task * args.tokens // token_tasks,
            (task + 1) * args.tokens // token_tasks,
        ):
            var k = 0
            while k + FACTOR_ROWS <= args.rank:
                project_input[FACTOR_ROWS](args, projected, k, t)
                k += FACTOR_ROWS
            while k < args.rank:
                project_input[1](args, projected, k, t)
                k += 1

    sync_parallelize(project_inputs, token_tasks)

    var row_blocks = ceildiv(args.outputs, DECODE_ROWS)
    var row_tasks = task_count(
        args.tokens * args.outputs * (args.inputs + args.rank),
        row_blocks,
        cores,
    )

    def project_outputs(task: Int) {imm}:
        var first_row = task * row_blocks // row_tasks * DECODE_ROWS
        var end_row = min((task + 1) * row_blocks // row_tasks * DECODE_ROWS, args.outputs)
        project_range(args, projected, first_row, end_row)

    sync_parallelize(project_outputs, row_tasks)
    _ = scratch^


def check_same(what: StaticString, left: Int, right_name: StaticString, right: Int) raises:
    """Raises when two dimensions that name the same size differ.

    Args:
        what: Left tensor and dimension, in words.
        left: Its size.
        right_name: Right tensor and dimension, in words.
        right: Its size.

    Raises:
        An error naming both tensors and both sizes.
    """
    if left != right:
        raise Error(
            "generated_linear: ",
            what,
            " is ",
            left,
            ", but ",
            right_name,
            " is ",
            right,
        )


@extensibility.register("generated_linear")
struct GeneratedLinear:
    """The operation as a MAX graph sees it: inputs x, w0, s, u, vt, output y."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        x: InputTensor[dtype=y.dtype, rank=2, ...],
        w0: InputTensor[dtype=y.dtype, rank=2, ...],
        s: InputTensor[dtype=DType.float32, rank=1, ...],
        u: InputTensor[dtype=y.dtype, rank=2, ...],
        vt: InputTensor[dtype=y.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        """Checks the shapes and computes y.

        Parameters:
            target: The device, "cpu" or "gpu".

        Args:
            y: Output, [T, N].
            x: Input, [T, K].
            w0: Shared matrix, [N, K].
            s: Row scale, [N].
            u: Left factor, [N, R].
            vt: Right factor transposed, [R, K].
            ctx: The device.

        Raises:
            An error naming the first two dimensions that do not fit together.
        """
        check_same("K of w0 [N, K]", w0.dim_size[1](), "K of x [T, K]", x.dim_size[1]())
        check_same("K of vt [R, K]", vt.dim_size[1](), "K of x [T, K]", x.dim_size[1]())
        check_same("N of s [N]", s.dim_size[0](), "N of w0 [N, K]", w0.dim_size[0]())
        check_same("N of u [N, R]", u.dim_size[0](), "N of w0 [N, K]", w0.dim_size[0]())
        check_same("R of u [N, R]", u.dim_size[1](), "R of vt [R, K]", vt.dim_size[0]())
        check_same("N of y [T, N]", y.dim_size[1](), "N of w0 [N, K]", w0.dim_size[0]())
        check_same("T of y [T, N]", y.dim_size[0](), "T of x [T, K]", x.dim_size[0]())
        if vt.dim_size[0]() == 0:
            raise Error("generated_linear: R of vt [R, K] is 0; the rank must be at" " least 1")

        comptime if is_cpu[target]():
            linear_tiled(
                Operands[y.dtype](
                    y.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    x.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    w0.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    s.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    u.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    vt.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin](),
                    x.dim_size[0](),
                    w0.dim_size[0](),
                    x.dim_size[1](),
                    u.dim_size[1](),
                ),
                parallelism_level(),
            )
        else:
            raise Error("generated_linear: no GPU version is built in; place the" " operation on the CPU")
