"""Tables as pandas DataFrames; pandas is imported here alone, inside a function, and is no dependency.

It is a file of its own, since runs, comparisons and sweeps make such tables, with one error where there is no pandas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from minitrain.errors import UsageError
from minitrain.operations import Event


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


def columns_of(events: Sequence[Event]) -> dict[str, list[Any]]:
    """Return the fields of events as columns: times in s, memory in elements."""
    return {field.name: [getattr(event, field.name) for event in events] for field in fields(Event)}
