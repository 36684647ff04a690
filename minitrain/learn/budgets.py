"""The budgets of a submission, secret sizes to keep them with, and why a run waits for ever or needs more.

**Budgets** are the communication, time and memory of the reference solution, with a margin. Two bounds have no margin,
because the exercise's statement names them: the microbatches that a rank keeps, and, in exercises about whole or
sharded tensors, how many tensors of a layer a rank may hold beside those of the reference (`memory_slack` of
`exercise.json`).

**Secret sizes.** Everybody can read the hidden sizes of the shipped exercises. A teacher's secret draws others, always
the same for the same secret. Each figure lies between the smallest and the largest of the exercise's known sizes. Sizes
are drawn until the reference trains with them and keeps its own budgets. Where all known sizes have at least as many
microbatches as ranks, those that are drawn have too. At most one of them has a single rank, unless all known ones do.

**Why** is said from what the ranks of a run did and where. A deadlock is
told by the messages and collectives that were begun: which one is missing, is one too many, or comes in an order that
waits. A run that needs more is compared with the reference by what is on its longest chain of operations, and by how
often it communicates for which layer.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from minitrain.errors import MinitrainError, UsageError
from minitrain.learn.exercise import Amount, Case, Exercise, load_exercise, read_part
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import (
    Held,
    Meter,
    communication_by_kind,
    handed_in,
    kept_by_rank,
    last_clock,
    named,
    replayed,
    states_on_host,
)
from minitrain.operations import COMMUNICATIONS, HOST_MOVES, LOAD_WEIGHTS
from minitrain.operations.collectives import COLLECTIVES
from minitrain.run.analysis.labels import duration
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.tensors import Activation, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import ranges

if TYPE_CHECKING:
    from minitrain.run.analysis.retiming import CriticalPath


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
        alone = case.world_size == 1 < max(other.world_size for other in known)
        has_one = alone and any(other.world_size == 1 for other in drawn.values())  # and one rank is enough
        is_new = case.key not in {*drawn, *(other.key for other in known)} and not has_one
        if is_new and _is_legal(exercise, case, known):
            drawn[case.key] = case
            if len(drawn) == wanted:
                return replace(exercise, hidden=[*drawn.values()])
    raise UsageError(f"no {wanted} further sizes were found for {exercise.name}; give it hidden sizes that differ more")


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
    *fills, fills_ranks = (
        one.global_batch_size >= one.world_size * int(one.options.get("microbatch_size", 1)) for one in (*known, case)
    )
    if all(fills) and not fills_ranks:  # there are fewer microbatches than ranks
        return False
    try:
        budget = budget_for(exercise, case)
    except (MinitrainError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return exercise.memory_limit_bytes is None or budget.reference_memory_bytes <= exercise.memory_limit_bytes


_MOST = 3
"""Things that are named of many."""

_NO_LAYER = -1

_NEXT = {
    "load_weights": "`weights[layer], opt_states[layer] = model.load_weights(layer)` for the layers of the rank",
    "get_input_activation": "`activations[0] = model.get_input_activation(samples)`, for the samples of the rank",
    "forward": "`activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])`, layer after layer",
    "loss": "`model.loss(activations.pop(model.num_layers))`, which gives the gradient that begins the way back",
    "backward": "`model.backward(layer, activations[layer], grad, weights[layer])`, from the last layer to the first",
    "update": "`model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])`",
}
"""The operations of a step in their order, each as the next thing to write."""

_LAUNCHED = frozenset({"send", "receive", *HOST_MOVES, *COLLECTIVES})
"""Communications, as steps have them."""

_LIKE = {
    "load_weights": ("load_weights", "load_router", "load_experts"),
    "get_input_activation": ("get_input_activation", "get_input_shard"),
    "backward": ("backward", "backward_input"),
}
"""Operations that stand for one of these."""


@dataclass(frozen=True, slots=True)
class Call:
    """A communication that a rank has begun.

    Args:
        rank: that began it.
        kind: its name, as a strategy calls it.
        ranks: of its group; of a message, the other rank alone.
        about: the tag of a message, as text; the layer of a collective.
        line: where it stands, if that is known.
        is_done: whether the rank has its result.
        launched: whether the rank went on at once.
    """

    rank: int
    kind: str
    ranks: tuple[int, ...]
    about: str | int | None
    line: str | None
    is_done: bool
    launched: bool

    def __str__(self) -> str:
        return f"{self._what}{f' ({self.line})' if self.line else ''}"

    @property
    def _what(self) -> str:
        """The call in words."""
        if self.kind in ("send", "receive"):
            tag = "" if self.about is None else f" with tag {self.about}"
            return f"{self.kind} {'to' if self.kind == 'send' else 'from'} rank {self.ranks[0]}{tag}"
        return self.kind + ("" if self.about is None else f" of layer {self.about}")

    @property
    def signature(self) -> tuple[str, str | int | None]:
        """What members of a group must agree in."""
        return self.kind, self.about


def calls_of(programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]]) -> list[list[Call]]:
    """Return the communications that each rank has begun, in their order."""
    return [list(_calls(rank, steps, lines[rank])) for rank, steps in enumerate(programs)]


def _calls(rank: int, steps: Sequence[Any], lines: Sequence[Any]) -> Iterator[Call]:
    """Yield the communications of one rank."""
    done = {step[1] for step in steps if step[0] == "await"}
    for number, step in enumerate(steps):
        kind, line = step[0], lines[number] if number < len(lines) else None
        facts = (line if isinstance(line, str) else None, number in done, bool(step[-1]))
        if kind in ("send", "receive"):
            peer, tag = step[-3:-1]
            yield Call(rank, kind, (peer,), tag, *facts)
        elif kind in COLLECTIVES:
            yield Call(rank, kind, tuple(step[3]), step[2], *facts)


def why_all_wait(programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]]) -> list[str]:
    """Return why ranks wait for one another for ever, one line for each pair or group that says something."""
    calls = calls_of(programs, lines)
    found: dict[str, None] = {}
    for own in calls:
        waiting = _waits_in(own)
        if waiting is None:
            continue
        tell = _why_message if waiting.kind in ("send", "receive") else _why_collective
        found.update(dict.fromkeys(tell(waiting, calls)))
    return [*found][:_MOST]


def _waits_in(own: Sequence[Call]) -> Call | None:
    """Return the call in which a rank waits: one that it did not launch, else the first that has no result."""
    pending = [call for call in own if not call.is_done]
    return next((call for call in pending if not call.launched), pending[0] if pending else None)


def _state_of(rank: int, calls: Sequence[Sequence[Call]]) -> str:
    """Return what a rank does meanwhile."""
    waiting = _waits_in(calls[rank])
    return f"rank {rank} has ended" if waiting is None else f"rank {rank} waits in {waiting}"


def _why_message(waiting: Call, calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield why a message does not come, or is not taken."""
    rank, other = waiting.rank, waiting.ranks[0]
    own, theirs = ([call for call in calls[one] if call.ranks == (two,)] for one, two in ((rank, other), (other, rank)))
    peers = _waits_in(calls[other])
    if peers is not None and peers.ranks == (rank,):
        if rank < other:
            unasked = [*_unasked(own, theirs), *_unasked(theirs, own)]
            tags = f"; nobody has asked yet for {', '.join(map(str, unasked[:_MOST]))}" if unasked else ""
            yield (
                f"rank {rank} and rank {other} wait for one another: in its order, rank {rank} does {_listed(own)}; "
                f"rank {other} does {_listed(theirs)}{tags}; one of the two must do first what the other waits for"
                f"{', or a message and its receive have different tags' if unasked else ''}"
            )
        return
    kind, done = ("send", "sent") if waiting.kind == "receive" else ("receive", "received")
    begun = [call for call in theirs if call.kind == kind]
    alike = sum(call.about == waiting.about for call in begun)
    wanted = sum(call.kind == waiting.kind and call.about == waiting.about for call in own)
    if alike < wanted:
        tags = "" if alike == len(begun) else f", and {len(begun) - alike} with other tags"
        elsewhere = (call for call in calls[other] if call.kind == kind and call not in begun)
        stray = next((call for call in elsewhere if call.about == waiting.about), None)
        tags += "" if stray is None or alike else f", but did {stray}"
        yield (
            f"rank {rank} waits in {waiting}, and rank {other} has {done} {alike} of the {wanted} messages that this "
            f"takes{tags}; {_state_of(other, calls)}"
        )


