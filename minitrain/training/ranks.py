"""The ranks of a training run: what each does, started here or by torchrun."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.errors import UsageError
from minitrain.operations.collectives import COLLECTIVES
from minitrain.proof.arithmetic import Adam, Momentum
from minitrain.proof.layers import problem_of
from minitrain.proof.problem import TransformerProblem
from minitrain.run.analysis.labels import GIB
from minitrain.run.parameters import RunParameters
from minitrain.run.strategy_loading import choose_strategy
from minitrain.training.checkpoints import Checkpoints
from minitrain.training.devices import WITHOUT_TAGS, require_gpu_memory, require_gpus
from minitrain.training.launcher import launch, meeting_place, watch_itself
from minitrain.training.layers import Datatypes, Net
from minitrain.training.measured import BACKENDS, LossWarning, MeasuredRun, measured_run
from minitrain.training.nets import DenseBytes, DenseProof, read_text
from minitrain.training.program import Program
from minitrain.training.transformer import TransformerNet
from minitrain.training.wire import is_known
from minitrain.training.worker import Doing, Task, Times, train_rank
from minitrain.workloads.matmul import DenseRows
from minitrain.workloads.transformer_workload import TransformerWorkload

TIMEOUT_S = 60.0
"""How long a rank waits for the others at most, s; whoever hangs is found sooner."""

MOST_RANKS_A_CORE = 8
PROCESS_BYTES = 2**28
"""What a process takes for itself that has imported torch and met others, bytes: 0.19 GiB measured, and some room."""

Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class Training:
    """What is trained, and how; see `minitrain.training.train.train`."""

    strategy: Any
    run: RunParameters
    options: Mapping[str, Any]
    steps: int
    backend: str
    data: Any
    optimizer: Adam | Momentum | None
    seed: int
    dtype: str
    numerics: Any
    folder: Any
    checkpoint_every: int
    compiles: bool = False
    keep_latest_k: int = 10

    @cached_property
    def net(self) -> Callable[..., Net]:
        """What makes that which is trained, on a device, in each process."""
        workload, dtypes = self.run.workload, self._dtypes
        if isinstance(workload, TransformerWorkload):
            if self.numerics is not None:
                problem: Any = problem_of(self.numerics, workload)
                return partial(TransformerNet, problem, None, dtypes, compiles=self.compiles)
            optimizer = self.optimizer or Adam(rate=2e-3)
            sizes = workload.model, workload.seq_len
            own = TransformerProblem(*sizes, self.seed, optimizer, most_parameters=None)
            return partial(TransformerNet, own, read_text(self.data), dtypes, compiles=self.compiles)
        if not isinstance(workload, DenseRows):
            raise UsageError(f"real processes train dense layers and transformers, got {workload!r:.80}")
        if self.numerics is not None:
            dense: Any = problem_of(self.numerics)
            return partial(DenseProof, self.run.num_layers, dense, dtypes, compiles=self.compiles)
        text = read_text(self.data)
        return partial(
            DenseBytes,
            self.run.num_layers,
            text,
            self.run.workload.width,
            seed=self.seed,
            optimizer=self.optimizer,
            dtypes=dtypes,
            compiles=self.compiles,
        )

    @property
    def _dtypes(self) -> Datatypes:
        """The datatypes of what is held and sent.

        Raises:
            UsageError: the workload's precision is another one.
        """
        dtype = getattr(torch, self.dtype)
        if dtype != torch.bfloat16:
            return Datatypes(dtype, dtype, dtype)
        if not isinstance(self.run.workload, TransformerWorkload):
            return Datatypes(dtype, dtype, torch.float32)
        precision = self.run.workload.model.precision
        of_gradients = {0: dtype, 2: dtype, 4: torch.float32}.get(precision.gradient_bytes)
        is_mixed = (precision.parameter_bytes, precision.activation_bytes, precision.weight_datatype) == (2, 2, None)
        if not is_mixed or of_gradients is None or precision.name == "fp16":
            raise UsageError(
                f"dtype='bfloat16' trains what is of precision bf16: parameters and activations of 2 bytes, gradients "
                f'of 2 or 4; {self.run.workload.model.name} has {precision}; give precision="bf16", or another dtype',
                dtype=self.dtype,
            )
        return Datatypes(dtype, of_gradients, torch.float32)

    @cached_property
    def versions(self) -> dict[str, str]:
        """What all ranks must have the same of, beside the program."""
        function = choose_strategy(self.strategy).function
        paths = sorted(Path(__file__).parents[1].rglob("*.py"))
        with suppress(TypeError):  # it was made without a file
            paths.append(Path(inspect.getfile(function)))
        code = hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.is_file())).hexdigest()
        python = platform.python_version()
        return {"code": code[:12], "minitrain": version("minitrain"), "torch": torch.__version__, "Python": python}

    @cached_property
    def checkpoints(self) -> Checkpoints | None:
        """Where the state is kept, and what a run must have in common with the one that it goes on from."""
        if self.folder is None:
            return None
        trained = self.run.workload.name
        facts = {
            "trained": trained,
            "layers": self.run.num_layers,
            "batch": self.run.global_batch_size,
            "optimizer": repr(self.optimizer),
            "seed": self.seed,
            "dtype": self.dtype,
        }
        return Checkpoints(Path(self.folder), self.checkpoint_every, facts, self.keep_latest_k)

    def require_work(self, num_here: int) -> None:
        """Require that it is known what is trained and where, and that a run that goes on has something to do.

        Args:
            num_here: how many ranks are on this machine.

        Raises:
            UsageError: it is not, there are no GPUs for it, it has not, or the checkpoint is of another run.
        """
        if self.backend == "nccl":
            require_gpus(num_here)
        _ = self.net  # refuses what it does not know
        if self.compiles:
            require_compiler()
        if self.checkpoints:
            self.checkpoints.require_writable()
        found = self.checkpoints and self.checkpoints.newest()
        if found and found[0] >= self.steps:
            message = f"the checkpoint {found[1]} has {found[0]} steps already; ask for more in all, got {self.steps}"
            raise UsageError(message, steps=self.steps)

    def task(self, program: Program, rank: int, meeting: str | None) -> Task:
        """Return what one rank does."""
        return Task(
            rank=rank,
            program=program.ranks[rank],
            groups=program.groups,
            lanes=program.lanes if self.backend in WITHOUT_TAGS else (),
            world_size=self.run.world_size,
            num_layers=self.run.num_layers,
            global_batch_size=self.run.global_batch_size,
            strategy=choose_strategy(self.strategy).function,
            options=choose_strategy(self.strategy).options_with(self.options),
            net=self.net,
            device="cpu" if self.backend == "gloo" else f"cuda:{os.environ.get('LOCAL_RANK', rank)}",
            steps=self.steps,
            backend=BACKENDS[self.backend],
            meeting=meeting,
            timeout_s=TIMEOUT_S * (10 if self.compiles else 1),  # others may still compile
            threads=1,
            checkpoints=self.checkpoints,
            predictor=program.run.prepared.predictor_of(rank),
            versions={"program": program.digest[:12], **self.versions},
            semantics=program.run.models[0]._semantics,
        )


def require_compiler() -> None:
    """Require what torch.compile needs on a CPU.

    Raises:
        UsageError: it is not installed.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415  (only where layers are compiled)

    try:
        get_cpp_compiler()
    except Exception as error:
        raise UsageError(
            "compile=True (--compile) needs a C++ compiler such as g++, which torch.compile does not find here; "
            "install one, or name it in CXX"
        ) from error


