"""What a device can do, by the specification's names: its class, its precisions, and a profile of it.

A `HardwareCapabilityProfile` is one device: a name and a hardware config. It shows the config's figures in SI units,
and keeps the config itself, so that `to_device` gives back what `from_device` was given. Several devices of one kind
are several profiles with names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, final

from minitrain.devices.kinds import make_simulator
from minitrain.devices.operations import ELEMENT_BYTES
from minitrain.devices.simulator import DeviceSimulator
from minitrain.errors import UsageError
from minitrain.hardware import SystemConfig, load_config
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.device_groups import Devices
from minitrain.hardware.clusters.predictors import system_of
from minitrain.workloads.field_faults import closest


class HardwareClass(Enum):
    """What kind of device something is; the first five are those of hardware configs."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"
    ASIC = "asic"
    MCU = "mcu"
    NPU = "npu"


class PrecisionType(Enum):
    """What numbers are computed with, by the datatype's name in hardware configs."""

    FP64 = "float64"
    FP32 = "float32"
    BF16 = "bfloat16"
    FP16 = "float16"
    FP8 = "float8"
    INT8 = "int8"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.value]


Key = HardwareClass | str
"""What backends are registered by: a class of hardware, or the name of one device."""


def class_named(name: Key) -> HardwareClass:
    """Return a class of hardware by its name, or as it is.

    Raises:
        UsageError: there is none.

    >>> class_named("gpu")
    <HardwareClass.GPU: 'gpu'>
    """
    if isinstance(name, HardwareClass):
        return name
    known = [each.value for each in HardwareClass]
    if name not in known:
        raise UsageError(
            f"there is no class of hardware {name!r} {closest(name, known)}; use one of {', '.join(known)}", name=name
        )
    return HardwareClass(name)


def shown_key(key: Key) -> str:
    """Return what messages call a class of hardware or a device.

    >>> shown_key(HardwareClass.GPU), shown_key("a100_80g")
    ('class gpu', 'a100_80g')
    """
    return f"class {key.value}" if isinstance(key, HardwareClass) else str(key)


@final
@dataclass(frozen=True)
class HardwareCapabilityProfile:
    """One device, as a view on its hardware config.

    Args:
        name: what it is called among others: "a100-0".
        device: its config.
    """

    name: str
    device: SystemConfig

    @classmethod
    def from_device(cls, system: Any, name: str | None = None) -> HardwareCapabilityProfile:
        """Return a view on a hardware config.

        Args:
            system: a config, or what `load_config` loads.
            name: of this device; the config's if None.

        Raises:
            HardwareConfigError: the config cannot be found or read, or is invalid.
        """
        device = load_config(system)
        return cls(device.name if name is None else name, device)

    def to_device(self) -> SystemConfig:
        """Return the hardware config that this is a view on."""
        return self.device

    @property
    def hardware_class(self) -> HardwareClass:
        """What kind of device it is; an accelerator of no stated kind is an ASIC."""
        return HardwareClass(self.device.sheet.device_class or "asic")

    @property
    def vendor(self) -> str | None:
        """Who makes it; None where the config does not say."""
        return self.device.sheet.vendor

    @property
    def peak_flop_per_s(self) -> Mapping[str, float]:
        """The peak rate by datatype, of matrix units where it has them, FLOP/s."""
        rates = {**self.device.vector, **self.device.matrix}
        return MappingProxyType({name: rate.peak_flop_per_s for name, rate in rates.items()})

    @property
    def precisions(self) -> frozenset[PrecisionType]:
        """What it computes with at a rate of its own; bfloat16 also where its features say so."""
        found = {precision for precision in PrecisionType if precision.value in self.peak_flop_per_s}
        if self.device.sheet.features.get("bfloat16") is True:
            found.add(PrecisionType.BF16)
        return frozenset(found)

    @property
    def memory_bytes(self) -> int:
        """The capacity of its own memory, bytes."""
        return self.device.mem1.capacity_bytes

    @property
    def memory_bytes_per_s(self) -> float:
        """The peak bandwidth of its own memory, bytes/s."""
        return self.device.mem1.GBps * 1e9

    @property
    def tdp_W(self) -> float | None:  # noqa: N802 - a unit
        """What it draws when it computes, W; None where the config does not say."""
        return None if self.device.sheet.power is None else self.device.sheet.power.tdp_W

    @property
    def idle_W(self) -> float | None:  # noqa: N802 - a unit
        """What it draws when it waits, W; None where the config does not say."""
        return None if self.device.sheet.power is None else self.device.sheet.power.idle_W

    @cached_property
    def simulator(self) -> DeviceSimulator:
        """What prices programs on it."""
        return make_simulator(self.device)


def profiles_of(devices: Any) -> list[HardwareCapabilityProfile]:
    """Return some devices as profiles with different names.

    Args:
        devices: profiles, or what `load_config` loads; a config that is there several times gets numbers. A
            `minitrain.Cluster` stands for all of its devices, slowed by their caps.

    Raises:
        UsageError: there are none, or two profiles have one name.
        HardwareConfigError: a config cannot be found or read, or is invalid.

    >>> [profile.name for profile in profiles_of(["a100_80g", "a100_80g", "t4"])]
    ['a100_80g-0', 'a100_80g-1', 't4']
    """
    if isinstance(devices, Cluster):
        return [device for group in devices.devices for device in _of_group(group)]
    if isinstance(devices, str | Mapping | SystemConfig | HardwareCapabilityProfile):
        devices = [devices]
    found = [each if isinstance(each, HardwareCapabilityProfile) else load_config(each) for each in devices]
    names = [each.name for each in found]
    profiles = []
    for place, each in enumerate(found):
        number = f"-{names[:place].count(each.name)}" if names.count(each.name) > 1 else ""
        profiles.append(
            each if isinstance(each, HardwareCapabilityProfile) else HardwareCapabilityProfile(each.name + number, each)
        )
    require_different([profile.name for profile in profiles])
    return profiles


def _of_group(group: Devices) -> list[HardwareCapabilityProfile]:
    """Return the devices of a group of a cluster, at the clock and the power that its caps and heat leave."""
    numbers = [""] if group.count == 1 else [f"-{place}" for place in range(group.count)]
    return [HardwareCapabilityProfile(f"{group.label}{number}", system_of(group)) for number in numbers]


def require_different(names: list[str]) -> None:
    """Require at least one device, and names that tell devices apart.

    Raises:
        UsageError: there is none, or two have one name.
    """
    if not names:
        raise UsageError("there must be at least one device; give profiles or hardware configs")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"devices need names of their own, and {twice[0]!r} is there {names.count(twice[0])} times; use "
            f'HardwareCapabilityProfile.from_device(config, name="{twice[0]}-1")',
            name=twice[0],
        )
