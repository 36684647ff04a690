"""Whatever a config holds, the loader answers with a config or with one HardwareConfigError."""

import copy
import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitrain.errors import HardwareConfigError
from minitrain.machine import SystemConfig, load_config

FOLDER = Path(__file__).parents[2] / "hw_configs"
TEXT = (FOLDER / "h100_80g_nvl8.json").read_text()
GOOD = json.loads(TEXT)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**500), 10**500),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([0, -1, 1, 0.5, 5e-324, 1e308, "x", b"x", 1j, object()]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.sampled_from(sorted(GOOD)), st.integers()), inner, max_size=4
        ),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a config."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key in keys for place in places(value[key], (*path, key))]


def loaded(source: Any) -> SystemConfig | None:
    try:
        return load_config(source)
    except HardwareConfigError as error:
        caught = error
    assert caught.faults
    str(caught).encode()  # can be printed
    return None


def check_believable(config: SystemConfig) -> None:
    """Every price of an accepted config is a finite number of seconds."""
    for network in config.networks:
        for op in network.ops:
            for num_ranks in (2, 3, 10**6):
                assert 0 <= network.time(op, 1e9, num_ranks) < math.inf
    for rate in (*config.matrix.values(), *config.vector.values()):
        assert 0 <= 1e12 / rate.throughput(1e12) < math.inf
    for memory in (config.mem1, config.mem2):
        assert 0 <= 1e9 / memory.throughput(1e9) < math.inf


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.tuples(st.sampled_from(places(GOOD)), VALUES), min_size=1, max_size=4), st.booleans())
def test_changed_values_give_a_believable_config_or_our_error(
    changes: list[tuple[tuple[Any, ...], Any]], remove: bool
) -> None:
    config = copy.deepcopy(GOOD)
    for path, value in changes:
        place: Any = config
        try:
            for key in path[:-1]:
                place = place[key]
            if remove:
                del place[path[-1]]
            else:
                place[path[-1]] = value
        except (LookupError, TypeError):  # an earlier change took the place away
            continue
    result = loaded(config)
    if result is not None:
        check_believable(result)


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(st.one_of(st.text(max_size=8), st.sampled_from(sorted(GOOD)), st.integers()), VALUES))
def test_any_mapping_is_no_config(raw: dict[Any, Any]) -> None:
    assert loaded(raw) is None


@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(TEXT) - 1),
            st.integers(0, 40),
            st.sampled_from(
                ["", "[", "]", "{", "}", ",", ":", '"', "null", "NaN", "-Infinity", "1e999", "9" * 5000, "\\u0000"]
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_damaged_text_gives_a_config_or_our_error(tmp_path: Path, cuts: list[tuple[int, int, str]]) -> None:
    text = TEXT
    for start, length, patch in cuts:
        text = text[:start] + patch + text[start + length :]
    path = tmp_path / "damaged.json"
    path.write_text(text, "utf-8")
    result = loaded(path)
    if result is not None:
        check_believable(result)


@settings(max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_random_bytes_are_no_config(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "random.json"
    path.write_bytes(raw)
    assert loaded(path) is None


@given(st.text(max_size=30))
def test_random_names_give_our_error(name: str) -> None:
    loaded(name)
