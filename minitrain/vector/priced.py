"""The result of `price`: the figures of a run on each of several machines, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from minitrain.analysis.labels import GIB, duration
from minitrain.hardware.per_machine import Floats, Ints
from minitrain.run.data_frames import data_frame
from minitrain.run.memory_reports import OutOfMemory
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import Strategy
from minitrain.vector.configurations import Configurations
from minitrain.vector.joint_figures import JointFigures
from minitrain.vector.separate_figures import COLUMNS, SeparateFigures

_ROWS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class FiguresOfMachines:
    """Some machines and their figures.

    Args:
        places: which machines.
        figures: theirs, in the same order.
    """

    places: Ints
    figures: JointFigures | SeparateFigures


@final
class Priced:
    """A strategy on each of several machines: `len()` of them, in the order in which they were given.

    Each figure is a column, an array of one number a machine, computed when it is asked for; nan where a machine has no
    such figure. They are those of `Run`, to the last float. `priced[i]` is the `Run` of one machine, simulated when it
    is asked for.

    Attributes:
        strategy: its name.
        varied: what varies: the values by parameter or key path, one a machine.
        notes: what there is to say of how the machines were executed, a sentence each; mostly nothing.
    """

    def __init__(
        self,
        strategy: str | Strategy,
        name: str,
        configurations: Configurations,
        columns: Mapping[str, list[Any]],
        groups: Sequence[FiguresOfMachines],
        notes: Sequence[str],
    ) -> None:
        self.strategy = name
        self.varied = dict(columns)
        self.notes = tuple(notes)
        self._given = strategy
        self._configurations = configurations
        self._groups = groups

    def __len__(self) -> int:
        return len(self._configurations)

    def __getitem__(self, machine: int) -> Run:
        return self.run(machine)

    def __iter__(self) -> Iterator[Run]:
        return map(self.run, range(len(self)))

    def run(self, machine: int) -> Run:
        """Return the run of one machine, which is simulated now; a negative number counts from the end.

        Raises:
            IndexError: there is no such machine.
        """
        return simulate(self._given, **self._configurations.of(range(len(self))[machine]))

    def _column(self, name: str) -> Floats:
        """Return a figure of all machines."""
        found = np.empty(len(self))
        for group in self._groups:
            values = getattr(group.figures, name)
            found[group.places] = (
                [np.nan if value is None else value for value in values] if isinstance(values, list) else values
            )
        return found

    def _list(self, name: str) -> list[Any]:
        """Return a figure that is no number, as a list of one entry a machine."""
        found: list[Any] = [None] * len(self)
        for group in self._groups:
            for place, value in zip(group.places.tolist(), getattr(group.figures, name), strict=True):
                found[place] = value
        return found

    @cached_property
    def step_time(self) -> Floats:
        """From the end of loading to the latest final clock of all ranks, s."""
        return self._column("step_time")

    @cached_property
    def load_time(self) -> Floats:
        """When the weights of all ranks are there, s."""
        return self._column("load_time")

    @cached_property
    def peak_memory_bytes(self) -> Floats:
        """The highest memory of all ranks at any moment, bytes."""
        return self._column("peak_memory_bytes")

    @cached_property
    def capacity_bytes(self) -> Floats:
        """The memory of a device, bytes."""
        return self._column("capacity_bytes")

    @cached_property
    def oom(self) -> list[OutOfMemory | None]:
        """Where and when a device's memory was exceeded, and what filled it; None where all fits."""
        return self._list("oom")

    @cached_property
    def fits(self) -> np.typing.NDArray[np.bool_]:
        """Whether all ranks stay within their device's memory."""
        return np.array([oom is None for oom in self.oom])

    @cached_property
    def mfu(self) -> Floats:
        """Model FLOPs utilization."""
        return self._column("mfu")

    @cached_property
    def hfu(self) -> Floats:
        """Hardware FLOPs utilization, for transformers."""
        return self._column("hfu")

    @cached_property
    def computing_fraction(self) -> Floats:
        """Share of world_size x step time spent computing."""
        return self._column("computing_fraction")

    @cached_property
    def exposed_comm_fraction(self) -> Floats:
        """Share of world_size x step time spent communicating with no compute beside it."""
        return self._column("exposed_comm_fraction")

    @cached_property
    def bubble_fraction(self) -> Floats:
        """Share of world_size x step time spent waiting."""
        return self._column("bubble_fraction")

    @cached_property
    def span_bubble(self) -> Floats:
        """The longest idle time of a rank between its first and its last pass, s."""
        return self._column("span_bubble")

    @cached_property
    def makespan_bubble(self) -> Floats:
        """Time from the first pass of any rank to the last, less the compute of the busiest rank, s."""
        return self._column("makespan_bubble")

    @cached_property
    def tokens_per_second(self) -> Floats:
        """Tokens that all ranks together train on in a second, for transformers."""
        return self._column("tokens_per_second")

    @cached_property
    def tokens_per_second_per_rank(self) -> Floats:
        """One rank's share of them."""
        return self._column("tokens_per_second_per_rank")

    @cached_property
    def energy_joules(self) -> Floats:
        """What all devices draw in the step, J, where configs say their power."""
        return self._column("energy_joules")

    @cached_property
    def dollars(self) -> Floats:
        """What renting the devices for the step costs, USD, where configs say their price."""
        return self._column("dollars")

    @cached_property
    def num_events(self) -> Ints:
        """Number of events of all ranks."""
        return self._column("num_events").astype(np.int64)

    @cached_property
    def hardware(self) -> list[str]:
        """What the hardware of each machine is called."""
        return self._of_summaries("names")

    def _of_summaries(self, what: str) -> list[Any]:
        """Return names or summaries of all machines, which are made with the given hardware."""
        found: list[Any] = [None] * len(self)
        for group in self._groups:
            hardware = [self._configurations.hardware(place) for place in group.places.tolist()]
            for place, value in zip(group.places.tolist(), getattr(group.figures, what)(hardware), strict=True):
                found[place] = value
        return found

    @property
    def fastest(self) -> int | None:
        """The machine with the shortest step of those that hold the run; None where none does."""
        if not self.fits.any():
            return None
        return int(np.where(self.fits, self.step_time, np.inf).argmin())

    def columns(self) -> dict[str, Any]:
        """Return what varies and every column by its name; times end in _s."""
        return {**self.varied, **{name: getattr(self, attribute) for attribute, name in COLUMNS.items()}}

    def summary(self) -> list[dict[str, Any]]:
        """Return what `Run.summary` says of each machine, ready for JSON."""
        return self._of_summaries("summaries")

    def to_pandas(self) -> Any:
        """Return the columns as a pandas DataFrame, a row a machine.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(
            {name: list(values) for name, values in {**self.columns(), "hardware": self.hardware}.items()}
        )

    def __repr__(self) -> str:
        return "\n".join([self._title(), *self._lines(), *self.notes])

    def _title(self) -> str:
        """Return a line on all machines."""
        low, high = (duration(float(step)) for step in (self.step_time.min(), self.step_time.max()))
        fit = int(self.fits.sum())
        held = "" if fit == len(self) else f", {len(self) - fit} out of memory"
        return f"<Priced {self.strategy} on {len(self)} machines: step {low} to {high}{held}>"

    def _lines(self) -> Iterator[str]:
        """Yield a line for each of the first machines."""
        names = self.hardware
        for machine in range(min(len(self), _ROWS_SHOWN)):
            varied = ", ".join(
                f"{name} {values[machine]!s:.20}" for name, values in self.varied.items() if name != "hardware"
            )
            peak = f"{self.peak_memory_bytes[machine] / GIB:.4g} GiB" + (
                "" if self.fits[machine] else " (out of memory)"
            )
            what = ", ".join(filter(None, [names[machine], varied]))
            yield f"  {machine}: {what}: step {duration(float(self.step_time[machine]))}, peak {peak}"
        if len(self) > _ROWS_SHOWN:
            yield f"  ... and {len(self) - _ROWS_SHOWN} more"
