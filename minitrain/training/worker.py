"""What the process of one rank does: it joins the others, takes the steps, and reports to whoever started it.

`minitrain.training.launcher` starts a process that forks those of all ranks, and tells each what to do through a pipe;
or torchrun starts them. A process ends when its pipe does, so that nothing is left over when the launcher is killed.
"""

from __future__ import annotations

import _thread
import asyncio
import datetime
import os
import platform
import signal
import sys
import threading
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from minitrain.engine.model import Model, watched
from minitrain.engine.semantics import LocalSteps
from minitrain.errors import StrategyError, UsageError
from minitrain.operations import STRIDE
from minitrain.run.worker_processes import die_with
from minitrain.tensors.index_sets import grouped
from minitrain.training.checkpoints import Checkpoints
from minitrain.training.contents import Flat, key_of
from minitrain.training.devices import place_of, process_bytes
from minitrain.training.divided import arithmetic_of
from minitrain.training.layers import Arithmetic, Carried, Net, num_states
from minitrain.training.program import Lane, RankProgram, Turns
from minitrain.training.wire import PendingNumbers, ProcessExecutor, ProcessTransport

KEPT_STEPS = 50
"""Of how many of the last steps the times of single operations are kept."""

IDLE_S = 60.0
"""How long the process that ranks are forked from waits for the next run."""

_LOOK_S = 1.0  # how often it looks whether whoever launches still lives, beside its pipe


@dataclass(frozen=True, slots=True)
class Task:
    """What one rank does.

    Args:
        rank: which.
        program: its operations, as they were simulated.
        groups: the groups of all ranks, in one order.
        lanes: likewise of messages, of a backend whose messages have no tags.
        world_size: number of ranks.
        num_layers: layers.
        global_batch_size: samples of a step.
        strategy: the function, or how it is named.
        options: its options.
        net: makes what is trained, on a device.
        device: where the rank computes, such as "cpu" or "cuda:0".
        steps: how many steps to end with.
        backend: of torch.distributed.
        meeting: the store where the ranks meet, "host:port"; None for that of torchrun.
        timeout_s: how long a rank waits for the others at most, s.
        threads: that a rank computes with.
        checkpoints: where the state is kept, or None.
        predictor: what prices the operations, as in the simulation: a strategy may ask for shares of layers by it.
        versions: of program, code and packages, of which each rank must have the same.
        semantics: what the strategy declares that it means to compute; None for a synchronous step.
    """

    rank: int
    program: RankProgram
    groups: Sequence[tuple[int, ...]]
    lanes: Sequence[Lane]
    world_size: int
    num_layers: int
    global_batch_size: int
    strategy: Any
    options: Mapping[str, Any]
    net: Callable[..., Net]
    device: str
    steps: int
    backend: str
    meeting: str | None
    timeout_s: float
    threads: int
    checkpoints: Checkpoints | None
    predictor: Any
    versions: Mapping[str, str]
    semantics: LocalSteps | None = None


@dataclass(slots=True)
class Doing:
    """What a rank is about, for whoever asks from another thread.

    Attributes:
        model: of the step under way, or None.
        step: number of that step.
        executor: of the rank.
    """

    model: Model | None = None
    step: int = -1
    executor: ProcessExecutor | None = None

    def answer(self) -> tuple[int, int, bool]:
        """Return step and operation, and whether the rank is between operations: in code of the strategy's own."""
        model = self.model
        if model is None or self.executor is None:
            return self.step, -1, False
        return self.step, len(model._rows) // STRIDE, not self.executor.is_busy


@dataclass(slots=True)
class Times:
    """When a rank did what, s on its machine's monotonic clock.

    Attributes:
        first: number of the first step.
        moments: of each step, when it began, when its weights were loaded, and when its last operation ended.
        spans: of the last steps, begin and end of each operation in program order, by number of the step.
        most_bytes: the most memory that the tensors of a step have taken.
        by_kind: of which kinds that was.
        process_bytes: the most that the process has taken, torch included.
        behind_s: by how much its clock is behind that of rank 0, s.
    """

    first: int
    moments: list[tuple[float, float, float]] = field(default_factory=list)
    spans: dict[int, array[float]] = field(default_factory=dict)
    most_bytes: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    process_bytes: int = 0
    behind_s: float = 0.0

    def add(self, began: float, spans: array[float], num_loads: int) -> None:
        """Take note of a step."""
        step = self.first + len(self.moments)
        self.moments.append((began, spans[2 * num_loads - 1] if num_loads else began, max(spans[1::2])))
        self.spans[step] = spans
        self.spans.pop(step - KEPT_STEPS, None)


