"""What stands in NumPy's place in the lab: the same answers to the last float, and no silent difference."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.learn.explorer import plain_numpy as plain
from minitrain.learn.explorer.answers import FIRST, STARTER, answer

TINY = {"workload": "tiny", "world_size": 8, "global_batch_size": 16}
STATES: list[dict[str, Any]] = [
    dict(FIRST),
    {**TINY, "strategy": "megatron", "options": {"tp": 2, "pp": 2, "microbatch_size": 1}},
    {"strategy": "zb_h1", "world_size": 4, "num_layers": 4, "global_batch_size": 16},
    {"strategy": "diloco", "world_size": 8, "num_layers": 4, "global_batch_size": 32},
    {"strategy": "own", "source": STARTER, "world_size": 4, "num_layers": 4, "global_batch_size": 8},
]
WITHOUT = """
import importlib.util, json, sys
MISSING = {"numpy", "scipy", "jax", "chex", "plotly", "yaml", "rich", "typer"}
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in MISSING else find(name, package)
from minitrain.learn.explorer.in_browser import answer
for question, given in json.loads(sys.stdin.read()):
    found = []
    answer(question, json.dumps(given), lambda line: found.append(json.loads(line)))
    print(json.dumps(found))
"""
"""A Python that has only what a browser's has."""
floats = st.lists(st.floats(-1e6, 1e6), max_size=300)


def without_time(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without how long a simulation took."""
    return [{name: value for name, value in message.items() if name != "simulated_s"} for message in messages]


@pytest.mark.ci
def test_answers_without_numpy_are_the_same_to_the_last_float() -> None:
    asked: list[tuple[str, Any]] = [("evaluate", {"state": state}) for state in STATES]
    asked.append(("options", {"state": STATES[1]}))
    asked.append(("chart", {"state": STATES[1], "knob": "hardware", "values": ["h100_80g_nvl8", "a100_80g"]}))
    other = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    for (question, what), line in zip(asked, other.stdout.splitlines(), strict=True):
        here: list[dict[str, Any]] = []
        answer(question, what, here.append)
        assert "error" not in here[-1]
        assert without_time(json.loads(line)) == without_time(json.loads(json.dumps(here)))


@given(floats)
def test_sums_add_in_the_order_of_numpy(values: list[float]) -> None:
    assert plain.array(values, float).sum() == np.array(values, float).sum()
    assert plain.cumsum(plain.array(values, float)).tolist() == np.cumsum(np.array(values, float)).tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_orders_and_groups_are_those_of_numpy(rows: list[tuple[int, int]]) -> None:
    mine, theirs = plain.array(rows), np.array(rows)
    for one, other in zip(mine.T, theirs.T, strict=True):
        assert plain.lexsort((one, mine[:, 1])).tolist() == np.lexsort((other, theirs[:, 1])).tolist()
        assert plain.bincount(one, minlength=5).tolist() == np.bincount(other, minlength=5).tolist()
        assert plain.searchsorted(plain.sort(one), one).tolist() == np.searchsorted(np.sort(other), other).tolist()
    found = plain.unique(mine, axis=0, return_index=True, return_inverse=True)
    for one, other in zip(found, np.unique(theirs, axis=0, return_index=True, return_inverse=True), strict=True):
        assert one.tolist() == other.tolist()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_indices_and_shapes_are_those_of_numpy(first: int, second: int, third: int) -> None:
    numbers = list(range(first * second * third))
    mine: Any = plain.array(numbers).reshape(first, second, third)
    theirs = np.array(numbers).reshape(first, second, third)
    places = [0] * second
    for key in (0, slice(None, None, -1), (slice(None), 0), (slice(None), None, 0), (..., 0)[1:], [0, first - 1]):
        assert mine[key].tolist() == theirs[key].tolist()
    assert mine[:, plain.arange(second), places].tolist() == theirs[:, np.arange(second), places].tolist()
    assert mine[mine % 2 == 0].tolist() == theirs[theirs % 2 == 0].tolist()
    assert (mine[:, None] + mine[:, :, None]).tolist() == (theirs[:, None] + theirs[:, :, None]).tolist()
    for axis in range(3):
        assert mine.max(axis=axis).tolist() == theirs.max(axis=axis).tolist()
        assert mine.argmax(axis=axis).tolist() == theirs.argmax(axis=axis).tolist()
        assert plain.cumsum(mine, axis=axis).tolist() == np.cumsum(theirs, axis=axis).tolist()
        assert plain.stack([mine, mine], axis=axis).tolist() == np.stack([theirs, theirs], axis=axis).tolist()


def test_a_part_of_an_array_is_not_changed_in_silence() -> None:
    whole = plain.zeros((2, 2))
    with pytest.raises(TypeError, match="a part of another array cannot be changed without NumPy"):
        whole[0][1] = 1.0
    with pytest.raises(TypeError, match="a part of another array"):
        plain.add(whole[0], 1.0, out=whole[0])


def test_it_takes_the_place_of_numpy_only_where_there_is_none() -> None:
    plain.install()
    assert sys.modules["numpy"] is np
    assert not plain.is_installed()
