"""What a strict run is checked by, compared before and after it: the machine's description, and the engine's own code.

The description is the public attributes of a predictor: its workload, device, network and rates. The code is the
functions and classes of the rooms that check a run. A change that is undone before the end shows in the recomputed
prices, or not at all.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, islice
from operator import is_, methodcaller
from types import ModuleType
from typing import Any

from minitrain.errors import StrategyError

_ROOMS = ("tensors", "workloads", "hardware", "events", "transport", "rank", "accounting.strict")
_PREFIXES = tuple(f"minitrain.{room}" for room in _ROOMS)
_OF_PYTHON = frozenset({"__annotations__", "__doc__", "__warningregistry__", "__builtins__"})
_MISSING = object()
_values = methodcaller("values")

_Getter = Callable[[Any, Any, Any], Any]
_Namespace = Mapping[str, Any]


class _Description:
    """The public parts of one of minitrain's objects, as deep as they are such objects or containers too.

    Args:
        name: what messages call it.
        value: the object.
        seen: identities of what is described already, to which its parts are added.
    """

    def __init__(self, name: str, value: Any, seen: set[int]) -> None:
        self._parts: list[tuple[str, _Getter, Any, Any, Any]] = []  # name, getter, owner, attribute or key, value
        self._sizes: list[tuple[str, Any, int]] = []
        self._objects: list[tuple[str, Any, frozenset[str]]] = []  # with the names of their own attributes
        self.identities: set[int] = set()
        self._follow(name, value, seen)

    def changes(self) -> Iterator[str]:
        """Yield the names of what is not as it was."""
        yield from (name for name, part, owner, key, value in self._parts if part(owner, key, _MISSING) is not value)
        yield from (name for name, owner, size in self._sizes if len(owner) != size)
        for name, owner, names in self._objects:
            yield from (f"{name}.{new}" for new in vars(owner).keys() - names if _hides(type(owner), new))

    def _follow(self, name: str, value: Any, seen: set[int]) -> None:
        """Note the parts of an object or a container."""
        seen.add(id(value))
        self.identities.add(id(value))
        if hasattr(value, "__dict__") and type(value).__module__.startswith("minitrain."):
            self._objects.append((name, value, frozenset(vars(value))))
        getter = _getter(value)
        for key in _keys(value):
            part = getter(value, key, _MISSING)
            place = f"{name}.{key}" if getter is getattr else f"{name}[{key!r}]"
            self._parts.append((place, getter, value, key, part))
            if isinstance(part, Mapping | list):
                self._sizes.append((place, part, len(part)))
            if id(part) not in seen and not isinstance(part, int | float | str):
                self._follow(place, part, seen)


class _Machine:
    """A config that runs share, known by its identity."""

    def __init__(self, system: Any) -> None:
        self.system = system

    def __hash__(self) -> int:
        return id(self.system)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Machine) and self.system is other.system


@lru_cache(maxsize=8)
def _described(machine: _Machine) -> _Description:
    """Return the description of a config: going through it takes longer than comparing it."""
    return _Description("model.runtime_predictor.system", machine.system, set())


class Evidence:
    """What a run is checked by, as it is now.

    Args:
        predictors: what prices the operations of the ranks.
    """

    def __init__(self, predictors: Iterable[Any]) -> None:
        self._descriptions: list[_Description] = []
        seen: set[int] = set()
        for predictor in {id(predictor): predictor for predictor in predictors}.values():
            system = getattr(predictor, "system", None)
            if system is not None and id(system) not in seen:
                self._descriptions.append(_description_of(_Machine(system)))
                seen |= self._descriptions[-1].identities
            self._descriptions.append(_Description("model.runtime_predictor", predictor, seen))
        self._code = _code()
        self._values = [*self._code.values()]

    def require_unchanged(self) -> None:
        """Require that all is as it was.

        Raises:
            StrategyError: something was changed; it is named.
        """
        changed = next(self._changes(), None)
        if changed is not None:
            raise StrategyError(
                f"{changed} was changed during the run; what a strict run is judged by stays as it is", changed=changed
            )

    def _changes(self) -> Iterator[str]:
        """Yield the names of what is not as it was."""
        for description in self._descriptions:
            yield from description.changes()
        code = self._code  # compared by identity: what takes a function's place may say that it equals it
        if not (code.are_keys_known() and all(map(is_, self._values, code.values()))):
            values = iter(self._values)
            for name, keys, now in zip(code.names, code.keys, code.namespaces, strict=True):
                before = [*islice(values, len(keys))]
                if len(before) != len(now) or not all(map(is_, before, now.values())):
                    yield from (f"{name}.{key}" for key in _changed_code(dict(zip(keys, before, strict=True)), now))


def _description_of(machine: _Machine) -> _Description:
    """Return the description of a config as it is now."""
    if any(True for _ in _described(machine).changes()):  # somebody has changed it between runs
        _described.cache_clear()
    return _described(machine)


def _keys(value: Any) -> Iterator[Any]:
    """Yield the keys of a container, or the public attributes of one of minitrain's objects.

    Those that begin with an underscore are the engine's own, caches among them. A tuple of numbers is a value.
    """
    if isinstance(value, Mapping):
        yield from value
    elif isinstance(value, tuple | list):
        if value and not isinstance(value[0], int | float | str | tuple):
            yield from range(len(value))
    elif type(value).__module__.startswith("minitrain."):
        yield from (name for name in getattr(value, "__dict__", ()) if name[0] != "_")
        for kind in type(value).__mro__:
            yield from (name for name in kind.__dict__.get("__slots__", ()) if name[0] != "_")


def _getter(owner: Any) -> _Getter:
    """Return what gets a part of an object or of a container, given its key and what to return without it."""
    if isinstance(owner, Mapping):
        return type(owner).get
    return _item if isinstance(owner, tuple | list) else getattr


def _item(owner: Sequence[Any], index: int, default: Any) -> Any:
    """Return an item of a sequence, or a default if it is too short."""
    return owner[index] if index < len(owner) else default


class _Code:
    """The namespaces of the modules that check a run, and of the classes that they define.

    Args:
        num_modules: how many modules there are; with more, there may be more to look at.

    Attributes:
        names: of the modules and classes.
        namespaces: what they define, by name.
        keys: these names, as they were when their number last changed.
    """

    def __init__(self, num_modules: int) -> None:
        self.num_modules = num_modules
        found = list(_modules_and_classes())
        self.names = [name for name, _ in found]
        self.namespaces: list[_Namespace] = [vars(space) for _, space in found]
        self.keys: list[tuple[str, ...]] = [*map(tuple, self.namespaces)]

    def values(self) -> Iterator[Any]:
        """Yield all that the namespaces hold: without the names, which takes half the time."""
        return chain.from_iterable(map(_values, self.namespaces))

    def are_keys_known(self) -> bool:
        """Return whether the namespaces have as many names as when they were last looked at."""
        return [*map(len, self.keys)] == [*map(len, self.namespaces)]


def _modules_and_classes() -> Iterator[tuple[str, Any]]:
    """Yield the modules that check a run and the classes that they define, each after its name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIXES) and module is not None:
            yield name, module
            kinds = (value for value in vars(module).values() if isinstance(value, type))
            yield from ((f"{name}.{kind.__qualname__}", kind) for kind in kinds if kind.__module__ == name)


_latest_code: _Code | None = None


def _code() -> _Code:
    """Return the code as it is now; what is known of it is kept between runs."""
    global _latest_code  # noqa: PLW0603  (one program has one code)
    known, num_modules = _latest_code, len(sys.modules)
    if known is None or known.num_modules != num_modules or not known.are_keys_known():
        known = _latest_code = _Code(num_modules)
    return known


def _changed_code(before: _Namespace, after: _Namespace) -> Iterator[str]:
    """Yield the names of changed code in a module or class; what is private and no code is its state."""
    for key in before.keys() | after.keys():
        old, new = before.get(key, _MISSING), after.get(key, _MISSING)
        is_state = key in _OF_PYTHON or isinstance(new, ModuleType) or (key[0] == "_" and not callable(old))
        if old is not new and not is_state:
            yield key


def _hides(kind: type, name: str) -> bool:
    """Return whether an object's own attribute hides one of its class; a cached property is meant to."""
    return hasattr(kind, name) and not isinstance(inspect.getattr_static(kind, name), cached_property)
