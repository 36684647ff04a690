"""How messages describe the faults of a config file: where, what was expected, what was found."""

import json
from collections.abc import Sequence
from typing import Any

from minitrain.errors import HardwareConfigError

TOO_DEEP = "expected at most a few levels of nesting, found too many; is it a config?"

MOST_SHOWN = 8  # faults of one file: more than anybody mends at once
_LONGEST = 40  # characters of a found string, digits of a found integer


def refuse(label: str, faults: list[str]) -> HardwareConfigError:
    """Return the one error of a config that names its first faults (facts: `path`, and `faults`, which has all)."""
    title, *lines = every_fault(label, faults)
    return HardwareConfigError("\n".join(first_faults(title, lines, len(lines))), path=label, faults=tuple(faults))


def every_fault(label: str, faults: Sequence[str]) -> list[str]:
    """Return the lines that name all faults of a config, below a title if there are several."""
    lines = [f"{label}: {fault}" for fault in faults]
    return lines if len(lines) == 1 else [f"{label}: {len(lines)} faults", *lines]


def first_faults(title: str, faults: Sequence[str], number: int) -> list[str]:
    """Return the lines that name several faults: what has them, the first ones, and how many more there are.

    >>> first_faults("x.json: 3 faults", ["a", "b"], 3)
    ['x.json: 3 faults', 'a', 'b', '... and 1 more']
    """
    shown_faults = faults[:MOST_SHOWN]
    more = number - len(shown_faults)
    return [title, *shown_faults, *([f"... and {more} more"] if more else [])]


def label_of(path: str) -> str:
    """Return a path as messages may print it, whatever bytes it is made of."""
    return path if path.isprintable() else ascii(path)


def key_path(location: tuple[int | str, ...]) -> str:
    """Return a place in a config as people write it.

    >>> key_path(("networks", 0, "ops", "all_reduce", 1))
    'networks[0].ops.all_reduce[1]'
    """
    path = ""
    for key in location:
        if isinstance(key, str) and key.replace("-", "_").isidentifier():
            path += f".{key}" if path else key
        else:
            path += f"[{json.dumps(key)}]"
    return path


def shown(value: Any) -> str:
    """Return a found value in a few words, as JSON writes it.

    >>> shown([1, None]), shown("x"), shown({"a": 1})
    ('[1, null]', '"x"', 'an object')
    """
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST else value[:_LONGEST] + "...")
    if isinstance(value, bool | float) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_LONGEST else "a huge number"
    if isinstance(value, list | tuple):
        return _list_shown(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def _list_shown(values: list[Any] | tuple[Any, ...]) -> str:
    """Write a short flat list in full and count any other."""
    if len(values) > 4 or any(isinstance(value, list | tuple | dict) for value in values):
        return f"a list of {len(values)}"
    return f"[{', '.join(map(shown, values))}]"
