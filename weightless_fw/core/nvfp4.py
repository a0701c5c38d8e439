"""NVFP4: four-bit weights with one scale per sixteen and one per tensor.

w = e2m1 * e4m3(block) * global, in blocks of 16 along the input axis. Two
codes a byte, low nibble first: 4.5 bits a weight. The layout and the rounding
are those of ModelOpt checkpoints and of ``max.pipelines.weights.fp4_quantization``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

BLOCK = 16
"""Elements along K that share one block scale."""

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MAX_CODE = 126
"""Largest finite e4m3fn code; 127 is NaN."""


class Nvfp4Error(ValueError):
    """A matrix cannot be put into NVFP4; the message says what is wrong with it."""


class ScaleChoice(StrEnum):
    """How the block scales, and the codes under them, are chosen."""

    AMAX = "amax"
    """The largest magnitude of a block becomes 6."""
    FOUR_OVER_SIX = "four-over-six"
    """It becomes 6 or 4, whichever gives the smaller squared error."""
    SWEEP = "sweep"
    """The e4m3 code of least squared error around those two."""
    HESSIAN_SWEEP = "hessian-sweep"
    """The same, each column's error weighted by the second moment of its input."""
    GPTQ = "gptq"
    """Swept scales, and each column's error is passed on to the columns after it."""


def _e4m3_values() -> Array:
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    subnormal = mantissa * 2.0**-9
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    values = np.where(exponent == 0, subnormal, normal).astype(np.float32)
    values[127] = np.nan
    return values


E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_SIGNED = np.concatenate([E2M1_VALUES, -E2M1_VALUES])
E4M3_VALUES = _e4m3_values()

_DECODE_ROWS = 1024


@dataclass(frozen=True)
class Nvfp4:
    """A matrix [N, K] in NVFP4."""

    packed: Codes
    """[N, K/2]: two e2m1 codes a byte, the even column in the low nibble."""

    scales: Codes
    """[N, K/16]: e4m3fn bits."""

    global_scale: np.float32

    def __post_init__(self) -> None:
        n, half = self.packed.shape
        if self.scales.shape != (n, 2 * half // BLOCK) or 2 * half % BLOCK:
            raise Nvfp4Error(
                f"codes {self.packed.shape} and block scales {self.scales.shape} do not fit: "
                f"[N, K/2] and [N, K/{BLOCK}] are needed"
            )

    @property
    def shape(self) -> tuple[int, int]:
        n, half = self.packed.shape
        return n, 2 * half

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes + 4

    def dense(self) -> Array:
        """[N, K] float32."""
        n, k = self.shape
        out = np.empty((n, k), np.float32)
        for start in range(0, n, _DECODE_ROWS):
            rows = slice(start, start + _DECODE_ROWS)
            codes = unpack(self.packed[rows])
            scale = E4M3_VALUES[self.scales[rows]] * self.global_scale
            values = E2M1_SIGNED[codes].reshape(-1, k // BLOCK, BLOCK) * scale[..., None]
            out[rows] = values.reshape(-1, k)
        return out


def pack(codes: Codes) -> Codes:
    """[N, K] codes 0..15 to [N, K/2] bytes, the even column in the low nibble."""
    return codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))


def unpack(packed: Codes) -> Codes:
    """[N, K/2] bytes to [N, K] codes 0..15."""
    codes = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    codes[:, 0::2] = packed & np.uint8(15)
    codes[:, 1::2] = packed >> np.uint8(4)
    return codes


def encode_e2m1(values: Array) -> Codes:
    """Nearest e2m1 code, ties to the even code, saturating at 6; bit 3 is the sign.

    A negative value that rounds to zero keeps its sign, as MAX has it.
    """
    magnitude = np.abs(values)
    code = (magnitude > 0.25).astype(np.uint8)
    # Half-way values go to the even code, so the comparisons alternate.
    code += magnitude >= 0.75
    code += magnitude > 1.25
    code += magnitude >= 1.75
    code += magnitude > 2.5
    code += magnitude >= 3.5
    code += magnitude > 5.0
    return code | ((values < 0).astype(np.uint8) << np.uint8(3))


def encode_e4m3(values: Array) -> Codes:
    """Nearest e4m3fn code of non-negative values, ties to even, saturating at 448."""
    finite = E4M3_VALUES[:127].astype(np.float64)
    middles = (finite[1:] + finite[:-1]) / 2
    clipped = np.minimum(values.astype(np.float64), E4M3_MAX)
    code = np.searchsorted(middles, clipped, side="left")
    # On a middle, "left" gives the lower code; an odd one goes up to the even.
    exact = middles[np.minimum(code, len(middles) - 1)] == clipped
    return (code + (exact & (code % 2 == 1))).astype(np.uint8)


def global_scale(weights: Sequence[Array]) -> np.float32:
    """The one scale of all ``weights``: their largest magnitude over 6 * 448.

    Q, K and V (gate and up) that are fused in one matrix have one global
    scale, so it must be known before any of them is quantised.
    """
    largest = max((float(np.abs(w).max()) for w in weights if w.size), default=0.0)
    scale = np.float32(largest / (E2M1_MAX * E4M3_MAX))
    # Nothing but zeros, or so small that the scale underflows: any scale serves.
    return scale if scale > 0 else np.float32(1.0)


def check_quantizable(weight: Array) -> None:
    """Raises Nvfp4Error unless ``weight`` is a finite [N, K] with K a multiple of 16."""
    if weight.ndim != 2 or weight.shape[1] % BLOCK or not weight.size:
        raise Nvfp4Error(
            f"a matrix of shape {list(weight.shape)} cannot be put into NVFP4: "
            f"[N, K] with K a multiple of {BLOCK} is needed"
        )
    bad = ~np.isfinite(weight)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise Nvfp4Error(
            f"{int(bad.sum())} of {weight.size} weights are NaN or infinite, "
            f"the first at [{row}, {column}]"
        )


def stack(parts: Sequence[Nvfp4]) -> Nvfp4:
    """Rows one above the other.

    Raises:
        Nvfp4Error: The global scales differ: the largest would mis-scale the others.
    """
    scales = {float(part.global_scale) for part in parts}
    if len(scales) > 1:
        raise Nvfp4Error(
            f"matrices with global scales {sorted(scales)} cannot be stacked; "
            "quantise them with one global scale"
        )
    return Nvfp4(
        np.concatenate([part.packed for part in parts]),
        np.concatenate([part.scales for part in parts]),
        parts[0].global_scale,
    )
