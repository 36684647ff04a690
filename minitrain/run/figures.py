"""Every figure of a run, once: its name with its unit, how it is computed, and where it is shown.

- `FIGURES` are what a run is asked for: the keys of `Run.summary`, and so of JSON, of the rows of sweeps with their CSV
  and data frames, and the columns of `mt.price`. What computes one is a property of `Run`, or a formula here. A run on
  many machines at once (`minitrain.whatif.joint_figures`) asks it of each machine.
- `TABLES` says which of them each table shows, under which head, in which unit. A new figure is one entry of `FIGURES`;
  a table shows it once `TABLES` names it.
- `data_frame` makes pandas DataFrames; pandas is imported here alone, inside a function, and is no dependency.
- `FiguresOfStep` has what follows from a step time: of a run, of many machines, of a step put together from pieces.
- `energy_of` and `usd_per_hour_of` have energy, power and money, from the devices' ratings and prices. A rank is *busy*
  while it computes or communicates with nothing beside it, and draws its device's rated power then. It is *idle* while
  it waits, and draws the idle power of the device. That is an upper bound: hardly any device reaches its rating all the
  time. It is the device's share alone: in published runs whole nodes drew 0.82 to 1.24 times the sum of their GPUs'
  ratings. Left out: hosts, network, cooling, and power that follows the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.operations import Event
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.facts import described
from minitrain.run.run_file import plain

if TYPE_CHECKING:
    from minitrain.machine.device import DataSheet
    from minitrain.run.analysis.breakdown import Breakdown
    from minitrain.run.analysis.timeline import Floats, Timeline


Row = Mapping[str, Any]
"""Figures by name: a row of a sweep or a search, or those of a run."""


def _always(_run: Any) -> bool:
    return True


def _trains_transformer(run: Any) -> bool:
    return run.trained_model is not None


def _has_routers(run: Any) -> bool:
    return run.trained_model is not None and bool(run.trained_model.routed_copies)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    Args:
        name: its key in JSON and its column in tables of data; a quantity's ends in its unit.
        of: computes it from a run, ready for JSON; the attribute of its name by default.
        asked_of: whether a run's summary has it.
        column: the attribute of `mt.price`'s result that has it, an array of one number a machine; "" for none.
    """

    name: str
    of: Callable[[Any], Any] = field(default=_always)
    asked_of: Callable[[Any], bool] = _always
    column: str = ""

    def __post_init__(self) -> None:
        if self.of is _always:
            object.__setattr__(self, "of", attrgetter(self.name))


def _of_machines(name: str, unit: str = "", asked_of: Callable[[Any], bool] = _always) -> Figure:
    """Return a figure that is an attribute of a run, and a column of `mt.price`."""
    return Figure(f"{name}{unit}", attrgetter(name), asked_of, name)


def _held_outside_bytes(run: Any) -> float | None:
    held = run.held_outside
    return None if held is None else float(held.elements * run.bytes_per_element)


def _never(_run: Any) -> bool:
    return False


FIGURES: tuple[Figure, ...] = (
    Figure("strategy"),
    Figure("world_size"),
    Figure("num_layers"),
    Figure("global_batch_size"),
    Figure("hardware"),
    Figure("network"),
    Figure("workload", lambda run: described(run.workload)),
    Figure("options", lambda run: {name: plain(value) for name, value in run.options.items()}),
    _of_machines("step_time", "_s"),
    _of_machines("load_time", "_s"),
    Figure("peak_memory_elements", attrgetter("peak_memory")),
    _of_machines("peak_memory_bytes"),
    _of_machines("capacity_bytes"),
    Figure("out_of_memory", lambda run: None if run.oom is None else str(run.oom)),
    Figure("fits", lambda run: run.oom is None, _never, "fits"),
    _of_machines("mfu"),
    Figure("computing_fraction", attrgetter("breakdown.computing_fraction"), _never, "computing_fraction"),
    _of_machines("bubble_fraction"),
    _of_machines("exposed_comm_fraction"),
    _of_machines("span_bubble", "_s"),
    _of_machines("makespan_bubble", "_s"),
    Figure("held_outside_bytes", _held_outside_bytes),
    _of_machines("num_events"),
    Figure("model", attrgetter("trained_model.name"), _trains_transformer),
    Figure("seq_len", attrgetter("trained_model.seq_len"), _trains_transformer),
    Figure("precision", attrgetter("trained_model.precision"), _trains_transformer),
    Figure("priced_by", asked_of=_trains_transformer),
    Figure("sureness", asked_of=_trains_transformer),
    _of_machines("tokens_per_second", asked_of=_trains_transformer),
    _of_machines("tokens_per_second_per_rank", asked_of=_trains_transformer),
    _of_machines("hfu", asked_of=_trains_transformer),
    Figure("needed_memory_bytes", asked_of=_trains_transformer),
    Figure("memory_by_kind_bytes", lambda run: run.memory_by_kind and dict(run.memory_by_kind), _trains_transformer),
    Figure("peak_host_memory_bytes", asked_of=_trains_transformer),
    Figure(
        "communication_by_axis",
        lambda run: {axis: total._asdict() for axis, total in run.communication_by_axis.items()},
        _trains_transformer,
    ),
    Figure("dropped_token_fraction", asked_of=_has_routers),
    _of_machines("energy_joules", asked_of=_never),
    _of_machines("dollars", asked_of=_never),
    Figure(
        "by_device_kind", lambda run: [each.data() for each in run.by_device_kind], lambda run: bool(run.device_kinds)
    ),
    Figure("error", lambda _run: None),
)
"""All figures, in the order in which a summary has them."""