def _unasked(sending: Sequence[Call], receiving: Sequence[Call]) -> Iterator[Call]:
    """Yield the messages of one rank that no receive of the other takes, though one waits: their tags are others."""
    asked = Counter(call.about for call in receiving if call.kind == "receive")
    for call in sending:
        if call.kind == "send":
            asked[call.about] -= 1
            if asked[call.about] < 0:
                yield call


def _why_collective(waiting: Call, calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield which ranks of a group are not there, and which call of a rank the others do not make."""
    of_group = {rank: [call for call in calls[rank] if call.ranks == waiting.ranks] for rank in waiting.ranks}
    own = of_group[waiting.rank]
    for rank, others in of_group.items():
        if len(others) >= len(own):
            continue
        yield (
            f"rank {waiting.rank} waits in {waiting}, its collective number {len(own)} of ranks "
            f"{ranges(waiting.ranks)}: rank {rank} has called {len(others)}, and {_state_of(rank, calls)}"
        )
        theirs = _waits_in(calls[rank])
        extra = _superfluous(own, others) if theirs is None or theirs.kind in COLLECTIVES else None
        if extra is not None:
            yield f"rank {waiting.rank} does one that rank {rank} does not: {extra}"
        return


def _superfluous(more: Sequence[Call], fewer: Sequence[Call]) -> Call | None:
    """Return the first call that one rank makes and another does not, if they agree in all others."""
    for place, call in enumerate(more):
        if place >= len(fewer) or call.signature != fewer[place].signature:
            rest = [other.signature for other in more[place + 1 :]]
            return call if rest == [other.signature for other in fewer[place:]] else None
    return None


def _listed(calls: Sequence[Call]) -> str:
    """Return the last calls of a rank in words."""
    shown = [f"{call}{'' if call.is_done or call.launched else ', which waits'}" for call in calls[-_MOST:]]
    return ("..., " if len(calls) > _MOST else "") + (", ".join(shown) or "nothing")


def never_awaited(
    programs: Sequence[Sequence[Any]], lines: Sequence[Sequence[Any]], layers: Collection[int] | None = None
) -> list[str]:
    """Return which operations were launched and never awaited, one for each line of the submission.

    Args:
        programs: the steps of the ranks.
        lines: where they stand.
        layers: of which layers; of all, and messages too, if None.
    """
    found: dict[Any, str] = {}
    for rank, steps in enumerate(programs):
        over = {step[1] for step in steps if step[0] == "await"}
        over |= {step[1]["launched"] for step in steps if isinstance(step[1], Mapping) and "launched" in step[1]}
        for number, step in enumerate(steps):
            wanted = layers is None or (step[0] in COLLECTIVES and step[2] in layers)
            if wanted and step[0] in _LAUNCHED and step[-1] is True and number not in over:
                line = lines[rank][number]
                where = f" at {line}" if isinstance(line, str) else ""
                found.setdefault(line, f"rank {rank} has launched {_in_words(step)}{where}, and has not awaited it")
    return [*found.values()][:_MOST]


def without_second_half(programs: Sequence[Sequence[Any]], rank: int, layer: int) -> str:
    """Return how often a rank has done less `backward_weight` of a layer than `backward_input`; "" if it has not."""
    first, second = (
        sum(step[:2] == [kind, layer] for step in programs[rank]) for kind in ("backward_input", "backward_weight")
    )
    if second >= first:
        return ""
    return (
        f"rank {rank} has done backward_input of layer {layer} {first} times and backward_weight {second} times: the W "
        "of these samples is missing before the update"
    )


def without_input(programs: Sequence[Sequence[Any]], message: str) -> str:
    """Return which of the samples that a message lists as missing no rank has taken as inputs; "" if all were."""
    listed = re.search(r"\[([\d, ]+)\]", message)
    inputs = _LIKE["get_input_activation"]
    taken = {sample for steps in programs for step in steps if step[0] in inputs for sample in step[1]}
    never = {int(number) for number in listed.group(1).split(",")} - taken if listed else ()
    return f"no rank has taken {named('sample', never)} as inputs yet" if never else ""


def next_step(programs: Sequence[Sequence[Any]]) -> str:
    """Return the first operation of a training step that no rank has done, as what to write next; "" if all were."""
    done = {step[0] for steps in programs for step in steps}
    for name, how in _NEXT.items():
        if done.isdisjoint(_LIKE.get(name, (name,))):
            return f"no rank has called {name} yet, which is the next thing to write: {how}"
    return ""


def ordered(steps: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Return those operations of a rank that have one of some names, in their order, each in words."""
    return [words for _, words in ordered_places(steps, names)]


def ordered_places(steps: Sequence[Any], names: Sequence[str]) -> list[tuple[int, str]]:
    """Return the same, each with the number of its step."""
    return [(number, _in_words(step)) for number, step in enumerate(steps) if step[0] in names]


def _in_words(step: Sequence[Any]) -> str:
    """Return an operation in words: its name, and the layer or the rank that it is for."""
    kind = str(step[0])
    if kind in ("send", "receive"):
        return f"{kind} {'to' if kind == 'send' else 'from'} rank {step[-3]}"
    layer = step[2] if kind in COLLECTIVES else step[1]
    return f"{kind} of layer {layer}" if isinstance(layer, int) else kind


def calls_by_layer(run: Run) -> dict[str, int]:
    """Return how often all ranks together communicate, by operation and layer in words; a receive is its send's."""
    counted = Counter(
        event.typ if event.layer is None else f"{event.typ} of layer {event.layer}"
        for log in run.logs
        for event in log
        if event.typ in COMMUNICATIONS and event.typ not in ("recv", "barrier")
    )
    return dict(sorted(counted.items()))


def more_calls(run: Run, expected: Mapping[str, int], programs: Any, lines: Any) -> list[str]:
    """Return which communications a run does more often than the reference, those alike in one line.

    Args:
        run: what the ranks did.
        expected: of the reference, as `calls_by_layer` has it.
        programs: the steps of the ranks.
        lines: where they stand.
    """
    layers: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    done = calls_by_layer(run)
    more = _by_kind(done) - _by_kind(expected)  # alike in number, they may be for layers that are counted otherwise
    for what, number in done.items():
        kind, _, layer = what.partition(" of layer ")
        if kind in more and number > expected.get(what, 0):
            layers[kind, number, expected.get(what, 0)].append(int(layer or _NO_LAYER))
    found = []
    for (kind, number, known), of_layers in layers.items():
        asked = {layer for layer in of_layers if layer != _NO_LAYER}
        calls = (
            call
            for own in calls_of(programs, lines)
            for call in own
            if call.kind == kind and (kind == "send" or not asked or call.about in asked)
        )
        places = [*dict.fromkeys(call.line for call in calls if call.line)][:_MOST]
        where = f" of {named('layer', asked)}" if asked else ""
        at = f", at {', '.join(places)}" if places else ""
        found.append(f"{kind}{where}: {number} over all ranks, the reference does {known or 'none'}{at}")
    return found[:_MOST]


def _by_kind(calls: Mapping[str, int]) -> Counter[str]:
    """Return how often ranks communicate, by operation."""
    counted: Counter[str] = Counter()
    for what, number in calls.items():
        counted[what.partition(" of layer ")[0]] += number
    return counted


def path_of(run: Run) -> dict[str, float]:
    """Return what the longest chain of operations is made of, s by type; their sum is the latest clock."""
    return _parts(run, _chain(run))


def _chain(run: Run) -> CriticalPath:
    """Return the longest chain of operations of a run."""
    from minitrain.run.analysis.retiming import critical_path, make_graph  # noqa: PLC0415  (they need numpy)

    return critical_path(make_graph(run.timeline))


def _parts(run: Run, path: CriticalPath) -> dict[str, float]:
    """Return the time of a chain by type of operation, with all loading."""
    parts = path.by_typ()
    before = run.last_clock - sum(parts.values())  # where ranks load at first
    return {**parts, LOAD_WEIGHTS: parts.get(LOAD_WEIGHTS, 0.0) + max(0.0, before)}


LineOf = Callable[[int, int], str | None]
"""Where in the submission an event stands, by its rank and its index in the rank's log."""


def longer_parts(run: Run, expected: Mapping[str, float], line_of: LineOf) -> list[str]:
    """Return in which operations a run is longer than the reference, or else where it waits longest.

    Args:
        run: what the ranks did.
        expected: of the reference, as `path_of` has it; empty where it is not known.
        line_of: finds the lines of events.
    """
    path = _chain(run)
    parts = _parts(run, path)
    more = {typ: seconds - expected.get(typ, 0.0) for typ, seconds in parts.items()} if expected else {}
    least = 0.1 * sum(part for part in more.values() if part > 0)
    found = [
        f"{typ}{_where(path, typ, line_of)} {duration(parts[typ])}, not {duration(expected.get(typ, 0.0))}"
        for typ, part in sorted(more.items(), key=lambda item: -item[1])[:_MOST]
        if part > least
    ]
    if found:
        return [f"its longest chain of operations has more than the reference's of: {'; '.join(found)}"]
    from minitrain.run.analysis.explanation import find_gaps  # noqa: PLC0415  (it needs numpy)

    gaps = find_gaps(run.timeline, run.last_clock)
    if not len(gaps):
        return []
    gap = int(gaps.duration.argmax())
    return [f"its longest wait is {duration(gaps.duration[gap])}, of rank {gaps.rank[gap]} for {gaps.reason(gap)}"]


def _where(path: CriticalPath, typ: str, line_of: LineOf) -> str:
    """Return the layers and ranks of a chain's operations of a type, and the line with most of their time, in words."""
    run = path.timeline
    if typ not in run.typs:
        return ""
    events = path.event[run.typ[path.event] == run.typs.index(typ)]
    layers = {int(layer) for layer in run.layer[events] if layer >= 0}  # others are of none
    ranks = {int(rank) for rank in run.rank[events]}
    named_of = [named(what, of) for what, of in (("layer", layers), ("rank", ranks)) if of]
    spent: Counter[str] = Counter()
    for event in events:
        rank = int(run.rank[event])
        spent[line_of(rank, int(event - run.starts[rank])) or ""] += run.duration[event]
    line = next(iter(spent.most_common(1)), ("",))[0]
    named_of += [f"{'most of it ' if len(spent) > 1 else ''}at {line}"] if line else []
    return f" ({', '.join(named_of)})" if named_of else ""
