"""Judging one run of a submission, by replaying its recorded programs.

- `judge` replays the programs with some sizes, and returns a result for each check.
- Memory over its budget (`excess_of`): which bound is broken, and what the rank held at that moment, line by line. The
  programs are replayed once more for that, with one rank watched (`Moment`). A run that passes pays nothing for it.
- Hints (`hint_for`): by the law that was broken or the mistake behind an error, else by the check.

The submission's process sends nothing but an error's text, so a mistake is recognised by that text; `hints.json` has
the mistakes. An exercise may have hints of its own, in `hints_by_check` of its `exercise.json`: under the name of a
check, for the mistakes that the exercise is about (missing samples, deadlocks, and what has no name here), or under a
name of `NAMES`.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from operator import attrgetter
from typing import Any

from minitrain import errors
from minitrain.errors import LawError, MinitrainError, ProofError
from minitrain.learn.budgets import (
    Budget,
    budget_for,
    calls_by_layer,
    longer_parts,
    more_calls,
    never_awaited,
    next_step,
    ordered_places,
    why_all_wait,
    without_input,
    without_second_half,
)
from minitrain.learn.exercise import Case, CheckResult, Exercise, one_line
from minitrain.learn.replay import (
    Held,
    Kept,
    Meter,
    Player,
    communication_by_kind,
    handed_in,
    kept_by_rank,
    last_clock,
    named,
    replayed,
    states_on_host,
)
from minitrain.learn.wire import MOST_STEPS
from minitrain.operations import COMMUNICATIONS, UNITS_PER_ELEMENT
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.result import Run
from minitrain.run.simulation import simulate

LONGEST = 2000
"""Characters of a message."""

_KINDS = frozenset(
    name
    for module in (builtins, errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
)
"""Classes of errors that a submission did not name."""

Results = dict[str, CheckResult]


class Judged(dict[str, CheckResult]):
    """The results of one run by check, and the run itself where it came to its end."""

    run: Run | None = None


def prepare_judgement(exercise: Exercise, case: Case) -> None:
    """Compute in advance what a judgement needs: its budgets, and a transformer's result of a single device.

    This takes long, and must not count as the submission's time.
    """
    if case.is_proven:
        import minitrain.proof.proof  # noqa: F401, PLC0415  (NumPy and autograd, for `_proven`)
    budget_for(exercise, case)
    if case.workload is not None and case.is_proven:
        from minitrain.proof.layers import problem_of  # noqa: PLC0415  (NumPy, and autograd)
        from minitrain.proof.problem import Problem  # noqa: PLC0415
        from minitrain.proof.reference import transformer_reference  # noqa: PLC0415
        from minitrain.workloads.transformer_workload import find_workload  # noqa: PLC0415

        problem: Any = problem_of(Problem(), find_workload(case.workload))
        transformer_reference(problem, case.global_batch_size)


def judge(exercise: Exercise, case: Case, found: Mapping[str, Any], seconds: float = float("inf")) -> Judged:
    """Judge what a submission did with some sizes.

    Args:
        exercise: what was asked.
        case: the sizes.
        found: programs and lines of the ranks, or an error.
        seconds: processor time that the grader's own run of the programs may take, s.

    Returns:
        A result for each check that was made.
    """
    try:
        if "error" in found:
            return _ended_early(exercise, case, found["error"], found)
        programs, lines = _programs_of(found, case)
    except (LookupError, TypeError, ValueError, AttributeError):
        return _up_to("runs", failed(exercise, case, "runs", "what came back from its process makes no sense"))
    replay = _Replay(exercise, case, programs, lines, seconds)
    try:
        run = replay.run = _proven(replay) if case.is_proven else replay.again(replay.meter)
    except MinitrainError as error:
        judged = _broken(replay, error)
        judged.run = replay.run  # which came to its end if only its numbers are wrong
        return judged
    judged = _passed("runs", "laws")
    judged.run = run
    lacking = _other_operations(replay) or _in_another_order(replay) or _handed_in_less(replay, run)
    if lacking is not None:
        return Judged({**judged, "laws": lacking})
    if case.is_proven:
        judged.update(_passed("numerics"))
    judged.update(_budgets(replay, run))
    return judged


def _proven(replay: _Replay) -> Run:
    """Return the run of programs with real numbers, which are those of a single device.

    Raises:
        MinitrainError: they do not run or do not train, or compute other numbers.
    """
    from minitrain.proof.problem import Problem  # noqa: PLC0415  (a browser has no NumPy for it)
    from minitrain.proof.proof import compare_with_reference  # noqa: PLC0415

    problem = Problem()
    run = replay.run = replay.again(replay.meter, numerics=problem)
    compare_with_reference(run, problem)
    return run


@dataclass
class _Replay:
    """The recorded programs of a submission with some sizes, which run again here.

    Args:
        exercise: what was asked.
        case: the sizes.
        programs: the steps of the ranks.
        lines: where in the submission they stand.
        seconds: real time that one run of them may take, s.

    Attributes:
        meter: what was measured beside the run.
        run: the run, once it came to its end.
    """

    exercise: Exercise
    case: Case
    programs: Sequence[Sequence[Any]]
    lines: Sequence[Sequence[Any]]
    seconds: float
    meter: Meter = field(default_factory=Meter)
    run: Run | None = field(init=False, default=None)

    def line_of(self, rank: int, event: int) -> str | None:
        """Return where in the submission an event stands, by its index in the rank's log."""
        steps = self.meter.steps[rank]
        return _line(self.lines, rank, steps[event]) if event < len(steps) else None

    def failed(self, name: str, message: str, **facts: Any) -> CheckResult:
        """Return that a check failed, as `failed` does."""
        return failed(self.exercise, self.case, name, message, **facts)

    def again(self, watch: Callable[[Player, int], None], **more: Any) -> Run:
        """Run the programs, watched by something, and return the run.

        Raises:
            MinitrainError: they do not run, or do not train.
        """
        strategy = replayed(
            self.programs, self.exercise.function, self.seconds, watch, self.exercise.semantics(self.case)
        )
        return simulate(strategy, strict=True, hardware=self.exercise.hardware, **self.case.sizes, **more)