def require_known(ops: Iterable[str]) -> None:
    """Require that real processes can do the operations of a step.

    Raises:
        UsageError: there is a collective among them that has no method in `Started`, nor that of all ranks.
    """
    for op in COLLECTIVES.keys() & ops:
        record = COLLECTIVES[op]
        if record.gives != "exchange" and not (is_known(op) or is_known(record.to_root)):
            raise UsageError(f"real processes have no {op}; leave it out, or simulate the step", op=op)


def require_room(program: Program, num_here: int, backend: str) -> None:
    """Require that this machine is not too small for the ranks that it is to run.

    Args:
        program: what the ranks do.
        num_here: how many are on this machine.
        backend: on whose kind of device they compute.

    Raises:
        UsageError: there are too many for its cores, or it has too little memory that is free.
    """
    first = int(os.environ.get("RANK", "0")) - int(os.environ.get("LOCAL_RANK", "0"))
    peaks = [
        each * program.run.bytes_per_element for each in program.run.peak_memory_per_rank[first : first + num_here]
    ]
    if backend == "nccl":
        require_gpu_memory(peaks)
        return
    cores = os.cpu_count() or 1
    if num_here > MOST_RANKS_A_CORE * cores:
        raise UsageError(
            f"{num_here} processes are too many for the {cores} cores here, on which {MOST_RANKS_A_CORE * cores} make "
            "sense; use fewer ranks, or force=True (--force)",
            world_size=num_here,
        )
    needed = sum(peaks) + num_here * PROCESS_BYTES
    free = free_bytes()
    if free is not None and needed > free:
        message = (
            f"{num_here} processes need {needed / GIB:.2f} GiB ({max(peaks) / GIB:.2f} "
            f"GiB of tensors on the largest, as simulated, and {PROCESS_BYTES / GIB:.2f} GiB each for torch), and "
            f"{free / GIB:.2f} GiB of memory are free; use a smaller model or fewer ranks, or force=True (--force)"
        )
        raise UsageError(message, needed_bytes=needed, free_bytes=free)


