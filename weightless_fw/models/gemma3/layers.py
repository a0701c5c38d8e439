"""One decoder layer of Gemma 3 over weightless projections."""

from __future__ import annotations

import math
from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops
from max.nn.attention import MHAMaskVariant
from max.nn.kernels import flash_attention_ragged, rope_split_store_ragged
from max.nn.kv_cache import KVCacheParams, PagedCacheValues
from max.nn.layer import Module
from max.pipelines.architectures.gemma3.layers.rms_norm import Gemma3RMSNorm

from weightless_fw.models.gemma3.scheme import Dimensions
from weightless_fw.models.projections import (
    BandW0,
    Projections,
    ProjectionSpec,
    WeightlessMLP,
)


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What the layers of one attention type have in common."""

    projections: ProjectionSpec
    dimensions: Dimensions
    is_sliding: bool
    kv_params: KVCacheParams
    sliding_window: int
    rms_norm_eps: float
    activation: str

    @property
    def device(self) -> DeviceRef:
        return self.projections.device


class WeightlessAttention(Projections):
    """Attention as in stock Gemma 3: head norms, rotary embedding, paged cache."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec.projections, "self_attn")
        self.spec = spec
        norm_dtype = DType.float32 if spec.device.is_cpu() else DType.bfloat16
        head_dim = spec.dimensions.head_dim
        self.q_norm = Gemma3RMSNorm(head_dim, norm_dtype, spec.rms_norm_eps)
        self.k_norm = Gemma3RMSNorm(head_dim, norm_dtype, spec.rms_norm_eps)

    def __call__(
        self,
        x: TensorValue,
        layer_idx: TensorValue,
        kv: PagedCacheValues,
        row_offsets: TensorValue,
        freqs_cis: TensorValue,
        w0: BandW0,
    ) -> TensorValue:
        spec, d = self.spec, self.spec.dimensions
        q_dim, kv_dim = d.heads * d.head_dim, d.kv_heads * d.head_dim
        q, k, v = self.project(x, "self_attn.qkv_proj", w0)
        q = self.q_norm(q.reshape((-1, d.heads, d.head_dim))).reshape((-1, q_dim))
        k = self.k_norm(k.reshape((-1, d.kv_heads, d.head_dim))).reshape((-1, kv_dim))
        q = rope_split_store_ragged(
            spec.kv_params,
            ops.concat((q, k, v), axis=-1),
            row_offsets,
            freqs_cis,
            kv,
            layer_idx,
            n_heads=d.heads,
            interleaved=False,
        )
        mask = MHAMaskVariant.CAUSAL_MASK
        if spec.is_sliding:
            mask = MHAMaskVariant.SLIDING_WINDOW_CAUSAL_MASK
        out = flash_attention_ragged(
            spec.kv_params,
            input=q.reshape((-1, d.heads, d.head_dim)),
            kv_collection=kv,
            layer_idx=layer_idx,
            input_row_offsets=row_offsets,
            mask_variant=mask,
            scale=math.sqrt(1.0 / d.head_dim),
            local_window_size=spec.sliding_window,
        )
        (y,) = self.project(ops.reshape(out, [x.shape[0], q_dim]), "self_attn.o_proj", w0)
        return y


class WeightlessBlock(Module):
    """Norm, attention, norm, residual; norm, MLP, norm, residual."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        norm_dtype = DType.float32 if spec.device.is_cpu() else DType.bfloat16

        def norm() -> Gemma3RMSNorm:
            return Gemma3RMSNorm(spec.dimensions.hidden, norm_dtype, spec.rms_norm_eps)

        self.self_attn = WeightlessAttention(spec)
        self.mlp = WeightlessMLP(spec.projections, spec.activation)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()

    def __call__(
        self,
        h: TensorValue,
        layer_idx: TensorValue,
        kv: PagedCacheValues,
        row_offsets: TensorValue,
        freqs_cis: TensorValue,
        w0: BandW0,
    ) -> TensorValue:
        attention = self.self_attn(
            self.input_layernorm(h), layer_idx, kv, row_offsets, freqs_cis, w0
        )
        h = h + self.post_attention_layernorm(attention)
        mlp = self.mlp(self.pre_feedforward_layernorm(h), w0)
        return h + self.post_feedforward_layernorm(mlp)