def _programs_of(found: Mapping[str, Any], case: Case) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the programs and lines that came back, which may be anything.

    Raises:
        ValueError: they are not one list a rank, or too long.
    """
    programs, lines = found["programs"], found["lines"]
    for lists in (programs, lines):
        if len(lists) != case.world_size or not all(isinstance(part, Sequence) for part in lists):
            raise ValueError("there must be one list a rank")
    if sum(map(len, programs)) > MOST_STEPS:
        raise ValueError(f"there are more than {MOST_STEPS} steps")
    return programs, lines


def _passed(*names: str) -> Judged:
    """Return that checks passed."""
    return Judged({name: CheckResult(name, "passed") for name in names})


def failed(
    exercise: Exercise, case: Case | None, name: str, message: str, *, kind: str = "", **facts: Any
) -> CheckResult:
    """Return that a check failed, with the exercise's hint for it.

    Args:
        exercise: what was asked.
        case: the sizes; None for no particular ones.
        name: of the check.
        message: what is wrong.
        kind: the class of the error, where the submission may have had a say in the message.
        facts: further fields of the result; `never_awaited` is for its hint (see `hint_for`).

    Returns:
        The result. That of a hidden size has neither numbers nor words that the submission could have chosen.
    """
    never_awaited, message = facts.pop("never_awaited", ""), message[:LONGEST]  # before hints are sought in it
    if case is None or not case.hidden:
        shown: dict[str, Any] = {fact: _shown(value) for fact, value in facts.items()}
        shown["cause"] = tuple(map(_shown, shown.get("cause", ())))
        told = "\n".join((message, *shown["cause"]))
        hint = hint_for(exercise, name, told, case=case, never_awaited=never_awaited)
        size = "" if case is None else str(case)
        return CheckResult(name, "failed", one_line(message), size=size, hint=hint, **shown)
    if kind:
        known = kind if kind in _KINDS else "an error of the submission's own"
        message = f"{known}; its text is kept back, since it may tell the size: run it with sizes that are not public"
    return CheckResult(name, "failed", message, size="a hidden size", hint=hint_for(exercise, name, message))


def _shown(value: Any) -> Any:
    """Return a field as it may be shown: text of one line, and not too long."""
    return one_line(value[:LONGEST]) if isinstance(value, str) else value


def _up_to(name: str, result: CheckResult) -> Judged:
    """Return that a check failed and those before it passed."""
    before = {"runs": (), "laws": ("runs",), "numerics": ("runs", "laws")}[name]
    judged = _passed(*before)
    judged[name] = result
    return judged


def _ended_early(exercise: Exercise, case: Case, error: Mapping[str, Any], found: Mapping[str, Any]) -> Judged:
    """Judge an error in the submission's process, which may say anything."""
    kinds = [str(kind) for kind in error.get("kinds", [])]
    name = "laws" if "LawError" in kinds else "runs"
    message = str(error.get("message"))
    if "MinitrainError" not in kinds and kinds:
        message = f"{kinds[0]}: {message}"
    facts: dict[str, Any] = {fact: _count(error.get(fact)) for fact in ("rank", "layer", "step")}
    line = error.get("line")
    facts["line"] = line if isinstance(line, str) else None
    forgotten = error.get("never_awaited")
    facts["never_awaited"] = _shown(forgotten) if isinstance(forgotten, str) else ""
    message, facts["cause"] = _with_cause(message, facts, found.get("programs", ()), found.get("lines", ()))
    if isinstance(error.get("called_at"), str) and error["called_at"]:
        facts["cause"] = [*facts["cause"], f"that line is in a function which is called at {error['called_at']}"]
    of_any = error.get("of_loading") is True and not case.hidden  # of a hidden size nothing is told
    kind = kinds[0] if kinds else "Exception"
    return _up_to(name, failed(exercise, None if of_any else case, name, message, kind=kind, **facts))


