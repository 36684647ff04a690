"""The options of a strategy: which it has, whether it can be called with them, and those written after its name."""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from minitrain.errors import StrategyError


def options_of(strategy: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a strategy by name: what can be given by name after the model."""
    after_model = list(inspect.signature(strategy).parameters.values())[1:]
    return {
        known.name: known for known in after_model if known.kind in (known.KEYWORD_ONLY, known.POSITIONAL_OR_KEYWORD)
    }


def takes_option(strategy: Callable[..., Any], option: str) -> bool:
    """Return whether a strategy has an option of a name."""
    parameters = inspect.signature(strategy).parameters.values()
    return any(known.kind is known.VAR_KEYWORD for known in parameters) or option in options_of(strategy)


def require_options(
    name: str, strategy: Callable[..., Any], options: Mapping[str, Any], known: Iterable[str] = ()
) -> None:
    """Require that a strategy can be called with a model and some options.

    Args:
        name: the strategy's name.
        strategy: the strategy.
        options: what it is to be called with.
        known: other names that might have been meant, those of a run's parameters.

    Raises:
        StrategyError: it takes other parameters.
    """
    try:
        bind_once(strategy, *options)
    except TypeError as error:
        signature = inspect.signature(strategy)
        given = ", ".join(["model", *(f"{option}={value!r}" for option, value in options.items())])
        meant = "".join(did_you_mean(option, [*options_of(strategy), *known]) for option in options)
        raise StrategyError(
            f"the strategy {name}{signature} cannot be called with ({given}): {error}{meant}", strategy=name
        ) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return in words which of the known names was meant by one that is not among them, or nothing.

    >>> did_you_mean("wrold_size", ["num_layers", "world_size"])
    '; did you mean world_size?'
    """
    listed = list(known)
    close = [] if name in listed else difflib.get_close_matches(name, listed, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _bind(strategy: Callable[..., Any], *options: str) -> None:
    """Bind options to the parameters of a strategy.

    Raises:
        TypeError: an option is no parameter, or a parameter has no value.
    """
    inspect.signature(strategy).bind(None, **dict.fromkeys(options))


_bind_cached = lru_cache(_bind)  # a sweep asks a thousand times a second


def bind_once(strategy: Callable[..., Any], *options: str) -> None:
    """Bind options as `_bind` does, once where the answer can be kept: what is no function may not be hashable."""
    (_bind_cached if isinstance(strategy, FunctionType) else _bind)(strategy, *options)


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
