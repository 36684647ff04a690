"""The hardware config, `SystemConfig`: all that is known of one machine, from a shipped name, a file or a mapping.

**Format**: that of Calculon's `systems/*.json` (github.com/calculon-ai/calculon), so files written for it load
unchanged: `matrix` and `vector` by datatype, `mem1` (HBM), `mem2` (host), `processing_mode`, `networks`. Beside these a
config may hold `kernels` and the keys of a `DataSheet`. The mode is kept and validated but prices nothing: how compute
and memory time combine is the predictor's choice. A config that is nearly another one says so: `like` names a shipped
config, and every other key is a key path with the figure that differs, such as `"mem1.GBps": 2400`.

**Files.** One is read only if it is a regular file of at most 1 MB. Faults are reported where they are: by key path,
with what was expected and found. Keys that come twice in one object are found (JSON readers silently keep the last). In
YAML stand the same data as in JSON. PyYAML follows YAML 1.1, where `1e3` is text and `on` is true; here numbers are
those of YAML 1.2, and true and false are spelled so. Anchors are refused: nobody needs them in a config, and a few
lines of them can describe gigabytes.

**Profiles.** The `hardware_profile:` files of the virtual platform describe devices by peak rates, memory and units,
and links by bits per second. A config describes one machine, so the devices of a profile must be alike. What a profile
does not say is assumed, and can be written in a config instead: efficiencies are 1, the host's memory is as large as
the device's and is reached over the slowest link, and all devices are connected by that link. Left out: who is
connected with whom, beyond `links`.

**Variations** (`varied_configs`): many configs from one, by a key path with a value for each. A path is what messages
name: `networks[0].bandwidth`, `mem1.GBps`, `matrix.float16.tflops`, `kernels.attention.flash2.forward.efficiency`;
`networks.0.bandwidth` means the same. Values are validated as those of a config file are. Left out are keys of the data
sheet.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.files import JsonObject, StrPath, json_object, key_path, parse_json, read_text, shown, whole_number
from minitrain.machine import config_format
from minitrain.machine.config_format import (
    FLAG,
    POSITIVE,
    SECONDS,
    TEXT,
    WHOLE,
    Entries,
    Key,
    Leaf,
    ListOf,
    Record,
    UnexpectedError,
    kind_at,
    leaves,
    one_of,
    some,
)
from minitrain.machine.device import NO_DATA_SHEET, DataSheet, KernelRates, Memory, Processor, Rate, Storage
from minitrain.machine.network import Network, select_tier
from minitrain.operations.collectives import RING_ROWS

TOO_DEEP = "expected at most a few levels of nesting, found too many; is it a config?"

MOST_SHOWN = 8  # faults of one file: more than anybody mends at once


def refuse(label: str, faults: list[str]) -> HardwareConfigError:
    """Return the one error of a config that names its first faults (facts: `path`, and `faults`, which has all)."""
    title, *lines = every_fault(label, faults)
    return HardwareConfigError("\n".join(first_faults(title, lines, len(lines))), path=label, faults=tuple(faults))


def every_fault(label: str, faults: Sequence[str]) -> list[str]:
    """Return the lines that name all faults of a config, below a title if there are several."""
    lines = [f"{label}: {fault}" for fault in faults]
    return lines if len(lines) == 1 else [f"{label}: {len(lines)} faults", *lines]


def first_faults(title: str, faults: Sequence[str], number: int) -> list[str]:
    """Return the lines that name several faults: what has them, the first ones, and how many more there are.

    >>> first_faults("x.json: 3 faults", ["a", "b"], 3)
    ['x.json: 3 faults', 'a', 'b', '... and 1 more']
    """
    shown_faults = faults[:MOST_SHOWN]
    more = number - len(shown_faults)
    return [title, *shown_faults, *([f"... and {more} more"] if more else [])]


def label_of(path: str) -> str:
    """Return a path as messages may print it, whatever bytes it is made of."""
    return path if path.isprintable() else ascii(path)


_FLOAT = re.compile(r"^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$")
_INT = re.compile(r"^[-+]?[0-9][0-9_]*$")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(~|null|Null|NULL|)$")
_SHAPES = (("bool", _BOOL), ("null", _NULL), ("float", _FLOAT))


def is_yaml(label: str) -> bool:
    """Whether a file's name says that it is YAML."""
    return label.lower().endswith((".yaml", ".yml"))


