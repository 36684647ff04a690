"""Kinds of model add to a `Model` in the ways that engine/model.py lists, and each says in which."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import minitrain as mt
import minitrain.lib
from minitrain.engine import model as model_module
from minitrain.engine.model import Model
from minitrain.operations.collectives import COLLECTIVES, Collective, all_gather
from minitrain.run.folding.model import FoldedModel

KINDS: dict[type[Model], type[Model]] = {
    FoldedModel: Model,
}
OF_EVERY_CLASS = {"__doc__", "__init__", "__module__", "__annotations__", "__static_attributes__", "__firstlineno__"}
OF_EVERY_CLASS |= {
    "_abc_impl",
    "_is_protocol",
    "__abstractmethods__",
    "__parameters__",
    "__subclasshook__",
}  # of protocols

OF_EVERY_MODEL = {*dir(Model), *vars(Model(num_layers=1))}


def overridden(kind: type[Model], base: type[Model]) -> set[str]:
    """Return which attributes of a model a kind of model defines anew, itself or in a class on the way to its base."""
    own = [each for each in kind.__mro__ if each not in base.__mro__]
    return {name for each in own for name in vars(each) if name in OF_EVERY_MODEL} - OF_EVERY_CLASS


def listed(kind: type[Model]) -> list[str]:
    """Return the names in the section "Adds" of a class's docstring."""
    section = re.search(r"^Adds:\n((?: +.*\n?)+)", inspect.getdoc(kind) or "", re.MULTILINE)
    assert section, f"{kind.__name__} says nowhere what it adds"
    return [name for names in re.findall(r"^    (\w.*?):", section[1], re.MULTILINE) for name in names.split(", ")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_of_model_lists_what_it_adds(kind: type[Model]) -> None:
    names = listed(kind)
    assert len(names) == len(set(names))
    assert set(names) == overridden(kind, KINDS[kind])


def test_kinds_of_model_add_only_where_the_table_says_and_use_all_of_it() -> None:
    rows = re.findall(r"^\| (`.*?) \|", model_module.__doc__ or "", re.MULTILINE)
    table = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    used = set().union(*(overridden(kind, base) for kind, base in KINDS.items()))
    assert used == {*table}


async def scans(model: Any) -> Any:
    weight, _ = model.load_weights(0, model.rank, 2)
    whole = await model._collective("scan", weight, 0, None)
    assert whole.is_complete()
    return model


SCAN = Collective("scan", all_gather, "union", 99, "Scan", "#000000", kinds=(mt.lib.Weight,), priced_as="all_gather")
SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 1, "global_batch_size": 2, "check": False}


@pytest.mark.parametrize("kind", [{}, {"fold": True}, {"strict": True}, {"numerics": "numpy"}, {"fidelity": "kernels"}])
def test_a_collective_is_whole_with_its_record(kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLLECTIVES, "scan", SCAN)
    run = mt.simulate(scans, **SIZES, **kind)
    gather = run.events[-1]
    assert gather.typ == "scan"
    assert gather.duration > 0
