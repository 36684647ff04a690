"""Averages of weights: what they take in memory, time and checkpoints, that they are proven, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.proof.arithmetic import Averaged

TINY: dict[str, Any] = {"world_size": 2, "workload": "tiny", "global_batch_size": 4}
LOOP = f"{Path(__file__).parents[1] / 'engine' / 'own_loop.py'}:zero3_loop"


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "sharing"), [("ddp", 1), ("zero1", 2), ("fsdp", 2)])
def test_an_average_is_a_part_of_the_state_in_memory_and_in_checkpoints(strategy: str, sharing: int) -> None:
    sizes: dict[str, Any] = {"world_size": 2, "workload": "gpt2", "global_batch_size": 2}
    held, written = [], []
    for ema in (None, 0.999):
        kinds = mt.simulate(strategy, ema=ema, **sizes).memory_by_kind
        assert kinds is not None
        held.append(kinds["optimizer"])
        written.append(mt.goodput(strategy, ema=ema, days=1, **sizes).checkpoint.size_bytes)
    parameters = mt.models()["gpt2"].num_parameters  # one table for embedding and head
    assert held[1] - held[0] == pytest.approx(4 * parameters / sharing, rel=1e-3)  # shards are rounded up
    assert written[1] - written[0] == pytest.approx(4 * parameters, rel=1e-3)


def test_an_update_reads_both_and_writes_one() -> None:
    """Adam moves 4 + 2 x 12 + 2 bytes a parameter in mixed precision, and the average 12 more."""
    sizes: dict[str, Any] = {"world_size": 1, "workload": "gpt2-xl", "global_batch_size": 1}
    more = {}
    for fidelity in ("roofline", "kernels"):
        plain, averaged = (
            mt.simulate("single", ema=ema, fidelity=fidelity, **sizes).by_type["update"].seconds for ema in (None, 0.9)
        )
        more[fidelity] = averaged - plain
        if fidelity == "roofline":
            assert averaged / plain == pytest.approx(42 / 30)
    assert more["kernels"] == pytest.approx(more["roofline"], rel=0.05)  # the same bytes, at a measured rate


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("zero1", {}),
        ("fsdp", {"tp": 2}),
        ("1f1b", {"lora": 2}),
        pytest.param("moe", {"workload": "tiny-moe", "ep": 2}, marks=pytest.mark.slow),
        ("pipedream_2bw", {"num_steps": 2}),
        pytest.param("powersgd_ddp", {"num_steps": 3, "global_batch_size": 6}, marks=pytest.mark.slow),
        (LOOP, {"num_steps": 3, "global_batch_size": 6}),
    ],
)
def test_averages_are_those_of_one_device(strategy: str, options: dict[str, Any]) -> None:
    """The reference has the sum over all versions of the weights where ranks average step after step."""
    assert mt.prove(strategy, **{**TINY, "ema": 0.9, **options}).largest_relative < 1e-9


def test_an_average_that_forgets_a_step_is_disproved(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Averaged, weight: Any, grad: Any, state: Any, count: int) -> Any:
        after, moments = self.of.step(weight, grad, state[:-1], count)
        old = state[-1] if count == 2 else self.decay * state[-1] + (1 - self.decay) * after
        return after, np.stack([*moments, old])

    monkeypatch.setattr(Averaged, "step", forgets)
    with pytest.raises(mt.ProofError, match="its average of"):
        mt.prove(LOOP, num_steps=3, ema=0.9, **{**TINY, "global_batch_size": 6})


def test_a_state_that_forgets_a_step_is_refused(tmp_path: Path) -> None:
    text, kept = Path(LOOP.rpartition(":")[0]).read_text(), "weights[layer], opt_states[layer] = model.update("
    assert kept in text
    (tmp_path / "mine.py").write_text(text.replace(kept, "weights[layer], _ = model.update("))
    with pytest.raises(mt.LawError, match="same step"):
        mt.simulate(f"{tmp_path / 'mine.py'}:zero3_loop", ema=0.9, **{**TINY, "global_batch_size": 6})


@pytest.mark.parametrize("ema", [0, 1, -0.5, 1.5, "0.9", True])
def test_decays_that_are_none_are_refused(ema: Any) -> None:
    with pytest.raises(mt.UsageError, match="ema"):
        mt.simulate("ddp", ema=ema, **TINY)


def test_what_has_no_average_is_refused() -> None:
    with pytest.raises(mt.StrategyError, match=r"of whose weights there is no one average; leave ema=0\.9 out"):
        mt.simulate("diloco", **{**TINY, "ema": 0.9})
    with pytest.raises(mt.UsageError, match="ema"):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, ema=0.9)
