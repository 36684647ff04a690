"""Which devices this machine has, and what is known of each.

The processor is described by the operating system, and by psutil where that is installed; accelerators are described by
NVIDIA's management library where nvidia-ml-py and a driver are installed. None of these is required. What is not known
is None, never a guess: in virtual machines that often is the clock, the power and the temperature.

A device becomes a profile when it has a hardware config: a GPU that of the shipped config of its name, the processor
one that `minitrain.devices.calibration` measures, which takes some seconds and is done when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from minitrain.devices.backends import cpu_name, num_cpus
from minitrain.devices.calibration import calibrate
from minitrain.hardware import SystemConfig, load_config, shipped_configs
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass

_VECTOR_BITS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("asimd", 128), ("sse2", 128))
_HOST = "host"
_QUICK = {"largest": 0.7, "num_samples": 3}


@final
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
    """

    name: str
    hardware_class: HardwareClass
    vendor: str | None = None
    num_units: int | None = None
    memory_bytes: int | None = None
    clock_Hz: float | None = None  # noqa: N815 - a unit
    tdp_W: float | None = None  # noqa: N815 - a unit
    temperature_C: float | None = None  # noqa: N815 - a unit
    features: Mapping[str, Any] = field(default_factory=dict, hash=False)


class EnhancedHardwareDetector:
    """Finds the devices of the machine at hand.

    Args:
        host: a hardware config of the processor, such as `minitrain hw calibrate` writes; None to measure one when
            profiles are asked for.
        modules: makes a module of its name, or None where it is not installed; for machines other than this one.

    Example:
        >>> EnhancedHardwareDetector().detect()[0].hardware_class
        <HardwareClass.CPU: 'cpu'>
    """

    def __init__(self, host: Any = None, *, modules: Callable[[str], Any] | None = None) -> None:
        self._host = None if host is None else load_config(host)
        self._module = _imported if modules is None else modules

    def detect(self) -> tuple[DetectedDevice, ...]:
        """Return the processor, and the accelerators whose driver is there."""
        return (self._processor(), *self._nvidia())

    def detect_hardware(self) -> tuple[HardwareCapabilityProfile, ...]:
        """Return the devices that have a hardware config: the processor, and those whose config is shipped.

        The processor is called "host"; others by their config and a number. Measuring takes some seconds, once.
        """
        processor, *others = self.detect()
        found = [HardwareCapabilityProfile(_HOST, self.host_config(processor))]
        for place, device in enumerate(others):
            config = config_named_as(device)
            if config is not None:
                found.append(HardwareCapabilityProfile(f"{config.name}-{place}", config))
        return tuple(found)

    def host_config(self, processor: DetectedDevice | None = None) -> SystemConfig:
        """Return the hardware config of the processor: the given one, or one that is measured with NumPy now."""
        if self._host is None:
            measured = load_config(calibrate("numpy", **_QUICK))  # type: ignore[arg-type]  # mypy joins the types
            known = self._processor() if processor is None else processor
            sheet = replace(measured.sheet, num_units=known.num_units, features=known.features)
            self._host = replace(measured, name=_HOST, sheet=sheet)
        return self._host

    def _processor(self) -> DetectedDevice:
        """Return what the operating system says of the processor."""
        said = _said_by_linux()
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
        )

    def _nvidia(self) -> Iterator[DetectedDevice]:
        """Yield the GPUs that NVIDIA's management library lists."""
        nvml = self._module("pynvml")
        if nvml is None or _or_none(lambda: nvml.nvmlInit() or True) is None:
            return
        for index in range(nvml.nvmlDeviceGetCount()):
            yield _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))


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


def _gpu(nvml: Any, handle: Any) -> DetectedDevice:
    """Return what NVIDIA's management library says of one GPU."""
    name = nvml.nvmlDeviceGetName(handle)
    hertz = _or_none(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6)
    return DetectedDevice(
        name=name.decode() if isinstance(name, bytes) else name,
        hardware_class=HardwareClass.GPU,
        vendor="NVIDIA",
        memory_bytes=_or_none(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        clock_Hz=hertz,
        tdp_W=_or_none(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3),
        temperature_C=_or_none(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
    )


def _imported(name: str) -> Any:
    """Return a module, or None where it is not installed."""
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)


def _or_none(ask: Callable[[], Any]) -> Any:
    """Return an answer, or None where this machine has none: each library has errors of its own for that."""
    try:
        return ask()
    except Exception:
        return None


def _said_by_linux() -> dict[str, str]:
    """Return what Linux says of the first core; nothing elsewhere."""
    text = _or_none(lambda: Path("/proc/cpuinfo").read_text("utf-8")) or ""
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
