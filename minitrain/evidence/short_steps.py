"""The times of a pipeline's step, from a shorter one that was simulated: its passes in the order of more microbatches.

Each rank of the shorter step is cut into its load, its passes through stages, its messages, and its update. All passes
through a stage are alike but for the first forward, which waits for weights, and the last backward, beside which
gradients are summed. So a longer step has the same operations, in the order that the strategy asks for
(`minitrain.search.tuning.layouts.order_of`). Its clocks are worked out by the rules of the engine
(`minitrain.run.folding.microbatches`) and are the floats of its simulation. What is put together again as the shorter
step must have the clocks that were simulated; else the longer step is simulated. Where communication slows computing
down, the longer one is timed again (`minitrain.run.contention`). Memory is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from minitrain.operations import COMM, RECV, Note
from minitrain.operations import SEND as MESSAGE
from minitrain.run.contention import slow_down
from minitrain.run.folding.expansion import FoldedRun
from minitrain.run.folding.microbatches import (
    NO_MICROBATCH,
    Microbatches,
    Performed,
    are_as_simulated,
    clocks_of,
    microbatch_of,
    write_steps,
)
from minitrain.run.result import Run
from minitrain.search.tuning.layouts import BACKWARD, FORWARD, LAUNCHED, SEND, WAIT, Order

_COLUMNS = ("typ", "layer", "price", "stream", "mode", "note")


def _variant(code: int, microbatch: int, num_microbatches: int) -> int:
    """Return which passes through a stage one is like: 0 for the first forward, 2 for the last backward, else 1."""
    if code == FORWARD:
        return int(microbatch > 0)
    return 1 + (microbatch == num_microbatches - 1)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of what a rank does in a step.

    Args:
        of: what it does.
        load: the operations before its first pass or message.
        passes: those of a pass, by direction, stage and variant.
        messages: that of a message, by whether it is launched, sent or received, and its kind.
        update: the operations after its last pass or message.
    """

    of: Performed
    load: range
    passes: dict[tuple[int, int, int], range]
    messages: dict[tuple[int, Any], int]
    update: range

    @classmethod
    def cut(cls, of: Performed, order: Order, place: int, microbatches: Microbatches) -> _Parts | None:
        """Return the parts; None where the operations do not follow the order."""
        numbers = {id(samples): microbatch_of(samples, microbatches) for samples in of.samples}
        microbatch = [numbers[id(samples)] for samples in of.samples]
        talks = [stream.kind in (MESSAGE, RECV) for stream in of.stream]
        begin = next(at for at in count() if talks[at] or microbatch[at] != NO_MICROBATCH)
        passes: dict[tuple[int, int, int], range] = {}
        messages: dict[tuple[int, Any], int] = {}
        at = begin
        for code, what, number in order.asked[place]:
            start = at
            if code > BACKWARD:
                if code != WAIT:
                    messages.setdefault((code, order.messages[what]), at)
                    at += 1
                continue
            variant = _variant(code, number, microbatches.few)
            while at < len(talks) and not talks[at] and not (code == FORWARD and of.typ[at] == "loss"):
                is_sum = variant == 2 and of.stream[at].kind == COMM
                if microbatch[at] != number and not (microbatch[at] == NO_MICROBATCH and is_sum):
                    break
                at += 1
            passes.setdefault((code, what, variant), range(start, at))
        is_cut = all(passes.values()) and all(one < len(talks) and talks[one] for one in messages.values())
        return cls(of, range(begin), passes, messages, range(at, len(talks))) if is_cut else None

    def together(self, order: Order, place: int) -> Performed | None:
        """Return what the rank does in the order of a step; None where it lacks a part of it."""
        made = _Together(self.of)
        made.add(self.load)
        for code, what, microbatch in order.asked[place]:
            if code <= BACKWARD:
                part = self.passes.get((code, what, _variant(code, microbatch, order.num_microbatches)))
            elif code == WAIT:
                made.wait(what, microbatch)
                continue
            else:
                at = self.messages.get((code, order.messages[what]))
                part = None if at is None else range(at, at + 1)
            if part is None:
                return None
            made.add(part)
            if code > BACKWARD:
                made.mark(code, what, microbatch, order.messages[what].dest)
        made.add(self.update)
        often = (part for (_, _, variant), part in self.passes.items() if variant == 1)
        return made.done(frozenset(chain.from_iterable(often)))


