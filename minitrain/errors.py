"""What can go wrong, each kind with its own class: rule, offending values, remedy.

Every error that minitrain raises on purpose is a `MinitrainError`, so one `except` catches them all. An error
carries the facts that programs read as attributes (`error.rank`, `error.layer`, the parameters it speaks of, ...); a
fact that does not apply is absent from `error.facts` and reads as None.

Faults of the fields of a description are told all in one error (`refuse`). What is given to public functions and
classes is of the type that their annotations say, or is refused by name (`typed`, `typed_methods`):

- Before a function is called, its flags, callables, collections and objects are checked, at no cost that counts. Its
  numbers, words and paths have rules of their own, which say more than a type does.
- Where a call fails by an error of Python's own, every argument is, with what is within it, so that the error names
  the argument; but not where the error is of a strategy, or of another function of the user's.
- Once an object is made, everything that it was made of is: the rules of its class have come first.
"""

import builtins
import difflib
import errno
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from itertools import zip_longest
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Never, TypeVar, Union, get_args, get_origin

_LONGEST = 4000
"""Characters of a line of a message, which may quote what a file holds."""


class MinitrainError(Exception):
    """The root of all errors raised by minitrain.

    Args:
        message: rule, offending values and remedy, for a person; the middle of an endless line is left out.
        facts: those of the values that programs read; each can be read as an attribute.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message if len(message) <= _LONGEST else "\n".join(map(_shortened, message.split("\n"))))
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        """Return a fact, or None for one that does not apply."""
        if name.startswith("_"):  # copy, pickle and IPython (`_render_traceback_`) look for what only some have
            raise AttributeError(name)
        return self.__dict__.get("facts", {}).get(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the facts, so that an error crosses a process boundary whole."""
        return _rebuild, (type(self), self.args, self.facts)


def _shortened(line: str) -> str:
    """Return a line without its middle if it is endless."""
    half, left_out = _LONGEST // 2, len(line) - _LONGEST
    return line if left_out <= 0 else f"{line[:half]} ... ({left_out} characters) ... {line[-half:]}"


def _rebuild(kind: type[MinitrainError], args: tuple[Any, ...], facts: dict[str, Any]) -> MinitrainError:
    """Make an error again from its pickled parts."""
    return kind(*args, **facts)


class LawError(MinitrainError, AssertionError):
    """A law of training is broken: an incomplete weight, the wrong layer, a missing sample ..."""


class TensorTypeError(LawError, TypeError):
    """Something that is not a tensor of the right kind was given to an operation."""


class DeadlockError(MinitrainError):
    """Every unfinished rank waits for another one, so that nothing can ever happen again."""


class CollectiveMismatchError(LawError):
    """Ranks met in the same place of a group's order with different collectives."""


class ProofError(MinitrainError, AssertionError):
    """A strategy's numbers are not those of single-device training."""


class OutOfMemoryError(MinitrainError):
    """A rank held more than the simulated device's memory."""


class HardwareConfigError(MinitrainError, ValueError):
    """A hardware config cannot be found or read, or is invalid."""


class StrategyError(MinitrainError):
    """A strategy cannot be loaded, called or trusted: signature, return value, messages nobody received ..."""


class TrainingError(MinitrainError):
    """A rank of a real run died, was lost, or did nothing for too long."""


class UsageError(MinitrainError, ValueError):
    """A parameter of a public function or command has a value outside its rule."""