def parse_yaml(text: str, label: str) -> Any:
    """Return the data of a YAML text.

    Args:
        text: the content of a file.
        label: what messages call the config.

    Returns:
        Whatever the text holds.

    Raises:
        HardwareConfigError: it is not YAML, has anchors, or is nested too deeply to be read.
    """
    import yaml  # noqa: PLC0415 - only where a file is YAML

    try:
        return _loader()(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise refuse(label, [f"expected YAML, found a mistake{where}: {error.problem}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise refuse(label, [f"expected YAML, found a mistake: {str(error).splitlines()[0]}"]) from None
    except RecursionError:
        raise refuse(label, [TOO_DEEP]) from None


def _number(text: str) -> float:
    """Read a number; an integer with more digits than a float can hold becomes infinite, and so a fault."""
    plain = text.replace("_", "")
    return whole_number(plain) if _INT.match(text) else float(plain)


@cache
def _loader() -> Any:
    """Return the class that reads YAML as JSON would."""
    import yaml  # noqa: PLC0415

    class Loader(yaml.SafeLoader):
        """YAML with the scalars of JSON, without anchors."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                problem = "anchors are not allowed; write it out"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            return super().compose_node(parent, index)

    def mapping(loader: Any, node: Any) -> Any:
        read = [[loader.construct_object(item, deep=True) for item in pair] for pair in node.value]
        return json_object([(key if isinstance(key, str) else str(key), value) for key, value in read])

    def number(loader: Any, node: Any) -> float:
        return _number(loader.construct_scalar(node))

    Loader.yaml_implicit_resolvers = {None: [(f"tag:yaml.org,2002:{kind}", shape) for kind, shape in _SHAPES]}
    Loader.add_constructor("tag:yaml.org,2002:float", number)
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    return Loader


MAX_BYTES = 1_000_000
CLUSTERS = "clusters"  # the folder of clusters, beside the configs


@lru_cache(maxsize=1)
def shipped_names() -> tuple[str, ...]:
    """Return the names of the configs that come with minitrain, sorted, without `.json`."""
    names = (entry.name for entry in shipped_folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def shipped_clusters() -> tuple[str, ...]:
    """Return the names of the clusters that come with minitrain, sorted, without `.yaml`."""
    folder = shipped_folder().joinpath(CLUSTERS)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()  # learners' packages have none
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


MACHINES = "clouds/machines.json"


@lru_cache(maxsize=1)
def shipped_machines() -> Mapping[str, Any]:
    """Return clouds' machines by name, such as `h100_p5.48xlarge`, and the networks that these name."""
    file = shipped_folder().joinpath(MACHINES)
    found: Mapping[str, Any] = parse_json(file.read_text("utf-8")) if file.is_file() else {"machines": {}}
    return found


def machine_name(asked: str) -> str | None:
    """Return the name of a cloud's machine, which may be asked for without its device; None for another one's.

    >>> machine_name("p5.48xlarge")
    'h100_p5.48xlarge'
    """
    known = shipped_machines()["machines"]
    return next((name for name in known if asked.lower() in (name, name.partition("_")[2])), None)


def machine_names() -> list[str]:
    """Return the names of clouds' machines, without their devices."""
    return [machine.partition("_")[2] for machine in shipped_machines()["machines"]]


def machine_data(name: str) -> dict[str, Any]:
    """Return the data of a cloud's machine: the config of its device, with its interfaces and its network."""
    listed = shipped_machines()
    about = listed["machines"][name]
    found = _shipped(about[LIKE])
    inner, outer = found["networks"]
    network = listed["networks"].get(about.get("network"), {})
    outer |= {**network, "curves": outer["curves"] | network.get("curves", {})}
    outer |= {"nics": about["nics"], "bandwidth": about["nics"] * about["Gbps"] / 8 / inner["size"]}
    return found


def _shipped(name: str) -> dict[str, Any]:
    """Return the data of a shipped config, that of a config which it is like included."""
    found: dict[str, Any] = parse(shipped_text(name), f"{name}.json")
    return like_another(found, f"{name}.json") if LIKE in found else found


def shipped_text(name: str) -> str:
    """Return the text of a shipped config."""
    return str(shipped_folder().joinpath(f"{name}.json").read_text("utf-8"))


def shipped_folder() -> Any:
    """Return the installed package that holds the configs; never a folder of the working directory."""
    from importlib.resources import files  # noqa: PLC0415 - a good part of the package's import time

    return files("minitrain.hw_configs")


def is_bare(name: str) -> bool:
    """Whether a string has no path separator, and so may name a shipped config."""
    return not any(separator in name for separator in (os.sep, os.altsep or os.sep))


def is_shipped(source: object) -> bool:
    """Whether what a config is asked for by is the name of a shipped one."""
    return isinstance(source, str) and is_bare(source) and source.removesuffix(".json") in shipped_names()


def unknown_name(name: str) -> HardwareConfigError:
    """Return the error for a name that is neither shipped nor a file."""
    known = shipped_names()
    stem = name.removesuffix(".json")
    if stem in shipped_clusters():
        fault = f"expected the config of one kind of device, found a cluster of several; use one of {', '.join(known)}"
        return refuse(shown(name), [fault])
    machines = machine_names()
    close = _like(stem, (*known, *shipped_clusters(), *machines))
    hint = f"did you mean {' or '.join(map(json.dumps, close))}? " if close else ""
    fault = (
        f"expected the name of a shipped config or of a file, found no such thing; {hint}"
        f"shipped are {', '.join(known)}; give a file of your own by its path, such as ./my_config.json, or a cloud's "
        f"machine: {', '.join(machines)}"
    )
    return refuse(shown(name), [fault])


def _like(stem: str, names: Sequence[str]) -> list[str]:
    """Return the names that somebody may mean: those that begin so, else of the same family, else the closest."""
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for this message

    asked = _letters(stem)
    beginning = [name for name in names if asked and _letters(name).startswith(asked)]
    families = [family for name in names if (family := name.partition("_")[0]) in asked]
    of_family = [name for name in names if families and name.partition("_")[0] == max(families, key=len)]
    within = [name for name in names if asked and asked in _letters(name)]
    cutoff = 0 if of_family else 0.55
    return beginning or get_close_matches(stem.lower(), of_family or within or names, n=1, cutoff=cutoff)


def _letters(name: str) -> str:
    """Return the letters and digits of a name, small."""
    return "".join(filter(str.isalnum, name.lower()))


def read_file(path: str) -> str:
    """Return the text of a config file.

    Args:
        path: any path that the operating system knows.

    Returns:
        The text, without a byte order mark.

    Raises:
        HardwareConfigError: there is no such file, it is a directory or no regular file, it is larger than
            `MAX_BYTES` (it is not read then), or it is not UTF-8.
    """
    label = label_of(path)
    try:
        return read_text(path, "config file", MAX_BYTES)
    except FileNotFoundError:
        fault = "expected a config file, found no such file; check the path"
    except OSError as error:
        fault = f"expected a readable config file, found: {error.strerror or error}"
    except ValueError as error:
        fault = str(error)
    raise refuse(label, [fault])


def parse(text: str, label: str) -> Any:
    """Return the data of a text, its objects remembering keys that came twice; YAML if the label says so, else JSON.

    Args:
        text: the content of a file.
        label: what messages call the config.

    Returns:
        Whatever the text holds.

    Raises:
        HardwareConfigError: it is neither, or nested too deeply to be read.
    """
    if is_yaml(label):
        return parse_yaml(text, label)
    try:
        return parse_json(text)
    except ValueError as error:
        raise refuse(label, [str(error)]) from None


LIKE = "like"
_PATH = re.compile(r"[^.\[\]]+")


def like_another(data: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the data of a config that names a shipped one and, by key path, what differs from it.

    Args:
        data: the shipped config's name under "like", and figures by key path.
        label: what messages call the config.

    Raises:
        HardwareConfigError: there is no such config, or it has nothing into which a path leads.
    """
    name = data[LIKE]
    if not is_shipped(name):
        raise unknown_name(str(name))
    found = _shipped(str(name).removesuffix(".json"))
    for path, value in data.items():
        if path in (LIKE, "name"):
            continue
        try:
            *keys, last = (int(key) if key.isdecimal() else key for key in _PATH.findall(path))
            into: Any = found
            for key in keys:
                into = into[key]
            if isinstance(into, list) and not 0 <= last < len(into):
                raise IndexError
            into[last] = value
        except (LookupError, TypeError, ValueError):
            raise refuse(label, [f"{path}: expected a key path of {name}, such as mem1.GBps, found none"]) from None
    return found


def plain(data: Any, label: str) -> tuple[Any, list[str]]:
    """Copy data into plain dicts and lists.

    Args:
        data: parsed JSON, or mappings and sequences of the user's.
        label: what messages call the config.

    Returns:
        The copy, and a fault for each key that came twice in an object.

    Raises:
        HardwareConfigError: the data is nested too deeply, or contains itself.
    """
    faults: list[str] = []
    try:
        return _copied(data, (), faults), faults
    except RecursionError:
        raise refuse(label, [TOO_DEEP]) from None


def _copied(value: Any, location: tuple[int | str, ...], faults: list[str]) -> Any:
    """Copy one value, collecting the keys that came twice below it."""
    if isinstance(value, Mapping):
        for key in value.repeated if isinstance(value, JsonObject) else ():
            where = key_path((*location, key))
            faults.append(f"{where}: expected each key once, found it more than once; remove one")
        return {key: _copied(item, (*location, key), faults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item, (*location, place), faults) for place, item in enumerate(value)]
    return value


_PROFILE = "hardware_profile"

_DATATYPES = {"fp16": "float16", "fp32": "float32", "fp8": "float8", "int8": "int8", "bf16": "bfloat16"}
_DEVICES = "a list of at least one device"
_CLASSES = {"GPU": "gpu", "TPU": "tpu", "CPU": "cpu", "ASIC": "asic"}
_ALL = [[0, 1.0]]
_MOST_RANKS = 2**20


class _Device(NamedTuple):
    """What a profile says of a device."""

    device_id: Annotated[str, TEXT]
    device_type: Annotated[str, TEXT]
    peak_tflops: Annotated[Mapping[str, float], Entries(POSITIVE, "an object of datatypes")]
    memory_capacity_bytes: Annotated[float, POSITIVE]
    memory_gbps: Annotated[float, POSITIVE]
    processing_units: Annotated[int, WHOLE]


class _Link(NamedTuple):
    """A link of a profile, as that of a config."""

    link_id: Annotated[str, TEXT]
    source_id: Annotated[str, TEXT]
    dest_id: Annotated[str, TEXT]
    bytes_per_s: Annotated[float, POSITIVE, Key("bandwidth_bps", 1 / 8)]
    latency_s: Annotated[float, SECONDS]
    bidirectional: Annotated[bool, FLAG] = True


class _Profile(NamedTuple):
    """What is read of a profile."""

    compute_devices: Annotated[Sequence[_Device], ListOf(Record(_Device), _DEVICES, some(_DEVICES))]
    network_links: Annotated[Sequence[_Link] | None, ListOf(Record(_Link), "a list of links")] = None


def config_of_profile(data: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the config of a profile, not validated yet.

    Args:
        data: a file's content, with the key `hardware_profile`.
        label: what messages call the config.

    Raises:
        HardwareConfigError: devices or links lack a key, or the devices are not alike; all faults are listed.
    """
    faults: list[str] = []
    profile = Record(_Profile).read(data[_PROFILE], (_PROFILE,), faults)
    num_kinds = 0 if faults else len({repr(each._replace(device_id="")) for each in profile.compute_devices})
    if num_kinds > 1:
        fault = f"{_PROFILE}.compute_devices: expected devices that are alike, found {num_kinds} kinds"
        faults.append(f"{fault}; write one file a kind")
    if faults:
        raise refuse(label, faults)
    return _config(profile.compute_devices[0], profile.network_links or ())


def _config(device: _Device, links: Sequence[_Link]) -> dict[str, Any]:
    """Write one device and the links as a config."""
    rates = {
        _DATATYPES.get(name, name): {"tflops": peak, "gflops_efficiency": _ALL}
        for name, peak in device.peak_tflops.items()
    }
    memory = {"GiB": device.memory_capacity_bytes / 2**30, "GBps": device.memory_gbps, "MB_efficiency": _ALL}
    slowest = min((link.bytes_per_s / 1e9 for link in links), default=device.memory_gbps)
    latency = max((link.latency_s for link in links), default=0.0)
    tier = {"bandwidth": slowest, "efficiency": 1.0, "size": _MOST_RANKS, "latency": latency, "ops": dict(RING_ROWS)}
    kind = _CLASSES.get(device.device_type.upper())
    return {
        "matrix": rates,
        "vector": rates,
        "mem1": memory,
        "mem2": memory | {"GBps": slowest},
        "processing_mode": "roofline",
        "networks": [tier | {"must_be_filled": False, "processor_usage": 0.0}],
        "units": device.processing_units,
        "links": [link._asdict() for link in links],
        **({} if kind is None else {"class": kind}),
    }


_SOME_TIERS = "a list of at least one tier"

SPECIFIED = "specified_h100_80g_nvl8"
"""The shipped config with the specification's figures of an H100, which are not those of the device."""


@dataclass(frozen=True, slots=True)
class SystemConfig:
    """One machine.

    Args:
        name: the shipped name, the file's stem, or "custom" for a mapping without a name.
        processor: matrix and vector units.
        mem1: the device's own memory (HBM).
        mem2: the host's memory, over PCIe or a chip-to-chip link.
        processing_mode: "roofline" or "no_overlap", as the file has it.
        networks: the tiers, in the file's order.
        kernels: what kernels reach, for `KernelDevice`; None where the file does not say.
        sheet: what else its data sheet says: caches, limits, power and more.
        storage: what takes checkpoints; None for the usual one.
    """

    name: Annotated[str, Leaf("a text", str, varies=False)]
    processor: Annotated[Processor, Record(Processor, is_flat=True)]
    mem1: Annotated[Memory, Record(Memory)]
    mem2: Annotated[Memory, Record(Memory)]
    processing_mode: Annotated[str, one_of("roofline", "no_overlap")]
    networks: Annotated[
        tuple[Network, ...], ListOf(Record(Network, "an object, one tier"), _SOME_TIERS, some(_SOME_TIERS))
    ]
    kernels: Annotated[KernelRates | None, Record(KernelRates)] = None
    sheet: Annotated[DataSheet, Record(DataSheet, is_flat=True, varies=False)] = NO_DATA_SHEET
    storage: Annotated[Storage | None, Record(Storage)] = None

    @property
    def matrix(self) -> Mapping[str, Rate]:
        """Return the matrix unit's rate by datatype."""
        return self.processor.matrix

    @property
    def vector(self) -> Mapping[str, Rate]:
        """Return the vector unit's rate by datatype."""
        return self.processor.vector

    @property
    def mem_hbm(self) -> Memory:
        """Return the device's own memory."""
        return self.mem1

    @property
    def mem_pcie(self) -> Memory:
        """Return the host's memory, from which weights are loaded; a processor's is its own, and its `mem2` a drive."""
        return self.mem1 if self.sheet.device_class == "cpu" else self.mem2

    def network(self, world_size: int) -> Network:
        """Return the smallest tier that spans `world_size` ranks; errors as for `select_tier`."""
        return select_tier(self.networks, world_size)


def shipped_configs() -> list[str]:
    """Return the names of the configs that come with minitrain, sorted.

    >>> shipped_configs()[:2]
    ['a100_40g', 'a100_80g']
    """
    return list(shipped_names())


def load_config(source: StrPath | Mapping[str, Any] | SystemConfig) -> SystemConfig:
    """Load and validate a system config.

    A string without a path separator that names a shipped config, with or without `.json`, is that config,
    whatever lies in the working directory; any other string, and every path object, is a file.

    Args:
        source: a shipped name, a path, the data itself, or a config already loaded (returned as it is).

    Returns:
        The validated config.

    Raises:
        HardwareConfigError: it cannot be found or read, or is invalid. The message lists the first faults by file and
            key path, with what was expected and found; `error.faults` holds all, and `error.path` the file.

    Example:
        >>> load_config("a100_80g").mem_hbm.GBps
        2039.0
    """
    if isinstance(source, SystemConfig):
        return source
    if isinstance(source, Mapping):
        name = source.get("name")
        return _validated(source, "config", name if isinstance(name, str) else "custom")
    if isinstance(source, str):
        if is_bare(source):
            shipped = machine_name(source) or source.removesuffix(".json")
            if shipped in (*shipped_names(), *shipped_machines()["machines"]):
                return _load_shipped(shipped)
            if not os.path.lexists(source):
                raise unknown_name(source)
        return _load_file(source)
    path = os.fspath(source) if isinstance(source, os.PathLike) else None
    if not isinstance(path, str):
        raise HardwareConfigError(
            f"hardware must be the name of a shipped config, a path, a mapping or a SystemConfig, "
            f"not {type(source).__name__}; shipped are {', '.join(shipped_configs())}",
            faults=(),
        )
    return _load_file(path)


@lru_cache(maxsize=32)
def _load_shipped(name: str) -> SystemConfig:
    """Load a config that comes with minitrain, once."""
    data = machine_data(name) if name in shipped_machines()["machines"] else _shipped(name)
    return _validated(data, f"{name}.json", name)


def _load_file(path: str) -> SystemConfig:
    """Load a config from a file of the user's."""
    label = label_of(path)
    return _validated(parse(read_file(path), label), label, Path(path).stem)


def _validated(data: Any, label: str, name: str) -> SystemConfig:
    """Turn raw data into a config, or raise one error with all its faults."""
    if not isinstance(data, Mapping):
        raise refuse(label, [f"expected a JSON object, found {shown(data)}"])
    copy, faults = plain(data, label)
    if LIKE in copy:
        copy = like_another(copy, label)
    if _PROFILE in copy:
        copy = config_of_profile(copy, label)
    needed = [key for key in _FORMAT.needed if key != "name"]
    if copy and not any(key in copy for key in needed):
        found = ", ".join(map(shown, list(copy)[:_KEYS_SHOWN]))
        faults.append(
            f"expected a hardware config, an object with {', '.join(needed)}; found one with {found}; "
            "`minitrain hw show h100_80g_nvl8 --json` prints a config"
        )
        raise refuse(label, faults)
    system: SystemConfig = _FORMAT.read({**copy, "name": name}, (), faults)
    if faults:
        raise refuse(label, faults)
    units = system.sheet.num_units or (system.kernels and system.kernels.num_units)
    return replace(system, sheet=replace(system.sheet, num_units=units))


def _require_consistent(system: SystemConfig) -> None:
    """Require that keys which are each right by themselves are so together."""
    units = system.sheet.num_units
    if units is not None and system.kernels is not None and units != system.kernels.num_units:
        known = f"the same as kernels.units ({system.kernels.num_units})"
        raise UnexpectedError(known, f"{units}; leave it out", "units")


_FORMAT = Record(SystemConfig, check=_require_consistent)
_KEYS_SHOWN = 5  # of an object that is no config


def varied_configs(systems: Sequence[SystemConfig], path: str, values: Sequence[Any]) -> list[SystemConfig]:
    """Return configs with another value each under one path.

    Args:
        systems: the configs, one a value.
        path: the key path.
        values: what stands there.

    Raises:
        UsageError: there is no such path.
        HardwareConfigError: a value is not what a config may hold there.
    """
    found = validated(systems[0], path, values)
    return [with_value(system, path, value) for system, value in zip(systems, found, strict=True)]


def with_value(system: SystemConfig, path: str, value: Any) -> SystemConfig:
    """Return a config with another value under one path: one that was validated, or a column of such numbers."""
    return config_format.with_value(_FORMAT, system, _keys_of(path), value)  # type: ignore[no-any-return]  # a config


def is_number_path(path: str) -> bool:
    """Return whether the figure under a path is a number that formulas compute with, of which there may be a column."""
    kind = kind_at(_FORMAT, _keys_of(path))
    return isinstance(kind, Leaf) and kind.is_column


def numbers_of(system: SystemConfig) -> dict[str, float]:
    """Return every single number of a config by its path, in the order of the file."""
    return {key_path(place): value for place, value in leaves(_FORMAT, system) if isinstance(value, int | float)}


def rule_of(path: str) -> str:
    """Return what may stand under a path, in words; "" for what no config has."""
    kind = kind_at(_FORMAT, _keys_of(path))
    return kind.expected if isinstance(kind, Leaf) else ""


def unit_of(path: str) -> str:
    """Return what the figure under a path counts in; "" for counts, shares, words, and what no config has."""
    *above, last = _keys_of(path)
    record = kind_at(_FORMAT, above)
    return record.unit(last) if isinstance(record, Record) else ""


def _keys_of(path: str) -> list[str]:
    """Return the keys of a path."""
    return [key for key in re.split(r"[.\[\]\"]+", path) if key]


def validated(system: SystemConfig, path: str, values: Sequence[Any]) -> list[Any]:
    """Return values as a config holds them under a path.

    Args:
        system: a config that has the path.
        path: the key path.
        values: what shall stand there.

    Raises:
        UsageError: there is no such path.
        HardwareConfigError: a value is not what a config may hold there.
    """
    place = next((place for place, _ in leaves(_FORMAT, system, keys=_keys_of(path))), None)
    if place is None:
        close = difflib.get_close_matches(path, (key_path(place) for place, _ in leaves(_FORMAT, system)), 1)
        example = close[0] if close else "networks[0].bandwidth"
        raise UsageError(f"{system.name} has no figure {path!r:.80} to vary; a key path is wanted, such as {example}")
    kind: Any = kind_at(_FORMAT, map(str, place))
    faults: list[str] = []
    if type(kind) is Leaf and kind.is_range and set(map(type, values)) == {float} and min(values) > 0:
        found = list(values)  # what lies between two that are right is right, too
        for value in (min(values), max(values), sum(values) / len(values)):
            kind.read(value, place, faults)
    else:
        found = [kind.read(value, place, faults) for value in values]
    if faults:
        raise HardwareConfigError(faults[0], faults=(), path=system.name)
    return found