def _count(value: Any) -> int | None:
    """Return a small whole number, or None for anything else."""
    return value if isinstance(value, int) and 0 <= value < 10**9 else None


def _with_cause(
    message: str, facts: Mapping[str, Any], programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]]
) -> tuple[str, Sequence[str]]:
    """Return what an error says, and where it comes from, as far as what the ranks did tells it.

    Of a step that has only begun, the first thing that it lacks is said, not the last. What ranks did may be anything.
    """
    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
        if message.startswith("deadlock"):
            return message, why_all_wait(programs, lines)
        if "and never awaited it" in message:
            return message, never_awaited(programs, lines)
        if message.startswith("KeyError"):
            sought = re.findall(r"\d+", message.partition(";")[0])
            return message, never_awaited(programs, lines, layers=set(map(int, sought)))
        rule = message.partition(";")[0]
        if re.search(r"must cover all \d+ samples", rule):
            why = without_second_half(programs, facts["rank"], facts["layer"]) or without_input(programs, rule)
            return (f"{rule}; {why}" if why else message), ()
        begun = next_step(programs) if "has no final weight" in message else ""
        if begun:
            return f"{begun} ({rule})", ()
    return message, ()


def _broken(replay: _Replay, error: MinitrainError) -> Judged:
    """Judge an error of the run on this side."""
    name = "numerics" if isinstance(error, ProofError) else "laws" if isinstance(error, LawError) else "runs"
    facts: dict[str, Any] = {"rank": _count(error.rank), "layer": _count(error.layer)}
    if error.place is not None:
        rank, number, facts["step"] = error.place
        facts.update(rank=rank, line=_line(replay.lines, rank, number))
    if name == "numerics":
        facts.update(expected="the numbers of a single device", got=_difference(error))
    message = str(error).split("\n")[0]
    message, facts["cause"] = _with_cause(message, facts, replay.programs, replay.lines)
    return _up_to(name, replay.failed(name, message, kind=type(error).__name__, **facts))


def _line(lines: Sequence[Sequence[Any]], rank: int, number: int) -> str | None:
    """Return where a step stands in the submission, as it says."""
    try:
        known = lines[rank][number]
    except (LookupError, ValueError):
        return None
    return known if isinstance(known, str) else None


def _difference(error: MinitrainError) -> str:
    """Return by how much the numbers differ, in words."""
    found = re.search(r"Mismatched elements: [^\n]*", str(error))
    return f"differences up to {error.difference:.3g}" + (f" ({found.group(0)})" if found else "")