def require_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is an int of at least `least`, and at most `most`.

    Raises:
        UsageError: it is not.
    """
    if not is_count(value, least):
        remedy = f"; write int({name})" if isinstance(value, Integral) and not isinstance(value, int) else ""
        raise UsageError(f"{name} must be an integer of at least {least}, got {value!r:.80}{remedy}")
    if most is not None and value > most:
        raise UsageError(f"{name} must be at most {most}, got {shown(value)}")
    return value  # type: ignore[no-any-return]  # an int


def require_number(name: str, value: Any, of: str = "", *, or_zero: bool = False) -> None:
    """Require a finite number above 0, or from 0 on.

    Args:
        name: what messages call it.
        value: what may be none.
        of: what it is a number of, such as " of seconds".
        or_zero: whether 0 will do.

    Raises:
        UsageError: it is something else.
    """
    if not (is_number(value) and (value or or_zero)):
        rule = f"a number{of} from 0 on" if or_zero else f"a positive number{of}"
        raise UsageError(f"{name} must be {rule}, got {value!r:.80}")


def require_percent(value: Any) -> None:
    """Require a number from 0 to 100.

    Raises:
        UsageError: it is something else.
    """
    if not is_number(value, 100):
        raise UsageError(f"percent must be a number from 0 to 100, got {shown(value)}")


def require_installed(extra: str, what: str, *modules: str) -> None:
    """Require libraries that only an extra of minitrain's brings.

    Args:
        extra: which extra.
        what: needs them, in words.
        modules: their names.

    Raises:
        UsageError: one is not installed.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, not installed here; pip install 'minitrain[{extra}]'", extra=extra
        )


def text_of(error: BaseException) -> str:
    """Return the text of an error; of one that cannot say it, that it cannot."""
    try:
        return str(error)
    except Exception as another:  # an exception of a user's may do anything
        return f"(no text: {type(another).__name__} when it was asked for)"


NO_MEMORY = "the system gives no more memory, or no more threads; ask for less, or for fewer processes"
"""What ends so may do better another time."""


def message_of(error: BaseException) -> str:
    """Return an error and its notes in words; if it is not minitrain's, also its type and the line that raised it."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if isinstance(error, MinitrainError):
        return f"{text_of(error)}{notes}"
    if lacks_memory(error):
        return f"{NO_MEMORY}{notes}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path, or name another one"
    if isinstance(error, BaseExceptionGroup):  # of a task group
        return f"{message_of(error.exceptions[0])}{notes}"
    text = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    return f"{text}{place_of(error)}{attribute_meant(error)}{notes}"


def attribute_meant(error: BaseException) -> str:
    """Return "; did you mean ...?" with the closest name where an attribute does not exist, else ""."""
    if not isinstance(error, AttributeError) or not isinstance(error.name, str):
        return ""
    close = difflib.get_close_matches(error.name, [name for name in dir(error.obj) if name[0] != "_"], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def made_a_tensor(value: Any) -> str:
    """Return how a tensor is had from what a strategy gave instead of one, as a message ends with it; or ""."""
    if inspect.isawaitable(value):
        return "; `await` it, and use what that returns"
    return "; unpack it, as in `weight, opt_state = model.load_weights(...)`" if isinstance(value, tuple) else ""


def reason_of(error: BaseException) -> str:
    """Return an error's type and text for a row; where the system gives no memory, that it does not."""
    return f"{type(error).__name__}: {NO_MEMORY if lacks_memory(error) else text_of(error)}"


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that the system has no memory, or no process or thread, to give."""
    no_thread = isinstance(error, RuntimeError) and text_of(error) == "can't start new thread"
    no_library = isinstance(error, ImportError) and "failed to map segment" in text_of(error)
    refused = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    return isinstance(error, MemoryError) or no_thread or no_library or refused


def came_without_memory(error: BaseException | None) -> bool:
    """Return whether an error says so, or came while such a one was handled, as a SystemError of Python's own may."""
    while error is not None and not lacks_memory(error):
        error = error.__context__
    return error is not None


def say_ignored(hook: Callable[[Any], object], found: Any) -> None:
    """Say what Python ignores, but not each lack of memory, of which there is one message.

    Args:
        hook: says it, as `sys.unraisablehook` does.
        found: what it takes.
    """
    if not issubclass(found.exc_type, MemoryError):
        hook(found)


def place_of(error: BaseException) -> str:
    """Return the innermost line of an error's traceback that is neither minitrain's nor of a library around it."""
    found = (find_spec(name) for name in ("typer", "click", "rich", "numpy", "jax", "torch"))
    libraries = (str(Path(spec.origin).parent) for spec in found if spec is not None and spec.origin is not None)
    others = (str(Path(__file__).parent), str(Path(traceback.__file__).parent), *libraries)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*others, "<frozen "))
    ]
    return f", in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


