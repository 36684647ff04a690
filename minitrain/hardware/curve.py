"""Efficiency curves: small operations reach less of a unit's peak than large ones.

A curve is a step function, as the config format writes it: rows `(lower bound, efficiency)` in strictly
descending order of bounds, the last bound 0. An operation gets the efficiency of the first row whose bound
it reaches. There is no interpolation between rows.
"""

from minitrain.errors import UsageError

Rows = tuple[tuple[float, float], ...]


def efficiency_at(rows: Rows, amount: float, unit: float) -> float:
    """Return the efficiency of an operation of the given size.

    Args:
        rows: `(lower bound, efficiency)`, bounds in multiples of `unit`, strictly descending, the last one 0.
        amount: size of the operation, in FLOP or bytes, at least 0.
        unit: what the bounds count (1e9 FLOP or 1e6 bytes).

    Returns:
        A share of the peak, in (0, 1].

    Raises:
        UsageError: the amount is negative or not a number.
    """
    for bound, efficiency in rows:
        if amount >= bound * unit:
            return efficiency
    raise UsageError(
        f"the size of an operation must be a number >= 0, not {amount}; check the FLOP or bytes given",
        amount=amount,
    )
