"""`train`: the same strategy on real processes.

Loss against wall-clock: what a strategy teaches, measured small, over the seconds that it takes, simulated large.

Strategies that mean different things (one synchronous step, DiLoCo's rounds, gradients of older weights) are compared
by their loss after some time, and not by their tokens a second. The loss of a large model cannot be had here. So a
small one is trained on real processes, and its loss by samples is laid over the time of the same samples in a
simulation. What is extrapolated is said with every curve: that the loss of both falls alike by samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, require_count, require_installed, require_number, typed, typed_methods
from minitrain.files import StrPath, write_text
from minitrain.run.parameters import split_keywords
from minitrain.run.rank_tasks import declared_by
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import choose_strategy
from minitrain.training.measured import BACKENDS, MeasuredRun
from minitrain.training.program import record
from minitrain.workloads.matmul import DenseRows
from minitrain.workloads.transformer import Transformer

if TYPE_CHECKING:
    from minitrain.proof.arithmetic import Adam, Momentum
    from minitrain.proof.problem import Problem, TransformerProblem

DEFAULT_RANKS, DEFAULT_LAYERS = 2, 4
NUM_BYTES, PROOF_WIDTH = 256, 8
"""Widths of dense layers: a language model of bytes has a logit for each, and a proof is small."""

DATATYPES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""What weights and activations may be, and its bytes."""


Watch = Callable[[int, float], None]
"""Called after each step with its number and its loss."""


@typed
def train(
    strategy: Any,
    *,
    world_size: int | None = None,
    num_layers: int | None = None,
    global_batch_size: int = 64,
    steps: int = 20,
    backend: str = "gloo",
    workload: Any = None,
    data: str | os.PathLike[str] | Iterable[str] | None = None,
    optimizer: Adam | Momentum | None = None,
    seed: int = 0,
    dtype: str = "float32",
    compile: bool = False,
    numerics: Problem | TransformerProblem | str | None = None,
    checkpoints: StrPath | None = None,
    checkpoint_every: int = 10,
    keep_latest_k: int = 10,
    patience: float = 5.0,
    force: bool = False,
    watch: Watch | None = None,
    say: Callable[[str], None] = print,
    **parameters: Any,
) -> MeasuredRun:
    """Train by a strategy on real processes, one a rank, connected by torch.distributed.

    The step is simulated first, so that laws, deadlocks and mismatches are found before a process is started. Then each
    rank must do what it did there. Weights and optimizer states carry over from step to step.

    Under torchrun, this process is one of the ranks, and every rank calls `train`.

    Args:
        strategy: as for `simulate`: the same function.
        world_size: number of ranks: 2 on this machine by default; under torchrun, those that it has started.
        num_layers: dense layers, 4 by default; those of `workload` where that is a transformer.
        global_batch_size: samples of a step, over all ranks.
        steps: how many; with `checkpoints`, how many in all.
        backend: of torch.distributed: "gloo", on CPUs, or "nccl", on NVIDIA GPUs, one for each rank.
        workload: a transformer with a vocabulary of 256 or more, such as "tiny"; dense layers by default.
        data: what is learnt, byte by byte: a file, or an iterable of texts; the shipped strategies' source by default.
        optimizer: `minitrain.proof.Adam` or `Momentum`.
        seed: of initial weights, and of which samples are drawn.
        dtype: of all numbers, "float32" or "float64"; or "bfloat16" for weights and activations, with gradients as the
            workload's precision has them, and moments and a copy of the weights in float32.
        compile: whether torch.compile makes the layers, which needs a C++ compiler, and minutes before the first step.
        numerics: train on the numbers of a proof instead, as for `simulate`.
        checkpoints: a folder for checkpoints; a run goes on from the newest there.
        checkpoint_every: after how many steps one is written; the last step's always is.
        keep_latest_k: how many checkpoints are kept, the newest ones; all if 0.
        patience: how long a rank may do nothing between two operations, s; up to four times that on a busy machine.
        force: start even if this machine has too few cores or too little free memory.
        watch: called after each step.
        say: takes lines that ranks print.
        parameters: others of `simulate`, and the strategy's own options.

    Returns:
        The measured run.

    Raises:
        UsageError: a parameter is outside its rule.
        MinitrainError: what `simulate` raises.
        TrainingError: a rank died, or did nothing for too long.
    """
    for name, value in {"steps": steps, "checkpoint_every": checkpoint_every}.items():
        require_count(name, value)
    require_count("keep_latest_k", keep_latest_k, 0)
    require_number("patience", patience, " of seconds")
    _require_word("backend", backend, BACKENDS)
    _require_word("dtype", dtype, DATATYPES)
    if optimizer is not None and not hasattr(optimizer, "num_moments"):
        raise UsageError(f"optimizer must be an Adam or a Momentum of minitrain.proof, got {optimizer!r:.80}")
    started = _ranks_of_torchrun()
    world_size = started or DEFAULT_RANKS if world_size is None else world_size
    if started and world_size != started:
        raise UsageError(
            f"torchrun has started {started} ranks, and world_size is {world_size}; leave it out, or start as many",
            world_size=world_size,
        )
    sizes = {"world_size": world_size, "global_batch_size": global_batch_size}
    if num_layers is not None or workload is None:
        sizes["num_layers"] = DEFAULT_LAYERS if num_layers is None else num_layers
    width = getattr(numerics, "width", PROOF_WIDTH) if numerics is not None else NUM_BYTES
    dense = DenseRows(width, DATATYPES[dtype])
    given = {**sizes, "workload": dense if workload is None else workload, **parameters}
    parameters_of_run, options = split_keywords(given)
    if dtype == "float32" and isinstance(workload, str | Transformer) and hasattr(parameters_of_run.workload, "model"):
        given = {"precision": "fp32", **given}  # so that what is predicted has the bytes of what is trained
        parameters_of_run, options = split_keywords(given)
    require_installed("torch", "training on real processes", "torch", "cloudpickle")
    from minitrain.training.ranks import (  # noqa: PLC0415  (torch takes seconds to import)
        Training,
        require_known,
        require_room,
        train_ranks,
    )

    training = Training(
        strategy=strategy,
        run=parameters_of_run,
        options=options,
        steps=steps,
        backend=backend,
        data=data,
        optimizer=optimizer,
        seed=seed,
        dtype=dtype,
        compiles=compile,
        numerics=numerics,
        folder=checkpoints,
        checkpoint_every=checkpoint_every,
        keep_latest_k=keep_latest_k,
    )
    num_here = int(os.environ["LOCAL_WORLD_SIZE"]) if started else world_size
    training.require_work(num_here)
    program = record(strategy, given)
    require_known({event.typ for event in program.run.events})
    if program.run.models[0]._semantics is not None:
        _require_of_local_steps(dtype, checkpoints)
    if not force:
        require_room(program, num_here, backend)
    return train_ranks(training, program, watch or (lambda *_: None), say, patience)


