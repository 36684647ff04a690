"""Work that experts did not do counts nowhere: tokens that they drop leave MFU and tokens a second."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model


def run_with(capacity_factor: float | None, strategy: Any = "moe") -> mt.Run:
    options = {"ep": 4, "capacity_factor": capacity_factor}
    return mt.simulate(strategy, world_size=4, global_batch_size=8, workload="tiny-moe", options=options)


@pytest.mark.parametrize(("capacity_factor", "taken"), [(None, 1.0), (1.0, 1.0), (0.5, 0.5), (1e-9, 0.0)])
def test_what_experts_drop_is_neither_useful_nor_trained_on(capacity_factor: float | None, taken: float) -> None:
    model = mt.models()["tiny-moe"]
    whole, run = run_with(None), run_with(capacity_factor)
    of_an_expert = 3 * model.hidden_size * model.moe_ffn_hidden_size  # gate, up and down
    copies = 8 * model.seq_len * model.experts_per_token * len(model.moe_layers or range(model.num_layers))
    assert whole.useful_flop - run.useful_flop == pytest.approx(6 * of_an_expert * copies * (1 - taken), rel=1e-12)
    assert run.mfu == pytest.approx(run.useful_flop / run.step_time / 4 / (run.peak_flop_per_s or 0.0), rel=1e-12)
    assert run.tokens_per_second == pytest.approx(taken * 8 * model.seq_len / run.step_time, rel=1e-12)


@pytest.mark.parametrize("name", ["dropped_copies", "routed_copies", "recomputed_flop"])
def test_what_a_model_counts_is_for_reading(name: str) -> None:
    async def counts_anew(model: Model, ep: int, capacity_factor: float) -> Model:
        await mt.strategies()["moe"](model, ep=ep, capacity_factor=capacity_factor)
        setattr(model, name, 0)
        return model

    with pytest.raises(mt.StrategyError, match=rf"model\.{name} of rank \d is for reading"):
        run_with(0.5, counts_anew)
