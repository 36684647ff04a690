"""Devices and their taxonomy: what a device is, what it can do, how classes relate, and what this machine has.

A `HardwareCapabilityProfile` is one device: a name and a hardware config. It shows the config's figures in SI units,
and keeps the config itself, so that `to_device` gives back what `from_device` was given. Several devices of one kind
are several profiles with names of their own.

A capability is something a device can do ("precision:float16", "tensor_cores"), with properties. It belongs to a class
of hardware or to one device. The classes below a class inherit it, and each step of inheritance multiplies its strength
by a factor. Of several paths the strongest counts, and a class's or a device's own capability overrides an inherited
one. A device's own capabilities are read from its hardware config (`discover_capabilities`).

A detector finds the devices of this machine (`discover`). The processor is described by the operating system, and by
psutil where that is installed; accelerators are described by NVIDIA's management library where nvidia-ml-py and a
driver are installed, and others listed as the PCI bus of Linux, or macOS, knows them. None of these is required. What
is not known is None, never a guess: in virtual machines that often is the clock, the power and the temperature. A
device becomes a profile when it has a hardware config: a GPU that of the shipped config of its name, the processor one
that `minitrain.devices.calibration` measures, which takes some seconds and is done when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError, one_of
from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.cluster import Cluster
from minitrain.machine.cluster_network import system_of
from minitrain.machine.device import Cache
from minitrain.machine.device_groups import Devices, Thermal
from minitrain.machine.devices.calibration import NumpyBackend, cpu_name, measure_rates, num_cpus
from minitrain.machine.devices.operations import ELEMENT_BYTES
from minitrain.machine.devices.simulator import DeviceSimulator, make_simulator

_VECTOR_BITS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("asimd", 128), ("sse2", 128))
_HOST = "host"
_LAST = 3  # the level that all cores share
_PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1ae0": "Google", "0x1d0f": "Amazon"}
_PCI_ACCELERATORS = {"0x0302": "gpu", "0x1200": "asic"}
_PCI_DISPLAY = "0x0300"
_CLASS_OF_VENDOR = {"NVIDIA": "gpu", "AMD": "gpu", "Google": "tpu"}
_BEYOND_CACHES, _OF_MEMORY = 2, 4  # a pass touches twice the caches, and no more than a quarter of the memory
_SMALLEST_PASS_BYTES = 2**27


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
        raise UsageError(f"there is no class of hardware {name!r}; {one_of(name, known)}")
    return HardwareClass(name)


def shown_key(key: Key) -> str:
    """Return what messages call a class of hardware or a device.

    >>> shown_key(HardwareClass.GPU), shown_key("a100_80g")
    ('class gpu', 'a100_80g')
    """
    return f"class {key.value}" if isinstance(key, HardwareClass) else str(key)


@dataclass(frozen=True)
class HardwareCapabilityProfile:
    """One device, as a view on its hardware config.

    Args:
        name: what it is called among others: "a100-0".
        device: its config.
        detected: what the system says of it, where it is a device of this machine.
        spread: of rates that were measured here, by datatype and "memory": the interquartile range of ten samples over
            their median.
        thermal: how it warms up; it never throttles if None.
    """

    name: str
    device: SystemConfig
    detected: DetectedDevice | None = field(default=None, repr=False, compare=False)
    spread: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    thermal: Thermal | None = None

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

    @cached_property
    def precisions(self) -> frozenset[PrecisionType]:
        """What it computes with at a rate of its own; bfloat16 also where its features say so."""
        found = {precision for precision in PrecisionType if precision.value in self.peak_flop_per_s}
        if self.device.sheet.features.get("bfloat16") is True:
            found.add(PrecisionType.BF16)
        return frozenset(found)

    def computes(self, datatype: str) -> bool:
        """Return whether it computes with a datatype at a rate of its own, if that is a `PrecisionType`."""
        known = {precision.value for precision in PrecisionType}
        return datatype not in known or PrecisionType(datatype) in self.precisions

    @property
    def memory_bytes(self) -> int:
        """The capacity of its own memory, bytes."""
        return self.device.mem1.capacity_bytes

    @property
    def memory_bytes_per_s(self) -> float:
        """The peak bandwidth of its own memory, bytes/s."""
        return self.device.mem1.GBps * 1e9

    @property
    def tdp_W(self) -> float | None:
        """What it draws when it computes, W; None where the config does not say."""
        return None if self.device.sheet.power is None else self.device.sheet.power.tdp_W

    @property
    def idle_W(self) -> float | None:
        """What it draws when it waits, W; None where the config does not say."""
        return None if self.device.sheet.power is None else self.device.sheet.power.idle_W

    @cached_property
    def simulator(self) -> DeviceSimulator:
        """What prices programs on it."""
        return make_simulator(self.device)

    @cached_property
    def throttled(self) -> HardwareCapabilityProfile:
        """The same device at the clock that its heat leaves for ever; as it is where it never throttles.

        Raises:
            HardwareConfigError: its config lacks the power that this takes.
        """
        if self.thermal is None:
            return self
        return HardwareCapabilityProfile(self.name, system_of(Devices(self.device, 1, thermal=self.thermal)))


GivenDevices = Sequence[HardwareCapabilityProfile | str]
"""Devices as users give them: profiles, or names of hardware configs."""


def profiles_of(devices: Any) -> list[HardwareCapabilityProfile]:
    """Return some devices as profiles with different names.

    Args:
        devices: profiles, or what `load_config` loads; a config that is there several times gets numbers. A
            `minitrain.Cluster` stands for all of its devices, slowed by their caps; what warms up is cool at first.

    Raises:
        UsageError: there are none, or two profiles have one name.
        HardwareConfigError: a config cannot be found or read, or is invalid.

    >>> [profile.name for profile in profiles_of(["a100_80g", "a100_80g", "t4"])]
    ['a100_80g-0', 'a100_80g-1', 't4']
    """
    if isinstance(devices, Cluster):
        return [
            HardwareCapabilityProfile(
                group.label if group.count == 1 else f"{group.label}-{place}",
                system_of(replace(group, thermal=None)),
                thermal=group.thermal,
            )
            for group in devices.devices
            for place in range(group.count)
        ]
    if isinstance(devices, str | Mapping | SystemConfig | HardwareCapabilityProfile):
        devices = [devices]
    given: list[Any] = [each if isinstance(each, HardwareCapabilityProfile) else load_config(each) for each in devices]
    if not given:
        raise UsageError("there must be at least one device; give profiles or hardware configs")
    names = [each.name for each in given]
    found: list[HardwareCapabilityProfile] = []
    for place, each in enumerate(given):
        number = f"-{names[:place].count(each.name)}" if names.count(each.name) > 1 else ""
        is_config = isinstance(each, SystemConfig)
        found.append(HardwareCapabilityProfile(each.name + number, each) if is_config else each)
    for name, count in sorted(Counter(profile.name for profile in found).items()):
        if count > 1:
            raise UsageError(
                f"devices need names of their own, and {name!r} is there {count} times; use "
                f'HardwareCapabilityProfile.from_device(config, name="{name}-1")'
            )
    return found


@dataclass(frozen=True, slots=True)
class HardwareRelationship:
    """How one class of hardware relates to another.

    Args:
        source: one class, or a device.
        target: the other.
        kind: how. Moves obey three: "shares_memory_with", between which nothing moves; "peer_of", which send directly,
            with bytes_per_s; and "hosts", with bytes_per_s. The host is called "host", or a CPU.
        properties: what else is known of it.
    """

    source: Key
    target: Key
    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)


class HardwareTaxonomy:
    """Devices by name and by class.

    Attributes:
        profiles: the devices that are registered, by name.
    """

    def __init__(self) -> None:
        self.profiles: dict[str, HardwareCapabilityProfile] = {}

    def register_profile(self, profile: HardwareCapabilityProfile) -> None:
        """Register a device.

        Raises:
            UsageError: another device has its name.
        """
        known = self.profiles.setdefault(profile.name, profile)
        if known != profile:
            raise UsageError(f"another device is registered as {profile.name!r}; give this one a name of its own")

    def profiles_of_class(self, hardware_class: Key) -> list[HardwareCapabilityProfile]:
        """Return the devices of a class, in the order in which they were registered."""
        wanted = class_named(hardware_class)
        return [profile for profile in self.profiles.values() if profile.hardware_class is wanted]


class EnhancedHardwareTaxonomy(HardwareTaxonomy):
    """Devices, capabilities, and who inherits them from whom.

    Attributes:
        capabilities_registry: the properties of each capability.
        hardware_hierarchies: the classes below each class, with the factor by which a capability's strength falls.
        hardware_relationships: how others relate to a class or a device, by (source, target).

    Example:
        >>> taxonomy = EnhancedHardwareTaxonomy()
        >>> taxonomy.register_capability("systolic_array", {"unit": "matrix"})
        >>> taxonomy.assign_capability(HardwareClass.TPU, "systolic_array")
        >>> taxonomy.define_hardware_hierarchy(HardwareClass.TPU, HardwareClass.NPU, inheritance_factor=0.5)
        >>> taxonomy.capabilities_of_class(HardwareClass.NPU)["systolic_array"]["strength"]
        0.5
    """

    def __init__(self) -> None:
        super().__init__()
        self.capabilities_registry: dict[str, dict[str, Any]] = {}
        self.hardware_hierarchies: dict[HardwareClass, list[tuple[HardwareClass, float]]] = {}
        self.hardware_relationships: dict[tuple[Key, Key], list[HardwareRelationship]] = {}
        self._assigned: dict[Key, dict[str, float]] = {}

    def register_capability(self, capability_id: str, properties: Mapping[str, Any]) -> None:
        """Register a capability, or replace its properties.

        Raises:
            UsageError: it has no name, or its properties are no mapping.
        """
        if not isinstance(capability_id, str) or not capability_id or not isinstance(properties, Mapping):
            raise UsageError(
                f"a capability needs a name and a mapping of properties, got {capability_id!r} and {properties!r:.60}; "
                'use register_capability("tensor_cores", {"unit": "matrix"})'
            )
        self.capabilities_registry[capability_id] = dict(properties)

    def assign_capability(self, owner: Key, capability_id: str, strength: float = 1.0) -> None:
        """Say that a class of hardware, or one device, has a capability itself.

        Args:
            owner: a class, or the name of a device.
            capability_id: one that is registered.
            strength: how much of it, in (0, 1].

        Raises:
            UsageError: the capability is not registered, or the strength is outside its rule.
        """
        if capability_id not in self.capabilities_registry:
            raise UsageError(
                f"there is no capability {capability_id!r}; {one_of(capability_id, self.capabilities_registry)}; "
                "or call register_capability first"
            )
        self._assigned.setdefault(owner, {})[capability_id] = _share("strength", strength)

    def define_hardware_hierarchy(
        self, parent_class: HardwareClass, child_class: HardwareClass, inheritance_factor: float = 1.0
    ) -> None:
        """Let a class inherit from another; a second definition replaces the factor of the first.

        Args:
            parent_class: whose capabilities are inherited.
            child_class: which inherits them.
            inheritance_factor: by which strength is multiplied, in (0, 1].

        Raises:
            UsageError: the factor is outside its rule, or the classes would inherit from one another in a circle.
        """
        parent, child = class_named(parent_class), class_named(child_class)
        factor = _share("inheritance_factor", inheritance_factor)
        way = self._way(child, parent)
        if way is not None:
            circle = " -> ".join(each.value for each in [*way, child])
            raise UsageError(
                f"classes must not inherit from one another in a circle, and {child.value} below {parent.value} would "
                f"close {circle}; leave out one of these steps"
            )
        below = [pair for pair in self.hardware_hierarchies.get(parent, ()) if pair[0] is not child]
        self.hardware_hierarchies[parent] = [*below, (child, factor)]

    def define_relationship(self, source: Key, target: Key, kind: str, **properties: Any) -> HardwareRelationship:
        """Say how a class or a device relates to another, such as a CPU that hosts a GPU."""
        found = HardwareRelationship(source, target, kind, properties)
        self.hardware_relationships.setdefault((source, target), []).append(found)
        return found

    def relationships_of(self, of: Key, kind: str | None = None) -> list[HardwareRelationship]:
        """Return the relationships that a class or a device has on either side, all or those of one kind."""
        found = (each for pair, several in self.hardware_relationships.items() if of in pair for each in several)
        return [each for each in found if kind in (None, each.kind)]

    def related(
        self, kind: str, one: HardwareCapabilityProfile | None, other: HardwareCapabilityProfile | None
    ) -> HardwareRelationship | None:
        """Return the first relationship of a kind between two devices, either way, by name, config or class.

        Args:
            kind: of the relationship.
            one: a device; None is the host.
            other: another one.
        """
        keys, others = _keys(one), _keys(other)
        for (source, target), several in self.hardware_relationships.items():
            if (source in keys and target in others) or (source in others and target in keys):
                for each in several:
                    if each.kind == kind:
                        return each
        return None

    def lacking(self, profile: HardwareCapabilityProfile, wanted: Mapping[str, float]) -> list[str]:
        """Return the capabilities of some that a device has not, or not in the strength beside them."""
        has = self.get_inherited_capabilities(profile) if wanted else {}
        return [name for name, least in wanted.items() if has.get(name, {"strength": 0.0})["strength"] < least]

    def discover_capabilities(self, profile: HardwareCapabilityProfile) -> dict[str, dict[str, Any]]:
        """Read from a device's config what it can do, and register it as that device's own.

        Returns:
            By name, the properties: precisions with their peak rate in FLOP/s, memory in bytes, and features.
        """
        self.register_profile(profile)
        found = dict(_stated(profile))
        for name, properties in found.items():
            self.capabilities_registry.setdefault(name, {"kind": properties["kind"]})
            self.assign_capability(profile.name, name)
        return found

    def discover(self, detector: EnhancedHardwareDetector | None = None) -> tuple[HardwareCapabilityProfile, ...]:
        """Register the devices of the machine at hand with their capabilities.

        Args:
            detector: what finds them; an `EnhancedHardwareDetector` if None.
        """
        found = (EnhancedHardwareDetector() if detector is None else detector).detect_hardware()
        for profile in found:
            self.discover_capabilities(profile)
        return found

    def get_inherited_capabilities(self, hardware_profile: HardwareCapabilityProfile) -> dict[str, dict[str, Any]]:
        """Return everything that a device can do.

        Returns:
            By name, the registered properties, what its config states, and three more: `strength` in (0, 1], `source`
            (the class or device that has it itself), and `inherited`.
        """
        stated = dict(_stated(hardware_profile))
        own = {**dict.fromkeys(stated, 1.0), **self._assigned.get(hardware_profile.name, {})}
        found = self.capabilities_of_class(hardware_profile.hardware_class)
        for name, strength in own.items():
            properties = {**self.capabilities_registry.get(name, {}), **stated.get(name, {})}
            found[name] = {**properties, "strength": strength, "source": hardware_profile.name, "inherited": False}
        return found

    def capabilities_of_class(self, hardware_class: Key) -> dict[str, dict[str, Any]]:
        """Return what every device of a class can do, its own and inherited; the form is as for devices."""
        wanted = class_named(hardware_class)
        best: dict[str, tuple[float, HardwareClass]] = {}
        for owner, factor in self._strongest_ways(wanted).items():  # the class itself comes first
            for name, strength in self._assigned.get(owner, {}).items():
                so_far, source = best.get(name, (0.0, owner))
                if factor * strength > so_far and (source is not wanted or owner is wanted):
                    best[name] = (factor * strength, owner)
        found = {name: dict(self.capabilities_registry[name]) for name in best}
        for name, (strength, owner) in best.items():
            found[name] |= {"strength": strength, "source": owner, "inherited": owner is not wanted}
        return found

    def _strongest_ways(self, wanted: HardwareClass) -> dict[HardwareClass, float]:
        """Return the classes above one, itself first, with the largest product of factors on a path to each."""
        found, pending = {wanted: 1.0}, [wanted]
        while pending:
            child = pending.pop(0)
            for parent, below in self.hardware_hierarchies.items():
                strength = dict(below).get(child, 0.0) * found[child]
                if strength > found.get(parent, 0.0):
                    found[parent] = strength
                    pending.append(parent)
        return found

    def _way(self, start: HardwareClass, end: HardwareClass) -> list[HardwareClass] | None:
        """Return the classes from one down to another, or None."""
        if start is end:
            return [start]
        for child, _ in self.hardware_hierarchies.get(start, ()):
            rest = self._way(child, end)
            if rest is not None:
                return [start, *rest]
        return None


def _keys(device: HardwareCapabilityProfile | None) -> tuple[Key, ...]:
    """Return what relationships call a device, or the host."""
    return (_HOST, HardwareClass.CPU) if device is None else (device.name, device.device.name, device.hardware_class)


def _share(name: str, value: Any) -> float:
    """Return a share, which must be in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UsageError(f"{name} is a share in (0, 1], got {value!r}; use 1.0 where nothing is lost")
    return float(value)


