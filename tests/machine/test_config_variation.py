"""Figures of a config by their key paths: every one can be varied, and values are judged as in a file."""

from __future__ import annotations

from typing import Any

import pytest

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config, shipped_configs
from minitrain.machine.config import numbers_of, varied_configs


def test_every_number_of_a_config_can_be_given_another_value_by_its_path() -> None:
    system = load_config("h100_80g_nvl8")
    before = numbers_of(system)
    for path, value in before.items():
        wanted = value / 2 if isinstance(value, float) else value + 1
        if value == 0:
            wanted = 0.5
        (changed,) = varied_configs([system], path, [wanted])
        found = numbers_of(changed)
        assert {other for other in found if found[other] != before[other]} == {path}
        assert found[path] == pytest.approx(wanted, rel=1e-15)


def test_a_config_whose_figures_are_its_own_is_equal_to_it() -> None:
    for name in shipped_configs()[::4]:
        system = load_config(name)
        same = system
        for path, value in numbers_of(system).items():
            (same,) = varied_configs([same], path, [value])
        assert numbers_of(same) == numbers_of(system)
        assert same.processor == system.processor
        assert same.mem1 == system.mem1


@pytest.mark.parametrize("path", ["networks[0].bandwidth", "networks.0.bandwidth"])
def test_a_place_in_a_list_is_written_with_brackets_or_a_point(path: str) -> None:
    systems = varied_configs([load_config("h100_80g_nvl8")] * 2, path, [1, 2.5])
    assert [system.networks[0].bandwidth for system in systems] == [1.0, 2.5]


def test_rows_may_be_varied_too() -> None:
    rows = [[[10, 0.5], [0, 0.2]], [[0, 1]]]
    systems = varied_configs([load_config("h100_80g_nvl8")] * 2, "mem1.MB_efficiency", rows)
    assert [system.mem1.MB_efficiency for system in systems] == [((10.0, 0.5), (0.0, 0.2)), ((0.0, 1.0),)]
    (system,) = varied_configs(systems[:1], "networks[1].ops.all_reduce", [[1, 1]])
    assert system.networks[1].ops["all_reduce"] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("path", "value", "kind", "message"),
    [
        ("mem1.GBs", 1, UsageError, "has no figure 'mem1.GBs' to vary; a key path is wanted, such as mem1.GBps"),
        ("networks[7].size", 1, UsageError, "has no figure"),
        ("mem1.GBps", 0, HardwareConfigError, "mem1.GBps: expected a number > 0, found 0"),
        ("networks[0].efficiency", 1.5, HardwareConfigError, r"expected a number in \(0, 1\], found 1.5"),
        ("networks[0].size", 1.5, HardwareConfigError, "expected a whole number >= 1, found 1.5"),
        ("mem1.MB_efficiency", [[5, 1]], HardwareConfigError, "strictly descending"),
    ],
)
def test_what_no_config_may_hold_is_refused(path: str, value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        varied_configs([load_config("h100_80g_nvl8")], path, [value])
