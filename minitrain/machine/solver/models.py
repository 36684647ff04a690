"""Models as the solver takes them: the number of parameters, and the FLOPs of an inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from minitrain.machine.solver.constants import Q_, require_quantity, ureg
from minitrain.workloads.transformer import Transformer


@final
@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model.

    Args:
        name: what it is called.
        parameters: how many, in `ureg.count`.
        inference_flops: of one inference, in `ureg.flop`; 2 a parameter if None.

    Raises:
        UsageError: a figure is no quantity > 0 in its unit.
    """

    name: str
    parameters: Any
    inference_flops: Any = None

    def __post_init__(self) -> None:
        """Refuse figures that no time can be computed with."""
        require_quantity(f"parameters of model {self.name}", self.parameters, "count")
        if self.inference_flops is not None:
            require_quantity(f"inference_flops of model {self.name}", self.inference_flops, "flop")

    def size_in_bytes(self, bytes_per_parameter: Any) -> Any:
        """Return the size of the weights, in `ureg.byte`."""
        return self.parameters.to(ureg.count).magnitude * bytes_per_parameter

    @property
    def flops(self) -> Any:
        """The operations of one inference, in `ureg.flop`."""
        return self.inference_flops or 2 * self.parameters.to(ureg.count).magnitude * ureg.flop

    @classmethod
    def from_transformer(cls, model: Transformer) -> ModelSpec:
        """Return a view on one of minitrain's models; an inference is one token, which active experts alone compute."""
        active = model.num_active_parameters
        return cls(model.name, model.num_parameters * ureg.count, 2 * active * ureg.flop)


def _preset(name: str, parameters: float, inference_flops: float | None = None) -> ModelSpec:
    flops = None if inference_flops is None else inference_flops * ureg.flop
    return ModelSpec(name, Q_(parameters, ureg.count), flops)


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        model.name: model
        for model in (
            _preset("ResNet50", 25.6e6, 4.1e9),
            _preset("BERT", 110e6, 22e9),
            _preset("MobileNetV2", 3.5e6, 0.3e9),
            _preset("Anomaly", 270e3),
            _preset("GPT2", 1.5e9),
            _preset("Llama2-70B", 70e9),
            _preset("GPT3", 175e9),
        )
    }
)
"""The named models of the specification, with its literal numbers."""