def _stated(profile: HardwareCapabilityProfile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a device's config states that it can do."""
    for datatype, rate in profile.peak_flop_per_s.items():
        yield f"precision:{datatype}", {"kind": "precision", "peak_flop_per_s": rate}
    memory = {"capacity_bytes": profile.memory_bytes, "bytes_per_s": profile.memory_bytes_per_s}
    yield "memory", {"kind": "memory", **memory}
    for cache in profile.device.sheet.caches:
        yield f"cache:{cache.level}", {"kind": "memory", "capacity_bytes": cache.size_bytes, "scope": cache.scope}
    for name, value in profile.device.sheet.features.items():
        if value is not False:
            yield name, {"kind": "feature", "value": value}


@dataclass(frozen=True, slots=True)
class DetectedDevice:
    """What is known of a device of this machine.

    Args:
        name: what it is called.
        hardware_class: what kind of device it is.
        vendor: who makes it.
        num_units: cores that this process may use.
        memory_bytes: capacity of its memory.
        clock_Hz: as the operating system states it.
        tdp_W: what it may draw at most.
        temperature_C: now.
        features: by name: "vector_bits".
        caches: level and size in bytes, as the system states them.
        uuid: what its driver tells it from others of its kind by, or its place on the bus.
        num_cores: of the machine, whoever may use them.
    """

    name: str
    hardware_class: HardwareClass
    vendor: str | None = None
    num_units: int | None = None
    memory_bytes: int | None = None
    clock_Hz: float | None = None
    tdp_W: float | None = None
    temperature_C: float | None = None
    features: Mapping[str, Any] = field(default_factory=dict, hash=False)
    caches: tuple[tuple[int, int], ...] = ()
    uuid: str | None = None
    num_cores: int | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the figures that are not known."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) in (None, (), {}))

    @property
    def facts(self) -> dict[str, Any]:
        """What of it is the same for each process at any time.

        Clocks, power and temperature are not, nor the cores of one process; memory is in whole GiB, since the system
        keeps a part of it that changes.
        """
        changing = ("clock_Hz", "tdp_W", "temperature_C", "num_units")
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in changing}
        size = None if self.memory_bytes is None else round(self.memory_bytes / 2**30)
        more = {"hardware_class": self.hardware_class.value, "features": dict(self.features)}
        return {**found, **more, "memory_bytes": size}