class _Together:
    """What a rank does, put together from operations of a shorter step.

    Args:
        of: what it does there.
    """

    def __init__(self, of: Performed) -> None:
        self._of = of
        self._columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self._notes = self._columns["note"]
        self._placed: list[tuple[range, int]] = []  # what was added, and where it begins
        self._launched: dict[tuple[int, int], Note] = {}  # by message and microbatch
        self._carried: dict[int, tuple[int, int]] = {}  # an interface's last launched message: its receiver and place

    def add(self, part: range) -> None:
        """Add some operations."""
        self._placed.append((part, len(self._notes)))
        for name, column in self._columns.items():
            column.extend(getattr(self._of, name)[part.start : part.stop])

    def mark(self, code: int, what: int, microbatch: int, dest: int) -> None:
        """Let the last operation be the message of a microbatch."""
        at = len(self._notes) - 1
        tag = self._notes[at].tag
        note = self._notes[at] = self._launched[what, microbatch] = Note((*tag[:-1], microbatch), code >= LAUNCHED)
        if code % LAUNCHED == SEND:
            tier = self._columns["price"][at].tier_size
            receiver, before = self._carried.pop(tier, (dest, at))
            note.after = (before,) if receiver != dest else ()
            if code >= LAUNCHED:
                self._carried[tier] = dest, at

    def wait(self, what: int, microbatch: int) -> None:
        """Await a message that was launched."""
        self._launched[what, microbatch].awaited = len(self._notes)

    def done(self, often: frozenset[int]) -> Performed | None:
        """Return all; None where something is awaited of which it is not known where.

        Args:
            often: the operations that may be there several times.
        """
        moved = {old: at for part, begin in self._placed for old, at in zip(part, count(begin), strict=False)}
        moved[len(self._of.typ)] = len(self._notes)
        for part, begin in self._placed:
            for old, at in zip(part, count(begin), strict=False):
                own = self._of.note[old]
                if own is None or self._notes[at] is not own:
                    continue
                note = self._notes[at] = Note(own.tag, own.overlaps)
                if own.awaited is not None and part.start <= own.awaited <= part.stop:
                    note.awaited = own.awaited - old + at
                elif own.awaited is not None:
                    note.awaited = None if own.awaited in often else moved.get(own.awaited)
                if own.after or (own.awaited is not None and note.awaited is None):
                    return None
        size = len(self._notes)
        return Performed(**self._columns, memory=[0] * size, samples=[frozenset()] * size)


class ShortStep:
    """A short step of a pipeline, from which longer ones are put together.

    Args:
        run: the short step.
        order: its order.
        microbatch_size: samples of a microbatch.
        contention: whether longer steps are timed again, as communication slows computing down; the short one is not.
    """

    def __init__(self, run: Any, order: Order, microbatch_size: int, *, contention: bool = False) -> None:
        self._run, self._models, self._contention = run, run.class_models, contention
        self._parts: list[_Parts | None] = []
        if not isinstance(run, FoldedRun) or len(self._models) != len(order.asked):
            return
        few = order.num_microbatches
        microbatches = Microbatches(few, microbatch_size, len(order.asked), 1, lambda _: (), few=few)
        for place, model in enumerate(self._models):
            done = Performed.of(model)
            self._parts.append(None if done is None else _Parts.cut(done, order, place, microbatches))
        clocks = self._clocks(self._together(order))
        if clocks is None or not all(map(are_as_simulated, self._models, clocks)):
            self._parts = []

    def with_order(self, order: Order) -> Run | None:
        """Return the run of a step in another order, whose times are known alone; None where it is to be simulated.

        The run that was returned before is no longer of use.
        """
        whole = self._together(order)
        clocks = self._clocks(whole)
        if clocks is None:
            return None
        for model, columns, times in zip(self._models, whole, clocks, strict=True):
            write_steps(model, columns, times)
        if self._contention:
            self._slow_down()
        found: Run = replace(self._run)
        return found

    def _slow_down(self) -> None:
        """Time the models again, in the logs that the run has."""
        logs = [model._log for model in self._models]
        slow_down(self._models, self._run.expansion.lowest)
        for model, log in zip(self._models, logs, strict=True):
            log._rows[:] = model._rows
            model._log, model._rows = log, log._rows

    def _together(self, order: Order) -> list[Performed]:
        """Return what the ranks do in an order; nothing where that is not known of all of them."""
        found = [None if part is None else part.together(order, place) for place, part in enumerate(self._parts)]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else []

    def _clocks(self, whole: Sequence[Performed]) -> Any:
        ranks = [model._rank for model in self._models]
        return clocks_of(whole, ranks, [0.0] * len(ranks)) if whole else None