BY_NAME: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in FIGURES})


def summary_of(run: Any, known: Row | None = None) -> dict[str, Any]:
    """Return the figures that a run is asked for, ready for JSON.

    Args:
        run: the run.
        known: for a run that failed, what is known of it without figures; all others are None.
    """
    asked = [figure for figure in FIGURES if figure.asked_of(run)]
    return {figure.name: figure.of(run) if known is None else known.get(figure.name) for figure in asked}


class FiguresOf(Mapping[str, Any]):
    """The figures of a run by name, each computed when it is asked for.

    Args:
        run: the run.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getitem__(self, name: str) -> Any:
        return BY_NAME[name].of(self._run)

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of tables, or a line of facts.

    Args:
        head: what stands above it, the unit last: "MFU %".
        of: its number from figures by name, in the figures' unit, or None; a figure's name for that figure.
        scale: what the number is multiplied by, for the unit of the head.
        text: writes that.
        title: what it is called in words, where heads have room; the head by default.
        gives_way: whether days, dollars and energy of so many tokens take its place, where somebody asks for these.
    """

    head: str
    of: str | Callable[[Row], float | None]
    scale: float = 1.0
    text: Callable[[float], str] = "{:.1f}".format
    title: str = ""
    gives_way: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.head)

    def number(self, row: Row) -> float | None:
        """Return the number in the unit of the head; None where there is none."""
        value: float | None = row.get(self.of) if isinstance(self.of, str) else self.of(row)
        return None if value is None else value * self.scale

    def cell(self, row: Row) -> str:
        """Return the number as text, "-" for none."""
        number = self.number(row)
        return "-" if number is None else self.text(number)

    def words(self, row: Row, space: str = "") -> str:
        """Return the number with its percent sign, where it has one; "-" for none."""
        is_share = self.head.endswith("%") and self.number(row) is not None
        return f"{self.cell(row)}{space}%" if is_share else self.cell(row)


def must_be_held(row: Row) -> float | None:
    """Return the bytes that a device must hold: of transformers, more than the tensors."""
    needed: float | None = row.get("needed_memory_bytes") or row["peak_memory_bytes"]
    return needed


def _samples_per_second(row: Row) -> float | None:
    step = row["step_time_s"]
    return row["global_batch_size"] / step if step else None


def per_second(rate: float) -> str:
    """Return a rate in at least four digits.

    >>> per_second(10365.2), per_second(3.14159)
    ('10,365', '3.142')
    """
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


_whole, _two = "{:,.0f}".format, "{:.2f}".format
_STEP = Column("step", "step_time_s", text=duration)
STEP_MS = Column("step ms", "step_time_s", 1e3, "{:.3f}".format)
_MEMORY = Column("GiB", must_be_held, 1 / GIB)
_PEAK = Column("peak GiB", must_be_held, 1 / GIB, _two)
_TENSORS = Column("tensors GiB", "peak_memory_bytes", 1 / GIB, _two, gives_way=True)
_MFU = Column("MFU %", "mfu", 100, title="MFU")
_HFU = Column("HFU %", "hfu", 100, title="HFU", gives_way=True)
_BUBBLE = Column("bubble %", "bubble_fraction", 100, title="bubble")
_COMM = Column("comm %", "exposed_comm_fraction", 100, title="exposed communication")
_TOKENS = Column("tok/s a rank", "tokens_per_second_per_rank", 1, _whole, "tokens/s a rank")
_SAMPLES = Column("samples/s", _samples_per_second, 1, per_second)
_DOLLARS = Column("USD", "dollars", 1, "{:.4g}".format, gives_way=True)

