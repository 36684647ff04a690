"""The words of a launch script of a shell: options with their values, variables and arrays put in.

Read are assignments (`TP=8`, `ARGS=(...)`, `ARGS="--a 1"`, `${TP:-8}`), products and sums of them (`$((TP * PP))`), and
everything that begins with two dashes. Loops and conditions are not followed: what stands in any branch is read, and an
option that is given twice with different values is a fault. A variable that the script does not set stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minitrain.errors import UsageError
from minitrain.workloads.exchange.megatron_model import evaluated

_ASSIGNMENT = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_RANKS = ("--nproc-per-node", "--nnodes")


@dataclass(frozen=True, slots=True)
class Words:
    """The options of a command.

    Args:
        options: values by option, which begins with two dashes and has no underscore.
    """

    options: Mapping[str, Sequence[str]]

    @property
    def world_size(self) -> int | None:
        """The ranks that torchrun is to start; None where that is not said in numbers."""
        values = [self.options.get(option, ["1" if option == "--nnodes" else ""])[0] for option in _RANKS]
        return int(values[0]) * int(values[1]) if all(value.isdigit() for value in values) else None

    def without(self, names: Sequence[str]) -> Words:
        """Return them without some options."""
        left_out = {option_name(name) for name in names}
        return Words({name: values for name, values in self.options.items() if name not in left_out})


def words_of(text: str) -> Words:
    """Return the options of a script, or of the command line itself.

    Raises:
        UsageError: a quote is not closed, or an option is given twice with different values.

    Example:
        >>> words_of("TP=2; ARGS=(--size $((TP * 4)) --flag)".replace("; ", chr(10)) + " --nnodes 2 ${ARGS[@]}").options
        {'--nnodes': ['2'], '--size': ['8'], '--flag': []}
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for word in _words(_tokens(text)):
        if not word.startswith("--"):
            current.append(word)
            continue
        name, equals, value = word.partition("=")
        current = [value] if equals else []
        found.setdefault(option_name(name) + (" (again)" if option_name(name) in found else ""), current)
    again = [name for name in found if name.endswith(" (again)")]
    for name in again:
        if found.pop(name)[:1] != found[name.removesuffix(" (again)")][:1]:
            raise UsageError(f"{name.removesuffix(' (again)')} is given twice with different values; leave one out")
    return Words(found)


def option_name(word: str) -> str:
    """Return an option's name with dashes alone.

    >>> option_name("--nproc_per_node")
    '--nproc-per-node'
    """
    return "--" + word.strip().lstrip("-").replace("_", "-")


def _tokens(text: str) -> list[str]:
    """Return the words of a shell, quotes taken away, products put in."""
    joined = _ARITHMETIC.sub(lambda found: "$((" + re.sub(r"\s+", "", found[1]) + "))", text.replace("\\\n", " "))
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError(f"the script cannot be read: {error}; close the quote") from None


def _words(tokens: Sequence[str]) -> Iterator[str]:
    """Yield words, with the values of variables put in where these are used."""
    variables: dict[str, list[str]] = {}
    places = iter(tokens)
    for token in places:
        assigned = None if token.startswith("-") else _ASSIGNMENT.fullmatch(token)
        if assigned is None:
            yield from _put_in(token, variables)
        else:
            name, value = assigned.groups()
            words = _array(value[1:], places) if value.startswith("(") else [value]
            new = [word for each in words for word in _put_in(each, variables)]
            variables[name] = [*variables.get(name, []), *new] if "+=" in token[: len(name) + 2] else new


def _array(first: str, places: Iterator[str]) -> Iterator[str]:
    """Yield the words of an array, up to its closing bracket."""
    word = first
    while word != ")":
        if word.endswith(")") and word.count(")") > word.count("("):
            if word[:-1]:
                yield word[:-1]
            return
        if word:
            yield word
        word = next(places, ")")


def _put_in(word: str, variables: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the words of a word that may be a variable, or have some in it."""
    whole = _VARIABLE.fullmatch(word)
    if whole is not None and (whole[1] or whole[3]) in variables:
        return [part for value in variables[whole[1] or whole[3]] for part in _split(value)]
    return [_summed(_VARIABLE.sub(lambda found: _value(found, variables), word), variables)]


def _split(value: str) -> list[str]:
    """Return the words of a variable that holds several."""
    return value.split() if value.lstrip().startswith("--") else [value]


def _value(found: re.Match[str], variables: Mapping[str, Sequence[str]]) -> str:
    """Return what stands for a variable: its value, its default, or itself."""
    known = variables.get(found[1] or found[3])
    if known is not None:
        return " ".join(known)
    return found[2] if found[2] is not None else found[0]


def _summed(word: str, variables: Mapping[str, Sequence[str]]) -> str:
    """Return a word with its products and sums of integers done."""

    def result(found: re.Match[str]) -> str:
        named = re.sub(r"[A-Za-z_]\w*", lambda name: " ".join(variables.get(name[0], [name[0]])), found[1])
        try:
            return str(evaluated(named))
        except ValueError:
            return found[0]

    return _ARITHMETIC.sub(result, word)
