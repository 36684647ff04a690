"""A pipeline schedule: for each rank, the actions that it runs, in order."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from minitrain.schedules.action import Action
from minitrain.schedules.csv_form import Row, read_rows, write_rows


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    r"""Hold one training step of a pipeline as data.

    Any order can be held, also one that cannot run; `validate` checks it. Two schedules are equal if their rows
    are equal, whatever their names.

    Args:
        rows: for each rank its cells from left to right: idle, an action, or actions fused to overlap.
        name: what the schedule is called in tables and drawings.

    >>> schedule = Schedule.from_csv("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
    >>> schedule.num_microbatches, schedule.placement
    (2, {0: 0, 1: 1})
    >>> " ".join(map(str, schedule.orders[1]))
    '1F0 1B0 1F1 1B1'
    """

    rows: tuple[Row, ...]
    name: str = field(default="schedule", compare=False)
    orders: tuple[tuple[Action, ...], ...] = field(init=False, compare=False)
    """For each rank its actions in the order to run them: the rows without idle cells, fused cells in their
    order."""
    placement: dict[int, int] = field(init=False, compare=False)
    """Stage -> rank, by stage."""
    num_microbatches: int = field(init=False, compare=False)
    """Number of microbatches, the highest named one being the last."""

    def __post_init__(self) -> None:
        """Read orders, placement and microbatches off the rows."""
        orders = tuple(tuple(action for cell in row for action in cell) for row in self.rows)
        homes: dict[int, int] = {}
        for rank, order in enumerate(orders):
            for action in order:
                homes.setdefault(action.stage, rank)
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "placement", dict(sorted(homes.items())))
        highest = max((action.microbatch for order in orders for action in order), default=-1)
        object.__setattr__(self, "num_microbatches", highest + 1)

    @classmethod
    def from_orders(cls, orders: Iterable[Iterable[Action]], name: str = "schedule") -> "Schedule":
        """Make a schedule of each rank's actions alone: one action a cell, nothing idle, nothing fused."""
        return cls(tuple(tuple((action,) for action in order) for order in orders), name)

    @classmethod
    def from_csv(cls, text: str, name: str = "schedule") -> "Schedule":
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
        return max(Counter(self.placement.values()).values(), default=0)

    def __repr__(self) -> str:
        """Return the name and the sizes; the actions themselves are in `to_csv`."""
        return (
            f"Schedule({self.name!r}: {self.num_ranks} ranks, {self.num_stages} stages, "
            f"{self.num_microbatches} microbatches)"
        )
