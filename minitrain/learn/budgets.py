"""The budgets of a submission: communication, time and memory of the reference solution, with a margin.

Two bounds have no margin, because the exercise's statement names them: the microbatches that a rank keeps, and, in
exercises about whole or sharded tensors, how many tensors of a layer a rank may hold beside those that the reference
holds (`memory_slack` of `exercise.json`).

Hidden sizes that only a teacher knows: drawn from a secret, and legal for the exercise.

The hidden sizes of the shipped exercises can be read by everybody. A teacher's secret draws others, always the same for
the same secret: each figure between the smallest and the largest of the exercise's known sizes, until the reference
trains with it and keeps its own budgets. Where all known sizes have at least as many microbatches as ranks, those that
are drawn have too. At most one of them has a single rank, unless all known ones do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from minitrain.errors import MinitrainError, UsageError
from minitrain.learn.causes import calls_by_layer, ordered, path_of
from minitrain.learn.exercise import Amount, Case, Exercise, load_exercise, read_part
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import replayed
from minitrain.learn.usage import (
    Held,
    Meter,
    communication_by_kind,
    handed_in,
    kept_by_rank,
    last_clock,
    states_on_host,
)
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.tensors import Activation, OptState, Weight, WeightGrad

TIME_MARGIN = 1.02
"""Other orders of the same work may wait a little longer."""

_KINDS = ("weight", "grad", "opt_state")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may need.

    Args:
        communication_bytes: of all ranks, an all_reduce counted twice.
        communication_by_kind: the same by operation.
        step_time_s: with loading, since a submission may load when it pleases, s.
        memory_bytes: the peak of any rank.
        kept: inputs of layers that a rank may keep for its backward passes, by rank and sample by sample; empty if the
            exercise does not limit them.
        activation_bytes: the most activations that a rank may hold, by rank; empty if the exercise does not limit them.
        state_bytes: the most optimizer states on the device, alike.
        reference_memory_bytes: the peak of the reference, which is less than the budget.
        handed_in: elements of the final weights that all ranks hand in together, by layer; no less is right.
        on_host: elements of updated optimizer states in the memory of hosts at the end, by layer; no less is right.
        most_calls: communications of all ranks together, a message once; None if the exercise does not limit them.
        calls: how often the reference communicates, by operation and layer.
        path: what the reference's longest chain of operations is made of, s by type.
        order: those operations of each rank whose order the exercise asks for, in words; empty if it asks for none.
    """

    communication_bytes: Amount
    communication_by_kind: Mapping[str, Amount]
    step_time_s: Amount
    memory_bytes: Amount
    kept: Sequence[Annotated[int, Ge(0)]] = ()
    activation_bytes: Sequence[Amount] = ()
    state_bytes: Sequence[Amount] = ()
    reference_memory_bytes: Amount = 0.0
    handed_in: Sequence[Amount] = ()
    on_host: Sequence[Amount] = ()
    most_calls: Annotated[int, Ge(0)] | None = None
    calls: Mapping[str, Annotated[int, Ge(0)]] = field(default_factory=dict)
    path: Mapping[str, Amount] = field(default_factory=dict)
    order: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and what was measured beside it.

    Args:
        run: the run.
        held: the most that each rank held of some kinds.
        programs: the steps of the ranks.
    """

    run: Run
    held: Held
    programs: Sequence[Sequence[Any]] = ()


def budget_of(measured: Measured, exercise: Exercise) -> Budget:
    """Return the budget that a reference's run sets."""
    run, bounds = measured.run, exercise.bounds
    by_kind = communication_by_kind(run)
    calls = calls_by_layer(run)
    budget = Budget(
        communication_bytes=sum(by_kind.values()) * bounds.get("communication", 1.0),
        communication_by_kind=by_kind,
        step_time_s=last_clock(run) * bounds.get("time", TIME_MARGIN),
        memory_bytes=exercise.memory_limit_bytes or _memory_bytes(run, exercise),
        reference_memory_bytes=run.peak_memory_bytes,
        handed_in=handed_in(run),
        on_host=states_on_host(run),
        most_calls=int(sum(calls.values()) * bounds["messages"]) if "messages" in bounds else None,
        calls=calls,
        path=path_of(run),
        order=[ordered(steps, exercise.ordered_operations) for steps in measured.programs],
    )
    if exercise.memory_limit_bytes:
        return budget
    activation = _activation_bytes(run)
    return replace(
        budget,
        kept=[kept.most for kept in kept_by_rank(run)],
        activation_bytes=[held + activation for held in measured.held.activation_bytes],
        state_bytes=measured.held.state_bytes if exercise.memory_slack.get("opt_state") == 0 else [],
    )