def operations_fault(exercise: Exercise, case: Case, programs: Sequence[Sequence[Any]]) -> tuple[str, str] | None:
    """Return the name of an operation and what the exercise says of it, where programs do otherwise; else None."""
    called = {step[0] for program in programs for step in program}
    for name in exercise.forbidden_operations:
        if name in called:
            return name, f"the statement forbids {name}: do what it does by other operations"
    for name in exercise.required_operations:
        if name not in called and case.world_size > 1:
            return name, f"the statement asks for {name}, which no rank does"
    return None


def _other_operations(replay: _Replay) -> CheckResult | None:
    """Return that the ranks do other operations than the exercise is about, with the first; None if they do not."""
    fault = operations_fault(replay.exercise, replay.case, replay.programs)
    if fault is None:
        return None
    name, message = fault
    places: Iterator[dict[str, Any]] = (
        {"rank": rank, "line": _line(replay.lines, rank, number)}
        for rank, steps in enumerate(replay.programs)
        for number, step in enumerate(steps)
        if step[0] == name
    )
    return replay.failed("laws", message, **next(places, {}))


def _in_another_order(replay: _Replay) -> CheckResult | None:
    """Return that a rank does what the statement orders in another order, from where on; None if none does."""
    operations = replay.exercise.ordered_operations
    for rank, wanted in enumerate(budget_for(replay.exercise, replay.case).order if operations else ()):
        done = ordered_places(replay.programs[rank], operations)
        for place, words in enumerate(wanted):
            if place < len(done) and done[place][1] == words:
                continue
            number, got = done[place] if place < len(done) else (None, "nothing more")
            return replay.failed(
                "laws",
                f"the statement asks for an order of {' and '.join(operations)}: number {place + 1} of these must be "
                f"{words} on rank {rank}, got {got}",
                rank=rank,
                line=None if number is None else _line(replay.lines, rank, number),
            )
    return None


def _handed_in_less(replay: _Replay, run: Run) -> CheckResult | None:
    """Return that the ranks leave less than the reference for the next step to begin with; None if they do not."""
    budget = budget_for(replay.exercise, replay.case)
    weights = "final weight must lie on the ranks", "hand in {}; gather it where it must be whole"
    states = "updated optimizer states must lie in the host's memory", "have {} there"
    for least_of, found_of, (rule, remedy) in (
        (budget.handed_in, handed_in(run), weights),
        (budget.on_host, states_on_host(run), states),
    ):
        for layer, (least, found) in enumerate(zip(least_of, found_of, strict=False)):
            if found < least * (1 - 1e-9):
                of_layer = remedy.format(f"{found:.0f} elements of layer {layer}")
                return replay.failed(
                    "laws",
                    f"the {rule} as the statement asks, so that the next step can begin there: all ranks together "
                    f"{of_layer}",
                    layer=layer,
                    expected=f"at least {least:.0f} elements",
                    got=f"{found:.0f}",
                )
    return None


def _budgets(replay: _Replay, run: Run) -> Results:
    """Compare a run that trains with its budgets."""
    budget, case = budget_for(replay.exercise, replay.case), replay.case
    moved = communication_by_kind(run)
    results: Results = dict(_passed("communication", "time", "memory"))
    causes = [] if case.hidden else more_calls(run, budget.calls, replay.programs, replay.lines)
    num_calls = sum(calls_by_layer(run).values())

    def exceeds(name: str, fault: str, most: str, got: str, cause: Sequence[str]) -> None:
        message = f"{fault} than the budget"
        results[name] = replay.failed(name, message, expected=f"at most {most}", got=got, cause=cause)

    if budget.most_calls is not None and num_calls > budget.most_calls:
        most = f"{budget.most_calls} messages and calls of collectives, over all ranks"
        exceeds("communication", "the ranks communicate more often", most, str(num_calls), causes)
    elif sum(moved.values()) > budget.communication_bytes * (1 + 1e-9) + num_calls:  # each is of whole bytes
        most = _by_kind(_scaled(budget))
        exceeds("communication", "the ranks communicate more", most, _by_kind(moved), causes)
    clock = last_clock(run)
    if clock > budget.step_time_s:
        longer = [] if case.hidden else [*causes, *longer_parts(run, budget.path, replay.line_of)]
        most = f"{budget.step_time_s * 1e3:.3f} ms"
        exceeds("time", "the step takes longer", most, f"{clock * 1e3:.3f} ms", longer)
    excess = excess_of(run, replay.meter.held(run), budget)
    if excess is not None:
        results["memory"] = _too_much(replay, excess)
    return results