class EnhancedHardwareDetector:
    """Finds the devices of the machine at hand.

    Args:
        host: a hardware config of the processor, such as `minitrain hw calibrate` writes; None to measure one when
            profiles are asked for.
        modules: makes a module of its name, or None where it is not installed; for machines other than this one.
        system: where Linux describes its devices.

    Example:
        >>> EnhancedHardwareDetector().detect()[0].hardware_class
        <HardwareClass.CPU: 'cpu'>
    """

    def __init__(
        self, host: Any = None, *, modules: Callable[[str], Any] | None = None, system: Path = Path("/sys")
    ) -> None:
        self._host = None if host is None else load_config(host)
        self._spread: dict[str, float] = {}
        self._system = system
        self._module = _imported if modules is None else modules

    def detect(self) -> tuple[DetectedDevice, ...]:
        """Return the processor, and the accelerators that drivers or the system know, with what is known of each."""
        described = tuple(self._nvidia())
        on_bus = [each for each in self._on_bus() if not described or each.vendor != "NVIDIA"]
        is_apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
        apple = (DetectedDevice("Apple GPU", HardwareClass.GPU, "Apple"),) if is_apple else ()
        return (self._processor(), *described, *on_bus, *apple)

    def detect_hardware(self) -> tuple[HardwareCapabilityProfile, ...]:
        """Return the devices that have a hardware config: the processor, and those whose config is shipped.

        The processor is called "host"; others by their config and a number. Measuring takes some seconds, once.
        """
        processor, *others = self.detect()
        found = [HardwareCapabilityProfile(_HOST, self.host_config(processor), processor, self._spread)]
        for place, device in enumerate(others):
            config = config_named_as(device)
            if config is not None:
                found.append(HardwareCapabilityProfile(f"{config.name}-{place}", config, device))
        return tuple(found)

    def host_config(self, processor: DetectedDevice | None = None) -> SystemConfig:
        """Return the hardware config of the processor: the given one, or one that is measured with NumPy now."""
        if self._host is None:
            known = self._processor() if processor is None else processor
            wanted = max(_SMALLEST_PASS_BYTES, _BEYOND_CACHES * sum(size for _, size in known.caches))  # held by none
            pass_bytes = min(wanted, (known.memory_bytes or wanted * _OF_MEMORY) // _OF_MEMORY)
            found = measure_rates(NumpyBackend(), pass_bytes)
            measured = load_config(found)
            caches = tuple(_cache(*each, known.num_units or 1, found) for each in known.caches)
            sheet = replace(measured.sheet, num_units=known.num_units, features=known.features, caches=caches)
            self._host = replace(measured, name=_HOST, sheet=sheet)
            rungs = found["measured"]["rungs"].items()
            noise = {name.partition(" ")[0]: rung["noise"] for name, rung in rungs}  # of the largest
            self._spread = {"float32": noise["matmul"], "memory": noise["stream"]}
        return self._host

    def _processor(self) -> DetectedDevice:
        """Return what the operating system says of the processor."""
        text = _or_none(lambda: Path("/proc/cpuinfo").read_text("utf-8")) or ""
        lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
        said = {key.strip(): value.strip() for key, _, value in lines}
        psutil = self._module("psutil")
        clock = None if psutil is None else _or_none(lambda: float(psutil.cpu_freq().current) * 1e6)
        memory = _or_none(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        bits = next((bits for flag, bits in _VECTOR_BITS if flag in said.get("flags", "").split()), None)
        return DetectedDevice(
            name=said.get("model name") or cpu_name(),
            hardware_class=HardwareClass.CPU,
            vendor=said.get("vendor_id"),
            num_units=num_cpus(),
            memory_bytes=memory if psutil is None else int(psutil.virtual_memory().total),
            clock_Hz=clock or None,
            features={} if bits is None else {"vector_bits": bits},
            caches=tuple(self._caches()),
            num_cores=os.cpu_count(),
        )

    def _caches(self) -> Iterator[tuple[int, int]]:
        """Yield level and bytes of the first core's caches of data, those nearest to it first."""
        for folder in sorted(self._system.glob("devices/system/cpu/cpu0/cache/index*")):
            kind, level, size = (_read(folder / name) for name in ("type", "level", "size"))
            if kind in ("Data", "Unified") and size.removesuffix("K").isdecimal() and level.isdecimal():
                yield int(level), int(size.removesuffix("K")) * 1024

    def _on_bus(self) -> Iterator[DetectedDevice]:
        """Yield the accelerators of the PCI bus: of known makers also those that are displays."""
        for folder in sorted(self._system.glob("bus/pci/devices/*")):
            kind, maker, product = (_read(folder / name) for name in ("class", "vendor", "device"))
            vendor = _PCI_VENDORS.get(maker)
            is_display = kind.startswith(_PCI_DISPLAY)
            found = "gpu" if is_display and vendor else _PCI_ACCELERATORS.get(kind[: len(_PCI_DISPLAY)])
            if found is not None:
                known = HardwareClass(_CLASS_OF_VENDOR.get(str(vendor), found))
                yield DetectedDevice(f"{vendor or maker} device {product}", known, vendor, uuid=folder.name)

    def _nvidia(self) -> Iterator[DetectedDevice]:
        """Yield the GPUs that NVIDIA's management library lists."""
        nvml = self._module("pynvml")
        if nvml is None or _or_none(lambda: nvml.nvmlInit() or True) is None:
            return
        for index in range(nvml.nvmlDeviceGetCount()):
            yield _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))


