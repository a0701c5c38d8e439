"""The pipeline model: a checkpoint in, factors packed, graph compiled and bound."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from max.driver import Buffer
from max.engine import InferenceSession, Model
from max.graph.weights import WeightData
from max.pipelines.architectures.gemma3.model import Gemma3Model
from max.pipelines.lib.graph_specs import GraphRole, GraphSpec, init_graphs

from weightless_fw.core.placement import placed_weight
from weightless_fw.models.binding import BoundNetwork, LazyDense
from weightless_fw.models.gemma3.model_config import WeightlessGemma3Config
from weightless_fw.models.gemma3.weightless_gemma3 import WeightlessGemma3
from weightless_fw.models.scheme import LayerFactors, is_projection_tensor

logger = logging.getLogger("max.pipelines")

CHECKPOINT_PREFIX = "language_model."


class WeightlessGemma3Model(Gemma3Model):
    """Gemma 3 for text whose projections are (W0, s, U, V)."""

    model_config_cls: ClassVar[type[Any]] = WeightlessGemma3Config

    network: WeightlessGemma3
    bound: BoundNetwork

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
        config.read_compressed(Path(self.pipeline_config.model.model_path))
        return config

    def graph_specs(self, model_config: Any) -> dict[str, GraphSpec]:
        selection = model_config.selection
        logger.info("weightless path: %s (%s)", selection.path, selection.reason)
        self.network = WeightlessGemma3(model_config)
        dense = LazyDense(self._language_weights_dict)
        self._language_weights_dict = {}
        names = {name: name.removeprefix(CHECKPOINT_PREFIX) for name in dense}
        rest = {
            short: placed_weight(dense[name], short, self.dtype)
            for name, short in names.items()
            if not is_projection_tensor(short)
        }
        self.bound = BoundNetwork.of(
            self.network,
            rest,
            model_config.factors(dense, f"{CHECKPOINT_PREFIX}layers."),
            dtype=self.dtype,
        )
        return {GraphRole.DECODER: self._spec(self.bound.state)}

    @contextmanager
    def rebound(self, factors: tuple[LayerFactors, ...]) -> Iterator[None]:
        """Runs the same compiled graph with other factors inside the block."""
        kept = self._models
        specs = {GraphRole.DECODER: self._spec(self.bound.with_factors(factors))}
        self._models = init_graphs(self._session, self.compiled_artifacts, specs)
        try:
            yield
        finally:
            self._models = kept
            # So that nothing keeps the other factors while the model is timed.
            self.network.load_state_dict(self.bound.state, weight_alignment=1, strict=True)

    def _spec(self, state: dict[str, WeightData]) -> GraphSpec:
        """Makes ``state`` the network's weights and describes the graph over them."""
        network = self.network
        network.load_state_dict(state, weight_alignment=1, strict=True)
        extensions = []
        if network.scheme.uses_custom_ops:
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
