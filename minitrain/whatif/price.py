"""`price`: a strategy on many machines, by one execution.

What differs between the machines of one `price` call: a value of each price-only parameter, and figures of configs.

A *price-only* parameter changes how long operations take, and not which there are.

The figures of machines that were simulated one after the other, as columns like those of `JointFigures`.

The result of `price`: the figures of a run on each of several machines, as columns.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minitrain.errors import UsageError, typed
from minitrain.machine.cluster import Cluster
from minitrain.machine.config import SystemConfig, load_config, validated, with_value
from minitrain.machine.platforms import StandsFor
from minitrain.machine.price import PRICING_PARAMETERS, Pricing, RankPredictors
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.analysis.timeline import Floats, Ints
from minitrain.run.device_memory import OutOfMemory
from minitrain.run.event_loops import run_to_end
from minitrain.run.figures import FIGURES, data_frame
from minitrain.run.parameters import DEFAULTS, PRICE_ONLY, RunParameters, cluster_or_other, is_given
from minitrain.run.rank_tasks import PreparedRun, prepare
from minitrain.run.result import Run
from minitrain.run.simulation import PriceKeywords, on_machines, simulate, simulate_async
from minitrain.run.strategy_loading import Strategy
from minitrain.tensors.index_sets import grouped
from minitrain.whatif.joint_execution import MachineGroup, execute
from minitrain.whatif.joint_figures import JointFigures
from minitrain.whatif.recorded import Machine, Machines

_ONE_AT_A_TIME = (
    *("contention", "strict", "strict_memory", "memory_by_kind"),
    *("numerics", "execution", "observers", "faults", "steps"),
)
"""Parameters of a run that follow one machine: with another clock, or another model, it would do something else."""


def varied_columns(
    hardware: Any, vary: Mapping[str, Sequence[Any]] | None, grid: Mapping[str, Sequence[Any]] | None
) -> dict[str, list[Any]]:
    """Return what varies as columns, one value a machine.

    Args:
        hardware: what `simulate` takes, or a list of that.
        vary: values by name, one a machine.
        grid: values by name, of which every combination is a machine, the last name fastest.

    Raises:
        UsageError: nothing varies, lists have different lengths, or something varies twice.
    """
    columns: dict[str, list[Any]] = {"hardware": list(hardware)} if isinstance(hardware, list | tuple) else {}
    for name, values in (vary or {}).items():
        if name in columns:
            raise UsageError(f"{name} is varied twice; give it once")
        columns[name] = _listed(name, values)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise UsageError(f"every machine needs a value of all that varies, got {told}; use grid= for combinations")
    if grid:
        columns = _combined(columns, {name: _listed(name, values) for name, values in grid.items()})
    if not columns or not next(iter(columns.values())):
        raise UsageError(
            "price needs several machines: a list of hardware, or vary={name: values}, or grid={name: values}, with at "
            "least one value; simulate takes one machine"
        )
    return columns


def _listed(name: str, values: Any) -> list[Any]:
    """Return the values of a name as a list of Python's own numbers."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str | Mapping) or not isinstance(listed, Sequence):
        raise UsageError(f"{name} must have a list of values, one a machine, got {values!r:.80}")
    return list(listed)