def _too_much(replay: _Replay, excess: Excess) -> CheckResult:
    """Return that a rank holds too much, with what it held then where the learner may see the size."""
    facts: dict[str, Any] = {"rank": excess.rank, "expected": excess.expected, "got": excess.got}
    if not replay.case.hidden:
        moment = Moment(excess, replay.lines)
        with contextlib.suppress(MinitrainError):  # the time that is left may not be enough
            replay.again(moment)
        facts["held"] = tuple(map(_shown, moment.text))
    return replay.failed("memory", excess.message, **facts)


def _scaled(budget: Budget) -> Mapping[str, float]:
    """Return what ranks may communicate, by kind, as the reference does."""
    known = budget.communication_by_kind
    total = sum(known.values())
    return {kind: size / total * budget.communication_bytes for kind, size in known.items()}


def _by_kind(moved: Mapping[str, float]) -> str:
    """Return bytes by kind in words."""
    total = sum(moved.values())
    unit, name = (2**20, "MiB") if total >= 2**23 or not total else (2**10, "KiB")  # of small models
    kinds = ", ".join(f"{kind} {size / unit:.0f}" for kind, size in moved.items())
    return f"{total / unit:.0f} {name} over all ranks" + (f" ({kinds})" if kinds else "")


KINDS = {
    "Weight": "weights",
    "OptState": "optimizer states",
    "WeightGrad": "gradients",
    "Activation": "activations",
    "ActivationGrad": "activation gradients",
}
_ACTIVATIONS = ("Activation",)
_STATES = ("OptState",)
_MOST_GROUPS = 8

Lines = Sequence[Sequence[Any]]