TABLES: Mapping[str, tuple[Column, ...]] = MappingProxyType(
    {
        "compare": (STEP_MS, _PEAK, _MFU, _BUBBLE, _COMM),
        "compare transformers": (
            STEP_MS,
            replace(_PEAK, head="needed GiB"),
            _MFU,
            _BUBBLE,
            _COMM,
            _TOKENS,
            _HFU,
            _TENSORS,
        ),
        "machines": (_STEP, replace(_TOKENS, head="tok/s"), _MFU, _MEMORY),
        "sweep": (STEP_MS, _PEAK, _SAMPLES, _MFU),
        "page of a sweep": (STEP_MS, _PEAK, _SAMPLES, _MFU, _BUBBLE, _COMM),
        "tune": (_STEP, replace(_TOKENS, head="tok/s/GPU"), _MFU, _MEMORY, _DOLLARS),
        "page of a search": (
            Column("step s", "step_time_s"),
            Column("GiB", "needed_memory_bytes", 1 / GIB),
            _TENSORS,
            replace(_TOKENS, head="tok/s/GPU"),
            _MFU,
            _DOLLARS,
            Column("kJ", "energy_joules", 1e-3),
        ),
        "run": (_MFU, _BUBBLE, _COMM),
        "explorer": (
            STEP_MS,
            Column("tok/s", "tokens_per_second", 1, _whole, "tokens/s"),
            _MFU,
            replace(_DOLLARS, title="USD a step"),
            replace(_MEMORY, title="memory a device, GiB"),
            _BUBBLE,
            _COMM,
        ),
        "page": (_MFU, _BUBBLE, _COMM),
        "page of transformers": (_MFU, _HFU, _TOKENS, _BUBBLE, _COMM),
    }
)
"""What each table shows: commands (compare, with several machines, sweep, tune, run), their pages, and the explorer.

Tables of comparisons choose the unit of the step and mark what is out of memory.
"""