def _cache(level: int, size_bytes: int, num_units: int, config: Mapping[str, Any]) -> Cache:
    """Return a level of caches with what the largest pass reached that it holds; None where none was measured."""
    took = {name: each["least_s"] for name, each in config["measured"]["rungs"].items() if name.startswith("stream ")}
    held = {int(name.split()[1]): seconds for name, seconds in took.items() if int(name.split()[1]) <= size_bytes}
    largest = max(held, default=0)
    rate = largest / max(held[largest] - config["dispatch_s"], held[largest] / 10) if held else None
    if level >= _LAST:
        return Cache(level, size_bytes, "device", rate)
    return Cache(level, size_bytes, "unit", rate and rate / num_units)


def _gpu(nvml: Any, handle: Any) -> DetectedDevice:
    """Return what NVIDIA's management library says of one GPU."""
    name = nvml.nvmlDeviceGetName(handle)
    said: dict[str, Callable[[], Any]] = {
        "memory_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "clock_Hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "tdp_W": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3,
        "temperature_C": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    }
    said["uuid"] = lambda: _text(nvml.nvmlDeviceGetUUID(handle))
    known = {figure: _or_none(ask) for figure, ask in said.items()}
    return DetectedDevice(_text(name), HardwareClass.GPU, "NVIDIA", **known)


