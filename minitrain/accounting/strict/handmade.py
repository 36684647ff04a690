"""Which tensors were made by hand, and where: noted while a strict run lasts, so that its errors can name the line."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from minitrain.accounting.strict.strangers import Stranger
from minitrain.source_lines import ENGINE, OWNERS, PYTHON, strategy_frame
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

_frame = sys._getframe
_HOW = {copy.__file__: "is a copy made", dataclasses.__file__: "was made by dataclasses.replace"}


def _note(tensor: Any, frame: FrameType | None) -> None:
    """Note that a tensor was made by hand, unless Python made it in the engine's name."""
    how = "was made by hand"
    while frame is not None and OWNERS[frame.f_code.co_filename] == PYTHON:
        how = _HOW[frame.f_code.co_filename]
        frame = frame.f_back
    if frame is not None and OWNERS[frame.f_code.co_filename] == ENGINE:
        return
    made = strategy_frame(frame)
    where = "" if made is None else f" at {Path(made.f_code.co_filename).name}:{made.f_lineno}"
    tensor._origin = Stranger(f"{how}{where}; only what operations give can be used")


class _Noting:
    """Whether tensors look who makes them.

    To look takes as long as all else in making a tensor, so that operations which make many are spared it as long as
    there is but one strict run in the process: what they make is the engine's.

    Attributes:
        on: now.
        in_operations: while an operation is carried out.
        in_strategies: otherwise.
    """

    __slots__ = ("_lock", "_runs", "in_operations", "in_strategies", "on")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count(0)

    def _count(self, runs: int) -> None:
        """Set what follows from the number of strict runs that last: several threads may have one each."""
        self._runs = runs
        self.in_operations = runs > 1
        self.in_strategies = self.on = runs > 0

    def begin(self) -> None:
        """Begin a run."""
        with self._lock:
            _install()
            self._count(self._runs + 1)

    def end(self) -> None:
        """End a run."""
        with self._lock:
            self._count(self._runs - 1)


NOTING = _Noting()


# What the dataclasses' own `__init__`s do, and a look at who calls: wrapping them would take twice as long.


def _init_sampled(self: Any, layer: int, layers: int, samples: frozenset[int], total_samples: int) -> None:
    """Make an activation or its gradient."""
    self.layer = layer
    self.layers = layers
    self.samples = samples
    self.total_samples = total_samples
    if NOTING.on and OWNERS[_frame(1).f_code.co_filename] != ENGINE:
        _note(self, _frame(1))


def _init_stepped(
    self: Any, layer: int, layers: int, step: int, shards: frozenset[int] = frozenset([0]), num_shards: int = 1
) -> None:
    """Make a weight or an optimizer state."""
    self.layer = layer
    self.layers = layers
    self.step = step
    self.shards = shards
    self.num_shards = num_shards
    if NOTING.on and OWNERS[_frame(1).f_code.co_filename] != ENGINE:
        _note(self, _frame(1))


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
    if NOTING.on and OWNERS[_frame(1).f_code.co_filename] != ENGINE:
        _note(self, _frame(1))


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
    """Give the tensors the `__init__`s that can look who calls.

    They stay for the rest of the process: each change of a class makes Python forget what it has learnt of its use,
    which would slow down every run by more than their look at `NOTING`.
    """
    for kind, init in _INITS.items():
        if vars(kind)["__init__"] is not init:
            init.__qualname__ = "Tensor.__init__"  # as the error for wrong arguments names it
            type.__setattr__(kind, "__init__", init)


@contextlib.contextmanager
def noting_handmade() -> Iterator[None]:
    """Let tensors made outside the engine remember where."""
    NOTING.begin()
    try:
        yield
    finally:
        NOTING.end()
