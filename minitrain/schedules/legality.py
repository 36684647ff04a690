"""What makes a schedule legal, and which action breaks it first.

On its rank, every stage sees each microbatch once forward and once backward: forward first, then either a
full backward (B) or an input gradient (I) followed by a weight gradient (W). A stage lives on one rank.
Between ranks, a forward waits for the stage before it and a backward for the stage after it; an order in
which ranks wait in a circle can never run.
"""

from minitrain.errors import StrategyError
from minitrain.schedules.action import Action, Kind
from minitrain.schedules.schedule import Schedule

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
    if home != rank:
        return f"works on a stage of rank {home}; a stage lives on one rank"
    if action in done:
        return "comes a second time; each action runs once"
    for kind in _EXCLUDES[action.kind]:
        other = Action(kind, action.stage, action.microbatch)
        if other in done:
            return f"comes beside {other}; a backward is either one B, or an I and a W"
    needed = _NEEDS[action.kind]
    if needed and Action(needed, action.stage, action.microbatch) not in done:
        return f"comes before {Action(needed, action.stage, action.microbatch)}; move it after that"
    return None


def _check_complete(schedule: Schedule) -> None:
    """Check that no stage misses a microbatch, forward or backward."""
    present = {action for order in schedule.orders for action in order}
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            missing = _missing(stage, microbatch, present)
            if missing:
                raise StrategyError(
                    f"{missing} is missing: every stage (of {schedule.num_stages}) runs every microbatch "
                    f"(of {schedule.num_microbatches}) forward and backward",
                    rank=schedule.placement.get(stage),
                    action=missing,
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
