"""Commands from functions: a command's arguments and options are the parameters of its function.

- Positional parameters are the command's arguments, keyword-only ones its options.
- `given: Given` stands for all shared options that name the command: those of `RunParameters`
  (`minitrain.run.parameters`) and of `SharedOptions` (`minitrain.cli.options`). Another parameter with the name of a
  shared option is that option, with the command's own default.
- Help is what docstrings say: that of the function, and for each parameter what its "Args" say, with what stands for
  its value in parentheses behind the name. Of shared options, the docstring of their class says it, up to a sentence
  that begins with "In Python".
- Every command has `--debug`, which `minitrain.cli.failures` reads.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from minitrain.errors import UsageError
from minitrain.plain_text import meanings_of

if TYPE_CHECKING:
    from minitrain.run.parameters import Option

F = Callable[..., Any]


class Given(SimpleNamespace):
    """Shared options as the command line has them, by name; None, or False, where one is not given."""


class PlainHelp(TyperCommand):
    """A command whose help needs no frames: a heading for each kind of options, and lines as wide as the terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                record = record[0].removesuffix(" <str>"), _read_aloud(record[1])
                usual = "Arguments" if each.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


_RANGE = r"[\d.<=]*\bx[\d.<>=]+"


def _read_aloud(about: str) -> str:
    """Return a help text without what nobody reads out: limits as formulas, and brackets in brackets.

    >>> _read_aloud("Ranks.  [default: (8); 1<=x<=99]"), _read_aloud("Samples.  [x>=1]")
    ('Ranks.  [default: 8]', 'Samples.')
    """
    unlimited = re.sub(rf"\s*\[{_RANGE}\]|; {_RANGE}|(?<=\[){_RANGE}; ", "", about)
    return re.sub(r"default: \((.*?)\)(?=[;\]])", r"default: \1", unlimited)


class Group(typer.Typer):
    """Commands of one name, made of functions as this module says.

    Args:
        about: what its help begins with.
        shared: the shared options by name, each with its meaning.
    """

    def __init__(self, about: str, shared: Mapping[str, tuple[Option, str]], **more: Any) -> None:
        super().__init__(help=about, rich_markup_mode=None, **more)
        self._shared = shared

    def define(self, name: str | None = None) -> Callable[[F], F]:
        """Register a function as a command, called like it by default, and return it as it is."""

        def register(function: F) -> F:
            self.command(name, cls=PlainHelp)(command(function, self._shared))
            return function

        return register

    def define_alone(self, function: F) -> F:
        """Register what the name of the group does where no command follows."""
        self.callback(invoke_without_command=True)(command(function, self._shared))
        return function


def command(function: F, shared: Mapping[str, tuple[Option, str]]) -> F:
    """Return a function for typer, whose signature has every option of a command.

    Args:
        function: what the command does.
        shared: the shared options by name, each with its meaning.
    """
    signature = inspect.signature(function, eval_str=True)
    own = set(signature.parameters)
    name = function.__name__
    expanded = [each for each, (option, _) in shared.items() if name in option.commands.split() and each not in own]
    holds_given = any(each.annotation is Given for each in signature.parameters.values())
    meanings = meanings_of(inspect.getdoc(function))
    listed: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        if each.annotation is Given:
            listed += [_shared(other, *shared[other]) for other in expanded]
        else:
            listed.append(_own(each, meanings.get(each.name, ""), shared.get(each.name)))
    listed.append(_option("debug", Annotated[bool, _DEBUG], False))

    @functools.wraps(function)
    def call(**values: Any) -> Any:
        del values["debug"]
        for each, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                flag = shared[each][0].short if each in expanded else f"--{each.replace('_', '-')}"
                raise UsageError(f"{flag} must be a finite number, got {value}")
        if holds_given:
            values["given"] = Given(**{each: values.pop(each) for each in expanded})
        arguments = [
            values.pop(each.name) for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        return function(*arguments, **values)

    del call.__wrapped__  # whose signature typer would read
    call.__annotations__ = {}
    setattr(call, "__signature__", inspect.Signature(listed))  # noqa: B010  (functions have none of it for mypy)
    call.__doc__ = re.split(r"^(?:Args|Raises|Returns):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)[0]
    return call


_DEBUG = typer.Option("--debug", help="Show where an error comes from.", rich_help_panel="Output")


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shared(name: str, option: Option, about: str) -> inspect.Parameter:
    """Return a shared option; None, or False, is its value where it is not given."""
    is_flag = option.kind is bool and "/" not in option.flags[0]
    kind: Any = list[str] if option.kind is list else option.kind
    info = _info(option, about, option.shown or False)
    return _option(name, Annotated[bool, info] if is_flag else Annotated[kind | None, info], False if is_flag else None)


def _info(option: Option, about: str, show_default: bool | str) -> Any:
    """Return what typer is told of a shared option."""
    return typer.Option(
        *option.flags,
        metavar="" if "/" in option.flags[0] else option.metavar,
        help=about,
        min=option.least,
        max=option.most,
        show_default=show_default,
        rich_help_panel=option.panel,
    )


def _own(parameter: inspect.Parameter, meaning: str, shared: tuple[Option, str] | None) -> inspect.Parameter:
    """Return a parameter of a command's function as typer reads it."""
    kind, info = _split(parameter.annotation)
    if kind is typer.Context:
        return parameter.replace(kind=parameter.KEYWORD_ONLY)
    is_argument = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    if info is None and shared is not None and not is_argument:
        info = _info(*shared, show_default=parameter.default is not None)
    if info is None:
        flag = f"--{parameter.name.replace('_', '-')}"  # said, as typer 0.27 makes --STRATEGY of a STRATEGY
        info = typer.Argument() if is_argument else typer.Option(flag)
    unit, _, text = meaning.partition("): ") if meaning.startswith("(") else ("", "", meaning)
    info.help = text or info.help
    info.metavar = unit.removeprefix("(") or info.metavar
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])


def _split(annotation: Any) -> tuple[Any, Any]:
    """Return a type, and a copy of what typer is told beside it."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    kind, *others = get_args(annotation)
    return kind, next((copy(other) for other in others if isinstance(other, ParameterInfo)), None)
