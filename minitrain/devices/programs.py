"""What a simulator is given, as a program: operations by hand, a jaxpr, or a torch graph.

JAX and torch are imported where a program of theirs is read, and known by the names of their classes until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minitrain.devices.operations import Operation, Program
from minitrain.errors import UsageError


def as_program(ir: Any) -> Program:
    """Return a program as the simulators take it.

    Args:
        ir: a `Program`, an `Operation`, a list of operations, a closed jaxpr, or an exported torch program.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(ir, Program):
        return ir
    if isinstance(ir, Operation):
        return Program((ir,))
    kind = type(ir)
    if kind.__name__ == "ClosedJaxpr":
        from minitrain.devices.jax_programs import program_of_jaxpr  # noqa: PLC0415 - JAX is heavy

        return program_of_jaxpr(ir)
    if kind.__name__ == "ExportedProgram":
        from minitrain.devices.torch_programs import program_of_export  # noqa: PLC0415 - torch is heavy

        return program_of_export(ir)
    if isinstance(ir, Iterable) and not isinstance(ir, str):
        operations = tuple(ir)
        if all(isinstance(operation, Operation) for operation in operations):
            return Program(operations)
    raise UsageError(
        "a simulator takes a Program, an Operation, a list of operations, a closed jaxpr or an exported torch program, "
        f"got {kind.__name__}; for a function use mt.hw.simulate(fn, *shapes)"
    )