def free_bytes() -> int | None:
    """Return how much memory processes may still take here, bytes: the machine's, or what a container leaves."""
    found = []
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        most, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        found.append(max(int(most) - int(used), 0))
    return min(found, default=None)


def train_ranks(
    training: Training, program: Program, watch: Watch, say: Callable[[str], None], patience_s: float
) -> MeasuredRun:
    """Take the steps, and return what was measured.

    Args:
        training: what is trained.
        program: what the ranks do.
        watch: called after each step.
        say: takes lines that ranks print.
        patience_s: how long a rank may do nothing between two operations, s.
    """
    losses: list[float] = []

    def on_message(rank: int, message: tuple[Any, ...]) -> None:
        kind, *what = message
        if kind == "step" and rank == 0:
            if not math.isfinite(what[1]) and all(map(math.isfinite, losses)):
                warnings.warn(
                    f"the loss of step {what[0]} is {what[1]}, and what is trained from there on is of no use; take "
                    "smaller steps (optimizer=), or look for what the strategy sums or scales wrongly",
                    LossWarning,
                    stacklevel=2,
                )
            losses.append(what[1])
            watch(*what)
        elif kind == "end":
            times[rank] = what[0]

    times: dict[int, Times] = {}
    world_size = training.run.world_size
    if "RANK" in os.environ:
        rank = int(os.environ["RANK"])
        task, doing = training.task(program, rank, None), Doing()
        ended = watch_itself(task.program, world_size, doing, patience_s)
        mine = train_rank(task, partial(on_message, 0), doing)
        found: list[Any] = [None] * world_size
        dist.all_gather_object(found, mine)
        ended.set()
        dist.destroy_process_group()
        times = dict(enumerate(found))
    else:
        with meeting_place() as meeting:
            launch([training.task(program, rank, meeting) for rank in range(world_size)], on_message, say, patience_s)
    machine = (
        torch.cuda.get_device_name() if training.backend == "nccl" else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    taken = [times[rank] for rank in range(world_size)]
    return measured_run(program, taken, losses, training.backend, machine, training.versions)
