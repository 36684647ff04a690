"""`price`: a strategy on many machines, by one execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.run.event_loops import run_to_end
from minitrain.run.prepared_run import PreparedRun, prepare
from minitrain.run.simulation import simulate_async
from minitrain.run.strategy_loading import Strategy, framework_of
from minitrain.vector.configurations import Configurations, columns_of
from minitrain.vector.execution import MachineGroup, execute
from minitrain.vector.priced import FiguresOfMachines, Priced
from minitrain.vector.separate_figures import SeparateFigures


def price(
    strategy: str | Strategy,
    hardware: Any = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    **parameters: Any,
) -> Priced:
    """Simulate one training step of a strategy on many machines at once.

    The strategy runs once. Its clocks and prices are arrays of one number a machine, so that a thousand machines take
    little longer than one. All figures are those of separate simulations, to the last float.

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


async def price_async(
    strategy: str | Strategy,
    hardware: Any = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    **parameters: Any,
) -> Priced:
    """Do what `price` does in the running event loop."""
    columns = columns_of(hardware, vary, grid)
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
    return await execute(prepared, configurations.machines(prepared.parameters, framework_of(prepared.function)))


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
    apart: dict[str, list[MachineGroup]] = {}
    for group in groups:
        if group.reason is not None:
            apart.setdefault(group.reason, []).append(group)
    return [_note(reason, found, num_machines) for reason, found in apart.items()]


def _note(reason: str, groups: Sequence[MachineGroup], num_machines: int) -> str:
    """Return a sentence on machines that were executed apart for one reason."""
    count = sum(len(group.places) for group in groups)
    num_executions = sum(1 if group.figures is not None else len(group.places) for group in groups)
    how = "one by one" if num_executions == count else f"in {num_executions} groups"
    return f"{count} of {num_machines} machines were executed {how}: {reason}"
