"""Loss against wall-clock: what a strategy teaches, measured small, over the seconds that it takes, simulated large.

Strategies that mean different things (one synchronous step, DiLoCo's rounds, gradients of older weights) are compared
by their loss after some time, and not by their tokens a second. The loss of a large model cannot be had here. So a
small one is trained on real processes, and its loss by samples is laid over the time of the same samples in a
simulation. What is extrapolated is said with every curve: that the loss of both falls alike by samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from minitrain.errors import UsageError, require_count
from minitrain.files import write_text
from minitrain.run.rank_tasks import declared_by
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import ChosenStrategy, choose_strategy
from minitrain.training.measured import MeasuredRun
from minitrain.training.train import train

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of the curves: those of Okabe and Ito, which can be told apart by everybody."""

SMOOTHED = 8
"""Updates whose mean loss counts as the loss after the last of them; of longer rounds, one."""


@final
@dataclass(frozen=True, slots=True)
class LossCurve:
    """The loss of one strategy over time.

    Args:
        name: of the strategy, with its options.
        seconds: when each step of the simulated training ends.
        losses: the mean loss of each step of the measured training.
        updates: optimizer steps of each of these, which a round has several of.
        simulated: a step, whose time is that of all.
        measured: the training.
    """

    name: str
    seconds: Sequence[float]
    losses: Sequence[float]
    updates: int
    simulated: Run = field(repr=False)
    measured: MeasuredRun = field(repr=False)

    @property
    def smoothed(self) -> list[float]:
        """The mean loss of `SMOOTHED` updates up to each step, or of as many as there are."""
        width = max(1, SMOOTHED // self.updates)
        seen = [self.losses[max(0, step + 1 - width) : step + 1] for step in range(len(self.losses))]
        return [sum(each) / len(each) for each in seen]

    def time_to(self, loss: float) -> float | None:
        """Return when the smoothed loss has fallen so far, s; None where it has not."""
        found = zip(self.seconds, self.smoothed, strict=True)
        return next((seconds for seconds, smoothed in found if smoothed <= loss), None)


@final
@dataclass(frozen=True, slots=True)
class LossCurves:
    """The loss of strategies over time, in the order in which they were given."""

    curves: Sequence[LossCurve]

    @property
    def note(self) -> str:
        """What is extrapolated."""
        one = self.curves[0]
        runs = one.measured, one.simulated
        small, large = (run.workload if run.trained_model is None else run.trained_model.name for run in runs)
        machine = f"{one.simulated.world_size} x {one.simulated.hardware}"
        return (
            f"seconds are simulated ({large} on {machine}), losses measured "
            f"({small} on {one.measured.world_size} real processes): that both losses fall alike by samples is assumed"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each strategy: its step, its last loss, and when it had the worst last loss of all."""
        common = max(curve.smoothed[-1] for curve in self.curves)
        return [
            {
                "strategy": curve.name,
                "updates_per_step": curve.updates,
                "step_time_s": curve.simulated.step_time,
                "time_s": curve.seconds[-1],
                "loss": curve.smoothed[-1],
                "common_loss": common,
                "time_to_common_loss_s": curve.time_to(common),
            }
            for curve in self.curves
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(row["strategy"]) for row in rows)
        lines = []
        for row in rows:
            found = row["time_to_common_loss_s"]
            until = "" if found is None else f"; {row['common_loss']:.3f} after {found:.4g} s"
            lines.append(f"{row['strategy']:{width}}  {row['loss']:.3f} after {row['time_s']:.4g} s{until}")
        return "\n".join([*lines, self.note])

    def figure(self) -> Any:
        """Return the curves as a Plotly figure."""
        import plotly.graph_objects as go  # type: ignore[import-untyped]  # noqa: PLC0415  (only when somebody looks)

        drawn = go.Figure()
        for number, curve in enumerate(self.curves):
            colour, seconds = COLOURS[number % len(COLOURS)], list(curve.seconds)
            each = {"x": seconds, "legendgroup": curve.name, "mode": "lines"}
            faint = {"color": colour, "width": 1}
            drawn.add_scatter(y=list(curve.losses), opacity=0.25, showlegend=False, line=faint, **each)
            drawn.add_scatter(y=curve.smoothed, name=curve.name, line={"color": colour}, **each)
        drawn.update_layout(
            template="plotly_white",
            title={"text": "Loss against time", "subtitle": {"text": self.note, "font": {"size": 11}}},
            xaxis={"title": "seconds of training, simulated", "type": "log"},
            yaxis={"title": "loss, nats, measured"},
            legend={"orientation": "h", "y": -0.25},
        )
        return drawn

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure as a page of its own, and return its path."""
        return write_text(Path(path), [self.figure().to_html(include_plotlyjs=True, full_html=True)])


def loss_curves(
    strategies: Sequence[str],
    *,
    updates: int = 64,
    trained: Mapping[str, Any] | None = None,
    watch: Callable[[str, int, float], None] | None = None,
    **simulated: Any,
) -> LossCurves:
    """Train each strategy small on real processes, simulate it large, and lay its loss over time.

    `global_batch_size`, here and there, is of one optimizer step: a strategy that declares rounds of several takes that
    many times as much a step, so that all see the same samples by the same number of updates.

    Args:
        strategies: names, with options as `name:option=value,option=value`.
        updates: optimizer steps of each training.
        trained: parameters of `mt.train`, such as `workload` and `world_size`.
        watch: called after each step with the strategy, the number of the step, and its loss.
        simulated: parameters of `mt.simulate`.

    Returns:
        The curves.

    Raises:
        UsageError: a parameter is outside its rule, or a round has more updates than are to be taken.
        MinitrainError: what `simulate` and `train` raise.
    """
    require_count("updates", updates)
    if not strategies or isinstance(strategies, str):
        example = '["ddp", "diloco:local_steps=8"]'
        raise UsageError(f"strategies must be a sequence of names, such as {example}, got {strategies!r:.80}")
    return LossCurves([_curve(name, updates, dict(trained or {}), simulated, watch) for name in strategies])


def _curve(
    name: str,
    updates: int,
    trained: Mapping[str, Any],
    simulated: Mapping[str, Any],
    watch: Callable[[str, int, float], None] | None,
) -> LossCurve:
    """Return the curve of one strategy."""
    chosen = choose_strategy(name)
    each = _updates_of(chosen)
    if updates % each:
        raise UsageError(f"updates ({updates}) must be a multiple of {each}, those of a round of {name}; add some")
    run = simulate(chosen.function, **chosen.options, **_with_batch(simulated, each))
    note = (lambda step, loss: watch(name, step, loss)) if watch is not None else None
    measured = train(chosen.function, steps=updates // each, watch=note, **chosen.options, **_with_batch(trained, each))
    seconds = [run.step_time * (step + 1) for step in range(len(measured.losses))]
    return LossCurve(chosen.label, seconds, list(measured.losses), each, run, measured)


def _with_batch(given: Mapping[str, Any], updates: int) -> dict[str, Any]:
    """Return parameters with the samples of so many updates."""
    return {**given, "global_batch_size": given.get("global_batch_size", 64) * updates}


def _updates_of(chosen: ChosenStrategy) -> int:
    """Return how many optimizer steps a step of a strategy has, by what it declares."""
    declared, options = declared_by(chosen.function, chosen.options)
    return 1 if declared is None else declared.num_steps(chosen.name, options)
