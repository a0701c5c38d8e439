"""The pipeline model: dense weights in, factors packed, graph compiled and bound."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph.weights import WeightData
from max.pipelines.architectures.gemma3.model import Gemma3Model
from max.pipelines.lib.graph_specs import GraphRole, GraphSpec, init_graphs

from weightless_fw.core.factors import Array
from weightless_fw.core.placement import host_array, placed_weight
from weightless_fw.core.select import Path
from weightless_fw.core.weightless_linear import stacked_w0
from weightless_fw.models.gemma3.layers import Projections, WeightlessBlock
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.gemma3.scheme import PROJECTIONS, LayerFactors, factorize_model
from weightless_fw.models.gemma3.weightless_gemma3 import WeightlessGemma3

logger = logging.getLogger("max.pipelines")

CHECKPOINT_PREFIX = "language_model."


class WeightlessGemma3Model(Gemma3Model):
    """Gemma 3 for text whose projections are (W0, s, U, V)."""

    model_config_cls: ClassVar[type[Any]] = WeightlessGemma3Config

    network: WeightlessGemma3
    factors: tuple[LayerFactors, ...]
    """The factors of every layer, as they are bound."""

    def load_graphs(self, session: InferenceSession) -> dict[str, Model]:
        self._session = session
        return super().load_graphs(session)

    @property
    def signal_buffers(self) -> list[Buffer]:  # type: ignore[override]
        return []

    def _create_model_config(self, state_dict: dict[str, Any]) -> WeightlessGemma3Config:
        text_config = self._hf_config_for_weights()
        config = WeightlessGemma3Config.initialize_from_config(
            self.pipeline_config, text_config, max_seq_len=self.max_seq_len
        )
        config.finalize(
            huggingface_config=text_config,
            state_dict=state_dict,
            return_logits=self.return_logits,
        )
        return config

    def graph_specs(self, model_config: Any) -> dict[str, GraphSpec]:
        selection = model_config.selection
        logger.info("weightless path: %s (%s)", selection.path, selection.reason)
        self.network = WeightlessGemma3(model_config)
        dense = {name: host_array(value) for name, value in self._language_weights_dict.items()}
        self._language_weights_dict = {}
        self.factors = factorize_model(
            dense, self.network.scheme, len(self.network.layers), f"{CHECKPOINT_PREFIX}layers."
        )
        projections = {f"{name}.weight" for name in PROJECTIONS}
        names = {name: name.removeprefix(CHECKPOINT_PREFIX) for name in dense}
        rest = {
            short: self._placed(short, dense[name])
            for name, short in names.items()
            if name.partition("layers.")[2].partition(".")[2] not in projections
        }
        # Bound weights are read where they lie, so they live as long as the model.
        self._bound = {**rest, **self._packed(self.factors)}
        return {GraphRole.DECODER: self._spec(self._bound)}

    def _dtype_of(self, name: str) -> DType:
        """Row scales stay float32, since the combine is in float32."""
        return DType.float32 if name.endswith(".scale") else self.dtype

    @contextmanager
    def rebound(self, factors: tuple[LayerFactors, ...]) -> Iterator[None]:
        """Runs the same compiled graph with other factors inside the block."""
        kept = self._models
        specs = {GraphRole.DECODER: self._spec({**self._bound, **self._packed(factors)})}
        self._models = init_graphs(self._session, self.compiled_artifacts, specs)
        try:
            yield
        finally:
            self._models = kept
            # So that nothing keeps the other factors while the model is timed.
            self.network.load_state_dict(self._bound, weight_alignment=1, strict=True)

    def _packed(self, factors: tuple[LayerFactors, ...]) -> dict[str, WeightData]:
        packed = pack(self.network, factors)
        return {name: self._placed(name, value) for name, value in packed.items()}

    def _placed(self, name: str, value: Array) -> WeightData:
        return placed_weight(value, name, self._dtype_of(name))

    def _spec(self, state: Mapping[str, WeightData]) -> GraphSpec:
        """Makes ``state`` the network's weights and describes the graph over them."""
        network = self.network
        network.load_state_dict(state, weight_alignment=1, strict=True)
        extensions = []
        if network.scheme.path is Path.CUSTOM_OP:
            # Imported here: other paths need no Mojo compiler.
            from weightless_fw.core.kernel_package import kernel_package

            extensions = [kernel_package()]
        return GraphSpec(
            network,
            f"weightless_gemma3_{network.scheme.path.name.lower()}",
            self._bind_graph_inputs(network.input_tree()),
            weights=network.state_dict(auto_initialize=False),
            custom_extensions=extensions,
        )


def pack(network: WeightlessGemma3, factors: tuple[LayerFactors, ...]) -> Mapping[str, Array]:
    """Lays the factors out under the names the graph's weights have."""
    scheme, state = network.scheme, {}
    for index, (block, layer) in enumerate(zip(network.layers, factors, strict=True)):
        assert isinstance(block, WeightlessBlock)
        for bundle, projections in scheme.bundles.items():
            half, _, name = bundle.partition(".")
            owner: Projections = getattr(block, half)
            packed = getattr(owner, name).pack([layer[p] for p in projections])
            state |= {f"layers.{index}.{bundle}.{key}": value for key, value in packed.items()}
    if scheme.binds_shared_w0:
        for band in range(scheme.banding.groups):
            first = factors[scheme.banding.layers(band)[0]]
            for bundle, projections in scheme.bundles.items():
                state[f"bands.{band}.{bundle}"] = stacked_w0([first[p] for p in projections])
    return state
