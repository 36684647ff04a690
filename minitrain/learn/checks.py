"""Judging one run of a submission by replaying its recorded programs."""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minitrain import errors
from minitrain.errors import LawError, MinitrainError, ProofError
from minitrain.learn.budgets import Budget, budget_for
from minitrain.learn.causes import (
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
from minitrain.learn.exercise import Case, Exercise
from minitrain.learn.hints import hint_for
from minitrain.learn.memory import Excess, Moment, excess_of
from minitrain.learn.replay import Player, replayed
from minitrain.learn.result import CheckResult, one_line
from minitrain.learn.usage import Meter, communication_by_kind, handed_in, last_clock, states_on_host
from minitrain.learn.wire import MOST_STEPS
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
        judged = _broken(exercise, case, error, programs, lines)
        judged.run = replay.run  # which came to its end if only its numbers are wrong
        return judged
    judged = _passed("runs", "laws")
    judged.run = run
    lacking = (
        _other_operations(exercise, case, programs, lines)
        or _in_another_order(exercise, case, programs, lines)
        or _handed_in_less(exercise, case, run)
    )
    if lacking is not None:
        return Judged({**judged, "laws": lacking})
    if case.is_proven:
        judged.update(_passed("numerics"))
    judged.update(_budgets(exercise, case, replay, run))
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
    return _up_to(name, failed(exercise, case, name, message, kind=kinds[0] if kinds else "Exception", **facts))


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


def _broken(
    exercise: Exercise,
    case: Case,
    error: MinitrainError,
    programs: Sequence[Sequence[Any]],
    lines: Sequence[Sequence[Any]],
) -> Judged:
    """Judge an error of the run on this side."""
    name = "numerics" if isinstance(error, ProofError) else "laws" if isinstance(error, LawError) else "runs"
    facts: dict[str, Any] = {"rank": _count(error.rank), "layer": _count(error.layer)}
    if error.place is not None:
        rank, number, facts["step"] = error.place
        facts.update(rank=rank, line=_line(lines, rank, number))
    if name == "numerics":
        facts.update(expected="the numbers of a single device", got=_difference(error))
    message = str(error).split("\n")[0]
    message, facts["cause"] = _with_cause(message, facts, programs, lines)
    return _up_to(name, failed(exercise, case, name, message, kind=type(error).__name__, **facts))


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


def _other_operations(
    exercise: Exercise, case: Case, programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]]
) -> CheckResult | None:
    """Return that the ranks do other operations than the exercise is about, with the first; None if they do not."""
    fault = operations_fault(exercise, case, programs)
    if fault is None:
        return None
    name, message = fault
    places = ((rank, number) for rank, steps in enumerate(programs) for number, step in enumerate(steps))
    first = next((place for place in places if programs[place[0]][place[1]][0] == name), None)
    facts: dict[str, Any] = {} if first is None else {"rank": first[0], "line": _line(lines, *first)}
    return failed(exercise, case, "laws", message, **facts)


def _in_another_order(
    exercise: Exercise, case: Case, programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]]
) -> CheckResult | None:
    """Return that a rank does what the statement orders in another order, from where on; None if none does."""
    if not exercise.ordered_operations:
        return None
    for rank, wanted in enumerate(budget_for(exercise, case).order):
        done = ordered_places(programs[rank], exercise.ordered_operations)
        for place, words in enumerate(wanted):
            if place < len(done) and done[place][1] == words:
                continue
            number, got = done[place] if place < len(done) else (None, "nothing more")
            names = " and ".join(exercise.ordered_operations)
            return failed(
                exercise,
                case,
                "laws",
                f"the statement asks for an order of {names}: number {place + 1} of these must be {words} on rank "
                f"{rank}, got {got}",
                rank=rank,
                line=None if number is None else _line(lines, rank, number),
            )
    return None


def _handed_in_less(exercise: Exercise, case: Case, run: Run) -> CheckResult | None:
    """Return that the ranks leave less than the reference for the next step to begin with; None if they do not."""
    budget = budget_for(exercise, case)
    for least_of, found_of, rule, remedy in (
        (
            budget.handed_in,
            handed_in(run),
            "final weight must lie on the ranks",
            "hand in {}; gather it where it must be whole",
        ),
        (
            budget.on_host,
            states_on_host(run),
            "updated optimizer states must lie in the host's memory",
            "have {} there",
        ),
    ):
        for layer, (least, found) in enumerate(zip(least_of, found_of, strict=False)):
            if found < least * (1 - 1e-9):
                of_layer = remedy.format(f"{found:.0f} elements of layer {layer}")
                return failed(
                    exercise,
                    case,
                    "laws",
                    f"the {rule} as the statement asks, so that the next step can begin there: all ranks together "
                    f"{of_layer}",
                    layer=layer,
                    expected=f"at least {least:.0f} elements",
                    got=f"{found:.0f}",
                )
    return None


def _budgets(exercise: Exercise, case: Case, replay: _Replay, run: Run) -> Results:
    """Compare a run that trains with its budgets."""
    budget = budget_for(exercise, case)
    moved = communication_by_kind(run)
    results: Results = dict(_passed("communication", "time", "memory"))
    causes = [] if case.hidden else more_calls(run, budget.calls, replay.programs, replay.lines)
    num_calls = sum(calls_by_layer(run).values())
    if budget.most_calls is not None and num_calls > budget.most_calls:
        results["communication"] = failed(
            exercise,
            case,
            "communication",
            "the ranks communicate more often than the budget",
            expected=f"at most {budget.most_calls} messages and calls of collectives, over all ranks",
            got=str(num_calls),
            cause=causes,
        )
    elif sum(moved.values()) > budget.communication_bytes * (1 + 1e-9) + num_calls:  # each is of whole bytes
        results["communication"] = failed(
            exercise,
            case,
            "communication",
            "the ranks communicate more than the budget",
            expected=f"at most {_by_kind(_scaled(budget))}",
            got=_by_kind(moved),
            cause=causes,
        )
    clock = last_clock(run)
    if clock > budget.step_time_s:
        results["time"] = failed(
            exercise,
            case,
            "time",
            "the step takes longer than the budget",
            expected=f"at most {budget.step_time_s * 1e3:.3f} ms",
            got=f"{clock * 1e3:.3f} ms",
            cause=[] if case.hidden else [*causes, *longer_parts(run, budget.path, replay.line_of)],
        )
    excess = excess_of(run, replay.meter.held(run), budget)
    if excess is not None:
        results["memory"] = _too_much(exercise, case, replay, excess)
    return results


def _too_much(exercise: Exercise, case: Case, replay: _Replay, excess: Excess) -> CheckResult:
    """Return that a rank holds too much, with what it held then where the learner may see the size."""
    facts: dict[str, Any] = {"rank": excess.rank, "expected": excess.expected, "got": excess.got}
    if not case.hidden:
        moment = Moment(excess, replay.lines)
        with contextlib.suppress(MinitrainError):  # the time that is left may not be enough
            replay.again(moment)
        facts["held"] = tuple(map(_shown, moment.text))
    return failed(exercise, case, "memory", excess.message, **facts)


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