def gib(size_bytes: float) -> str:
    """Return a size in GiB, or in KiB where that would be nothing but zeros.

    >>> gib(3 * 2**28), gib(3 * 2**10)
    ('0.750 GiB', '3.0 KiB')
    """
    is_small = 0 < size_bytes < GIB / 100
    return f"{size_bytes / 2**10:.1f} KiB" if is_small else f"{size_bytes / GIB:.3f} GiB"


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that a rank does not keep.

    Args:
        rank: the rank.
        message: which bound.
        expected: the bound in words.
        got: what the rank needed, in words.
        measure: what is bounded, as a function of the rank's replay; the moment in question is where it is highest.
        kinds: the kinds of tensors that count.
    """

    rank: int
    message: str
    expected: str
    got: str
    measure: Callable[[Player], float]
    kinds: Collection[str] = tuple(KINDS)


def excess_of(run: Run, held: Held, budget: Budget) -> Excess | None:
    """Return the first bound on memory that a run does not keep: of the schedule, of activations, of states, of all.

    Args:
        run: the run.
        held: the most that each rank held of some kinds.
        budget: the bounds.
    """
    if budget.kept:
        for rank, (kept, most) in enumerate(zip(kept_by_rank(run), budget.kept, strict=True)):
            if kept.most > most:
                return _kept_too_many(rank, kept, most)
    for found, limits, what, kinds, measure in (
        (held.activation_bytes, budget.activation_bytes, "activations", _ACTIVATIONS, attrgetter("activation_units")),
        (held.state_bytes, budget.state_bytes, "optimizer states", _STATES, attrgetter("state_units")),
    ):
        for rank, (size_bytes, limit) in enumerate(zip(found, limits, strict=False)):
            if size_bytes > limit * (1 + 1e-9):
                return Excess(
                    rank,
                    f"a rank holds more than the budget: it has too many {what} at a time",
                    f"at most {gib(limit)} of {what}",
                    gib(size_bytes),
                    measure,
                    kinds,
                )
    if run.peak_memory_bytes > budget.memory_bytes * (1 + 1e-9):
        return Excess(
            run.peak_memory_per_rank.index(run.peak_memory),
            "a rank holds more than the budget",
            f"at most {gib(budget.memory_bytes)}",
            gib(run.peak_memory_bytes),
            lambda player: _ledger(player).units,
        )
    return None


def _kept_too_many(rank: int, kept: Kept, most: int) -> Excess:
    """Return the failure of a schedule that runs too many samples forward before their backward passes."""
    return Excess(
        rank,
        "a rank holds more than the budget: it runs too many samples forward before their backward",
        f"at most {most} activations that wait for their backward, counted by sample and layer",
        str(kept),
        lambda player: float(len(player.model.log) == kept.event + 1),
        _ACTIVATIONS,
    )


class Moment:
    """Watches one rank of a replay, and keeps what the rank held when a measure was highest.

    Args:
        excess: whose rank and measure it looks at.
        lines: where in the submission each step stands, by rank.

    Attributes:
        text: what is known of the highest moment so far.
    """

    def __init__(self, excess: Excess, lines: Lines) -> None:
        self._excess = excess
        self._place = partial(_line, lines, excess.rank)
        self._highest = float("-inf")
        self.text: list[str] = []

    def __call__(self, player: Player, number: int) -> None:
        """Look at a rank after one of its steps."""
        if player.model.rank != self._excess.rank:
            return
        value = self._excess.measure(player)
        if value > self._highest:
            self._highest = value
            self.text = [self._heading(player, number), *_held(player, number, self._excess.kinds, self._place)]

    def _heading(self, player: Player, number: int) -> str:
        """Return when it is, and after what."""
        log = player.model.log
        after = ""
        if len(log):
            event = log[len(log) - 1]
            layer = "" if event.layer is None else f" of layer {event.layer}"
            after = f", after {event.typ}{layer}" + (f", {named('sample', event.samples)}" if event.samples else "")
        place = self._place(number)
        return f"rank {player.model.rank} at {duration(player.model.time)}{after}" + (f", at {place}" if place else "")


@dataclass(frozen=True, slots=True)
class _Alike:
    """What the tensors on one line of the report have in common.

    Args:
        kind: name of their class.
        line: where they were made; "" if nobody knows.
        part: "" for whole tensors, or which shards they are.
        where: what holds them, if it is neither a store nor an operation.
    """

    kind: str
    line: str
    part: str
    where: str

    def text(self, tensors: Sequence[Any], size_bytes: float) -> str:
        """Return in words what tensors there are."""
        layers = {tensor.layer for tensor in tensors}
        samples = {sample for tensor in tensors for sample in getattr(tensor, "samples", ())}
        of = f"{KINDS[self.kind]} of {named('layer', layers)}"
        if samples and self.kind.startswith("Activation"):
            of += f", {named('sample', samples)}"
        made = f", made at {self.line}" if self.line else ""
        return f"{gib(size_bytes)}: {self.part}{of}{made}{self.where}"


def _held(player: Player, now: int, kinds: Collection[str], place: Callable[[int], str | None]) -> Iterator[str]:
    """Yield what a rank holds after a step, of some kinds, the largest first: which tensors, made where, kept where."""
    scale = player.model.runtime_predictor.workload.bytes_per_element / UNITS_PER_ELEMENT
    groups: dict[_Alike, list[Any]] = defaultdict(list)
    units: dict[_Alike, int] = defaultdict(int)
    for (number, _), (tensor, buffer) in _buffers(player).items():
        kind = next(base.__name__ for base in type(tensor).__mro__ if base.__name__ in KINDS)
        where = "" if buffer.holders else ", just made" if number == now else ", held in a variable"
        alike = _Alike(kind, place(number) or "", _part(tensor), where)
        groups[alike].append(tensor)
        units[alike] += buffer.units
    shown = sorted((alike for alike in groups if alike.kind in kinds), key=lambda alike: -units[alike])
    for alike in shown[:_MOST_GROUPS]:
        yield alike.text(groups[alike], units[alike] * scale)
    rest = _ledger(player).units - sum(units.values())
    if rest > 0 and len(kinds) == len(KINDS):
        yield f"{gib(rest * scale)}: what operations under way will bring"


def _part(tensor: Any) -> str:
    """Return which shards a tensor holds, "" if all."""
    num_shards = getattr(tensor, "num_shards", 1)
    shards = tensor.shards if num_shards > 1 else tensor.sequence.shards
    num_shards = max(num_shards, tensor.sequence.num_shards)
    return "" if len(shards) == num_shards else f"{named('shard', shards)} of {num_shards} of "


def _ledger(player: Player) -> Any:
    """Return the ledger of a rank, which every strict run has."""
    model: Any = player.model
    return model._meter


def _buffers(player: Player) -> dict[tuple[int, int], tuple[Any, Any]]:
    """Return the tensors that a rank holds, each buffer once, by the step that made them and the place there."""
    found: dict[int, tuple[tuple[int, int], tuple[Any, Any]]] = {}
    for name, tensor in player.values.items():
        buffer = getattr(getattr(tensor, "_origin", None), "buffer", None)
        if buffer is not None and buffer.units:
            found[id(buffer)] = name, (tensor, buffer)
    return dict(found.values())


HINTS: Mapping[str, str] = {
    "runs": "run it alone and read where it ends: {command}",
    "laws": "the message names the law; print(model.rank, tensor) just before that line shows what you really have",
    "numerics": "a sample is missing, counted twice, or summed over the wrong ranks: which rank brings which samples?",
    "communication": "count by hand what each rank must send in one step, and compare it with the kinds above",
    "time": "which rank waits, and for whom? its picture shows it: {command}",
    "memory": "which tensor lives longer than its last use, or is whole where a shard would do?",
}
"""By check, where nothing more is known."""

_NO_SIZES = "`minitrain run`, with sizes of your own"
"""The command where sizes are not to be shown."""

FILE = "FILE.py"
"""What stands for the submission in a hint, until somebody knows its name."""

_LAUNCHED = frozenset({*COMMUNICATIONS, "receive"})
"""Calls that may be launched."""


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A mistake that an error's text gives away.

    Args:
        name: under which an exercise may have a hint of its own.
        pattern: a regular expression that finds it.
        hint: how to go on.
        of_exercise: whether the exercise's hint for the check comes first.
    """

    name: str
    pattern: str
    hint: str
    of_exercise: bool = False


