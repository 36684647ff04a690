"""A pipeline schedule: for each rank, the actions that it runs, in order.

One step of a pipeline: a kind of work, on one stage, for one microbatch.

The text form is the one of `torch.distributed.pipelining`: stage, kind, microbatch, as in `2F0`.
Communication is no action here: it follows from where the stages are.

The CSV form of a schedule, as `torch.distributed.pipelining` dumps and loads it.

One row a rank, one cell an action (`2F0`), an idle slot empty, actions that shall overlap in one cell:
`(0F3;3B1)OVERLAP_F_B`. This is torch's format "compute_only". Files of its format "compute_comms" hold
communication beside it (`0SEND_F1`, `2UNSHARD`, `2REDUCE_GRAD` ...); such cells are left out when read, since
here communication follows from the order of the computation.

Source: torch 2.13, torch/distributed/pipelining/schedules.py, `_Action.from_str`, `_dump_csv` and
`_load_csv`.

What makes a schedule legal, and which action breaks it first.

On its rank, every stage sees each microbatch once forward and once backward: forward first, then either a
full backward (B) or an input gradient (I) followed by a weight gradient (W). A stage lives on one rank, or on as many
as the schedule has copies of the weights; a microbatch then goes through one of them, forward and backward.
Between ranks, a forward waits for the stage before it and a backward for the stage after it; an order in
which ranks wait in a circle can never run.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from minitrain.errors import StrategyError, UsageError, is_count, require_count, shown, typed

Kind = Literal["F", "B", "I", "W"]
"""F forward, B full backward, I gradient of the input, W gradient of the weights (B = I and W together)."""

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}

# Nine digits are more than any schedule needs; without a limit, a typing error could name 10^30 stages.
_TEXT = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a rank.

    Args:
        kind: F, B, I or W.
        stage: the stage of the model that it works on, counted from 0.
        microbatch: the microbatch that it works on, counted from 0.

    Raises:
        UsageError: for an unknown kind or a negative number.

    >>> str(Action("F", stage=2, microbatch=0))
    '2F0'
    """

    kind: Kind
    stage: int
    microbatch: int

    def __post_init__(self) -> None:
        """Refuse what no schedule can hold."""
        if self.kind not in get_args(Kind):
            raise UsageError(f"an action's kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not (is_count(self.stage, 0) and is_count(self.microbatch, 0)):
            raise UsageError(f"stage and microbatch are counted from 0, got {self.stage!r} and {self.microbatch!r}")

    def __str__(self) -> str:
        """Return the compact text form, `2F0`."""
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    @typed
    def from_text(cls, text: str) -> Action:
        """Read the compact text form.

        Args:
            text: stage, kind and microbatch without anything between them, as in `2F0`.

        Raises:
            UsageError: if the text has another form.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r:.40} is no action; write stage, F, B, I or W, and microbatch, as in 2F0")
        stage, kind, microbatch = match.groups()
        return cls(KINDS[kind], int(stage), int(microbatch))


Cell = tuple[Action, ...]
"""One cell of a schedule's grid: nothing (idle), one action, or several fused to overlap, in order."""


Row = tuple[Cell, ...]

_FUSED = re.compile(r"\((.*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB][0-9]+)")


def write_rows(rows: Iterable[Row]) -> str:
    """Return the CSV text of a schedule's rows, each line ended by a newline."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell_text(cell) for cell in row] for row in rows)
    return text.getvalue()


def read_rows(text: str) -> tuple[Row, ...]:
    """Read a schedule's rows from CSV text; empty lines at its end are no ranks.

    Raises:
        UsageError: if a cell has none of the known forms, or if there is no row.
    """
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UsageError(f"the schedule is no CSV text: {error}") from error
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError("the CSV text of a schedule needs one row a rank, but it is empty")
    return tuple(_read_row(rank, line) for rank, line in enumerate(lines))


def _cell_text(cell: Cell) -> str:
    """Return a cell's text: empty, one action, or a fused group."""
    text = ";".join(map(str, cell))
    return f"({text})OVERLAP_F_B" if len(cell) > 1 else text


def _read_row(rank: int, line: list[str]) -> Row:
    """Read one rank's cells, without those that communicate."""
    computing = ((column, text) for column, text in enumerate(line) if not _COMMUNICATION.fullmatch(text.strip()))
    return tuple(_read_cell(text.strip(), rank, column) for column, text in computing)


def _read_cell(text: str, rank: int, column: int) -> Cell:
    """Read one cell, and say where it is if it cannot be read."""
    try:
        return _cell(text)
    except UsageError as error:
        raise UsageError(f"row {rank}, cell {column} of the CSV: {error}", rank=rank) from error


def _cell(text: str) -> Cell:
    """Read the text of one cell."""
    if not text:
        return ()
    fused = _FUSED.fullmatch(text)
    if fused is None:
        return (Action.from_text(text),)
    actions = tuple(Action.from_text(part.strip()) for part in fused[1].split(";"))
    if len(actions) < 2:
        raise UsageError(f"a fused cell needs two actions or more, but {text!r} has one; write it plainly")
    return actions


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    r"""Hold one training step of a pipeline as data.

    Any order can be held, also one that cannot run; `validate` checks it. Two schedules are equal if their rows
    are equal, whatever their names.

    Args:
        rows: for each rank its cells from left to right: idle, an action, or actions fused to overlap.
        name: what the schedule is called in tables and drawings.
        copies: on how many ranks each stage lives.

    >>> schedule = Schedule.from_csv("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
    >>> schedule.num_microbatches, schedule.placement
    (2, {0: 0, 1: 1})
    >>> " ".join(map(str, schedule.orders[1]))
    '1F0 1B0 1F1 1B1'
    """

    rows: tuple[Row, ...]
    name: str = field(default="schedule", compare=False)
    copies: int = 1
    orders: tuple[tuple[Action, ...], ...] = field(init=False, compare=False)
    """For each rank its actions in the order to run them: the rows without idle cells, fused cells in their
    order."""
    placement: dict[int, int] = field(init=False, compare=False)
    """Stage -> rank, by stage; of several copies the lowest rank."""
    homes: dict[tuple[int, int], int] = field(init=False, compare=False)
    """(stage, microbatch) -> the lowest rank that has an action of both."""
    num_microbatches: int = field(init=False, compare=False)
    """Number of microbatches, the highest named one being the last."""

    def __post_init__(self) -> None:
        """Read orders, placement and microbatches off the rows.

        Raises:
            UsageError: they are no rows of cells of actions, or `copies` is no count.
        """
        require_count("copies of a Schedule", self.copies)
        orders: tuple[tuple[Any, ...], ...] = ((None,),)
        with suppress(TypeError):
            orders = tuple(tuple(action for cell in row for action in cell) for row in self.rows)
        if any(not isinstance(action, Action) for order in orders for action in order):
            raise UsageError(
                f"rows of a Schedule must be one a rank, of cells, each a tuple of Actions, got {shown(self.rows)}; "
                "Schedule.from_orders takes actions, Schedule.from_csv text"
            )
        placement: dict[int, int] = {}
        homes: dict[tuple[int, int], int] = {}
        for rank, order in enumerate(orders):
            for action in order:
                placement.setdefault(action.stage, rank)
                homes.setdefault((action.stage, action.microbatch), rank)
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "placement", dict(sorted(placement.items())))
        object.__setattr__(self, "homes", homes)
        highest = max((action.microbatch for order in orders for action in order), default=-1)
        object.__setattr__(self, "num_microbatches", highest + 1)

    @property
    def has_pairs(self) -> bool:
        """Return whether some actions are fused, so that one can compute while what the other exchanges travels."""
        return any(len(cell) > 1 for row in self.rows for cell in row)

    @classmethod
    @typed
    def from_orders(cls, orders: Iterable[Iterable[Action]], name: str = "schedule", copies: int = 1) -> Schedule:
        """Make a schedule of each rank's actions alone: one action a cell, nothing idle, nothing fused."""
        return cls(tuple(tuple((action,) for action in order) for order in orders), name, copies)

    @classmethod
    @typed
    def from_csv(cls, text: str, name: str = "schedule") -> Schedule:
        """Read the CSV form that `torch.distributed.pipelining` dumps.

        Cells that communicate (torch's format "compute_comms") are left out: communication follows from the
        order.

        Args:
            text: one row a rank, cells as in `0F0`, empty, or `(0F3;3B1)OVERLAP_F_B`.
            name: what the schedule is called.

        Raises:
            UsageError: if a cell has another form, or if there is no row.
        """
        return cls(read_rows(text), name)

    def to_csv(self) -> str:
        """Return the CSV form that `torch.distributed.pipelining` loads, idle and fused cells as they are."""
        return write_rows(self.rows)

    @property
    def num_ranks(self) -> int:
        """Count the ranks."""
        return len(self.rows)

    @property
    def num_stages(self) -> int:
        """Count the stages, the highest named one being the last."""
        return max(self.placement, default=-1) + 1

    @property
    def num_chunks(self) -> int:
        """Count the stages of the rank that holds most of them."""
        return max((len(self.stages_of(rank)) for rank in range(self.num_ranks)), default=0)

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that live on a rank, ascending."""
        return sorted({action.stage for action in self.orders[rank]})

    def __repr__(self) -> str:
        """Return the name and the sizes; the actions themselves are in `to_csv`."""
        return (
            f"Schedule({self.name!r}: {self.num_ranks} ranks, {self.num_stages} stages, "
            f"{self.num_microbatches} microbatches)"
        )


# Which kinds must, and must not, have run before on the same stage and microbatch.
_NEEDS: dict[Kind, Kind | None] = {"F": None, "B": "F", "I": "F", "W": "I"}
_EXCLUDES: dict[Kind, tuple[Kind, ...]] = {"F": (), "B": ("I", "W"), "I": ("B",), "W": ("B",)}

Done = tuple[int, str, int]
"""Stage, direction and microbatch: what a neighbouring stage waits for."""


def validate(schedule: Schedule) -> None:
    """Check that a schedule can run and trains every microbatch once.

    Positions count a rank's actions from 0, without idle cells.

    Args:
        schedule: the schedule to check.

    Raises:
        StrategyError: naming the first illegal action, by rank and then by position, and why it is illegal;
            facts: rank, position and action, or for ranks that wait in a circle `stuck`, their actions.

    >>> validate(Schedule.from_csv("0F0,1F0,0B0,1B0"))
    Traceback (most recent call last):
        ...
    minitrain.errors.StrategyError: the order can never run: rank 0, position 2: 0B0 waits for 1B0 or 1I0
    """
    if not schedule.orders:
        raise StrategyError("the schedule has no rank; give one row of actions a rank")
    for rank, order in enumerate(schedule.orders):
        _check_order(schedule, rank, order)
    _check_complete(schedule)
    _check_copies(schedule)
    _check_progress(schedule)


def _check_order(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    """Check one rank's actions against those before them."""
    if not order:
        raise StrategyError(f"rank {rank} has no action; a schedule has one row a rank, each with a stage", rank=rank)
    done: set[Action] = set()
    for position, action in enumerate(order):
        fault = _fault(schedule, rank, action, done)
        if fault:
            where = f"rank {rank}, position {position}"
            raise StrategyError(f"{where}: {action} {fault}", rank=rank, position=position, action=action)
        done.add(action)


