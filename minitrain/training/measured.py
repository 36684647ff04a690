"""The result of a real run: `MeasuredRun`, a `Run` whose times were measured.

Its log has the same rows as the simulated one, operation by operation: what differs is when they were. A collective
begins when the last of its members has submitted it, as in a simulation.
"""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from minitrain.errors import UsageError, typed_methods
from minitrain.files import StrPath, write_bytes
from minitrain.machine.price import Account, Price
from minitrain.operations import COLLECTIVES, LAUNCHED, PRICE, RECV, SEND, STRIDE, TIME, WAITED_FOR, EventLog
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.moments import Moments
from minitrain.run.analysis.retiming import make_graph
from minitrain.run.analysis.timeline import NONE, Floats, timeline_of_rows
from minitrain.run.contributions import (
    CALIBRATION_FILE,
    LOG_FILE,
    STRATEGY_FILE,
    Contribution,
    strategy_text,
    workload_text,
)
from minitrain.run.parameters import DEFAULTS
from minitrain.run.result import Run
from minitrain.training.program import Program

if TYPE_CHECKING:
    from minitrain.training.worker import Times


BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""What torch.distributed is told: beside nccl, gloo exchanges what is on the host, such as losses."""

_QUARTILES = 4


class LossWarning(UserWarning):
    """The loss of a step is infinite or no number."""


@typed_methods
@dataclass(frozen=True)
class MeasuredRun(Run):
    """Training steps of real processes.

    Its logs and figures are those of the step that took the median time of the last `KEPT_STEPS`; `typical` has the
    medians of all of these, operation by operation. Its peak of
    memory is what a rank's allocator gave to the tensors of one step (`minitrain.training.devices`); events say what
    tensors hold in the simulation.
    Loading takes no time: weights stay where they are from step to step.

    Args:
        losses: the mean loss of each step.
        seconds: what each step took, from when the first rank had its weights, s.
        first_step: number of the first of these, where the run went on from a checkpoint.
        backend: of torch.distributed.
        process_bytes: the most memory that each rank's process has taken, torch included.
        predicted: the simulated step.
        digest: of the program, where it was trained here.
        versions: of code and packages, by name.
        recorded: what its ranks have noted; None of a run that was read or matched.
    """

    losses: Sequence[float] = ()
    seconds: Sequence[float] = field(default=(), repr=False)
    first_step: int = 0
    backend: str = "gloo"
    process_bytes: Sequence[int] = ()
    predicted: Run | None = field(default=None, repr=False, compare=False)
    digest: str = field(default="", repr=False)
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    recorded: Recorded | None = field(default=None, repr=False, compare=False)

    def accounts_of_prices(self) -> Mapping[int, Callable[[], Account]]:
        """Return what explains the measured times: what the predicted step does, at the rates that were reached."""
        if self.predicted is None:
            return {}
        mine, theirs, known = self.timeline, self.predicted.timeline, self.predicted.accounts_of_prices()
        pairs = zip(mine.price.tolist(), theirs.price.tolist(), strict=True)
        prices = {code: (mine.prices[code], id(theirs.prices[predicted])) for code, predicted in pairs if code != NONE}
        return {
            id(took): partial(_measured, known[key], self.predicted.hardware, took.seconds)
            for took, key in prices.values()
            if key in known
        }

    @property
    def why_unexplained(self) -> str:
        """What is said where the predicted step is not at hand."""
        return "measured; what it had to do is not in the file"

    def of_steps(self, steps: Iterable[int]) -> MeasuredRun:
        """Return the run as some of its steps alone have been, to compare these with others.

        Args:
            steps: their numbers; of the last `KEPT_STEPS`.

        Raises:
            UsageError: the operations of one of them are not known, or there is none.
        """
        chosen = sorted(set(steps))
        known = () if self.recorded is None else self.recorded.kept
        unknown = [step for step in chosen if step not in known]
        if self.recorded is None or unknown or not chosen:
            kept = f"{known[0]} to {known[-1]} are kept" if known else "a run keeps them that mt.train has returned"
            raise UsageError(
                f"the operations of steps {unknown or 'of no number'} are not known; {kept}", steps=unknown
            )
        at = [step - self.first_step for step in chosen]
        given: dict[str, Any] = {name: [getattr(self, name)[place] for place in at] for name in ("losses", "seconds")}
        return replace(self, **given, first_step=chosen[0], **self.recorded.fields_of(chosen))

    def contribute(self, folder: StrPath) -> Path:
        """Write a folder by which others can check the prediction: see `minitrain.run.contributions`.

        Args:
            folder: where to; made if it does not exist.

        Returns:
            The folder.

        Raises:
            UsageError: the workload has no name, or the run was read or matched and not trained here.
        """
        predicted: Any = self.predicted
        prepared = None if predicted is None else predicted.prepared
        if prepared is None or not self.digest:
            raise UsageError("only a run that mt.train has returned can be contributed; train it here")
        there = Path(folder)
        run = Contribution(
            strategy=_copied(prepared, there),
            world_size=self.world_size,
            num_layers=self.num_layers,
            global_batch_size=self.global_batch_size,
            workload=workload_text(prepared.parameters.workload),
            seq_len=getattr(prepared.parameters.workload, "seq_len", None),
            precision=getattr(self.trained_model, "precision", ""),
            hardware=_hardware_of(prepared, there),
            digest=self.digest,
            backend=self.backend,
            machine={
                "machine": self.hardware,
                "system": platform.platform(),
                "processor": _processor(),
                "cores": os.cpu_count(),
                "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            },
            versions=dict(self.versions),
            step_times_s=list(self.seconds),
            losses=list(self.losses),
            peak_memory_bytes=self.peak_memory_bytes,
            memory_by_kind=dict(self.memory_by_kind or {}),
        )
        self.save(there / LOG_FILE)
        run.write(there)
        return there

    @property
    def step_times(self) -> list[float]:
        """What each step took, s."""
        return [*self.seconds]

    @property
    def sureness(self) -> str:
        """How far the steps differed, but for the first, which warms up."""
        steps = self.step_times[1:]
        if len(steps) < _QUARTILES:
            return "measured, in too few steps to say how far they differ"
        low, _, high = quantiles(steps, n=_QUARTILES)
        return f"measured; half of {len(steps)} steps took {duration(low)} to {duration(high)}"

    @property
    def log(self) -> Sequence[Any]:
        """The events of each rank."""
        return self.logs

    def _view(self) -> Any:
        """Return what pictures say of the run, with the losses of all steps."""
        from minitrain.view.explanation_panel import section  # noqa: PLC0415  (only when somebody looks)
        from minitrain.view.svg import curve_svg  # noqa: PLC0415

        curve = curve_svg(self.losses, self.first_step, "mean loss of each step", "mean loss, nats")
        panel = section([("What it has learnt", [curve])]) if curve else ""
        return replace(super()._view(), panel=panel)

    def summary(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        more = {
            "losses": [*self.losses],
            "step_times_s": self.step_times,
            "first_step": self.first_step,
            "backend": self.backend,
            "process_bytes": [*self.process_bytes],
        }
        return super().summary() | more


def _copied(prepared: Any, folder: Path) -> str:
    """Return how a strategy is named in a folder, after its file was copied there if it is not a shipped one."""
    function, options = prepared.function, prepared.options
    if not inspect.isfunction(function) or getattr(function, "__closure__", None):
        raise UsageError(f"{prepared.name} cannot be contributed, since no file has it as a function; write it as one")
    if function.__module__.startswith(("minitrain.", "strategies.")):
        return strategy_text(prepared.name, options)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / STRATEGY_FILE, [Path(inspect.getfile(function)).read_bytes()])
    return strategy_text(f"{STRATEGY_FILE}:{function.__name__}", options)


def _hardware_of(prepared: Any, folder: Path) -> str:
    """Return what predicts a run, after a calibration was written beside it."""
    calibration = getattr(prepared.predictor, "calibration", None)
    if calibration is None:  # nobody meant the default, an H100, where CPUs have trained
        return "" if prepared.parameters.hardware == DEFAULTS["hardware"] else str(prepared.hardware_name)
    folder.mkdir(parents=True, exist_ok=True)
    calibration.write(folder / CALIBRATION_FILE)
    return CALIBRATION_FILE


def _processor() -> str:
    """Return what the system calls the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measured_run(
    program: Program,
    times: Sequence[Times],
    losses: Sequence[float],
    backend: str,
    hardware: str,
    versions: Mapping[str, str],
) -> MeasuredRun:
    """Return the run that real processes have done.

    Args:
        program: what they did, with the simulated run.
        times: of each rank.
        losses: of each step.
        backend: of torch.distributed.
        hardware: what the run calls its hardware.
        versions: of code and packages.
    """
    recorded, predicted = Recorded(program, times), program.run
    in_stores = [max((event.memory for event in log), default=0.0) for log in predicted.logs]
    given = measured_fields(predicted, hardware) | {
        "peak_memory_per_rank": [  # what a step frees late hides what the next one takes, but not what its stores hold
            max(each.most_bytes / predicted.bytes_per_element, least)
            for each, least in zip(times, in_stores, strict=True)
        ],
        "memory_by_kind": max(times, key=attrgetter("most_bytes")).by_kind,
    }
    return MeasuredRun(
        **given | recorded.fields_of(recorded.kept),
        losses=losses,
        seconds=recorded.seconds,
        first_step=recorded.first,
        backend=backend,
        process_bytes=[each.process_bytes for each in times],
        predicted=predicted,
        digest=program.digest,
        versions=versions,
        recorded=recorded,
    )


