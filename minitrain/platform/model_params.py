"""What models need of a device: a database of parameters and FLOPs a token, as JSON or of the shipped models.

{"my-7b": {"parameters": 7e9, "flops_per_token": 14e9, "num_layers": 32, "bytes_per_parameter": 2}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware.config_files import parse, read_file
from minitrain.platform.tasks import ComputeTask
from minitrain.workloads.field_faults import closest, shown


@final
@dataclass(frozen=True, slots=True)
class ModelCharacteristics:
    """What one model needs.

    Args:
        parameters: how many it has.
        flops_per_token: floating-point operations of a token's forward pass.
        num_layers: equal layers that it consists of.
        bytes_per_parameter: of its weights in memory.
    """

    parameters: float
    flops_per_token: float
    num_layers: int = 1
    bytes_per_parameter: float = 2

    @property
    def memory_bytes(self) -> float:
        """Return what its weights take."""
        return self.parameters * self.bytes_per_parameter


@final
class ModelParams(Mapping[str, ModelCharacteristics]):
    """The database.

    Args:
        models: characteristics by name.
    """

    def __init__(self, models: Mapping[str, ModelCharacteristics]) -> None:
        self._models = dict(models)

    def __getitem__(self, name: str) -> ModelCharacteristics:
        if name not in self._models:
            raise UsageError(f"the database has no model {name!r} {closest(name, self._models)}".rstrip(), model=name)
        return self._models[name]

    def __iter__(self) -> Any:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @classmethod
    def read(cls, source: Mapping[str, Any] | str | PathLike[str] | None = None) -> ModelParams:
        """Return the database of a JSON file or of its content; that of the shipped models if None.

        Raises:
            HardwareConfigError: the file cannot be found or read.
            UsageError: a model lacks a figure, has an unknown one, or one that is no number above 0.
        """
        if isinstance(source, ModelParams):
            return source
        if source is None:
            return cls(_shipped())
        data: Any = source
        if not isinstance(source, Mapping):
            path = Path(fspath(source))
            data = parse(read_file(str(path)), path.name)
        if not isinstance(data, Mapping):
            raise UsageError(f"a database of models must be an object of models by name, found {shown(data)}")
        return cls({name: _characteristics(name, figures) for name, figures in data.items()})

    def task(self, model_id: str, num_tokens: int, precision: str, task_id: str | None = None) -> ComputeTask:
        """Return the computation that takes tokens through a model, layer by layer.

        Raises:
            UsageError: there is no such model, or `num_tokens` is no integer of at least 1.
        """
        model = self[model_id]
        if isinstance(num_tokens, bool) or not isinstance(num_tokens, int) or num_tokens < 1:
            raise UsageError(f"num_tokens must be an integer of at least 1, got {num_tokens!r}")
        flops, moved = model.flops_per_token * num_tokens, model.memory_bytes
        layer_flops, layer_bytes = flops / model.num_layers, moved / model.num_layers
        name = task_id or model_id
        layers = tuple(
            ComputeTask(f"{name}.{place}", {precision: layer_flops}, layer_bytes) for place in range(model.num_layers)
        )
        return ComputeTask(name, {precision: flops}, moved, layers=layers)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return the database as JSON holds it."""
        return {name: asdict(model) for name, model in self._models.items()}


def _characteristics(name: str, figures: Any) -> ModelCharacteristics:
    """Return one model of the database."""
    known = [field.name for field in fields(ModelCharacteristics)]
    if not isinstance(figures, Mapping):
        raise UsageError(f"model {name}: expected an object with {', '.join(known)}, found {shown(figures)}")
    for key, value in figures.items():
        if key not in known:
            raise UsageError(f"model {name}: no key {key!r} {closest(key, known)}; it may have {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"model {name}: {key} must be a number above 0, got {shown(value)}")
    missing = [key for key in known[:2] if key not in figures]
    if missing:
        raise UsageError(f"model {name}: {', '.join(missing)} missing")
    return ModelCharacteristics(**figures)


def _shipped() -> dict[str, ModelCharacteristics]:
    """Return the characteristics of the models that come with minitrain: two FLOPs a parameter that a token uses."""
    from minitrain.workloads.models import models  # noqa: PLC0415  (made when somebody asks)

    return {
        name: ModelCharacteristics(model.num_parameters, 2.0 * model.num_active_parameters, model.num_layers)
        for name, model in models().items()
    }