_MOST_TOLD = 20
"""Faults of one object: more than anybody mends at once."""


def refuse(subject: str, faults: Sequence[str], **facts: Any) -> UsageError:
    """Return the one error that lists the first faults (fact: `faults`, which has all).

    Args:
        subject: what has the faults, as a sentence begins with it: "the transformer".
        faults: one sentence each.
        facts: more for programs to read.
    """
    if len(faults) == 1:
        return UsageError(f"{subject}: {faults[0]}", faults=tuple(faults), **facts)
    lines = "".join(f"\n- {fault}" for fault in faults[:_MOST_TOLD])
    lines += f"\n... and {len(faults) - _MOST_TOLD} more" if len(faults) > _MOST_TOLD else ""
    return UsageError(f"{subject} has {len(faults)} faults:{lines}", faults=tuple(faults), **facts)


_MOST = 10**12  # of anything that a model has


def is_count(value: Any, least: int = 1) -> bool:
    """Return whether a value is an int of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, most: float = math.inf) -> bool:
    """Return whether a value is a finite number from 0 to `most`; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most and value < math.inf


def count_fault(name: str, value: Any, least: int, example: str) -> str | None:
    """Return what is wrong with a count, or None."""
    if is_count(value, least):
        return None if value <= _MOST else f"{name} must be at most 10^12, got {shown(value)}; is a unit wrong?"
    return f"{name} must be an integer of at least {least}, got {shown(value)}; write {example}"


def choice_fault(name: str, value: Any, choices: Sequence[str]) -> str | None:
    """Return what is wrong with a choice, or None."""
    if isinstance(value, str) and value in choices:
        return None
    listed = " or ".join(f'"{choice}"' for choice in choices)
    return f"{name} must be {listed}, got {shown(value)}; {closest(value, choices) or 'use one of them'}"


