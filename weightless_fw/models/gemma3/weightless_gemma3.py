"""Gemma 3 as a graph over weightless layers.

One layer body is compiled per attention type and called once per layer: the
weights differ by the prefix of their names, a shared W0 comes as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from max import tree
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops
from max.graph.graph import default_custom_extensions_scope
from max.nn.kv_cache import KVCacheParams, MultiKVCacheParams, PagedCacheValues
from max.nn.layer import LayerList, Module
from max.nn.rotary_embedding import Llama3RopeScalingParams, Llama3RotaryEmbedding
from max.nn.transformer.distributed_transformer import distributed_logits_postprocess
from max.pipelines.architectures.gemma3.layers.rms_norm import Gemma3RMSNorm
from max.pipelines.lib.interfaces.batch_processor import ragged_batch_inputs

from weightless_fw.core.graph_facts import GraphFacts, read_graph
from weightless_fw.models.gemma3.layers import LayerSpec, WeightlessBlock
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.projections import (
    Projections,
    ProjectionSpec,
    band_w0,
    shared_bands,
)
from weightless_fw.models.scheme import Scheme

SLIDING, FULL = "sliding_attention", "full_attention"


class WeightlessGemma3(Module):
    """Token ids to logits on one device."""

    facts: GraphFacts
    """What the graph holds, once traced."""

    def __init__(self, config: WeightlessGemma3Config) -> None:
        super().__init__()
        self.config = config
        self.device: DeviceRef = config.devices[0]
        self.scheme: Scheme = config.scheme
        kinds = config.dimensions.attention_types
        specs = {kind: _layer_spec(config, kind) for kind in dict.fromkeys(kinds)}
        self.embedding = Weight(
            "embed_tokens.weight",
            config.dtype,
            [config.vocab_size, config.hidden_size],
            device=self.device,
        )
        self.layers = LayerList([WeightlessBlock(specs[kind]) for kind in kinds])
        norm_dtype = DType.float32 if self.device.is_cpu() else DType.bfloat16
        self.norm = Gemma3RMSNorm(config.hidden_size, norm_dtype, config.rms_norm_eps)
        self.head: Weight | None = None
        if not config.tie_word_embeddings:
            self.head = Weight(
                "lm_head.weight",
                config.dtype,
                [config.vocab_size, config.hidden_size],
                device=self.device,
            )
        self.bands = LayerList(shared_bands({k: s.projections for k, s in specs.items()}))
        self.rope = {
            SLIDING: _rotary(config, config.rope_local_base_freq, scaled=False),
            FULL: _rotary(config, config.rope_theta, scaled=True),
        }

    @property
    def halves(self) -> Iterator[tuple[Projections, Projections]]:
        """(attention, MLP) of every layer, in order."""
        for block in self.layers:
            assert isinstance(block, WeightlessBlock)
            yield block.self_attn, block.mlp

    def input_tree(self) -> OrderedDict[str, object]:
        """Tokens, number of logits, row offsets and the paged caches."""
        return OrderedDict(
            batch=ragged_batch_inputs(self.device, ("tokens", "return_n_logits")),
            row_offsets=(TensorType(DType.uint32, ["input_row_offsets_len"], device=self.device),),
            signals=(),
            kv=self.config.kv_params.get_symbolic_inputs(),
        )

    def trace(self, *input_types: Any, **options: Any) -> Graph:
        name = options.pop("name", None) or type(self).__qualname__
        extensions = list(options.pop("custom_extensions", ()))
        kv_params = self.config.kv_params
        assert isinstance(kv_params, MultiKVCacheParams)

        def forward(tokens: Any, return_n_logits: Any, offsets: Any, *kv: Any) -> Any:
            sliding, full = kv_params.unflatten_basic_kv_tree(iter(kv))
            caches = {SLIDING: sliding[0], FULL: full[0]}
            return self(tokens.tensor, return_n_logits.tensor, offsets.tensor, caches)

        # In a scope, because the layer bodies need the kernels as well.
        with default_custom_extensions_scope(*extensions):
            graph = Graph(name, forward, input_types=input_types, **options)
        self.facts = read_graph(graph)
        return graph

    def __call__(
        self,
        tokens: TensorValue,
        return_n_logits: TensorValue,
        row_offsets: TensorValue,
        caches: Mapping[str, PagedCacheValues],
    ) -> tuple[TensorValue, ...]:
        embedding = TensorValue(self.embedding)
        h = ops.gather(embedding, tokens, axis=0) * float(self.config.hidden_size**0.5)
        h = self._run_layers(h, row_offsets, caches)
        head = embedding if self.head is None else TensorValue(self.head)

        def lm_head(hidden: Sequence[TensorValue], _: object) -> list[TensorValue]:
            return [hidden[0] @ head.T]

        return distributed_logits_postprocess(
            [h],
            [row_offsets],
            return_n_logits,
            lm_head=lm_head,
            signal_buffers=[],
            return_logits=self.config.return_logits,
            device=self.device,
            norm_shards=[self.norm],
        )

    def _run_layers(
        self,
        h: TensorValue,
        row_offsets: TensorValue,
        caches: Mapping[str, PagedCacheValues],
    ) -> TensorValue:
        freqs = {k: ops.cast(r.freqs_cis, h.dtype).to(h.device) for k, r in self.rope.items()}
        shared = [band() for band in self.bands]
        bodies: dict[str, Graph] = {}
        seen = dict.fromkeys(caches, 0)
        for index, kind in enumerate(self.config.dimensions.attention_types):
            # The cache of each attention type counts its own layers.
            cache_index = ops.constant(seen[kind], DType.uint32, device=DeviceRef.CPU())
            seen[kind] += 1
            w0 = band_w0(self.scheme, shared, index)
            inputs = [h, cache_index, caches[kind], row_offsets, freqs[kind], w0]
            prefix = f"layers.{index}."
            if kind not in bodies:
                bodies[kind] = self.layers[index].build_subgraph(kind, inputs, prefix)
            (out,) = ops.call(bodies[kind], *tree.leaves(inputs), prefix=prefix)
            h = out.tensor
        return h


def _layer_spec(config: WeightlessGemma3Config, kind: str) -> LayerSpec:
    assert isinstance(config.kv_params, MultiKVCacheParams)
    kv_params = config.kv_params.children[kind]
    assert isinstance(kv_params, KVCacheParams)
    return LayerSpec(
        projections=ProjectionSpec(
            scheme=config.scheme, kind=kind, dtype=config.dtype, device=config.devices[0]
        ),
        dimensions=config.dimensions,
        is_sliding=kind == SLIDING,
        kv_params=kv_params,
        sliding_window=config.sliding_window,
        rms_norm_eps=config.rms_norm_eps,
        activation=config.hidden_activation,
    )


def _rotary(config: WeightlessGemma3Config, theta: float, *, scaled: bool) -> Llama3RotaryEmbedding:
    scaling = None
    if scaled and config.rope_scaling is not None:
        # Llama's scaling with both cut-offs out of reach is linear scaling.
        scaling = Llama3RopeScalingParams(
            factor=config.rope_scaling.factor,
            low_freq_factor=1e38,
            high_freq_factor=1e38,
            orig_max_position=config.max_position_embeddings,
        )
    return Llama3RotaryEmbedding(
        dim=config.hidden_size,
        n_heads=config.num_attention_heads,
        theta=theta,
        max_seq_len=config.max_position_embeddings,
        head_dim=config.head_dim,
        interleaved=False,
        scaling_params=scaling,
    )
