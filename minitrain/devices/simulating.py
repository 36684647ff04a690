"""`mt.hw.simulate`: how long a function takes on a device."""

from __future__ import annotations

import warnings
from typing import Any

from minitrain.devices.kinds import make_simulator
from minitrain.devices.operations import Program
from minitrain.devices.programs import as_program
from minitrain.devices.result import SimulationResult
from minitrain.errors import UsageError


class UnknownLoopWarning(UserWarning):
    """A program has a loop whose number of trips is not known before it runs."""


def simulate(
    fn: Any, *shapes: Any, device: Any = "a100_80g", dtype: str = "float32", fidelity: str = "default"
) -> SimulationResult:
    """Predict how long a program takes on a device, with the table of operations that make it up.

    Args:
        fn: a JAX function; or what needs no shapes: operations, a closed jaxpr, an exported torch program.
        shapes: of the function's arguments: tuples of sizes, `jax.ShapeDtypeStruct`, arrays, or trees of these.
        device: a hardware config's name, path or value, "NVIDIA A100" (the specification's), a `DeviceSpec`, or a
            simulator.
        dtype: of the arguments that are given by their sizes alone.
        fidelity: "default", or "seed" for the specification to the last float.

    Raises:
        UsageError: the function cannot be traced with these shapes, or a parameter is outside its rule.
        HardwareConfigError: the device's config cannot be found or read, or is invalid.

    Warns:
        UnknownLoopWarning: a loop's number of trips depends on data; it counts once.

    Example:
        >>> simulate(lambda x, w: x @ w, (1024, 1024), (1024, 1024), device="NVIDIA A100", fidelity="seed").time_ms
        0.11012736656410257
    """
    simulator = make_simulator(device, fidelity)
    found = program(fn, *shapes, dtype=dtype)
    for loop in found.unknown_loops:
        warnings.warn(f"{loop} counts once, so that the prediction is a lower bound", UnknownLoopWarning, stacklevel=2)
    return simulator.simulate(found, fidelity)


def program(fn: Any, *shapes: Any, dtype: str = "float32") -> Program:
    """Return what `simulate` prices; arguments and errors as there."""
    if any(base.__module__.startswith("torch.nn.") for base in type(fn).__mro__):
        raise UsageError(
            f"a torch module is read from its graph: mt.hw.simulate(torch.export.export(module, (inputs,))), "
            f"got {type(fn).__name__}"
        )
    if callable(fn) and type(fn).__name__ not in ("ExportedProgram", "ClosedJaxpr"):
        from minitrain.devices.jax_programs import program_of  # noqa: PLC0415 - JAX is heavy

        return program_of(fn, *shapes, dtype=dtype)
    found = as_program(fn)
    if shapes:
        raise UsageError(f"shapes belong to a function; {type(fn).__name__} says its own")
    return found