def closest(value: Any, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the known name that is most like the value, or nothing.

    >>> closest("lama3-8b", ["llama3-8b", "gpt2"])
    'did you mean "llama3-8b"?'
    """
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for messages

    close = get_close_matches(value.lower(), list(known), n=1, cutoff=0.5) if isinstance(value, str) else []
    return f'did you mean "{close[0]}"?' if close else ""


def one_of(value: Any, known: Iterable[str]) -> str:
    """Return the remedy for a name that is not known: the one that may have been meant, and all."""
    meant, names = closest(value, known), ", ".join(known)
    return f"{meant} There are {names}" if meant else f"use one of {names}" if names else "there are none"


def shown(value: Any) -> str:
    """Return a value as messages print it: in at most 60 characters."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Public = TypeVar("Public", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

_RULED: Mapping[Any, type] = {int: Integral, float: Real, str: str}
"""Types of arguments of functions that have rules of their own, and what is of them."""


def typed(public: Public) -> Public:
    """Let a public function, or a class, refuse arguments that are not of the types of its annotations."""
    if isinstance(public, type):
        public.__init__ = _refusing(public.__init__, public)  # type: ignore[misc]  # as `dataclass` sets it
        return public
    refusing: Public = _refusing(public, public)
    return refusing


def typed_methods(public: Class) -> Class:
    """Let the public methods of a class refuse such arguments; for classes whose objects come from minitrain."""
    for name, method in [*vars(public).items()]:
        if name[0] != "_" and inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1:
            setattr(public, name, typed(method))
    return public


def _refusing(function: Any, public: Any) -> Any:
    """Return a function that refuses arguments; a class is known to users by another name than what makes it."""
    types = _Types(function, public)

    async def call_async(*args: Any, **given: Any) -> Any:
        with types.required(args, given):
            return await function(*args, **given)

    def call(*args: Any, **given: Any) -> Any:
        with types.required(args, given):
            return function(*args, **given)

    return wraps(function)(call_async if inspect.iscoroutinefunction(function) else call)


class _Types:
    """The types of the arguments of a function.

    Args:
        function: what is called.
        public: what users know of it: the same, or the class that it initializes.
    """

    def __init__(self, function: Any, public: Any) -> None:
        self._function, self._public, self._is_made = function, public, isinstance(public, type)
        self._parameters = inspect.signature(function).parameters
        self._kind = cache(self._evaluated)

    @contextmanager
    def required(self, args: Sequence[Any], given: Mapping[str, Any]) -> Iterator[None]:
        """Require arguments of these types before a call, or after it."""
        if not self._is_made:
            self._require(args, given, whole=False)
        try:
            yield
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
            if not isinstance(error, MinitrainError) and (self._is_made or not place_of(error)):
                self._require(args, given, whole=True)
            raise
        if self._is_made:
            self._require(args, given, whole=True)

    def _require(self, args: Sequence[Any], given: Mapping[str, Any], *, whole: bool) -> None:
        """Require that arguments are of their types, where they are not the defaults."""
        for name, value in (*zip(self._parameters, args, strict=False), *given.items()):
            known = self._parameters.get(name)
            if known is not None and value is not known.default and not _fits(self._kind(name), value, whole):
                kind = re.sub(r"(\w+\.)+", "", inspect.formatannotation(self._kind(name)))
                where = f"{self._public.__module__}.{self._public.__qualname__}"
                is_one = isinstance(value, str) and _fits(self._kind(name), [value], whole=True)
                remedy = f"write [{shown(value)}]" if is_one else f'see help("{where}")'
                rule = f"{name} must be of type {kind}, got {shown(value)}; {remedy}"
                raise UsageError(rule)

    def _evaluated(self, name: str) -> Any:
        """Return the type of a parameter."""
        written = self._function.__annotations__.get(name, Any)
        names = _Names(vars(builtins) | self._function.__globals__)
        return eval(written, {}, names) if isinstance(written, str) else written


class _Names(dict[str, Any]):
    """The names that an annotation may have; those that only type checkers import are public ones, or unknown."""

    def __missing__(self, name: str) -> Any:
        return getattr(sys.modules[__package__], name, Any)


def _fits(kind: Any, value: Any, whole: bool) -> bool:
    """Return whether a value is of a type, as a whole: with what is within it, and where there are rules beside."""
    if kind is Never or value is Never:  # a tuple of another length
        return False
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(part, value, whole) for part in parts)
    if origin is Annotated:
        return _fits(parts[0], value, whole)
    if origin is Callable:
        return callable(value) and (not parts or parts[0] is ... or _takes(value, len(parts[0])))
    if origin in _RULED:
        return not whole or (isinstance(value, _RULED[origin]) and not isinstance(value, bool))
    return _is(origin, value) and not (
        whole and parts and any(not _fits(part, each, whole) for part, each in _within(origin, parts, value))
    )


def _takes(function: Any, count: int) -> bool:
    """Return whether a function can be called with so many arguments, as far as Python says."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in one may have no signature
        pass
    return True


def _is(origin: Any, value: Any) -> bool:
    """Return whether a value is of a type, whatever is within."""
    if origin is bool:
        return type(value).__name__.rstrip("_") == "bool"  # NumPy's too
    if getattr(value, "shape", None) == () and origin in (tuple, Sequence, Iterable):  # an array of no dimension
        return False
    if origin in (tuple, Sequence):  # any collection, such as arrays
        return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    is_type = isinstance(origin, type) and origin is not Any and not getattr(origin, "_is_protocol", False)
    return isinstance(value, origin) if is_type else True


def _within(origin: Any, parts: Sequence[Any], value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a collection holds, each with the type that it must have."""
    if origin is tuple and parts[-1:] != (...,):
        return zip_longest(parts, value, fillvalue=Never)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return ((part, each) for item in value.items() for part, each in zip(parts, item, strict=True))
    return ((parts[0], each) for each in value) if origin in (tuple, Sequence) else ()