def _fault(schedule: Schedule, rank: int, action: Action, done: set[Action]) -> str | None:
    """Return why an action may not follow those done on its rank, or None."""
    home = schedule.placement[action.stage]
    if home != rank and schedule.copies == 1:
        return f"works on a stage of rank {home}; a stage lives on one rank"
    home = schedule.homes[action.stage, action.microbatch]
    if home != rank:
        return f"works on a microbatch that rank {home} has of this stage; it goes through one copy of the weights"
    if action in done:
        return "comes a second time; each action runs once"
    for kind in _EXCLUDES[action.kind]:
        other = Action(kind, action.stage, action.microbatch)
        if other in done:
            return f"comes beside {other}; a backward is either one B, or an I and a W"
    needed = _NEEDS[action.kind]
    earlier = needed and Action(needed, action.stage, action.microbatch)
    if earlier and earlier not in done:
        is_late = earlier in schedule.orders[rank]
        return (
            f"comes before {earlier}; move it after that" if is_late else f"needs {earlier}, which is missing; add it"
        )
    return None


def _check_complete(schedule: Schedule) -> None:
    """Check that no stage misses a microbatch, forward or backward."""
    present = {action for order in schedule.orders for action in order}
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            missing = _missing(stage, microbatch, present)
            if missing:
                message = (
                    f"{missing} is missing: every stage (of {schedule.num_stages}) runs every microbatch "
                    f"(of {schedule.num_microbatches}) forward and backward"
                )
                raise StrategyError(message, rank=schedule.placement.get(stage), action=missing)


