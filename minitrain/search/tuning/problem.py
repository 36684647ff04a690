"""What is tuned: a workload on a machine, and the figures of a step on it.

The stages of a pipeline, before it runs: how `megatron` cuts a model, and which of its cuts Megatron-LM lacks.

`megatron` cuts between attention and MLP too, so that no stage waits for the one that has the head. Megatron-LM has
whole layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from types import SimpleNamespace
from typing import Any, final

from minitrain.engine.stages import stages_of
from minitrain.errors import UsageError
from minitrain.machine.measured_topology import places_of
from minitrain.machine.predictor import KernelPredictor, RuntimePredictor
from minitrain.run.energy import dollars_of, watts_of
from minitrain.run.parameters import RunParameters
from minitrain.run.saved_runs import plain
from minitrain.run.strategy_loading import Strategy, choose_strategy, framework_of
from minitrain.search.tuning.pieces import Pieces


@final
@dataclass(frozen=True)
class TuningProblem:
    """What every configuration of a search has in common, on one machine.

    Args:
        workload: what is trained, as `simulate` takes it.
        hardware: a config's name, a path, or a loaded config.
        world_size: number of ranks.
        global_batch_size: samples of a step.
        more: further parameters of `simulate`.
        stands_for: the framework that the strategy stands for, which has a part in prices.
    """

    workload: Any = field(compare=False)
    hardware: Any = field(compare=False)
    world_size: int
    global_batch_size: int
    more: Mapping[str, Any] = field(compare=False)
    stands_for: str | None = None
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        named = {"workload": self.workload, "hardware": self.hardware, **self.more}
        object.__setattr__(self, "key", json.dumps({name: plain(value) for name, value in named.items()}))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of `simulate`, without options."""
        named = {"world_size": self.world_size, "global_batch_size": self.global_batch_size, "hardware": self.hardware}
        return {**({} if self.workload is None else {"workload": self.workload}), **named, **self.more}

    def by(self, strategy: str | Strategy) -> TuningProblem:
        """Return the same problem for one strategy, by whose framework steps are priced."""
        return replace(self, stands_for=framework_of(choose_strategy(strategy).function))

    @property
    def machine(self) -> Machine:
        """What prices the problem, made once in each process."""
        return _machine_of(self)


@final
class Machine:
    """A problem with its prices.

    Args:
        problem: what is tuned.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware cannot be found or read, or is invalid.
    """

    def __init__(self, problem: TuningProblem) -> None:
        self.problem = problem
        self.parameters = RunParameters(**problem.parameters)
        predictor: Any = self.parameters.predictor(problem.stands_for)
        self.predictor = predictor
        self.workload: Any = predictor.workload
        self.num_layers: int = self.parameters.num_layers
        sheet = getattr(getattr(predictor, "system", None), "sheet", None)
        self.sheets = (sheet,)
        self.capacity_bytes: float | None = predictor.capacity_bytes
        self.useful_flop = self.workload.training_flop(problem.global_batch_size, self.num_layers)
        self._watts = watts_of(self.sheets)

    @cached_property
    def pieces(self) -> Pieces:
        """The pieces of pipelines on this machine."""
        return Pieces(self.workload, self.predictor)

    @property
    def model(self) -> Any:
        """The transformer that is trained, or None."""
        return getattr(self.workload, "model", None)

    @property
    def has_experts(self) -> bool:
        """Whether the transformer that is trained has layers with experts."""
        return bool(getattr(self.model, "moe_layers", ()))

    @property
    def node_size(self) -> int:
        """Ranks of the smallest tier of the network."""
        return int(min((tier.size for tier in self.predictor.system.networks), default=1))

    @cached_property
    def composes(self) -> bool:
        """Whether steps of `megatron` can be put together from pieces: transformers without experts, usual prices."""
        return self.is_usual and not self.has_experts

    @cached_property
    def is_usual(self) -> bool:
        """Whether it trains a transformer, and prices of passes and transfers do not depend on what else happens."""
        has_own_prices = type(self.predictor) in (RuntimePredictor, KernelPredictor)
        plainly = not (self.parameters.slowdown or self.parameters.contention or self.parameters.strict)
        return has_own_prices and plainly and self.parameters.placement is None and self.model is not None

    def is_aligned(self, size: int) -> bool:
        """Return whether blocks of so many neighbours lie alike in the network."""
        places = places_of(self.predictor.topology)
        return places is None or bool(places.lie_alike(size))

    def figures(self, step_time_s: float, busy_s: float | None = None) -> dict[str, Any]:
        """Return the figures of a step.

        Args:
            step_time_s: how long it takes, s; 0 of a strategy that does nothing but load.
            busy_s: how long ranks compute or communicate, together, s; None where that is not known.
        """
        problem, peak = self.problem, self.predictor.peak_flop_per_s
        seq_len = getattr(self.workload, "seq_len", None)
        rate = None if seq_len is None or not step_time_s else problem.global_batch_size * seq_len / step_time_s
        dollars = dollars_of(self.sheets, problem.world_size, step_time_s)
        return {
            "step_time_s": step_time_s,
            "mfu": self.useful_flop / (step_time_s * problem.world_size * peak) if peak and step_time_s else None,
            "tokens_per_second": rate,
            "tokens_per_second_per_rank": None if rate is None else rate / problem.world_size,
            "dollars": dollars,
            "tokens_per_dollar": rate * step_time_s / dollars if rate and dollars else None,
            "energy_joules": self.joules(step_time_s, busy_s),
        }

    def joules(self, step_time_s: float, busy_s: float | None) -> float | None:
        """Return what all devices draw in a step, J; None where the config does not say their power."""
        if self._watts is None or busy_s is None:
            return None
        rated, idle = (float(watts[0]) for watts in self._watts)
        return busy_s * rated + (self.problem.world_size * step_time_s - busy_s) * idle


@lru_cache(maxsize=8)
def _machine_of(problem: TuningProblem) -> Machine:
    """Return the machine of a problem, made once in a process."""
    if not isinstance(problem.global_batch_size, int):
        raise UsageError(f"global_batch_size must be an integer, got {problem.global_batch_size!r}")
    machine = Machine(problem)
    if getattr(machine.workload, "is_packed", False):
        raise UsageError(
            "tune bounds steps by samples that cost the same, and packed documents differ; compare without"
        )
    return machine


def cut_into_stages(machine: Machine, num_stages: int, microbatch_size: int) -> tuple[range, ...]:
    """Return the layers of each stage, as `megatron` cuts them by default.

    Raises:
        UsageError: they cannot be cut so.
    """
    model: Any = SimpleNamespace(num_layers=machine.num_layers, _runtime_predictor=machine.predictor, _shares=None)
    return tuple(stages_of(model, num_stages, microbatch_size))


def unequal_stages(machine: Machine, num_stages: int, microbatch_size: int) -> str:
    """Return how many transformer layers stages have, in words; nothing where all have the same whole number.

    Args:
        machine: where a transformer runs.
        num_stages: of all ranks.
        microbatch_size: samples of a microbatch.
    """
    stages = cut_into_stages(machine, num_stages, microbatch_size)
    counts = [_num_layers(stage, machine.num_layers) for stage in stages]
    if len(set(counts)) == 1 and counts[0].is_integer():
        return ""
    return ", ".join(f"{len(list(run))} of {count:g}" for count, run in groupby(counts))


def _num_layers(stage: range, num_units: int) -> float:
    """Return how many transformer layers a stage has; attention is half a one, and embedding and head are none."""
    return len(range(max(1, stage.start), min(num_units - 1, stage.stop))) / 2
