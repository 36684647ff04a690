"""Errors carry their facts, cross process boundaries, and are of the kinds that programs catch."""

from __future__ import annotations

import copy
import pickle

import pytest

import minitrain as mt
from minitrain.errors import TensorTypeError


def test_an_error_crosses_a_process_boundary_with_its_facts() -> None:
    error = mt.LawError("rule", rank=3, layer=None)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), other.rank, other.layer) == (mt.LawError, "rule", 3, None)


def test_what_ipython_draws_errors_by_is_no_fact_that_does_not_apply() -> None:
    assert not hasattr(mt.LawError("rule"), "_render_traceback_")


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (mt.LawError, AssertionError),
        (mt.CollectiveMismatchError, mt.LawError),
        (TensorTypeError, TypeError),
        (TensorTypeError, mt.LawError),
        (mt.UsageError, ValueError),
        (mt.HardwareConfigError, ValueError),
        (mt.DeadlockError, mt.MinitrainError),
        (mt.OutOfMemoryError, mt.MinitrainError),
        (mt.StrategyError, mt.MinitrainError),
    ],
)
def test_errors_are_of_the_kinds_that_programs_catch(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, mt.MinitrainError)