def _memory_bytes(run: Run, exercise: Exercise) -> float:
    """Return what a rank may hold: the reference's peak, times the exercise's bound or with room for temporaries."""
    if "memory" in exercise.bounds:
        return run.peak_memory_bytes * exercise.bounds["memory"]
    return run.peak_memory_bytes + _layer_bytes(run, exercise.memory_slack)


def _layer_bytes(run: Run, times: Mapping[str, float]) -> float:
    """Return the size of some tensors of the largest layer: room for temporaries.

    Args:
        run: of the reference.
        times: how many of each kind, of "weight", "grad" and "opt_state".
    """
    num_layers, workload = run.num_layers, run.models[0].runtime_predictor.workload
    nothing: frozenset[int] = frozenset()

    def elements(layer: int) -> float:
        tensors = (
            Weight(layer, num_layers, 0),
            WeightGrad(layer, num_layers, nothing, run.global_batch_size),
            OptState(layer, num_layers, 0),
        )
        sizes = zip(_KINDS, tensors, strict=True)
        return sum(times.get(kind, 0) * workload.memory_elements(tensor) for kind, tensor in sizes)

    return run.bytes_per_element * max(map(elements, range(num_layers)))


def _activation_bytes(run: Run) -> float:
    """Return the size of the largest activation of a layer: room for one that comes or goes."""
    workload = run.models[0].runtime_predictor.workload
    forwards = {(event.layer or 0, event.samples) for log in run.logs for event in log if event.typ == "forward"}
    return run.bytes_per_element * max(
        workload.memory_elements(Activation(layer, run.num_layers, samples, run.global_batch_size))
        for layer, samples in forwards
    )


def budget_for(exercise: Exercise, case: Case) -> Budget:
    """Return the budget of a case: from the exercise's `budgets.json`, or else from its reference.

    Raises:
        UsageError: neither of them knows the case.
    """
    path = exercise.folder / "budgets.json"
    known: dict[str, Budget] = read_part(path, dict[str, Budget]) if path.is_file() else {}
    if case.key in known:
        return known[case.key]
    if not exercise.has_reference:
        raise UsageError(
            f"there is no budget for {case} in {path}, and no reference to compute it from; "
            "write the package anew where the reference is"
        )
    return reference_budget(exercise, case)


def reference_budget(exercise: Exercise, case: Case) -> Budget:
    """Return the budget of a case that the reference sets; it is run once, until one of its files is written anew."""
    texts = tuple((exercise.folder / name).read_text(encoding="utf-8") for name in ("exercise.json", "reference.py"))
    return _from_reference(exercise.folder, texts, case.key)


@lru_cache(maxsize=512)
def _from_reference(folder: Path, _texts: tuple[str, ...], key: str) -> Budget:
    """Return the budget of a case by running the reference of these texts."""
    exercise = load_exercise(folder)
    return budget_of(measure_reference(exercise, Case.of_key(key)), exercise)


def budgets_json(exercise: Exercise, cases: Sequence[Case]) -> str:
    """Return the budgets of some sizes as `budgets.json` has them, for where the reference is not there."""
    return json.dumps({case.key: asdict(budget_for(exercise, case)) for case in cases}, indent=2)


