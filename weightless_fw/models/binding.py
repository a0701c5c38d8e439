"""From factors to the weights that a compiled graph is bound to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from max.driver import Buffer
from max.dtype import DType
from max.graph.weights import WeightData

from weightless_fw.core.factors import Array
from weightless_fw.core.placement import bits, bound_weight, host_array, placed
from weightless_fw.models.projections import Projections, pack_bands
from weightless_fw.models.scheme import LayerFactors, Scheme, SchemeError


class Network(Protocol):
    """What binding needs to know of a graph module."""

    scheme: Scheme

    @property
    def halves(self) -> Iterable[tuple[Projections, Projections]]:
        """(attention, MLP) of every layer, in order."""


class LazyDense(Mapping[str, Array]):
    """A checkpoint's weights as float32, converted when they are read and then let go.

    Raises ValueError, on reading, where a weight holds NaN or infinity.
    """

    def __init__(self, weights: Mapping[str, WeightData]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        if name not in self._weights:
            raise SchemeError(f"tensor {name} is missing from the checkpoint")
        array = host_array(self._weights[name])
        if not np.isfinite(array).all():
            count = int(array.size - np.isfinite(array).sum())
            raise SchemeError(f"tensor {name} holds {count} values that are NaN or infinite")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class BoundNetwork:
    """A network's weights as they are bound, and how to bind others.

    ``state`` is read where it lies, so it lives as long as the model.
    """

    def __init__(self, network: Network, state: dict[str, WeightData], dtype: DType) -> None:
        self.network = network
        self.state = state
        self.dtype = dtype

    @classmethod
    def of(
        cls,
        network: Network,
        rest: Mapping[str, WeightData],
        factors: tuple[LayerFactors, ...],
        *,
        dtype: DType,
    ) -> BoundNetwork:
        """Lays ``factors`` out as the network's weights.

        Args:
            network: The graph module.
            rest: All weights that are not projections, by the network's names.
            factors: Of every layer.
            dtype: What the graph computes in.
        """
        computed = _placed(projection_bits(network, factors, dtype), dtype)
        return cls(network, {**rest, **computed}, dtype)

    def with_factors(self, factors: tuple[LayerFactors, ...]) -> dict[str, WeightData]:
        """The weights with other factors; everything else as it is bound."""
        moved = projection_bits(self.network, factors, self.dtype)
        return {**self.state, **_placed(moved, self.dtype)}

    @property
    def zero_factors(self) -> bool:
        """Whether every bound U is zero; a W_eff that has absorbed it counts as zero."""
        ups = (w for name, w in self.state.items() if name.rpartition(".")[2] in ("u", "up"))
        return not any(_bytes_of(weight).any() for weight in ups)


def _placed(weights: Iterable[tuple[str, npt.NDArray[Any]]], dtype: DType) -> dict[str, WeightData]:
    return {n: bound_weight(placed(array), n, dtype_of(n, dtype)) for n, array in weights}


def projection_bits(
    network: Network, factors: tuple[LayerFactors, ...], dtype: DType
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The bound weights of every layer and band, by name, in the bits that are bound."""
    for index, (halves, layer) in enumerate(zip(network.halves, factors, strict=True)):
        for half in halves:
            for name, array in half.pack(layer).items():
                yield f"layers.{index}.{name}", bits(array, dtype_of(name, dtype))
    for name, array in pack_bands(factors, network.scheme).items():
        yield f"bands.{name}", bits(array, dtype_of(name, dtype))


def dtype_of(name: str, dtype: DType) -> DType:
    """Row scales stay float32, since the combine is in float32."""
    return DType.float32 if name.endswith(".scale") else dtype


def _bytes_of(weight: WeightData) -> npt.NDArray[np.uint8]:
    buffer = Buffer.from_dlpack(weight.data)
    count = buffer.num_elements * buffer.dtype.size_in_bytes
    return np.from_dlpack(buffer.view(DType.uint8, [count]))