class Recorded:
    """What the ranks of a run have noted of its steps.

    Args:
        program: what they did, with the simulated run.
        times: of each rank.

    Attributes:
        first: number of the first step.
        seconds: what each step took, s.
        kept: the steps whose operations are known, but for the first, which warms up.
    """

    def __init__(self, program: Program, times: Sequence[Times]) -> None:
        self._program, self._times = program, times
        self.first = times[0].first
        steps = list(zip(*(_on_one_clock(each) for each in times), strict=True))
        self._begins = [min(loaded for _, loaded, _ in ranks) for ranks in steps]
        self.seconds = [
            max(ends for _, _, ends in ranks) - begin for ranks, begin in zip(steps, self._begins, strict=True)
        ]
        self.kept = [step for step in times[0].spans if step > self.first] or list(times[0].spans)

    def fields_of(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return the logs of that one of some steps that took the median time, and the typical times of all of them."""
        found = {step: self._columns(step) for step in steps}
        chosen = sorted(steps, key=lambda step: self.seconds[step - self.first])[(len(steps) - 1) // 2]
        logs = [
            _log(rank, log, *columns)
            for rank, (log, columns) in enumerate(zip(self._program.run.logs, found[chosen], strict=True))
        ]
        if len(steps) < 2:
            return {"logs": logs, "typical": None}
        line = timeline_of_rows(logs)
        lines = []
        for ranks in found.values():
            start, end, begin = (np.concatenate([columns[place] for columns in ranks]) for place in range(3))
            lines.append(replace(line, time=start, end=end, duration=np.maximum(end - start, 0.0), launched=begin))
        typical = Moments(make_graph(line)).typical(lines)
        return {"logs": logs, "typical": tuple(column.tolist() for column in typical)}

    def _columns(self, step: int) -> list[_Columns]:
        """Return, of each rank, when its operations began, ended, and were submitted, s, and whom they waited for."""
        origin = self._begins[step - self.first]
        spans = [np.array(each.spans[step]) + each.behind_s - origin for each in self._times]
        submitted = _submissions(self._program, spans)
        found = []
        for rank, (known, moments) in enumerate(zip(self._program.ranks, spans, strict=True)):
            moments[: 2 * known.num_loads] = 0.0  # weights stay from step to step
            begin, end = moments[::2], moments[1::2]
            start = begin.copy()
            waited_for: list[int | None] = [None] * len(begin)
            for row in known.communications:
                if ranks := submitted.get((rank, row)):
                    last = max(ranks, key=ranks.__getitem__)
                    start[row] = max(begin[row], ranks[last])
                    waited_for[row] = None if ranks[last] <= begin[row] else last
            found.append((start, end, begin, waited_for))
        return found


_Columns = tuple[Floats, Floats, Floats, list[int | None]]


def measured_fields(predicted: Run, hardware: str) -> dict[str, Any]:
    """Return the fields of a measured run that follow from the predicted one; its logs are still the predicted ones.

    Args:
        predicted: the simulated step.
        hardware: what the run calls its hardware.
    """
    return {each.name: getattr(predicted, each.name) for each in fields(Run)} | {
        "hardware": hardware,
        "priced_by": "measured",
        "memory_by_kind": None,
        "needed_memory_bytes": None,
        "models": (),
        "sheets": (),
        "peak_flop_per_s": None,
        "capacity_bytes": None,
        "oom": None,
        "device_kinds": (),
        "prepared": None,
    }


def _measured(predicted: Callable[[], Account], machine: str, seconds: float) -> Account:
    """Return the account of an operation that took so many seconds: what is predicted of it, at the rate it had."""
    known = predicted()
    rule = f"measured; on {machine} predicted are {duration(known.whole.seconds)}, {known.rule}"
    return replace(
        known, rule=rule, whole=replace(known.whole, seconds=seconds, endless=None), parts=(), peak_flop_per_s=None
    )


def _on_one_clock(times: Times) -> list[tuple[float, float, float]]:
    """Return the moments of a rank's steps on the clock of rank 0, s."""
    behind = times.behind_s
    return [(began + behind, loaded + behind, ended + behind) for began, loaded, ended in times.moments]


def _log(
    rank: int, predicted: Any, start: Floats, end: Floats, begin: Floats, waited_for: Sequence[int | None]
) -> EventLog:
    """Return a simulated log with measured times."""
    rows = [*predicted._rows]
    columns = start.tolist(), np.maximum(end - start, 0.0).tolist(), begin.tolist(), waited_for
    for row, (starts, lasts, begins, waits) in zip(
        range(0, len(rows), STRIDE), zip(*columns, strict=True), strict=True
    ):
        price: Price = rows[row + PRICE]
        rows[row + TIME], rows[row + LAUNCHED], rows[row + WAITED_FOR] = starts, begins, waits
        rows[row + PRICE] = replace(price, seconds=lasts)
    return EventLog(rank, rows)


def _submissions(program: Program, spans: Sequence[Any]) -> Mapping[tuple[int, int], Mapping[int, float]]:
    """Return, for each communication by rank and row, when each rank that it needs has submitted it."""
    meetings: dict[tuple[Any, ...], dict[int, float]] = {}
    found: dict[tuple[int, int], dict[int, float]] = {}
    for rank, known in enumerate(program.ranks):
        counts: dict[Any, int] = {}
        for row, each in sorted(known.communications.items()):
            if each.op in COLLECTIVES:
                key: tuple[Any, ...] = (each.with_ranks,)
            elif each.op in (SEND, RECV):
                ends = (rank, *each.with_ranks)
                key = ("message", *(ends if each.op == SEND else ends[::-1]), each.tag)
            else:
                continue
            place = counts[key, each.op == RECV] = counts.get((key, each.op == RECV), -1) + 1
            meeting = meetings.setdefault((*key, place), {})
            if each.op != RECV:
                meeting[rank] = spans[rank][2 * row]
            if each.op != SEND:
                found[rank, row] = meeting
    return found
