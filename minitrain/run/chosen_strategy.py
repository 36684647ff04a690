"""A strategy together with options of its own, as in "pp_dp:pp=4", for `simulate`, `compare` and sweeps."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minitrain.errors import StrategyError
from minitrain.run.strategy_loading import Strategy, load_strategy, require_options

if TYPE_CHECKING:
    from minitrain.rank.model import Model


@dataclass(frozen=True, slots=True)
class ChosenStrategy:
    """A strategy that was found, with the options that were given to it alone; it can be called as a strategy is.

    Args:
        name: the strategy's name.
        function: the strategy.
        options: its own options.
        label: what tells it apart from the same strategy with other options.
    """

    name: str
    function: Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def __call__(self, model: Model, **options: Any) -> Awaitable[Model]:
        """Run the strategy on one rank."""
        return self.function(model, **self.options, **options)

    def options_with(self, common: Mapping[str, Any], parameters: Iterable[str] = ()) -> dict[str, Any]:
        """Return its own options together with those that several strategies have in common.

        Args:
            common: options for all strategies.
            parameters: names that are no options, but parameters of the run.

        Raises:
            StrategyError: an option is given both ways, is a parameter of the run, or is none of the strategy.
        """
        for name in self.options:
            if name in common:
                raise StrategyError(
                    f"{name} is given twice: in {self.label}, and as {name}={common[name]!r} for all; leave one out"
                )
            if name in parameters:
                raise StrategyError(f"{name} in {self.label} is no option of a strategy, but a parameter of the run")
        options = {**common, **self.options}
        require_options(self.name, self.function, options, parameters)
        return options


def choose_strategy(strategy: str | Strategy) -> ChosenStrategy:
    """Find a strategy, and read the options that follow its name.

    Args:
        strategy: what `load_strategy` takes, or a name with options: "pp_dp:pp=4".

    Raises:
        StrategyError: there is no such strategy, or the options cannot be read.
    """
    if isinstance(strategy, ChosenStrategy):
        return strategy
    bare, options = split_options(strategy) if isinstance(strategy, str) else (strategy, {})
    name, function = load_strategy(bare)
    if not options:
        return ChosenStrategy(name, function, options, name)
    pairs = ",".join(f"{option}={value}" for option, value in options.items())
    return ChosenStrategy(name, function, options, f"{name}:{pairs}")


def split_options(strategy: str) -> tuple[str, dict[str, Any]]:
    """Return a strategy without the options that follow its name, and these; values are Python literals, or else text.

    Raises:
        StrategyError: an option is no name=value, or is given twice.

    >>> split_options("pp_dp:pp=4,microbatch_size=2")
    ('pp_dp', {'pp': 4, 'microbatch_size': 2})
    >>> split_options("mine.py:mine:order='a,b'")
    ('mine.py:mine', {'order': 'a,b'})
    >>> split_options("mine.py:mine")
    ('mine.py:mine', {})
    """
    if "=" not in strategy:
        return strategy, {}
    name, colon, text = _name_and_options(strategy)
    options: dict[str, Any] = {}
    for pair in _at_commas(text):
        option, equals, value = (part.strip() for part in pair.partition("="))
        if not (colon and equals and option.isidentifier() and value) or option in options:
            raise StrategyError(
                f"options of one strategy are written name:option=value,option=value, each once; got {strategy!r}",
                strategy=strategy,
            )
        options[option] = literal(value)
    return name, options


def _name_and_options(text: str) -> tuple[str, str, str]:
    """Return what is before the last colon before the first "=", the colon, and what follows it."""
    before = text.partition("=")[0]
    name, colon, _ = before.rpartition(":")
    return name, colon, text[len(name) + len(colon) :]


def _at_commas(text: str) -> Iterable[str]:
    """Split at commas that are not inside brackets or quotes."""
    pieces = [""]
    for part in text.split(","):
        is_whole = pieces[-1] == "" or _is_closed(pieces[-1])
        pieces = [*pieces, part] if is_whole else [*pieces[:-1], f"{pieces[-1]},{part}"]
    return pieces[1:]


def _is_closed(text: str) -> bool:
    """Return whether every bracket and quote in a text is closed."""
    brackets = all(text.count(left) <= text.count(right) for left, right in ("()", "[]", "{}"))
    return brackets and all(text.count(quote) % 2 == 0 for quote in "'\"")


def literal(text: str) -> Any:
    """Return the Python literal that a text is, or the text."""
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about odd spellings such as "1if"
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