def _require_of_local_steps(dtype: str, checkpoints: Any) -> None:
    """Require what replicas that take steps of their own can be trained with."""
    if checkpoints is not None:
        raise UsageError(
            "checkpoints keep one state for all ranks, and replicas that take steps of their own have one each; leave "
            "checkpoints out"
        )
    if dtype == "bfloat16":
        raise UsageError(
            "replicas that take steps of their own are trained in float32 or float64: with bfloat16, each would keep "
            "its own copy of the common weight in float32; choose another dtype"
        )


def _ranks_of_torchrun() -> int:
    """Return how many ranks torchrun has started, of which this process is one; 0 where it was not."""
    is_rank = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if is_rank else 0


def _require_word(name: str, value: str, known: Any) -> None:
    """Require a word that is known."""
    if value not in known:
        raise UsageError(f"{name} must be {' or '.join(known)}, got {value!r}", **{name: value})


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of the curves: those of Okabe and Ito, which can be told apart by everybody."""

SMOOTHED = 8
"""Updates whose mean loss counts as the loss after the last of them; of longer rounds, one."""


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


@typed_methods
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

    def write_html(self, path: StrPath) -> Path:
        """Write the figure as a page of its own, and return its path."""
        return write_text(Path(path), [self.figure().to_html(include_plotlyjs=True, full_html=True)])


@typed
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
    if not strategies:
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
    declared, options = declared_by(chosen.function, chosen.options)
    each = 1 if declared is None else declared.num_steps(chosen.name, options)
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