def train_rank(task: Task, report: Callable[[tuple[Any, ...]], None], doing: Doing) -> Times:
    """Take the steps of one rank.

    Args:
        task: what to do.
        report: takes ("step", step, loss) after each step, and ("warning", text).
        doing: is kept up to date.

    Returns:
        When the rank did what.
    """
    torch.set_num_threads(task.threads)
    wait = datetime.timedelta(seconds=task.timeout_s)
    store: Any = None
    if task.meeting is not None:
        host, _, port = task.meeting.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=wait)  # type: ignore[attr-defined]  # documented
    place = place_of(task.device)
    dist.init_process_group(task.backend, store=store, rank=task.rank, world_size=task.world_size, timeout=wait)
    require_one_program(task)
    report(("joined",))
    everybody = tuple(range(task.world_size))
    groups = {members: dist.new_group(list(members), timeout=wait) for members in task.groups} | {everybody: None}
    lanes = {lane: dist.new_group([lane[0], lane[1]], timeout=wait) for lane in task.lanes}
    if task.lanes or place.device.type == "cuda":
        meet(task.rank, groups, lanes, place.device)
    net = task.net(device=place.device)
    before = 0
    arithmetic = arithmetic_of(net, task.global_batch_size)
    executor = doing.executor = ProcessExecutor(task.program, arithmetic, groups, place, lanes or None)
    make_model = watched(Model, executor)
    turns = Turns(task.program) if task.program.has_tasks else None
    transport: Any = ProcessTransport(task.program, task.world_size)
    carried: Carried
    carried, first = ({}, 0) if task.checkpoints is None else task.checkpoints.latest(task.program, net)
    num_loads = task.program.num_loads
    times = Times(first, behind_s=seconds_behind(task.rank, task.world_size))
    with asyncio.Runner() as runner:
        run = runner.get_loop().run_until_complete  # `runner.run` looks at signals each time
        for step in range(first, task.steps):
            arithmetic.begin(step, carried)
            sizes = task.num_layers, task.global_batch_size
            model = make_model(task.rank, transport, *sizes, runtime_predictor=task.predictor, observer=turns)
            model._semantics = task.semantics
            doing.step, doing.model = step, model
            executor.count = None
            if step == min(first + 1, task.steps - 1):  # the first step warms up
                executor.count = place.counting()
                before = executor.count() - bytes_of(carried, place.device)
            carried = {}  # the arithmetic has it until it is loaded
            began = place.begin()
            run(_step(task, model))
            doing.model = None
            times.add(began, executor.end_step(model), num_loads)
            carried = _handed_on(model, arithmetic)
            loss = torch.as_tensor(arithmetic.loss_value, dtype=torch.float64, device="cpu")
            dist.all_reduce(loss)
            report(("step", step, loss.item()))
            if task.checkpoints is not None and task.checkpoints.is_due(step + 1, task.steps):
                task.checkpoints.save(step + 1, carried, task.rank)
    times.most_bytes, times.process_bytes = max(executor.most_held - before, 0), process_bytes()
    in_stores = sum(executor.at_peak.values())
    times.by_kind = {**executor.at_peak, "buffers": max(times.most_bytes - in_stores, 0)}
    return times


def meet(rank: int, groups: Mapping[Any, Any], lanes: Mapping[Lane, Any], device: torch.device) -> None:
    """Let the members of each group, and the ends of each lane, meet once, in one order for all ranks.

    The first call of nccl waits for all members: in a step, in which ranks may begin in any order, each could wait for
    another one.
    """
    nothing = torch.zeros(1, device=device)
    for members, group in groups.items():
        if rank in members and len(members) > 1:
            dist.all_reduce(nothing, group=group)
    for (source, dest, _), group in lanes.items():
        if rank == source:
            dist.send(nothing, dest, group=group)
        elif rank == dest:
            dist.recv(nothing, source, group=group)


