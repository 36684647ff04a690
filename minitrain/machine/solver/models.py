"""Models as the solver takes them: the number of parameters, and the FLOPs of an inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minitrain.errors import require_count
from minitrain.machine.solver.constants import of_ours, presets, require_quantity, ureg
from minitrain.workloads.transformer import Transformer


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model.

    Args:
        name: what it is called.
        parameters: how many, in `ureg.count`.
        inference_flops: of one inference, in `ureg.flop`; 2 a parameter if None.
        num_layers: how many layers it has; None if not known.
        hidden_size: elements of a token between layers; None if not known.
        end_parameters: those outside of the layers, in `ureg.count`; 0 if None.

    Raises:
        UsageError: a figure is no quantity > 0 in its unit.
    """

    name: str
    parameters: Any
    inference_flops: Any = None
    num_layers: int | None = None
    hidden_size: int | None = None
    end_parameters: Any = None

    def __post_init__(self) -> None:
        """Refuse figures that no time can be computed with."""
        for field, unit in (("parameters", "count"), ("inference_flops", "flop"), ("end_parameters", "count")):
            value = getattr(self, field)
            if value is not None or field == "parameters":
                found = require_quantity(f"{field} of model {self.name}", value, unit)
                object.__setattr__(self, field, found)
        for field in ("num_layers", "hidden_size"):
            if getattr(self, field) is not None:
                require_count(f"{field} of model {self.name}", getattr(self, field))

    def size_in_bytes(self, bytes_per_parameter: Any) -> Any:
        """Return the size of the weights, in `ureg.byte`."""
        return self.parameters.to(ureg.count).magnitude * of_ours("bytes_per_parameter", bytes_per_parameter)

    def layers_within(self, share: float) -> int | None:
        """Return how many layers it would have with a share of its parameters; None if its layers are not known."""
        if self.num_layers is None:
            return None
        ends = 0.0 if self.end_parameters is None else (self.end_parameters / self.parameters).to("").magnitude
        return int(max(share - ends, 0.0) / (1 - ends) * self.num_layers)

    @property
    def flops(self) -> Any:
        """The operations of one inference, in `ureg.flop`."""
        return self.inference_flops or 2 * self.parameters.to(ureg.count).magnitude * ureg.flop

    @classmethod
    def from_transformer(cls, model: Transformer) -> ModelSpec:
        """Return a view on one of minitrain's models; an inference is one token, which active experts alone compute."""
        kinds, active = model.parameters_by_kind(), model.num_active_parameters
        ends = kinds.get("embedding", 0) + kinds.get("head", 0)
        return cls(
            model.name,
            model.num_parameters * ureg.count,
            2 * active * ureg.flop,
            model.num_layers,
            model.hidden_size,
            ends * ureg.count if ends else None,
        )


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {name: ModelSpec(name, **figures) for name, figures in presets("models").items()}
)
"""The named models of the specification, with its literal numbers."""
