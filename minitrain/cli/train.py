"""The command `minitrain train`: one strategy on real processes.

The command `minitrain diff`: where the gap between two runs comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import running, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.output import Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.run.analysis.labels import duration
from minitrain.training.measured import BACKENDS, LossWarning
from minitrain.view.tables import run_table


def diff(before: Path, after: Path, *, given: Given, html: Path | None = None) -> None:
    """Attribute the gap between the step times of two saved runs, and print its parts.

    Two runs of one program are compared operation by operation: predicted and measured, two machines, before and after
    a change. The parts add up to the gap. Runs of different programs are compared by what sets their step times.

    Args:
        before (RUN): The file of a run, such as a predicted one.
        after (RUN): The file of the run whose step is longer or shorter.
        given: The shared options.
        html (PAGE): Write a page: both runs on one time axis.
    """
    options.require_file("--html", html)
    names = _short_names(before, after)
    show_gap(mt.diff(before, after, names=names), html, as_json=given.as_json)


def _short_names(first: Path, second: Path) -> tuple[str, str]:
    """Return what files are called: their stems, or else the folders in which they differ.

    >>> _short_names(Path("old/zero3/run.jsonl"), Path("new/zero3/run.jsonl"))
    ('old', 'new')
    """
    pairs = zip(reversed(first.with_suffix("").parts), reversed(second.with_suffix("").parts), strict=False)
    return next(((one, other) for one, other in pairs if one != other), (str(first), str(second)))


def show_gap(gap: mt.Gap, html: Path | None, *, as_json: bool = False) -> None:
    """Print a gap, and write its page if that is asked for."""
    if html is not None:
        gap.write_html(html)
    if as_json:
        print_json(gap.summary())
        return
    print_lines(gap.words)
    if gap.attribution:
        print_table(gap.table())
    print_lines(f"wrote {path}" for path in (html,) if path is not None)


_CURVE = "▁▂▃▄▅▆▇█"


def train(
    strategy: str,
    *,
    given: Given,
    workload: str | None = None,
    world_size: int | None = None,
    num_layers: int | None = None,
    hardware: str | None = None,
    steps: int = 20,
    data: str | None = None,
    seed: int = 0,
    dtype: str = "float32",
    compile: bool = False,
    backend: str = next(iter(BACKENDS)),
    checkpoints: Path | None = None,
    checkpoint_every: int = 10,
    keep_latest_k: int = 10,
    patience: float = 5.0,
    force: bool = False,
    against: str | None = None,
    out: Path | None = None,
    html: Path | None = None,
    contribute: Path | None = None,
) -> None:
    """Train by one strategy on real processes, and print losses and where time goes.

    Each rank is a process, which runs the same function; torch computes, torch.distributed communicates. A step is
    simulated first: laws, deadlocks and mismatches are found before a process is started. On several machines:
    torchrun --nnodes ... -m minitrain train ...

    Args:
        strategy (STRATEGY): A name, path.py or path.py:function; it may have options.
        given: The shared options.
        workload: A small transformer, such as tiny, on bytes as tokens; dense layers by default.
        world_size: Number of ranks, each a process: 2 by default, or those that torchrun has started.
        num_layers: Dense layers, 4 by default; those of --model.
        hardware (CONFIG): What predicts the step: a hardware config, or a calibration of this machine.
        steps (N): How many, with those of the checkpoint.
        data (FILE): A text to learn, byte by byte; the shipped strategies' source by default.
        seed (N): Of initial weights and samples.
        dtype (NAME): float32, float64, or bfloat16 with float32 masters.
        compile: Let torch.compile make the layers; needs a C++ compiler.
        backend (NAME): Of torch.distributed: gloo, on CPUs, or nccl, on NVIDIA GPUs, one a rank.
        checkpoints (FOLDER): Write checkpoints there, and go on from the newest.
        checkpoint_every (N): Steps from checkpoint to checkpoint.
        keep_latest_k (N): Checkpoints that are kept, the newest ones; all if 0.
        patience (S): How long a rank may do nothing between two operations.
        force: Start even if this machine has too few cores or too little free memory.
        against (RUN): Say where the gap to another run comes from: predicted, for the simulated step, or a saved run.
        out (FILE): Write the measured log, for `minitrain trace`.
        html (PAGE): Write the page of the measured step.
        contribute (FOLDER): Write program, machine, versions and measured log, for `minitrain validate --table FOLDER`.
    """
    options.require_file("--out", out)
    options.require_file("--html", html)
    given.workload, given.num_layers = workload, num_layers
    common = options.strategy_options(given)
    chosen = options.choose_strategies([strategy], common)[0]
    asked = {"num_layers": num_layers, "hardware": hardware}
    sizes = options.batch_of(given) | {name: value for name, value in asked.items() if value is not None}
    done: list[tuple[float, float]] = []  # when each step has ended, s, and its loss
    with (
        user_prints_to_stderr(given.as_json),
        options.saying_warnings(LossWarning),
        Progress() as progress,
        saying_what_is_kept(lambda: _kept(checkpoints)),
    ):

        def watch(_: int, loss: float) -> None:
            done.append((monotonic(), loss))

        def words() -> str:
            if len(done) < 2:
                return "simulating a step, and starting the ranks"
            a_step_s = (done[-1][0] - done[0][0]) / (len(done) - 1)
            left_s = a_step_s * max(steps - len(done), 0)
            return f"{len(done)} steps, loss {done[-1][1]:.4f}, {duration(a_step_s)} each, {duration(left_s)} left"

        progress.say(words)
        with running():
            run = mt.train(
                chosen,
                world_size=world_size,
                workload=workload,
                **sizes,
                seq_len=given.seq_len,
                steps=steps,
                data=data,
                seed=seed,
                dtype=dtype,
                compile=compile,
                backend=backend,
                checkpoints=checkpoints,
                checkpoint_every=checkpoint_every,
                keep_latest_k=keep_latest_k,
                patience=patience,
                force=force,
                watch=watch,
                **common,
            )
        if os.environ.get("RANK", "0") != "0":  # the first rank of torchrun speaks for all
            return
        written = _written([(run.save, out), (run.write_html, html), (run.contribute, contribute)])
    gap = None if against is None else mt.diff(_other(run, against), run, names=(against, "measured"))
    if given.as_json:
        print_json(run.summary() | ({} if gap is None else {"gap": gap.summary()}))
        return
    say(run, gap)
    print_lines(f"wrote {path}" for path in written)


def _kept(checkpoints: Path | None) -> str:
    """Return what is left of a training that was interrupted."""
    if checkpoints is None:
        return "nothing was kept; with --checkpoints FOLDER the same command would go on from the newest one"
    if not any(checkpoints.glob("step-*/minitrain.json")):
        return f"no checkpoint was whole yet in {checkpoints}"
    return f"whole checkpoints are kept in {checkpoints}; the same command goes on from the newest one"


def _written(wanted: Sequence[tuple[Callable[[Path], object], Path | None]]) -> list[Path]:
    """Write what is wanted, and return the paths."""
    found = []
    for write, path in wanted:
        if path is not None:
            write(path)
            found.append(path)
    return found


def say(run: mt.MeasuredRun, gap: mt.Gap | None) -> None:
    """Print what has been trained, where a step's time goes, and where the gap to another run comes from."""
    print_lines(
        [
            f"{run.strategy} on {run.world_size} processes ({run.backend}, {run.hardware}): "
            f"{len(run.losses)} steps, {duration(run.step_time)} each (median)",
            f"loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}  {curve(run.losses)}",
        ]
    )
    print_table(run_table(run))
    if gap is not None:
        show_gap(gap, None)


def _other(run: mt.MeasuredRun, against: str) -> mt.Run:
    """Return what a measured run is compared with."""
    return mt.load_run(against) if run.predicted is None or against != "predicted" else run.predicted


def curve(losses: Sequence[float], width: int = 40) -> str:
    """Return losses as a line of blocks, the mean of some steps each.

    >>> curve([4.0, 3.0, 2.0, 1.0, 0.5])
    '█▆▄▂▁'
    """
    size = -(-len(losses) // width)
    means = [sum(part) / len(part) for part in (losses[at : at + size] for at in range(0, len(losses), size))]
    low, high = min(means), max(means)
    if not high > low:  # also where a loss is no number
        return _CURVE[0] * len(means)
    return "".join(_CURVE[int((mean - low) / (high - low) * (len(_CURVE) - 1))] for mean in means)
