"""What a platform consists of: devices, memories and links, written by hand, read from YAML, or made of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, cast, final

from minitrain.errors import UsageError
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.config_files import parse, read_file
from minitrain.platform.devices import VirtualComputeDevice, VirtualMemoryDevice
from minitrain.platform.links import VirtualNetworkLink
from minitrain.platform.topologies import links_of
from minitrain.workloads.field_faults import closest, refuse, shown

KEY = "hardware_profile"
T = TypeVar("T")


@final
@dataclass(frozen=True)
class HardwareResourceProfile:
    """The devices, memories and links of a platform.

    Args:
        compute_devices: devices, or mappings with their fields.
        memory_devices: memories that belong to no single device, likewise.
        network_links: links, likewise, and lines that make several (see `minitrain.platform.topologies`).

    Raises:
        UsageError: a field is missing, unknown or wrong, or two things have one name; all faults at once.
    """

    compute_devices: Sequence[VirtualComputeDevice] = ()
    memory_devices: Sequence[VirtualMemoryDevice] = ()
    network_links: Sequence[VirtualNetworkLink] = ()

    def __post_init__(self) -> None:
        """Make values of mappings."""
        faults: list[str] = []
        for name, kind in (
            ("compute_devices", VirtualComputeDevice),
            ("memory_devices", VirtualMemoryDevice),
            ("network_links", VirtualNetworkLink),
        ):
            object.__setattr__(self, name, _values(getattr(self, name) or (), kind, name, faults))
        if not faults:
            names = [device.device_id for device in self.compute_devices]
            names += [memory.memory_id for memory in self.memory_devices]
            faults += [f"two devices are called {name!r}; give each a name of its own" for name in _repeated(names)]
        if faults:
            raise refuse("the hardware profile", faults)

    def system_config(self) -> SystemConfig:
        """Return a hardware config that prices a run on these devices: see `minitrain.hardware.profile_files`.

        Raises:
            HardwareConfigError: the devices are not alike, or a figure is not one that a config may have.
        """
        links = [asdict(link) for link in self.network_links]
        devices = [
            {field.name: getattr(device, field.name) for field in fields(device)} for device in self.compute_devices
        ]
        for device in devices:
            device["peak_tflops"] = dict(device["peak_tflops"])
        return load_config({"name": "platform", KEY: {"compute_devices": devices, "network_links": links}})

    @classmethod
    def read(cls, source: str | PathLike[str] | Mapping[str, Any]) -> HardwareResourceProfile:
        """Return the profile of a YAML or JSON file, or of its content.

        Args:
            source: a path, or a mapping; the profile stands under `hardware_profile`, or is all there is.

        Raises:
            HardwareConfigError: the file cannot be found or read.
            UsageError: as for the class.
        """
        if isinstance(source, Mapping):
            data: Any = source
        else:
            path = Path(fspath(source))
            data = parse(read_file(str(path)), path.name)
        if isinstance(data, Mapping) and KEY in data:
            data = data[KEY]
        names = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping):
            raise UsageError(f"a hardware profile must be an object with {', '.join(names)}, found {shown(data)}")
        unknown = [name for name in data if name not in names]
        if unknown:
            raise UsageError(
                f"a hardware profile has no key {unknown[0]!r} {closest(unknown[0], names)}; it may have "
                f"{', '.join(names)}"
            )
        return cls(**data)


def _values(items: Sequence[Any], kind: type[T], where: str, faults: list[str]) -> tuple[T, ...]:
    """Return values of a kind, made of mappings where they are none yet."""
    found: list[T] = []
    for place, item in enumerate(items):
        try:
            if isinstance(item, Mapping) and "topology" in item and kind is VirtualNetworkLink:
                found += cast("list[T]", links_of(item))
            else:
                found.append(item if isinstance(item, kind) else _made(item, kind))
        except UsageError as error:
            faults.append(f"{where}[{place}]: {error}")
    return tuple(found)


def _made(item: Any, kind: Any) -> Any:
    """Make one value of a mapping."""
    if not isinstance(item, Mapping):
        raise UsageError(f"expected an object, found {shown(item)}")
    known = {field.name: field for field in fields(kind)}
    unknown = [name for name in item if name not in known]
    if unknown:
        raise UsageError(f"no key {unknown[0]!r} {closest(unknown[0], known)}; it may have {', '.join(known)}")
    needed = [name for name, field in known.items() if field.default is field.default_factory]
    missing = [name for name in needed if name not in item]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing")
    return kind(**item)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
