"""`train`: the same strategy on real processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, require_count, require_installed
from minitrain.run.parameters import split_keywords
from minitrain.training.measured import BACKENDS
from minitrain.training.program import record
from minitrain.workloads.dense_rows import DenseRows
from minitrain.workloads.transformer import Transformer

if TYPE_CHECKING:
    from minitrain.proof.arithmetic import Adam, Momentum
    from minitrain.proof.problem import Problem, TransformerProblem
    from minitrain.training.measured import MeasuredRun

DEFAULT_RANKS, DEFAULT_LAYERS = 2, 4
NUM_BYTES, PROOF_WIDTH = 256, 8
"""Widths of dense layers: a language model of bytes has a logit for each, and a proof is small."""

DATATYPES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""What weights and activations may be, and its bytes."""


Watch = Callable[[int, float], None]
"""Called after each step with its number and its loss."""


def train(
    strategy: Any,
    *,
    world_size: int | None = None,
    num_layers: int | None = None,
    global_batch_size: int = 64,
    steps: int = 20,
    backend: str = "gloo",
    workload: Any = None,
    data: Any = None,
    optimizer: Adam | Momentum | None = None,
    seed: int = 0,
    dtype: str = "float32",
    compile: bool = False,  # noqa: A002  (as torch's own)
    numerics: Problem | TransformerProblem | str | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
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
    _require_word("backend", backend, BACKENDS)
    _require_word("dtype", dtype, DATATYPES)
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
    from minitrain.training.ranks import Training, require_room, train_ranks  # noqa: PLC0415  (torch takes seconds to import)

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
    )
    num_here = int(os.environ["LOCAL_WORLD_SIZE"]) if started else world_size
    training.require_work(num_here)
    program = record(strategy, given)
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