def bytes_of(carried: Carried, device: torch.device) -> int:
    """Return the bytes of what a step begins with on a device."""
    found = (content.values for contents in carried.values() for content in contents)
    return sum(values.nbytes for values in found if values.device == device)


def _handed_on(model: Model, arithmetic: Arithmetic) -> Carried:
    """Return what the next step begins with: the weights that were handed in, and their optimizer states."""
    final: Any = (*model.final_weights.values(), *model.final_experts.values())
    locals_: Any = model.final_locals
    arithmetic.locals = {layer: weight._content for layer, weight in locals_.items()}
    found = {}
    for weight in final:
        content, key = weight._content, key_of(weight)
        state = arithmetic.states.get(key)
        if state is None:  # another rank updates it, and has its state
            state = Flat(content.values.new_empty(num_states(arithmetic.net), 0), [], content.regions)
        found[key] = content, state
    return found


async def _step(task: Task, model: Model) -> None:
    """Run the strategy on the rank for a step."""
    result = await task.strategy(model, **task.options)
    if result is not model:
        message = f"the strategy must return the model of its rank, got {result!r:.80}; end it with `return model`"
        raise StrategyError(message, rank=model._rank)


def require_one_program(task: Task) -> None:
    """Require that all ranks have the same program, as they must where each has simulated it by itself.

    Raises:
        UsageError: they have not.
    """
    found: list[Any] = [None] * task.world_size
    dist.all_gather_object(found, dict(task.versions))
    differ = []
    for name in task.versions:
        ranks = grouped((each.get(name), rank) for rank, each in enumerate(found))
        if len(ranks) > 1:
            differ.append(f"{name} {', '.join(f'{value} on ranks {who}' for value, who in ranks.items())}")
    if differ:
        raise UsageError(
            f"all ranks must run the same strategy with the same parameters and versions; got {'; '.join(differ)}; "
            "install and copy the same on every node"
        )


def seconds_behind(rank: int, world_size: int, rounds: int = 8) -> float:
    """Return by how much this rank's clock is behind that of rank 0, s; all ranks call it.

    Processes of one machine have one clock. Of several messages there and back, the quickest is taken: its middle is
    when the other clock was read (Cristian 1989, "Probabilistic clock synchronization").
    """
    machines: list[Any] = [None] * world_size
    dist.all_gather_object(machines, platform.node())
    if len(set(machines)) == 1:
        return 0.0
    best = (float("inf"), 0.0)
    clock = torch.zeros(1, dtype=torch.float64)
    for other in range(1, world_size):
        for _ in range(rounds):
            if rank == 0:
                dist.recv(clock, other)
                clock[0] = perf_counter()
                dist.send(clock, other)
            elif rank == other:
                asked = perf_counter()
                dist.send(clock, 0)
                dist.recv(clock, 0)
                answered = perf_counter()
                best = min(best, (answered - asked, clock.item() - (asked + answered) / 2))
    dist.barrier()
    return best[1]


