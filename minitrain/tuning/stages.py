"""The stages of a pipeline, before it runs: how `megatron` cuts a model, and which of its cuts Megatron-LM lacks.

`megatron` cuts between attention and MLP too, so that no stage waits for the one that has the head. Megatron-LM has
whole layers.
"""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

from minitrain.rank.stages import stages_of
from minitrain.tuning.problem import Machine


def cut_into_stages(machine: Machine, num_stages: int, microbatch_size: int) -> tuple[range, ...]:
    """Return the layers of each stage, as `megatron` cuts them by default.

    Raises:
        UsageError: they cannot be cut so.
    """
    model: Any = SimpleNamespace(num_layers=machine.num_layers, runtime_predictor=machine.predictor, _shares=None)
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
