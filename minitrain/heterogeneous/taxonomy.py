"""The taxonomy of hardware: capabilities, which class has them from which, and how classes relate.

A capability is something a device can do ("precision:float16", "tensor_cores"), with properties. It belongs to a class
of hardware or to one device. The classes below a class inherit it, and each step of inheritance multiplies its strength
by a factor. Of several paths the strongest counts, and a class's or a device's own capability overrides an inherited
one. A device's own capabilities are read from its hardware config (`discover_capabilities`); a detector finds devices
(`discover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from minitrain.errors import UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, Key, class_named
from minitrain.workloads.field_faults import closest


@final
@dataclass(frozen=True, slots=True)
class HardwareRelationship:
    """How one class of hardware relates to another.

    Args:
        source: one class, or a device.
        target: the other.
        kind: how: "hosts", "shares_memory_with", "is_fallback_of".
        properties: what else is known of it.
    """

    source: Key
    target: Key
    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)


class Detector(Protocol):
    """What finds the devices of the machine at hand."""

    def detect_hardware(self) -> tuple[HardwareCapabilityProfile, ...]:
        """Return the devices that are known well enough to have a hardware config."""
        ...


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
            raise UsageError(
                f"another device is registered as {profile.name!r}; give this one a name of its own", name=profile.name
            )

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
        self._require_registered(capability_id)
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
                f"close {circle}; leave out one of these steps",
                parent=parent,
                child=child,
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

    def discover(self, detector: Detector | None = None) -> tuple[HardwareCapabilityProfile, ...]:
        """Register the devices of the machine at hand with their capabilities.

        Args:
            detector: what finds them; an `EnhancedHardwareDetector` if None.
        """
        if detector is None:
            from minitrain.heterogeneous.detection import EnhancedHardwareDetector  # noqa: PLC0415 - it may measure

            detector = EnhancedHardwareDetector()
        found = detector.detect_hardware()
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
        for owner, factor in self._strongest_ways(wanted).items():
            for name, strength in self._assigned.get(owner, {}).items():
                is_own = name in best and best[name][1] is wanted
                if not is_own and (owner is wanted or name not in best or factor * strength > best[name][0]):
                    best[name] = (factor * strength, owner)
        return {
            name: {
                **self.capabilities_registry[name],
                "strength": strength,
                "source": owner,
                "inherited": owner is not wanted,
            }
            for name, (strength, owner) in best.items()
        }

    def _strongest_ways(self, wanted: HardwareClass) -> dict[HardwareClass, float]:
        """Return the classes above one, itself first, with the largest product of factors on a path to each."""
        found, pending = {wanted: 1.0}, [wanted]
        while pending:
            child = pending.pop(0)
            for parent, factor in self._parents(child):
                if factor * found[child] > found.get(parent, 0.0):
                    found[parent] = factor * found[child]
                    pending.append(parent)
        return found

    def _parents(self, child: HardwareClass) -> Iterator[tuple[HardwareClass, float]]:
        for parent, below in self.hardware_hierarchies.items():
            yield from ((parent, factor) for each, factor in below if each is child)

    def _way(self, start: HardwareClass, end: HardwareClass) -> list[HardwareClass] | None:
        """Return the classes from one down to another, or None."""
        if start is end:
            return [start]
        for child, _ in self.hardware_hierarchies.get(start, ()):
            rest = self._way(child, end)
            if rest is not None:
                return [start, *rest]
        return None

    def _require_registered(self, capability_id: str) -> None:
        if capability_id not in self.capabilities_registry:
            raise UsageError(
                f"there is no capability {capability_id!r} {closest(capability_id, self.capabilities_registry)}; "
                "call register_capability first",
                capability=capability_id,
            )


def _share(name: str, value: Any) -> float:
    """Return a share, which must be in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UsageError(f"{name} is a share in (0, 1], got {value!r}; use 1.0 where nothing is lost", value=value)
    return float(value)


def _stated(profile: HardwareCapabilityProfile) -> Iterable[tuple[str, dict[str, Any]]]:
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