class Pipe:
    """The pipe to the launcher, and the thread that listens to it.

    Args:
        connection: this end.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.doing = Doing()

    def report(self, message: tuple[Any, ...]) -> None:
        """Tell the launcher something."""
        with self._lock:
            self._connection.send(message)

    def receive(self) -> Any:
        """Return what the launcher says."""
        return self._connection.recv()

    def listen(self) -> None:
        """Answer what the rank is doing, until the pipe ends; then end the process."""
        try:
            while True:
                self._connection.recv()
                self.report(("doing", *self.doing.answer()))
        except (EOFError, OSError):
            os._exit(1)


def fork_launches(descriptor: int, user: int) -> None:
    """Fork, from this process that has imported what ranks need, the parent of ranks whenever the launcher asks.

    Args:
        descriptor: of a pipe, from which come descriptors: for what the parent tells, and of each rank for its reports
            and what it prints.
        user: process that launches.
    """
    pipe, idle_s, us = Connection(descriptor), 0.0, os.getpid()
    with suppress(EOFError, OSError):
        while os.getppid() == user and (_has_children() or idle_s < IDLE_S):
            idle_s += _LOOK_S
            if pipe.poll(_LOOK_S):
                idle_s = 0.0
                num_descriptors, environment, folder = pipe.recv()
                tell, *given = (recv_handle(pipe) for _ in range(num_descriptors))
                if not os.fork():
                    pipe.close()
                    die_with(us)
                    os.environ.clear()
                    os.environ.update(environment)
                    os.chdir(folder)
                    _fork_ranks(Connection(tell, readable=False), list(zip(given[::2], given[1::2], strict=True)))
                    os._exit(0)
                for passed_on in (tell, *given):
                    os.close(passed_on)


def _has_children() -> bool:
    """Return whether any child runs, and forget those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _fork_ranks(news: Connection, ranks: Sequence[tuple[int, int]]) -> None:
    """Fork the processes of all ranks, and tell how each ends.

    Args:
        news: takes this process's id, and then place and status of ranks that have ended or are stopped.
        ranks: of each rank, file descriptors of its pipe and of what it prints.
    """
    us = os.getpid()
    places: dict[int, int] = {}
    for place, (pipe, printed) in enumerate(ranks):
        if not (pid := os.fork()):
            die_with(us)
            os.setsid()  # to which all that it starts belongs
            news.close()
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            for number in (number for pair in ranks[place:] for number in pair if number != pipe):
                os.close(number)
            main(Connection(pipe))
        places[pid] = place
        os.close(pipe)
        os.close(printed)
    pids, left = [*places], {*places}
    signal.signal(signal.SIGTERM, _stop)
    with suppress(_StoppedError):
        with suppress(OSError):  # nobody listens any more
            news.send(us)
            while left:
                pid, status = os.waitpid(-1, os.WUNTRACED)
                if not os.WIFSTOPPED(status):
                    left.discard(pid)
                news.send((places[pid], status))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending by itself
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # of its session nothing is left
            os.killpg(pid, signal.SIGKILL)
    for pid in left:
        os.waitpid(pid, 0)


class _StoppedError(BaseException):
    """The ranks are to end."""


def _stop(*_: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _StoppedError


def main(connection: Connection) -> NoReturn:
    """Do what the launcher says, report, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends all ranks
    pipe = Pipe(connection)
    status = 0
    try:
        task = load(pipe.receive())
        _thread.start_new_thread(pipe.listen, ())  # without waiting for its begin, which may lack memory
        times = train_rank(task, pipe.report, pipe.doing)
        pipe.report(("end", times))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        status = 1
        pipe.report(("failed", pipe.doing.step, *told(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of gloo may wait for ranks that have failed


def told(error: BaseException) -> tuple[bool, bytes | None, str]:
    """Return whether an error may only follow from another rank's, the error as it can be sent, and its trace."""
    import pickle  # noqa: PLC0415  (only where something failed)

    ours, frames = Path(__file__).parents[1], traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    is_of_torch = Path(dist.__file__).parent in Path(last.filename).parents or last.name == PendingNumbers.wait.__name__
    follows = isinstance(error, RuntimeError) and is_of_torch
    place = [
        frame for frame in frames if ours not in Path(frame.filename).parents and not frame.filename.startswith("<")
    ]
    if place and isinstance(error, Exception):
        error.add_note(f"at {place[-1].filename}:{place[-1].lineno}, in {place[-1].name}")
    try:
        sent: bytes | None = pickle.dumps(error)
        pickle.loads(sent)  # type: ignore[arg-type]
    except Exception:
        sent = None
    return follows, sent, "".join(traceback.format_exception(error))


def load(sent: bytes) -> Task:
    """Return a task that the launcher has sent."""
    import cloudpickle  # type: ignore[import-untyped]  # noqa: PLC0415

    task: Task = cloudpickle.loads(sent)
    return task