_MISTAKES = tuple(_Mistake(**one) for one in json.loads(files(__package__).joinpath("hints.json").read_text("utf-8")))
"""The first whose pattern is found counts."""

NAMES = frozenset(mistake.name for mistake in _MISTAKES)
"""What an exercise may have hints of its own for, beside the checks."""


def hint_for(exercise: Exercise, check: str, message: str, *, case: Case | None = None, never_awaited: str = "") -> str:
    """Return the hint for a check that failed.

    Args:
        exercise: what was asked.
        check: the check's name.
        message: of the error, or of the budget, and lines that say where it comes from.
        case: the sizes, for a command to try; None where they are not to be shown.
        never_awaited: the call that the submission forgot to await, such as "ddp.py:12 calls all_reduce".
    """
    if never_awaited:
        call = never_awaited.rpartition(" ")[2]
        launch = f", or `work = model.launch(model.{call}(...))` and `await work` later" if call in _LAUNCHED else ""
        return f"{never_awaited} without `await`, so that it never happens; write `await` before it{launch}"
    own = exercise.hints_by_check
    found = next((mistake for mistake in _MISTAKES if re.search(mistake.pattern, message)), None)
    if found is None:
        return own.get(check) or HINTS[check].format(command=command_for(exercise, case) if case else _NO_SIZES)
    of_exercise = own.get(check) if found.of_exercise else None
    return own.get(found.name) or of_exercise or found.hint


def command_for(exercise: Exercise, case: Case) -> str:
    """Return the command that simulates a submission, `FILE`, with some sizes."""
    options: dict[str, Any] = {
        "--world-size": case.world_size,
        **({"--layers": case.num_layers} if case.workload is None else {"--model": case.workload}),
        "--batch": case.global_batch_size,
        "--hw": exercise.hardware,
    }
    words = [f"{name} {value}" for name, value in options.items()]
    words += [f"-o {name}={str(value).replace(' ', '')}" for name, value in case.options.items()]
    return f"`minitrain run {FILE}:{exercise.function} {' '.join(words)}`"
