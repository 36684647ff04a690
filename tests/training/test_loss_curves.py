"""Loss over the seconds of another machine: what is measured, what is simulated, and what is said of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt
from minitrain.training.train import LossCurve, LossCurves


@pytest.mark.ci
def test_the_same_updates_are_laid_over_each_strategys_own_seconds(tmp_path: Path) -> None:
    machine: dict[str, Any] = {"world_size": 8, "workload": "gpt2", "global_batch_size": 8}
    seen: list[tuple[str, int]] = []
    found = mt.loss_curves(
        ["ddp", "local_sgd:local_steps=2,replicas=1"],
        updates=4,
        trained={"world_size": 1, "global_batch_size": 8, "num_layers": 2},
        watch=lambda name, step, _: seen.append((name, step)),
        **machine,
    )
    ddp, local = found.curves
    assert [curve.updates for curve in found.curves] == [1, 2]
    assert [len(curve.losses) for curve in found.curves] == [4, 2]
    assert [name for name, _ in seen] == ["ddp"] * 4 + ["local_sgd:local_steps=2,replicas=1"] * 2
    assert ddp.simulated.step_time == mt.simulate("ddp", **machine).step_time
    assert ddp.seconds == [ddp.simulated.step_time * step for step in (1, 2, 3, 4)]
    rounds = mt.simulate("local_sgd", **{**machine, "global_batch_size": 16}, local_steps=2, replicas=1)
    assert local.seconds[-1] == 2 * rounds.step_time
    # one replica's own steps are the usual ones: a round's loss is the mean of its two steps'
    assert local.losses[0] == pytest.approx(sum(ddp.losses[:2]) / 2, rel=0.2)
    assert "that both losses fall alike by samples is assumed" in str(found)
    assert "gpt2 on 8 x h100_80g_nvl8" in found.note
    page = found.write_html(tmp_path / "curves.html").read_text()
    assert "Loss against time" in page
    assert [len(trace.x) for trace in found.figure().data] == [4, 4, 2, 2]


def _curve(name: str, step_s: float, losses: list[float]) -> LossCurve:
    run: Any = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2)
    return LossCurve(name, [step_s * (step + 1) for step in range(len(losses))], losses, 1, run, run)


def test_who_is_there_first_is_told_by_smoothed_losses() -> None:
    slow, fast = (
        _curve("slow", 2.0, [6.0, 4.0, 3.0, 2.0, 1.0, 1.0]),
        _curve("fast", 0.5, [6.0, 5.0, 1.0, 5.0, 4.0, 4.0]),
    )
    assert slow.time_to(5.0) == 4.0
    assert fast.time_to(4.0) == 1.5  # the mean of the first three
    assert slow.time_to(0.5) is None
    rows = LossCurves([slow, fast]).rows()
    common = (6.0 + 5.0 + 1.0 + 5.0 + 4.0 + 4.0) / 6
    assert [row["common_loss"] for row in rows] == [common, common]
    assert [row["time_to_common_loss_s"] for row in rows] == [8.0, 1.5]


@pytest.mark.parametrize(
    ("strategies", "more", "message"),
    [
        ("ddp", {}, "strategies must be of type Sequence"),
        ([], {}, "strategies must be a sequence of names"),
        (["ddp"], {"updates": 0}, "updates must be an integer of at least 1"),
        (["diloco:local_steps=3"], {"updates": 4}, r"updates \(4\) must be a multiple of 3"),
    ],
)
def test_what_cannot_be_compared_is_refused(strategies: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.loss_curves(strategies, **more)