def measure_reference(exercise: Exercise, case: Case) -> Measured:
    """Run the reference with some sizes, under strict accounting, and measure it as submissions are measured."""
    recorder = Recorder()
    run_reference(exercise, case, observers=[recorder])
    meter = Meter()
    strategy = replayed(recorder.programs, exercise.function, watch=meter, semantics=exercise.semantics(case))
    run = simulate(strategy, strict=True, hardware=exercise.hardware, **case.sizes)
    return Measured(run, meter.held(run), recorder.programs)


def run_reference(exercise: Exercise, case: Case, **more: Any) -> Run:
    """Run the reference with some sizes, under strict accounting."""
    options = {**case.options, **more}
    return simulate(exercise.reference, strict=True, hardware=exercise.hardware, **case.sizes, **options)


_MOST_TRIES = 20_000


def with_secret_sizes(exercise: Exercise, secret: str) -> Exercise:
    """Return an exercise with other hidden sizes, as many as it has.

    Args:
        exercise: with its reference.
        secret: any text; one that cannot be guessed.

    Raises:
        UsageError: there is no reference, or nothing legal is found.
    """
    if exercise.slowed:
        return exercise  # which has no hidden sizes
    if not exercise.has_reference:
        raise UsageError(f"hidden sizes of {exercise.name} cannot be drawn where its reference is not there")
    wanted = len(exercise.hidden) or 3
    dice = random.Random(f"{secret}\n{exercise.name}")  # of text: the same on every machine
    known = [case for case in (*exercise.public, *exercise.hidden) if case.is_proven]
    drawn: dict[str, Case] = {}
    for _ in range(_MOST_TRIES):
        case = _draw(dice, known)
        if _is_new(case, known, drawn.values()) and _is_legal(exercise, case, known):
            drawn[case.key] = case
            if len(drawn) == wanted:
                return replace(exercise, hidden=[*drawn.values()])
    raise UsageError(f"no {wanted} further sizes were found for {exercise.name}; give it hidden sizes that differ more")


def _is_new(case: Case, known: Sequence[Case], drawn: Collection[Case]) -> bool:
    """Return whether sizes test something that others do not: not the same, and not a single rank once more."""
    alone = case.world_size == 1 < max(other.world_size for other in known)
    return all(case.key != other.key and not (alone and other.world_size == 1) for other in drawn) and all(
        case.key != other.key for other in known
    )


def _draw(dice: random.Random, known: Sequence[Case]) -> Case:
    """Return sizes between those that are known."""
    sizes = {name: _between(dice, [case.numbers[name] for case in known]) for name in known[0].numbers}
    options: dict[str, Any] = {}
    for name in sorted({name for case in known for name in case.options}):
        values = [case.options[name] for case in known if name in case.options]
        if len(values) == len(known) or dice.random() < len(values) / len(known):
            options[name] = _between(dice, values)
    return Case(**sizes, options=options, hidden=True, workload=known[0].workload)


def _between(dice: random.Random, values: Sequence[Any]) -> Any:
    """Return a number between some others, or one of some values that are no numbers."""
    if all(type(value) is int for value in values):
        return dice.randint(min(values), max(values))
    return dice.choice(values)


def _is_legal(exercise: Exercise, case: Case, known: Sequence[Case]) -> bool:
    """Return whether the reference trains with some sizes, within what it may need."""
    fills = [_fills_ranks(other.numbers, other.options) for other in (*known, case)]
    if all(fills[:-1]) and not fills[-1]:
        return False
    try:
        budget = budget_for(exercise, case)
    except (MinitrainError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return exercise.memory_limit_bytes is None or budget.reference_memory_bytes <= exercise.memory_limit_bytes


def _fills_ranks(sizes: Mapping[str, int], options: Mapping[str, Any]) -> bool:
    """Return whether there are at least as many microbatches as ranks."""
    return int(sizes["global_batch_size"]) >= int(sizes["world_size"]) * int(options.get("microbatch_size", 1))
