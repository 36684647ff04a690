"""The optional keys of a hardware config: what they hold, and what is said when they do not."""

import copy
import pickle
from typing import Any

import pytest

from minitrain.cli.hw import figures, sources_of
from minitrain.errors import HardwareConfigError
from minitrain.machine import load_config, shipped_configs
from minitrain.machine.config import parse, shipped_text
from minitrain.machine.device import NO_DATA_SHEET, Cache, DataSheet, Power, SheetLink, UnitLimits

BARE = {key: value for key, value in parse(shipped_text("tpu_v5p"), "x").items() if key in (
    "matrix", "vector", "mem1", "mem2", "processing_mode", "networks")}  # fmt: skip


def sheet(**keys: Any) -> DataSheet:
    return load_config({**BARE, **keys}).sheet


def fault(**keys: Any) -> str:
    with pytest.raises(HardwareConfigError, match="expected") as caught:
        sheet(**keys)
    return str(caught.value)


def test_a_config_without_the_optional_keys_has_an_empty_data_sheet() -> None:
    assert sheet() == NO_DATA_SHEET


def test_every_optional_key_reaches_the_data_sheet() -> None:
    link = {"link_id": "a", "source_id": "b", "dest_id": "c", "bytes_per_s": 1e9, "latency_s": 1e-4}
    found = sheet(
        **{"class": "gpu"},
        vendor="me",
        units=108,
        clock_Hz=1e9,
        caches=[{"level": 1, "bytes": 1024, "scope": "unit", "bytes_per_s": 5}],
        limits={"warps": 64, "blocks": 32, "registers": 65536, "smem_bytes": 167936},
        dispatch_s=1e-5,
        power={"tdp_W": 400, "idle_W": 60},
        price_usd_per_hour=2,
        features={"tensor_cores": True, "systolic_array": [128, 128], "kind": "x"},
        links=[link],
    )
    assert found == DataSheet(
        "gpu",
        "me",
        108,
        1e9,
        (Cache(1, 1024, "unit", 5),),
        UnitLimits(64, 32, 65536, 167936),
        1e-5,
        Power(400, 60),
        2,
        {"tensor_cores": True, "systolic_array": (128, 128), "kind": "x"},
        (SheetLink("a", "b", "c", 1e9, 1e-4, True),),
    )
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found


def test_units_are_those_of_the_kernels_where_a_config_has_them_there() -> None:
    assert load_config("a100_80g").sheet.num_units == 108


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"class": "fpga"}, 'class: expected "gpu", "tpu", "cpu", "asic" or "mcu", found "fpga"'),
        ({"units": 0}, "units: expected a whole number >= 1, found 0"),
        ({"clock_Hz": -1}, "clock_Hz: expected a number > 0, found -1"),
        ({"caches": 5}, "caches: expected a list of caches, found 5"),
        ({"caches": [5]}, "caches[0]: expected an object with level, bytes and scope, found 5"),
        ({"caches": [{"level": 1, "bytes": 5, "scope": "x"}]}, 'scope: expected "unit" or "device", found "x"'),
        (
            {"caches": [{"level": n, "bytes": 5, "scope": "unit"} for n in (2, 1)]},
            "caches: expected caches by rising level, each level once, found levels 2, 1",
        ),
        ({"limits": {"warps": 64}}, "limits.registers: expected a whole number >= 1, found nothing"),
        ({"dispatch_s": "x"}, 'dispatch_s: expected a number of seconds in [0, 1], found "x"'),
        ({"power": {}}, "power.tdp_W: expected a number > 0, found nothing"),
        ({"power": {"tdp_W": 5, "idle_W": 6}}, "power.idle_W: expected no more than power.tdp_W (5), found 6"),
        ({"features": [1]}, "features: expected an object of features by name, found [1]"),
        ({"features": {"a": {}}}, "features.a: expected true or false, a number, a text, or a list of numbers"),
        ({"features": {"compute_capability": "9"}}, 'features.compute_capability: expected a number > 0, found "9"'),
        ({"links": [{}]}, "links[0].link_id: expected a text of 1 to 200 characters, found nothing"),
        ({"vendor": ""}, 'vendor: expected a text of 1 to 200 characters, found ""'),
    ],
)
def test_each_fault_of_an_optional_key_names_its_place(keys: dict[str, Any], message: str) -> None:
    assert message in fault(**keys)


def test_units_that_contradict_the_kernels_are_a_fault() -> None:
    config = {**parse(shipped_text("a100_80g"), "x"), "units": 100}
    with pytest.raises(HardwareConfigError, match=r"units: expected the same as kernels.units \(108\), found 100"):
        load_config(config)


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_say_what_kind_of_device_they_are_and_every_figure_has_a_source(name: str) -> None:
    assert load_config(name).sheet.device_class is not None
    assert all(figure.source for figure in figures(parse(shipped_text(name), name), sources_of(name)))


def test_figures_carry_their_units() -> None:
    found = {figure.path: figure for figure in figures({"power": {"tdp_W": 400}, "class": "gpu"}, {"power": "me"})}
    assert (found["power.tdp_W"].text, found["power.tdp_W"].source) == ("400 W", "me")
    assert (found["class"].text, found["class"].source) == ("gpu", "")