def _check_copies(schedule: Schedule) -> None:
    """Check that each stage lives on as many ranks as the schedule has copies of the weights."""
    for stage in range(schedule.num_stages):
        ranks = [rank for rank in range(schedule.num_ranks) if stage in schedule.stages_of(rank)]
        if len(ranks) != schedule.copies:
            raise StrategyError(
                f"stage {stage} lives on {len(ranks)} ranks ({', '.join(map(str, ranks))}), and must on each of "
                f"{schedule.copies} that have a copy of its weights; give every copy a microbatch",
                stage=stage,
            )


def _missing(stage: int, microbatch: int, present: set[Action]) -> Action | None:
    """Return the first action that a stage lacks for a microbatch."""
    split = Action("I", stage, microbatch) in present
    kinds: tuple[Kind, ...] = ("F", "I", "W") if split else ("F", "B")
    actions = (Action(kind, stage, microbatch) for kind in kinds)
    return next((action for action in actions if action not in present), None)


def _check_progress(schedule: Schedule) -> None:
    """Run all orders, without times, until all are done or every rank waits for another one."""
    done: set[Done] = set()
    positions = [0] * schedule.num_ranks
    while sum(_advance(schedule, rank, positions, done) for rank in range(schedule.num_ranks)):
        pass
    stuck = [(rank, at) for rank, at in enumerate(positions) if at < len(schedule.orders[rank])]
    if stuck:
        waits = "; ".join(_waiting(schedule, rank, at) for rank, at in stuck)
        actions = [schedule.orders[rank][at] for rank, at in stuck]
        (rank, position), action = stuck[0], actions[0]
        facts = {"rank": rank, "position": position, "action": action, "stuck": actions}
        raise StrategyError(f"the order can never run: {waits}", **facts)


