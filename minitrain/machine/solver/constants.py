"""The units of the solver: a private pint registry in which FLOPs, bytes and counts have dimensions of their own.

In pint's default registry bytes and counts are plain numbers, so that a rate in FLOP/s and one in byte/s can be added
without a complaint. Here `flop + byte` is an error. The registry holds these few units and nothing else, which also
makes it quick: pint's own takes 0.1 s to build.
"""

import math
from pathlib import Path
from typing import Any

from minitrain.errors import MinitrainError, UsageError
from minitrain.files import read_json

try:
    import pint
except ImportError as error:  # pragma: no cover - tests run with pint
    raise MinitrainError("minitrain.solver needs pint; install the extra: pip install 'minitrain[hw]'") from error

ureg: Any = pint.UnitRegistry(Path(__file__).with_name("units.txt"))
"""The units."""

Q_: Any = ureg.Quantity
"""A number with a unit of `ureg`: Q_(3, "GB/s")."""


def presets(kind: str) -> dict[str, dict[str, Any]]:
    """Return the figures of the specification's "models" or "systems" by name.

    They are in the units in which they are stated: the last digit of a time depends on them.
    """
    found = read_json(Path(__file__).with_name("presets.json"))[kind]
    return {name: {figure: Q_(*stated) for figure, stated in figures.items()} for name, figures in found.items()}


BYTES_FP32 = 4 * ureg.byte
BYTES_FP16 = 2 * ureg.byte
BYTES_INT8 = 1 * ureg.byte
"""Bytes of a parameter by precision."""


def of_ours(what: str, value: Any) -> Any:
    """Return a value, in the units of `ureg` if it is a quantity of another registry.

    Args:
        what: what messages call it.
        value: anything.

    Raises:
        UsageError: `ureg` has no unit of that name.
    """
    if not isinstance(value, pint.Quantity) or isinstance(value, Q_):
        return value
    unit = format(value.units, "D")
    try:
        return Q_(value.magnitude, unit)
    except pint.UndefinedUnitError:
        raise UsageError(
            f"{what} is in {unit}, a unit of another registry that minitrain.solver.constants.ureg does not have; "
            "convert it first: value.to(...)"
        ) from None


def require_quantity(what: str, value: Any, unit: str, *, may_be_zero: bool = False) -> Any:
    """Return a positive, finite quantity of some dimension, in the units of `ureg`.

    Args:
        what: what messages call it.
        value: a quantity; one of another registry is converted.
        unit: one of that dimension.
        may_be_zero: whether 0 will do.

    Raises:
        UsageError: it is something else.
    """
    value = of_ours(what, value)
    is_right = isinstance(value, Q_) and value.is_compatible_with(unit)
    size = value.to(unit).magnitude if is_right else math.nan
    if math.isfinite(size) and (size > 0 or (may_be_zero and size == 0)):
        return value
    raise UsageError(
        f"{what} must be a quantity {'>= 0' if may_be_zero else '> 0'} in {unit} (ureg of minitrain.solver.constants), "
        f'such as Q_(1, "{unit}"), got {value!r}'
    )
