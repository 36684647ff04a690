"""Hardware in one place: `mt.hw.simulate` and what goes with it.

    import minitrain as mt

    mt.hw.simulate(fn, (1024, 1024), (1024, 1024), device="a100_80g").time_ms

Every name lives in a room (`minitrain.devices`, `minitrain.machine`). It is a file of its own, since `mt.hw`
gathers them under one name.
"""

from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.devices import DeviceSimulator, DeviceSpec, SimulationResult, make_simulator
from minitrain.machine.devices.calibration import calibrate
from minitrain.machine.devices.layer import layer
from minitrain.machine.devices.simulator import program, simulate
from minitrain.machine.devices.validation import Case, validate

compile = program  # noqa: A001 - the specification's name of it

__all__ = [
    "Case",
    "DeviceSimulator",
    "DeviceSpec",
    "SimulationResult",
    "SystemConfig",
    "calibrate",
    "compile",
    "layer",
    "load_config",
    "make_simulator",
    "program",
    "shipped_configs",
    "simulate",
    "validate",
]
