"""The command `minitrain strategies`: which strategies there are, and what one of them takes and needs.

What is shown of one strategy is read from its own signature and docstring.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import minitrain as mt
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.run.saved_runs import plain
from minitrain.run.strategy_loading import (
    Strategy,
    StrategyOption,
    documented_options,
    load_strategy,
    strategies_of_file,
)
from minitrain.view.tables import facts_table, plain_table


def strategies(name: str | None = None, *, as_json: bool = False) -> None:
    """List the shipped strategies; or show one: its options with their defaults, and the sizes that it needs.

    Args:
        name (NAME): The strategy to show: a name, path.py or path.py:function; all if left out.
        as_json: Print JSON instead of a table.
    """
    if name is None or (name.endswith(".py") and len(strategies_of_file(Path(name))) > 1):
        if name is None and not mt.strategies():
            raise UsageError("this is the minitrain for students, which ships no strategies; name a file of yours")
        _list(mt.strategies() if name is None else strategies_of_file(Path(name)), as_json=as_json)
    else:
        _show(*load_strategy(name), as_json=as_json)


def _list(found: Mapping[str, Strategy], *, as_json: bool) -> None:
    """Print what each strategy is."""
    docs = {name: _what_it_is(function) for name, function in found.items()}
    if as_json:
        print_json([{"strategy": name, "description": doc} for name, doc in docs.items()])
        return
    table = facts_table(docs)
    table.columns[0].style = "bold"
    print_table(table)


def _show(name: str, function: Strategy, *, as_json: bool) -> None:
    """Print what a strategy is, what sizes it needs, and its options."""
    doc = inspect.getdoc(function) or ""
    rules, options = _rules(doc), documented_options(function)
    if as_json:
        listed = [{**asdict(option), "default": _for_json(option.default)} for option in options]
        print_json({"strategy": name, "description": _what_it_is(function), "rules": rules, "options": listed})
        return
    about = [_what_it_is(function), "", *rules] if rules else ["It has no docstring that says what it needs.", ""]
    print_lines([name, *_wrapped(about)])
    if not options:
        print_lines(["It has no options."])
        return
    table = plain_table()
    for column in ("option", "default"):
        table.add_column(column, no_wrap=True)
    table.add_column("meaning", overflow="fold", min_width=20)
    for option in options:
        default = "required" if option.is_required else repr(option.default)
        table.add_row(*(Text(printable(text)) for text in (option.name, default, option.meaning)))
    print_table(table)
    print_lines([f"such as: minitrain run {name}:{_example(options)}"])


def _wrapped(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield the lines of paragraphs, as wide as the table below them."""
    for paragraph in paragraphs:
        yield from textwrap.wrap(paragraph, Console().width) or [""]


def _example(options: Sequence[StrategyOption]) -> str:
    """Return an option with a value that it takes: the last default, or else a word that its meaning quotes."""
    option = next((option for option in reversed(options) if option.default is not None), options[-1])
    quoted = re.search(r'"(\w+)"', option.meaning)
    value = str(option.default) if option.default is not None else quoted[1] if quoted else "1"
    return f"{option.name}={value}"


def _for_json(default: Any) -> Any:
    """Return a default as JSON has it: a tuple as a list, what JSON has no word for as Python writes it."""
    return [plain(one) for one in default] if isinstance(default, tuple) else plain(default)


def _what_it_is(function: Strategy) -> str:
    """Return a strategy in one line: the first one of its module, if that has only this one, or its own."""
    module = inspect.getmodule(function)
    is_shipped = function in mt.strategies().values()
    return (inspect.getdoc(module if is_shipped else function) or "").partition("\n")[0]


def _rules(doc: str) -> list[str]:
    """Return the paragraphs of a docstring before its sections."""
    text = re.split(r"^(?:Args|Returns|Raises|Source):\n", doc, flags=re.MULTILINE)[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]
