"""Hardware in one place: `mt.hw.simulate` and what goes with it.

    import minitrain as mt

    mt.hw.simulate(fn, (1024, 1024), (1024, 1024), device="a100_80g").time_ms

Every name lives in a room (`minitrain.devices`, `minitrain.machine`). It is a file of its own, since `mt.hw`
gathers them under one name.
"""

from minitrain.machine import SystemConfig as SystemConfig
from minitrain.machine import load_config as load_config
from minitrain.machine import shipped_configs as shipped_configs
from minitrain.machine.devices import DeviceSimulator as DeviceSimulator
from minitrain.machine.devices import DeviceSpec as DeviceSpec
from minitrain.machine.devices import SimulationResult as SimulationResult
from minitrain.machine.devices import make_simulator as make_simulator
from minitrain.machine.devices.calibration import calibrate as calibrate
from minitrain.machine.devices.layer import layer as layer
from minitrain.machine.devices.simulator import program as program
from minitrain.machine.devices.simulator import simulate as simulate
from minitrain.machine.devices.validation import Case as Case
from minitrain.machine.devices.validation import validate as validate

compile = program