def data_frame(columns: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame of columns by name, or of rows.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise UsageError("to_pandas needs pandas, which is not installed; `pip install pandas` installs it") from error
    return pandas.DataFrame(columns)


def event_columns(events: Sequence[Event]) -> dict[str, list[Any]]:
    """Return the fields of events as columns: times in s, memory in elements."""
    return {field.name: [getattr(event, field.name) for event in events] for field in fields(Event)}


SECONDS_AN_HOUR = 3600


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepEnergy:
    """What the devices of a step draw.

    Args:
        busy_joules: of each rank while it computes or communicates, J, (num_ranks,).
        idle_joules: of each rank while it waits, J, (num_ranks,).
        average_watts: of all ranks together, W.
    """

    busy_joules: Floats
    idle_joules: Floats
    average_watts: float

    @property
    def joules(self) -> float:
        """Of all ranks, J."""
        return float(self.busy_joules.sum() + self.idle_joules.sum())


def watts_of(sheets: Sequence[DataSheet | None]) -> tuple[Floats, Floats] | None:
    """Return rated and idle power of each rank, W; None where a config does not say both."""
    powers = [None if sheet is None else sheet.power for sheet in sheets]
    known = [power for power in powers if power is not None and power.idle_W is not None]
    if not known or len(known) < len(powers):
        return None
    import numpy as np  # noqa: PLC0415  (only when somebody looks)

    return np.array([power.tdp_W for power in known]), np.array([power.idle_W for power in known])


def energy_of(parts: Breakdown, sheets: Sequence[DataSheet | None]) -> StepEnergy | None:
    """Return what a step draws; None where a config does not say its power.

    Args:
        parts: where the time of each rank goes.
        sheets: of each rank, or one for all.
    """
    watts = watts_of(sheets)
    if watts is None:
        return None
    busy, idle = (parts.computing + parts.exposed) * watts[0], parts.waiting * watts[1]
    seconds = parts.step_time_s
    return StepEnergy(busy, idle, float((busy + idle).sum() / seconds) if seconds else 0.0)


def peak_watts(timeline: Timeline, sheets: Sequence[DataSheet | None]) -> float | None:
    """Return the most that all ranks draw together at any moment, W; None where a config does not say its power."""
    watts = watts_of(sheets)
    if watts is None:
        return None
    import numpy as np  # noqa: PLC0415  (only when somebody looks)

    rated, idle = (np.broadcast_to(each, (timeline.num_ranks,)) for each in watts)
    ranks, starts, ends = _busy_intervals(timeline)
    more = (rated - idle)[ranks]
    times, changes = np.concatenate([ends, starts]), np.concatenate([-more, more])
    in_order = np.argsort(times, kind="stable")  # at equal times, ends come before starts
    return float(idle.sum() + max(0.0, np.cumsum(changes[in_order]).max(initial=0.0)))


def _busy_intervals(timeline: Timeline) -> tuple[Any, Floats, Floats]:
    """Return rank, start and end of each interval in which a rank is busy without a gap."""
    import numpy as np  # noqa: PLC0415  (only when somebody looks)

    worked = (timeline.duration > 0) & ~timeline.loading
    order = np.lexsort((timeline.time[worked], timeline.rank[worked]))
    ranks, starts, ends = (each[worked][order] for each in (timeline.rank, timeline.time, timeline.end))
    found: list[tuple[int, float, float]] = []
    for rank, start, end in zip(ranks.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if found and found[-1][0] == rank and start <= found[-1][2]:
            found[-1] = (rank, found[-1][1], max(found[-1][2], end))
        else:
            found.append((rank, start, end))
    columns = np.array(found, dtype=float).reshape(-1, 3).T
    return columns[0].astype(int), columns[1], columns[2]


def usd_per_hour_of(sheets: Sequence[DataSheet | None], world_size: int) -> float | None:
    """Return what renting the devices of all ranks costs, USD an hour; None where a config does not say its price.

    Args:
        sheets: of each rank, or one for all.
        world_size: number of ranks.
    """
    prices = [None if sheet is None else sheet.price_usd_per_hour for sheet in sheets]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return sum(known) * (world_size if len(known) == 1 else 1)


class FiguresOfStep:
    """Figures that follow from a step time, once for one machine and for columns of many.

    What there is not is None, and nan in columns.
    """

    @property
    def mfu(self: Any) -> float | None:
        """Model FLOPs utilization (Chowdhery et al. 2022): useful FLOP over peak rate x ranks x step time."""
        return over(self.useful_flop, times(times(self.peak_flop_per_s, self.world_size), self.step_time))

    @property
    def hfu(self: Any) -> float | None:
        """Hardware FLOPs utilization: `mfu` with what backward computed again (Korthikanti et al. 2022, section 6.3).

        None where durations were given by hand, and for workloads that say nothing of recomputation.
        """
        return times(self.mfu, self.hfu_to_mfu)

    @property
    def tokens_per_second(self: Any) -> float | None:
        """`tokens_trained` of all ranks together in a second; None for workloads that have no tokens."""
        return over(self.tokens_trained, self.step_time, None)

    @property
    def tokens_per_second_per_rank(self: Any) -> float | None:
        """Tokens a second of one rank's share; None for workloads that have no tokens."""
        return over(self.tokens_per_second, self.world_size)

    @property
    def dollars(self: Any) -> float | None:
        """What renting the devices for the step costs, USD."""
        return over(times(self.usd_per_hour, self.step_time), SECONDS_AN_HOUR)


def times(first: Any, second: Any) -> float | None:
    """Return a product, or a column; None where a factor is None."""
    found: float | None = None if first is None or second is None else first * second
    return found


def over(above: Any, below: Any, without: float | None = 0.0) -> float | None:
    """Return a quotient, or a column; `without` where there is nothing to divide by, None where a part is None."""
    if above is None or below is None:
        return None
    if isinstance(below, float | int):
        return above / below if below else without
    import numpy as np  # noqa: PLC0415  (only for columns)

    found: Any = np.divide(above, below, out=np.full_like(below, without), where=~(below <= 0))
    return found  # type: ignore[no-any-return]  # a column, of which only `mt.price` knows