def _advance(schedule: Schedule, rank: int, positions: list[int], done: set[Done]) -> int:
    """Run a rank's actions up to the first that must wait; return how many."""
    order, start = schedule.orders[rank], positions[rank]
    while positions[rank] < len(order):
        action = order[positions[rank]]
        awaited = _awaited(schedule, action)
        if awaited and awaited not in done:
            break
        done.add((action.stage, _direction(action), action.microbatch))
        positions[rank] += 1
    return positions[rank] - start


def _direction(action: Action) -> str:
    """Return what other ranks may wait for: a forward (F) or a backward (B, also for I); no rank waits for a W."""
    return "B" if action.kind == "I" else action.kind


def _awaited(schedule: Schedule, action: Action) -> Done | None:
    """Return what an action needs from the stage before or after, if there is one."""
    if action.kind == "W":
        return None
    neighbour = action.stage + (-1 if action.kind == "F" else 1)
    exists = neighbour in schedule.placement
    return (neighbour, _direction(action), action.microbatch) if exists else None


def _waiting(schedule: Schedule, rank: int, position: int) -> str:
    """Return in words what a stuck action waits for."""
    action = schedule.orders[rank][position]
    stage = action.stage + (-1 if action.kind == "F" else 1)
    kinds = ("F",) if action.kind == "F" else ("B", "I")
    awaited = " or ".join(f"{stage}{kind}{action.microbatch}" for kind in kinds)
    return f"rank {rank}, position {position}: {action} waits for {awaited}"
