"""What a simulator predicts: `SimulationResult`, by the specification's names, and the operations that make it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from minitrain.devices.operations import Operation
from minitrain.errors import require_count

Bound = Literal["compute", "memory"]


@final
@dataclass(frozen=True, slots=True)
class OperationTime:
    """How long one operation takes on a device.

    Args:
        operation: what it is.
        compute_s: time of its arithmetic, s.
        memory_s: time of its traffic, s.
    """

    operation: Operation
    compute_s: float
    memory_s: float

    @property
    def bound(self) -> Bound:
        """What limits it."""
        return "compute" if self.compute_s > self.memory_s else "memory"

    @property
    def total_s(self) -> float:
        """Time of all its repetitions, s."""
        return max(self.compute_s, self.memory_s) * self.operation.count


@final
@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A prediction.

    Args:
        time_seconds: how long the program takes.
        time_ms: the same, ms.
        is_compute_bound: whether arithmetic takes longer than traffic.
        utilization: time of the arithmetic at the peak rate over the time that it takes.
        bottleneck: "compute", "memory", or "dispatch" where starting kernels takes longer than running them.
        flops: floating-point operations.
        bytes: read and written.
        operations: the table of operations that make it up; empty under fidelity="seed", which has none.
        dispatch_s: what issuing the program adds, s.
        unknown_loops: loops whose number of trips is not known before they run; their bodies count once, so that the
            prediction is a lower bound.
    """

    time_seconds: float
    time_ms: float
    is_compute_bound: bool
    utilization: float
    bottleneck: str
    flops: float = 0.0
    bytes: float = 0.0
    operations: tuple[OperationTime, ...] = field(default=(), repr=False)
    dispatch_s: float = 0.0
    unknown_loops: tuple[str, ...] = ()

    def table(self, most: int = 20) -> str:
        """Return the operations that take longest, as text.

        Args:
            most: how many rows.

        Raises:
            UsageError: `most` is no whole number >= 0.
        """
        require_count("most", most, 0)
        longest = sorted(self.operations, key=lambda row: -row.total_s)[:most]
        head = ("time us", "share", "bound", "MFLOP", "MB", "runs", "operation")
        lines = [head, *(_line(row, self.time_seconds) for row in longest)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(map(_aligned, line, widths, range(len(line)))).rstrip() for line in lines]
        rest = len(self.operations) - len(longest)
        notes = [f"... and {rest} operations more"] if rest else []
        notes += [f"a lower bound: {loop} counts once" for loop in self.unknown_loops]
        return "\n".join([*text, *notes])


def _line(row: OperationTime, whole_s: float) -> tuple[str, ...]:
    """Return an operation's row."""
    operation, count = row.operation, row.operation.count
    return (
        f"{row.total_s * 1e6:.2f}",
        f"{row.total_s / whole_s:.1%}" if whole_s else "-",
        row.bound,
        f"{operation.flops * count / 1e6:.3f}",
        f"{operation.bytes * count / 1e6:.3f}",
        str(count),
        operation.name,
    )


def _aligned(cell: str, width: int, place: int) -> str:
    """Align words to the left and numbers to the right."""
    return cell.ljust(width) if place in (2, 6) else cell.rjust(width)
