"""Tensors that operations refuse although they look right, each with the reason that the error message gives.

The slot of a valid tensor holds its `Origin` (see `minitrain.accounting.strict.provenance`). The slot of a tensor that
must not be used holds an `Unusable`. Most of these tensors were made by hand: while a strict run lasts, the tensors'
constructors look at who calls them and note the line of the strategy.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.source_lines import ENGINE, OWNERS, PYTHON, caller, strategy_frame
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

if TYPE_CHECKING:
    from minitrain.accounting.strict.ledger import Ledger
    from minitrain.accounting.strict.provenance import Alias, Origin

_HOW = {copy.__file__: "is a copy made", dataclasses.__file__: "was made by dataclasses.replace"}


class Unusable:
    """What stands in the slot of a tensor that must not be used.

    Args:
        reason: why, as the error message says it after the tensor's description.
    """

    __slots__ = ("reason",)

    usable_by = None
    buffer = None

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def is_valid(self, ledger: Ledger, fields: tuple[Any, ...], whatever_version: bool) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def why_invalid(self, ledger: Ledger, value: Any) -> str:  # noqa: ARG002
        """Return why the tensor cannot be used."""
        return self.reason

    def derive(self, result: Any, how: str, parent: Any, other: Any) -> None:  # noqa: ARG002  (as an Origin's)
        """Mark a tensor made of this one as unusable too."""
        result._origin = self


class InTransit(Unusable):
    """What stands in the slot of a copy on its way to another rank.

    Args:
        step: the step of the tensor that was sent.
    """

    __slots__ = ("step",)

    def __init__(self, step: int | None) -> None:
        self.reason = "is a message on its way; receive it"
        self.step = step


class OffloadedOrigin(Unusable):
    """What stands in the slot of a copy in the host's memory, which holds nothing of the device's.

    Args:
        ledger: that of the rank which offloaded the tensor.
        step: the step of the tensor.
        fields: what the copy said when it was made.
    """

    __slots__ = ("fields", "ledger", "step")

    def __init__(self, ledger: Ledger, step: int | None, fields: tuple[Any, ...]) -> None:
        self.reason = "is in host memory; fetch it"
        self.ledger = ledger
        self.step = step
        self.fields = fields


class HandedIn(Unusable):
    """What stands in the slot of a final weight that was handed in: a copy that occupies nothing.

    Args:
        origin: that of the weight.
    """

    __slots__ = ("fields", "ledger", "line")

    def __init__(self, origin: Origin | Alias) -> None:
        self.reason = "was handed in as the final weight and is no longer held; keep it in a store"
        self.fields = origin.fields
        buffer = origin.buffer
        self.ledger = buffer.ledger
        self.line = buffer.line


def _mark_handmade(tensor: Any) -> None:
    """Mark a tensor that is just made as made by hand, unless the engine made it, itself or through Python's `copy`."""
    how, depth = "was made by hand", 2
    while OWNERS[filename := caller(depth).f_code.co_filename] == PYTHON:
        how, depth = _HOW[filename], depth + 1
    if OWNERS[filename] == ENGINE:
        return
    made = strategy_frame(caller(depth))
    where = "" if made is None else f" at {Path(made.f_code.co_filename).name}:{made.f_lineno}"
    tensor._origin = Unusable(f"{how}{where}; only what operations give can be used")


class _HandmadeDetection:
    """Whether the constructors of tensors look at who calls them.

    Looking doubles the cost of making a tensor. Operations make most tensors, and all of theirs are the engine's, so
    they switch the detection off while they run. They leave it on if several strict runs go on in the process, as the
    strategy of another thread may make a tensor meanwhile.

    Attributes:
        on: whether it is on now.
        in_operations: what `on` is to be while an operation runs.
        in_strategies: what `on` is to be otherwise.
    """

    __slots__ = ("_lock", "_runs", "in_operations", "in_strategies", "on")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count(0)

    def _count(self, runs: int) -> None:
        """Set the number of strict runs that go on in the process, and what follows from it."""
        self._runs = runs
        self.in_operations = runs > 1
        self.in_strategies = self.on = runs > 0

    def begin(self) -> None:
        """Note that a strict run begins."""
        with self._lock:
            _install()
            self._count(self._runs + 1)

    def end(self) -> None:
        """Note that a strict run has ended."""
        with self._lock:
            self._count(self._runs - 1)


HANDMADE_DETECTION = _HandmadeDetection()


# The dataclasses' own `__init__`s with a look at who calls: wrapping those would take twice as long.


def _init_sampled(self: Any, layer: int, layers: int, samples: frozenset[int], total_samples: int) -> None:
    """Make an activation or its gradient."""
    self.layer = layer
    self.layers = layers
    self.samples = samples
    self.total_samples = total_samples
    if HANDMADE_DETECTION.on:
        _mark_handmade(self)


def _init_stepped(
    self: Any, layer: int, layers: int, step: int, shards: frozenset[int] = frozenset([0]), num_shards: int = 1
) -> None:
    """Make a weight or an optimizer state."""
    self.layer = layer
    self.layers = layers
    self.step = step
    self.shards = shards
    self.num_shards = num_shards
    if HANDMADE_DETECTION.on:
        _mark_handmade(self)


def _init_grad(
    self: Any,
    layer: int,
    layers: int,
    samples: frozenset[int],
    total_samples: int,
    shards: frozenset[int] = frozenset([0]),
    num_shards: int = 1,
) -> None:
    """Make a weight gradient."""
    self.layer = layer
    self.layers = layers
    self.samples = samples
    self.total_samples = total_samples
    self.shards = shards
    self.num_shards = num_shards
    if HANDMADE_DETECTION.on:
        _mark_handmade(self)


_INITS: Mapping[type, Callable[..., None]] = MappingProxyType(
    {
        Weight: _init_stepped,
        OptState: _init_stepped,
        Activation: _init_sampled,
        ActivationGrad: _init_sampled,
        WeightGrad: _init_grad,
    }
)


def _install() -> None:
    """Give the classes of tensors the `__init__`s that can look at who calls.

    They stay for the rest of the process. Changing a class discards the specialised code that Python has compiled for
    its use, which would cost every later run more than the look at `HANDMADE_DETECTION`.
    """
    for kind, init in _INITS.items():
        if vars(kind)["__init__"] is not init:
            init.__qualname__ = "Tensor.__init__"  # as the error for wrong arguments names it
            type.__setattr__(kind, "__init__", init)


@contextlib.contextmanager
def detecting_handmade_tensors() -> Iterator[None]:
    """Mark the tensors that are made by hand meanwhile, with the line that makes them."""
    HANDMADE_DETECTION.begin()
    try:
        yield
    finally:
        HANDMADE_DETECTION.end()
