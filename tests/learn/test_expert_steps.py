"""What a strategy does with experts is recorded as plain data, and done again from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import minitrain as mt
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import replayed

CASES = [
    ("moe", {"world_size": 4, "ep": 2}),
    ("moe", {"world_size": 4, "ep": 4, "zero": 1, "imbalance": (1, 2, 3, 4, 1, 1, 1, 1), "capacity_factor": 1.5}),
    ("deepseek_like", {"world_size": 4, "pp": 2, "ep": 2}),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_recorded_program_does_the_same_again(name: str, options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"workload": "tiny-moe", "global_batch_size": 16, "strict": True}
    recorder = Recorder()
    run = mt.simulate(name, observers=[recorder], **sizes, **options)
    programs = json.loads(json.dumps(recorder.programs))
    strategy: Any = replayed(programs, name)
    strategy.framework = "megatron"  # a program says what is done; prices are those of the strategy's framework
    again = mt.simulate(strategy, **sizes, world_size=options["world_size"])
    assert (again.step_time, again.peak_memory) == (run.step_time, run.peak_memory)
    if "imbalance" not in options:
        proof = mt.prove(replayed(programs, name), workload="tiny-moe", world_size=4, global_batch_size=16)
        assert proof.largest_relative <= 1e-9


def test_a_step_that_makes_no_sense_is_the_programs_error() -> None:
    programs = [[["route", 2, [0, 0], [1, 0], 2, {}]]]
    with pytest.raises(mt.StrategyError, match="step 0 of rank 0 makes no sense"):
        mt.simulate(replayed(programs, "forged"), workload="tiny-moe", world_size=1, global_batch_size=1)
