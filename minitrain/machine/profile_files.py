"""A `hardware_profile:` of the virtual platform as a hardware config.

The profile describes devices by peak rates, memory and units, and links by bits per second. A config describes one
machine, so the devices of a profile must be alike; what a profile does not say is assumed as follows, and can be
written in a config instead: efficiencies are 1, the host's memory is as large as the device's and is reached over the
slowest link, and all devices are connected by that link. Left out: who is connected with whom, beyond `links`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitrain.errors import HardwareConfigError
from minitrain.files import shown
from minitrain.machine.config_files import refuse
from minitrain.operations.collectives import RING_ROWS

KEY = "hardware_profile"

_DATATYPES = {"fp16": "float16", "fp32": "float32", "fp8": "float8", "int8": "int8", "bf16": "bfloat16"}
_CLASSES = {"GPU": "gpu", "TPU": "tpu", "CPU": "cpu", "ASIC": "asic"}
_DEVICE = ("device_id", "device_type", "peak_tflops", "memory_capacity_bytes", "memory_gbps", "processing_units")
_LINK = ("link_id", "source_id", "dest_id", "bandwidth_bps", "latency_s")
_ALL = [[0, 1.0]]
_MOST_RANKS = 2**20


def config_of_profile(data: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the config of a profile, not validated yet.

    Args:
        data: a file's content, with the key `hardware_profile`.
        label: what messages call the config.

    Raises:
        HardwareConfigError: devices or links lack a key, or the devices are not alike; all faults are listed.
    """
    profile = data[KEY]
    faults = _faults(profile)
    if faults:
        raise refuse(label, faults)
    devices, links = profile["compute_devices"], profile.get("network_links") or []
    kinds = {repr({key: value for key, value in device.items() if key != "device_id"}) for device in devices}
    if len(kinds) > 1:
        raise _mixed(label, len(kinds))
    return _config(devices[0], links)


def _mixed(label: str, num_kinds: int) -> HardwareConfigError:
    fault = f"{KEY}.compute_devices: expected devices that are alike, found {num_kinds} kinds"
    return refuse(label, [f"{fault}; write one file a kind"])


def _faults(profile: Any) -> list[str]:
    """Return what is missing in a profile."""
    if not isinstance(profile, Mapping):
        return [f"{KEY}: expected an object with compute_devices and network_links, found {shown(profile)}"]
    devices, links = profile.get("compute_devices"), profile.get("network_links") or []
    if not isinstance(devices, list) or not devices:
        return [f"{KEY}.compute_devices: expected a list of at least one device, found {shown(devices)}"]
    if not isinstance(links, list):
        return [f"{KEY}.network_links: expected a list of links, found {shown(links)}"]
    return [*_missing(devices, "compute_devices", _DEVICE), *_missing(links, "network_links", _LINK)]


def _missing(items: list[Any], name: str, keys: tuple[str, ...]) -> list[str]:
    """Return a fault for each key that an item lacks, and for each number that is none."""
    faults = []
    for place, item in enumerate(items):
        where = f"{KEY}.{name}[{place}]"
        if not isinstance(item, Mapping):
            faults.append(f"{where}: expected an object with {', '.join(keys)}, found {shown(item)}")
            continue
        faults += [f"{where}.{key}: expected a value, found nothing" for key in keys if key not in item]
        faults += [
            f"{where}.{key}: expected a number > 0, found {shown(item[key])}"
            for key in ("memory_capacity_bytes", "memory_gbps", "bandwidth_bps")
            if key in item and not _is_positive(item[key])
        ]
        if "peak_tflops" in item and not isinstance(item["peak_tflops"], Mapping):
            faults.append(f"{where}.peak_tflops: expected an object of datatypes, found {shown(item['peak_tflops'])}")
    return faults


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _config(device: Mapping[str, Any], links: list[Any]) -> dict[str, Any]:
    """Write one device and the links as a config."""
    rates = {_DATATYPES.get(name, name): _rate(peak) for name, peak in device["peak_tflops"].items()}
    memory = {"GiB": device["memory_capacity_bytes"] / 2**30, "GBps": device["memory_gbps"], "MB_efficiency": _ALL}
    slowest = min((link["bandwidth_bps"] / 8e9 for link in links), default=device["memory_gbps"])
    latency = max((link["latency_s"] for link in links), default=0.0)
    tier = {"bandwidth": slowest, "efficiency": 1.0, "size": _MOST_RANKS, "latency": latency, "ops": dict(RING_ROWS)}
    kind = _CLASSES.get(str(device["device_type"]).upper())
    return {
        "matrix": rates,
        "vector": rates,
        "mem1": memory,
        "mem2": memory | {"GBps": slowest},
        "processing_mode": "roofline",
        "networks": [tier | {"must_be_filled": False, "processor_usage": 0.0}],
        "units": device["processing_units"],
        "links": [_link(link) for link in links],
        **({} if kind is None else {"class": kind}),
    }


def _rate(peak: Any) -> dict[str, Any]:
    return {"tflops": peak, "gflops_efficiency": _ALL}


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: link[key] for key in ("link_id", "source_id", "dest_id", "latency_s")}
    return kept | {"bytes_per_s": link["bandwidth_bps"] / 8, "bidirectional": link.get("bidirectional", True)}