def _combined(columns: Mapping[str, list[Any]], grid: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns of every combination of a grid, with each of the machines there are."""
    for name in grid:
        if name in columns:
            raise UsageError(f"{name} is varied twice; give it once")
    rows = list(zip(*columns.values(), strict=True)) if columns else [()]
    points = [(*row, *values) for row in rows for values in itertools.product(*grid.values())]
    names = [*columns, *grid]
    return {name: [point[place] for point in points] for place, name in enumerate(names)}


class Configurations:
    """The parameters of a run on each machine.

    Args:
        parameters: those that all share: parameters of `simulate` and options of the strategy.
        columns: values by name, one a machine: price-only parameters and key paths of configs.

    Attributes:
        names: what the hardware of each machine is called.

    Raises:
        UsageError: a name is neither.
        HardwareConfigError: a value is not what a config may hold.
    """

    def __init__(self, parameters: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> None:
        self._parameters = parameters
        self._own = {name: values for name, values in columns.items() if name in PRICE_ONLY}
        paths = {name: values for name, values in columns.items() if name not in PRICE_ONLY}
        self._count = len(next(iter(columns.values())))
        for name in paths:
            if name in DEFAULTS:
                raise UsageError(
                    f"{name} does not vary prices alone; {', '.join(PRICE_ONLY)} and the figures of a hardware config "
                    "do (sweep takes all others)"
                )
        self._varied = self._validated(paths)

    def __len__(self) -> int:
        return self._count

    def _validated(self, paths: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the values of some paths as configs hold them."""
        if not paths:
            return {}
        given = {id(hardware): hardware for hardware in self._values("hardware")}
        systems = {key: load_config(hardware) for key, hardware in given.items()}
        for system in systems.values():
            found = {path: validated(system, path, values) for path, values in paths.items()}
        return found

    def _values(self, name: str) -> list[Any]:
        """Return the values of a parameter, one a machine."""
        if name in self._own:
            return self._own[name]
        return [self._parameters.get(name, DEFAULTS[name])] * self._count

    @property
    def places(self) -> Ints:
        """All machines."""
        return np.arange(self._count)

    def hardware(self, machine: int) -> Any:
        """Return what was given as the hardware of one machine."""
        own = self._own.get("hardware")
        return self._parameters.get("hardware", DEFAULTS["hardware"]) if own is None else own[machine]

    def of(self, machine: int) -> dict[str, Any]:
        """Return the parameters of one machine, as `simulate` takes them."""
        own = {name: values[machine] for name, values in self._own.items()}
        if self._varied:
            system = load_config(self.hardware(machine))
            for path, values in self._varied.items():
                system = with_value(system, path, values[machine])
            own["hardware"] = system
        return {**self._parameters, **own}

    def reason_to_simulate_each(self, parameters: RunParameters) -> str | None:
        """Return why machines must be simulated one by one; None where they need not."""
        found = [name for name in _ONE_AT_A_TIME if is_given(name, getattr(parameters, name))]
        return f"{found[0]} follows one machine at a time" if found else None

    def machines(self, parameters: RunParameters, stands_for: StandsFor) -> Machines:
        """Return the sources of prices of all machines.

        Args:
            parameters: those of the run on the first machine.
            stands_for: the strategy's framework, and the layout.

        Raises:
            UsageError: a parameter is outside its rule, or a network does not connect so many ranks.
            HardwareConfigError: a config cannot be found or read, or is invalid.
        """
        if "slowdown" in self._own:
            for slowdown in self._own["slowdown"]:
                RunParameters(world_size=parameters.world_size, slowdown=slowdown, fold=parameters.fold)
        pricings = self._pricings(stands_for)
        given = zip(*map(self._values, ("hardware", "network", "placement")), pricings, strict=True)
        are_one = not {"hardware", "network", "placement", *PRICING_PARAMETERS} & self._own.keys()
        known: dict[int, Any] = {}
        sources = [_machine(known, *machine) for machine in itertools.islice(given, 1 if are_one else None)]
        if are_one:
            sources *= self._count
        slowdowns = self._values("slowdown")
        return Machines(sources, slowdowns if any(slowdowns) else None, self._varied)

    def _pricings(self, stands_for: StandsFor) -> list[Pricing]:
        """Return how operations are priced on each machine."""
        columns = [self._values(name) for name in PRICING_PARAMETERS]
        if not any(name in self._own for name in PRICING_PARAMETERS):
            columns = [values[:1] for values in columns]
        given = [dict(zip(PRICING_PARAMETERS, own, strict=True)) for own in zip(*columns, strict=True)]
        found = [Pricing(**each, stands_for=stands_for) for each in given]
        return found if len(found) == self._count else found * self._count


def _machine(known: dict[int, Any], hardware: Any, network: str, placement: Any, pricing: Pricing) -> Machine | None:
    """Return one machine; None where only a simulation can find out its prices.

    Args:
        known: what hardware was found to be, by identity; it is added.
        hardware: what was given.
        network: of its tiers.
        placement: node of each rank.
        pricing: how operations are priced.
    """
    found = hardware if type(hardware) is SystemConfig else known.get(id(hardware))
    if found is None:
        found = cluster_or_other(hardware)
        if type(found) is SystemConfig or isinstance(found, str | os.PathLike | Mapping):
            found = load_config(found)
        known[id(hardware)] = found
    if type(found) is not SystemConfig and (isinstance(found, RankPredictors | Cluster) or hasattr(found, "profile")):
        return None
    return Machine(found, network, placement, pricing)


_COLUMNS = [figure for figure in FIGURES if figure.column]


class SeparateFigures:
    """Figures of machines, taken from a run of each; the runs are not kept."""

    def __init__(self) -> None:
        self._figures: dict[str, list[Any]] = {name: [] for name in (*(known.column for known in _COLUMNS), "oom")}
        self._summaries: list[dict[str, Any]] = []

    def add(self, run: Run) -> None:
        """Take the figures of the next machine."""
        for figure in _COLUMNS:
            self._figures[figure.column].append(figure.of(run))
        self._figures["oom"].append(run.oom)
        self._summaries.append(run.summary())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_figures"][name]
        except KeyError:
            raise AttributeError(f"machines that were simulated alone have no column {name!r}") from None

    def names(self, hardware: Sequence[Any]) -> list[str]:  # noqa: ARG002  (a parameter of `JointFigures.names`)
        """Return what runs call the hardware of each machine."""
        return [summary["hardware"] for summary in self._summaries]

    def summaries(self, hardware: Sequence[Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return what `Run.summary` says on each machine."""
        return self._summaries


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


class _Column(cached_property[Floats]):
    """A figure of all machines.

    Args:
        about: what it is.
    """

    def __init__(self, about: str) -> None:
        super().__init__(lambda priced: priced._column(self.attrname))
        self.__doc__ = about


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

    step_time = _Column("From the end of loading to the latest final clock of all ranks, s.")
    load_time = _Column("When the weights of all ranks are there, s.")
    peak_memory_bytes = _Column("The highest memory of all ranks at any moment, bytes.")
    capacity_bytes = _Column("The memory of a device, bytes.")

    @cached_property
    def oom(self) -> list[OutOfMemory | None]:
        """Where and when a device's memory was exceeded, and what filled it; None where all fits."""
        return self._list("oom")

    @cached_property
    def fits(self) -> np.typing.NDArray[np.bool_]:
        """Whether all ranks stay within their device's memory."""
        return np.array([oom is None for oom in self.oom])

    mfu = _Column("Model FLOPs utilization.")
    hfu = _Column("Hardware FLOPs utilization, for transformers.")
    computing_fraction = _Column("Share of world_size x step time spent computing.")
    exposed_comm_fraction = _Column("Share of world_size x step time spent communicating with no compute beside it.")
    bubble_fraction = _Column("Share of world_size x step time spent waiting.")
    span_bubble = _Column("The longest idle time of a rank between its first and its last pass, s.")
    makespan_bubble = _Column(
        "Time from the first pass of any rank to the last, less the compute of the busiest rank, s."
    )
    tokens_per_second = _Column("Tokens that all ranks together train on in a second, for transformers.")
    tokens_per_second_per_rank = _Column("One rank's share of them.")
    energy_joules = _Column("What all devices draw in the step, J, where configs say their power.")
    dollars = _Column("What renting the devices for the step costs, USD, where configs say their price.")

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
        return None if not self.fits.any() else int(np.where(self.fits, self.step_time, np.inf).argmin())

    def columns(self) -> dict[str, Any]:
        """Return what varies and every column by its name; times end in _s."""
        return {**self.varied, **{figure.name: getattr(self, figure.column) for figure in _COLUMNS}}

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


@on_machines(PriceKeywords)
@typed
def price(
    strategy: str | Strategy,
    hardware: Any = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    **parameters: Any,
) -> Priced:
    """Simulate one training step of a strategy on many machines at once.

    The strategy runs once. Its operations are then priced for all machines, and its clocks computed from these prices:
    a thousand machines take little longer than one, but with contention, by which each is timed alone, in milliseconds.
    All figures are those of separate simulations, to the last float.

    Args:
        strategy: what `simulate` takes.
        hardware: a list of what `simulate` takes as hardware, one a machine; or one hardware, of which `vary` or `grid`
            make many.
        vary: values by name, one a machine in each list. A name is a price-only parameter of `simulate` (hardware,
            network, placement, fidelity, platform, without, prices, slowdown) or the key path of a figure in a hardware
            config, such as "networks[0].bandwidth", "mem1.GBps" or "matrix.float16.tflops".
        grid: likewise, with every combination of the values as a machine, the last name fastest.
        parameters: the other parameters of `simulate`, and the strategy's own options.

    Returns:
        The figures, as columns.

    Raises:
        UsageError: a parameter is outside its rule, or lists of what varies have different lengths.
        HardwareConfigError: a config cannot be found or read, or is invalid.
        MinitrainError: of the kind that says what went wrong in the strategy; a note names the machine.

    >>> priced = price("zero3", "h100_80g_nvl8", vary={"networks[0].bandwidth": [225, 450, 900]}, num_layers=4)
    >>> priced.step_time.round(5)
    array([0.00485, 0.00389, 0.0034 ])
    """
    return run_to_end(lambda: price_async(strategy, hardware, vary=vary, grid=grid, **parameters))


@on_machines(PriceKeywords)
@typed
async def price_async(
    strategy: str | Strategy,
    hardware: Any = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    **parameters: Any,
) -> Priced:
    """Do what `price` does in the running event loop."""
    columns = varied_columns(hardware, vary, grid)
    one = {} if hardware is None or "hardware" in columns else {"hardware": hardware}
    configurations = Configurations({**parameters, **one}, columns)
    prepared = prepare(strategy, configurations.of(0))
    reason = configurations.reason_to_simulate_each(prepared.parameters)
    groups = await _groups(prepared, configurations, reason)
    figured = [FiguresOfMachines(group.places, await _figures(strategy, configurations, group)) for group in groups]
    return Priced(strategy, prepared.name, configurations, columns, figured, _notes(groups, len(configurations)))


async def _groups(prepared: PreparedRun, configurations: Configurations, reason: str | None) -> list[MachineGroup]:
    """Return the machines as they were executed together."""
    if reason is not None:
        return [MachineGroup(configurations.places, None, reason)]
    return await execute(prepared, configurations.machines(prepared.parameters, prepared.stands_for))


async def _figures(strategy: str | Strategy, configurations: Configurations, group: MachineGroup) -> Any:
    """Return the figures of a group, whose machines are simulated one by one where they are left."""
    if group.figures is not None:
        return group.figures
    alone = SeparateFigures()
    for machine in group.places.tolist():
        try:
            alone.add(await simulate_async(strategy, **configurations.of(machine)))
        except Exception as error:
            error.add_note(f"on machine {machine} of {len(configurations)}")
            raise
    return alone


def _notes(groups: Sequence[MachineGroup], num_machines: int) -> list[str]:
    """Return why machines were not executed all at once, a sentence for each reason."""
    apart = grouped((group.reason, group) for group in groups if group.reason is not None)
    return [_note(reason, found, num_machines) for reason, found in apart.items()]


def _note(reason: str, groups: Sequence[MachineGroup], num_machines: int) -> str:
    """Return a sentence on machines that were executed apart for one reason."""
    count = sum(len(group.places) for group in groups)
    num_executions = sum(1 if group.figures is not None else len(group.places) for group in groups)
    how = "one by one" if num_executions == count else f"in {num_executions} groups"
    return f"{count} of {num_machines} machines were executed {how}: {reason}"
