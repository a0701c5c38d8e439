"""Native dense on a CPU: MAX's own Gemma 3 graph with three adaptations.

Stock Gemma 3 of MAX 26.7 does not start without an accelerator. Three things
stand in the way, and only these are changed here:

1. Encoding. The architecture accepts bfloat16 only, which the CPU backend
   refuses; float32 is added.
2. Norm dtype. The RMS norms are built with a hard-coded ``DType.bfloat16``;
   they take the model's dtype instead.
3. Collectives. The embedding and every block hold an ``Allreduce`` that opens
   an ``Accelerator``, and the graph takes signal buffers for it. On one device
   an all-reduce is the identity, so both go.

Everything else, from attention to the fusion of Q/K/V and gate/up, is the
installed source, executed as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest.mock import patch

from max.driver import Buffer
from max.dtype import DType
from max.graph import BufferValue, DeviceRef, Graph, TensorType, TensorValue
from max.nn.embedding import Embedding
from max.nn.layer import Module
from max.nn.linear import Linear
from max.pipelines.architectures.gemma3 import gemma3 as stock_graph
from max.pipelines.architectures.gemma3.arch import gemma3_arch
from max.pipelines.architectures.gemma3.gemma3 import Gemma3
from max.pipelines.architectures.gemma3.layers import attention as stock_attention
from max.pipelines.architectures.gemma3.layers import transformer_block as stock_block
from max.pipelines.architectures.gemma3.layers.rms_norm import Gemma3RMSNorm
from max.pipelines.architectures.gemma3.model import Gemma3Model
from max.pipelines.architectures.gemma3.model_config import Gemma3Config
from max.pipelines.lib.graph_specs import GraphRole, GraphSpec
from max.pipelines.lib.interfaces.batch_processor import ragged_batch_inputs
from max.pipelines.modeling.config_enums import SupportedEncoding

from weightless_fw.core.graph_facts import GraphFacts, read_graph
from weightless_fw.core.placement import host_array, placed_weight


@dataclass(kw_only=True)
class Gemma3CPUConfig(Gemma3Config):
    """Stock configuration that also accepts float32 (adaptation 1)."""

    DEFAULT_ENCODING: ClassVar[SupportedEncoding] = "float32"
    SUPPORTED_ENCODINGS: ClassVar[set[SupportedEncoding]] = {"float32"}


class _Float32Norm(Gemma3RMSNorm):
    """The stock norm with the dtype argument overruled (adaptation 2)."""

    def __init__(self, dim: int, dtype: DType, eps: float = 1e-6) -> None:
        super().__init__(dim, DType.float32, eps)


class _OneDeviceEmbedding(Embedding):
    """The stock scaled embedding without its all-reduce (adaptation 3)."""

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        dtype: DType,
        devices: Sequence[DeviceRef],
        *,
        embed_scale: float,
    ) -> None:
        super().__init__(vocab_size, hidden_dim, dtype, devices[0])
        self.embed_scale = embed_scale

    def __call__(  # type: ignore[override]
        self, indices: TensorValue, signal_buffers: Sequence[BufferValue]
    ) -> list[TensorValue]:
        return [super().__call__(indices) * float(self.embed_scale)]


class _OneDeviceAllreduce(Module):
    """An all-reduce over one device (adaptation 3)."""

    def __init__(self, num_accelerators: int) -> None:
        super().__init__()
        if num_accelerators != 1:
            raise ValueError("native dense (cpu) runs on one device")

    def __call__(
        self, inputs: list[TensorValue], signal_buffers: Sequence[BufferValue]
    ) -> list[TensorValue]:
        return inputs


class _OneDeviceHead(Linear):
    """The stock vocabulary projection without its all-gather (adaptation 3)."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dtype: DType,
        devices: Sequence[DeviceRef],
        tied_weight: Any = None,
    ) -> None:
        super().__init__(in_dim, out_dim, dtype, devices[0])
        if tied_weight is not None:
            self.set_shared_weight("weight", tied_weight)

    def __call__(  # type: ignore[override]
        self, x: Sequence[TensorValue], signal_buffers: Sequence[BufferValue]
    ) -> list[TensorValue]:
        return [super().__call__(x[0])]


@contextmanager
def _adapted_names() -> Iterator[None]:
    """Puts the adapted classes under the stock names while a graph is built."""
    replacements = (
        (stock_graph, "Gemma3RMSNorm", _Float32Norm),
        (stock_attention, "Gemma3RMSNorm", _Float32Norm),
        (stock_graph, "ScaledWordEmbedding", _OneDeviceEmbedding),
        (stock_graph, "ColumnParallelLinear", _OneDeviceHead),
        (stock_block, "Allreduce", _OneDeviceAllreduce),
    )
    with ExitStack() as stack:
        for module, name, adapted in replacements:
            stack.enter_context(patch.object(module, name, adapted))
        yield


class Gemma3CPU(Gemma3):
    """The stock graph on one CPU, without signal buffers among its inputs."""

    facts: GraphFacts

    def __init__(self, config: Gemma3Config) -> None:
        with _adapted_names():
            super().__init__(config)
        self.config = config

    def input_tree(self) -> OrderedDict[str, object]:
        device = self.language_model.devices[0]
        return OrderedDict(
            batch=ragged_batch_inputs(device, ("tokens", "return_n_logits")),
            row_offsets=(TensorType(DType.uint32, ["input_row_offsets_len"], device=device),),
            signals=(),
            kv=self.language_model.kv_params.get_symbolic_inputs(),
        )

    def trace(self, *input_types: Any, **options: Any) -> Graph:
        name = options.pop("name", None) or type(self).__qualname__

        def forward(tokens: Any, return_n_logits: Any, offsets: Any, *kv: Any) -> Any:
            sliding, full = self.language_model.kv_params.unflatten_basic_kv_tree(iter(kv))
            return self(tokens.tensor, [], sliding, full, return_n_logits.tensor, [offsets.tensor])

        options["custom_extensions"] = list(options.pop("custom_extensions", ()))
        graph = Graph(name, forward, input_types=input_types, **options)
        self.facts = read_graph(graph)
        return graph


class Gemma3CPUModel(Gemma3Model):
    """The stock pipeline model over :class:`Gemma3CPU`."""

    model_config_cls: ClassVar[type[Any]] = Gemma3CPUConfig
    network: Gemma3CPU

    @property
    def signal_buffers(self) -> list[Buffer]:  # type: ignore[override]
        return []

    def _create_model_config(self, state_dict: dict[str, Any]) -> Gemma3Config:
        with patch("max.pipelines.architectures.gemma3.model.Gemma3Config", Gemma3CPUConfig):
            return super()._create_model_config(state_dict)

    def _load_state_dict(self) -> dict[str, Any]:
        weights = super()._load_state_dict()
        self._language_weights_dict = {
            name: placed_weight(host_array(value), name, DType.float32)
            for name, value in weights.items()
        }
        return self._language_weights_dict

    def graph_specs(self, model_config: Gemma3Config) -> dict[str, GraphSpec]:
        self.network = Gemma3CPU(model_config)
        self.network.load_state_dict(self._language_weights_dict, weight_alignment=1, strict=True)
        self._language_weights_dict = {}
        return {
            GraphRole.DECODER: GraphSpec(
                self.network,
                "gemma3_native_cpu",
                self._bind_graph_inputs(self.network.input_tree()),
                weights=self.network.state_dict(auto_initialize=False),
            )
        }


native_cpu_arch = replace(
    gemma3_arch,
    default_encoding="float32",
    supported_encodings={"float32"},
    pipeline_model=Gemma3CPUModel,
    config=Gemma3CPUConfig,
)