def _text(said: Any) -> str:
    return said.decode() if isinstance(said, bytes) else str(said)


def _read(path: Path) -> str:
    """Return what a file of the system says, or "" where it says nothing."""
    return str(_or_none(lambda: path.read_text("utf-8").strip()) or "")


def config_named_as(device: DetectedDevice) -> SystemConfig | None:
    """Return the shipped config that a device's name names, of several the one of the nearest memory; else None.

    >>> config_named_as(DetectedDevice("NVIDIA A100-SXM4-40GB", HardwareClass.GPU, memory_bytes=40 * 2**30)).name
    'a100_40g'
    """
    joined = re.sub(r"[^a-z0-9]+", "", device.name.lower()).removeprefix("nvidia")
    named = [name for name in shipped_configs() if _stem(name) in joined]
    longest = max((len(_stem(name)) for name in named), default=0)
    configs = [load_config(name) for name in named if len(_stem(name)) == longest]
    same = [config for config in configs if config.sheet.device_class == device.hardware_class.value]
    wanted = device.memory_bytes or 0
    return min(same, key=lambda config: (abs(config.mem1.capacity_bytes - wanted), config.name), default=None)


def _stem(config: str) -> str:
    """Return what a config's name says of the device: "rtx_3090" is rtx3090, "h100_80g_nvl8" is h100."""
    kept = re.sub(r"_(\d+g|nvl\d+|pcie\d+|\d)(?=_|$)", "", config)
    return kept.replace("_", "")


def _imported(name: str) -> Any:
    """Return a module, or None where it is not installed."""
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)


def _or_none(ask: Callable[[], Any]) -> Any:
    """Return an answer, or None where this machine has none: each library has errors of its own for that."""
    try:
        return ask()
    except Exception:
        return None
