"""Configs as YAML: the same data and the same faults as JSON, and the profiles of the virtual platform."""

import json
from pathlib import Path

import pytest
import yaml

from minitrain.errors import HardwareConfigError
from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.config import parse, shipped_text
from minitrain.machine.device import SheetLink

PROFILE = """
hardware_profile:
  compute_devices:
    - device_id: "gpu0"
      device_type: "GPU"
      peak_tflops: {"fp16": 312, "int8": 624}
      memory_capacity_bytes: 80_000_000_000  # 80GB
      memory_gbps: 2000
      processing_units: 108

  network_links:
    - link_id: "client_to_server"
      source_id: "client_node_0"
      dest_id: "framework_entry_0"
      bandwidth_bps: 10_000_000_000  # 10 Gbps
      latency_s: 0.0001  # 100 µs
"""


def loaded(folder: Path, text: str, name: str = "mine.yaml") -> SystemConfig:
    path = folder / name
    path.write_text(text, "utf-8")
    return load_config(path)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", shipped_configs())
def test_a_config_says_the_same_in_yaml_and_in_json(tmp_path: Path, name: str) -> None:
    text = yaml.safe_dump(json.loads(shipped_text(name)))
    assert loaded(tmp_path, text, f"{name}.yml") == load_config(name)
    assert parse(text, "x.yaml") == parse(shipped_text(name), name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0), ("1E-2", 0.01), (".5", 0.5), ("80_000", 80000), ("-7", -7), ("on", "on"), ("no", "no"),
        ("2024-01-01", "2024-01-01"), ("1:30", "1:30"), ("0x10", "0x10"), ("true", True), ("~", None), ("", None),
    ],
)  # fmt: skip
def test_scalars_are_those_of_json(text: str, value: object) -> None:
    found = parse(f"key: {text}", "x.yaml")["key"]
    assert (found, type(found)) == (value, type(value))


def test_keys_that_come_twice_are_faults_in_yaml_too(tmp_path: Path) -> None:
    with pytest.raises(HardwareConfigError, match="mem1: expected each key once, found it more than once; remove one"):
        loaded(tmp_path, shipped_text("a100_80g").replace('"mem2"', '"mem1"'))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x", "line 2, column 4: anchors are not allowed; write it out"),
        ("a: [", "expected YAML, found a mistake in line 1"),
        ("a: 1\n---\nb: 2", "expected YAML, found a mistake in line 2"),
        ("!!python/object:os.system {}", "expected YAML, found a mistake in line 1"),
        ("a: \x00", "expected YAML, found a mistake"),
        ("[" * 5000, "expected at most a few levels of nesting"),
        ("- 1", r"expected a JSON object, found \[1\]"),
    ],
)
def test_yaml_that_cannot_be_believed_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(HardwareConfigError, match=message):
        loaded(tmp_path, text)


def test_a_profile_of_the_platform_loads_through_the_same_door(tmp_path: Path) -> None:
    system = loaded(tmp_path, PROFILE)
    assert system.mem_hbm.capacity_bytes == 80_000_000_000
    assert system.mem_hbm.throughput(1) == 2e12
    assert (system.processor.peak("float16"), system.processor.peak("int8")) == (312e12, 624e12)
    assert (system.sheet.device_class, system.sheet.num_units) == ("gpu", 108)
    assert system.sheet.links == (
        SheetLink("client_to_server", "client_node_0", "framework_entry_0", 1.25e9, 1e-4, True),
    )
    assert system.network(8).bandwidth == 1.25


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory_gbps: 2000", "", r"compute_devices\[0\].memory_gbps: expected a number > 0, found nothing"),
        ("2000", "-1", r"compute_devices\[0\].memory_gbps: expected a number > 0, found -1"),
        ('{"fp16": 312, "int8": 624}', "5", r"peak_tflops: expected an object of datatypes, found 5"),
        (
            "latency_s: 0.0001",
            "",
            r"latency_s: expected a number of seconds in \[0, 1\], found nothing",
        ),
        ("- device_id", "- 5\n    - device_id", r"compute_devices\[0\]: expected an object with device_id"),
        ("compute_devices", "devices", "compute_devices: expected a list of at least one device, found nothing"),
        ("hardware_profile:", "hardware_profile: 5\nx:", "hardware_profile: expected an object with compute_devices"),
        ("108", '"x"', 'units: expected a whole number >= 1, found "x"'),
    ],
)
def test_each_fault_of_a_profile_names_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(HardwareConfigError, match=message):
        loaded(tmp_path, PROFILE.replace(old, new, 1))


def test_devices_of_a_profile_must_be_alike(tmp_path: Path) -> None:
    device = PROFILE[PROFILE.index("    - device_id") : PROFILE.index("  network_links")]
    two = PROFILE.replace(device, device + device.replace("gpu0", "gpu1"))
    assert loaded(tmp_path, two).sheet.num_units == 108
    with pytest.raises(HardwareConfigError, match="expected devices that are alike, found 2 kinds; write one file a"):
        loaded(tmp_path, two.replace("108", "109", 1))
