"""Clusters as files, YAML or JSON: what each key holds, and how faults are reported.

    name: two generations
    groups:
      - {name: new, kind: h100_80g_nvl8, count: 8}
      - {name: old, kind: a100_80g, count: 8, power_cap_watts: 300}
    links:
      - {between: [new, old], bytes_per_s: 3.1e9, latency_s: 20e-6}

The keys of a group are the fields of `Devices`; those of a link are the fields of `Link`, and `between` the two groups.
Unknown keys are refused, since a cap or a link that is spelled wrongly would change every figure. All faults are
reported at once, by key path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minitrain.errors import MinitrainError
from minitrain.files import is_file, key_path, shown
from minitrain.machine.clusters.device_groups import Devices, Link, Thermal
from minitrain.machine.config import (
    CLUSTERS,
    is_bare,
    is_shipped,
    label_of,
    parse,
    plain,
    read_file,
    refuse,
    shipped_clusters,
    shipped_folder,
)
from minitrain.machine.measured_layers import MeasuredLayers

Location = tuple[int | str, ...]

SUFFIXES = (".yaml", ".yml", ".json")

_CLUSTER = frozenset({"name", "groups", "links", "between_groups"})
_LINK = frozenset(Link.__dataclass_fields__)
_GROUP = frozenset(Devices.__dataclass_fields__) - {"system"}
_THERMAL = frozenset(Thermal.__dataclass_fields__)
_PRICES = frozenset({"file", "gpu", "model", "includes_transfers"})


def names_cluster(source: object) -> bool:
    """Return whether what names hardware names a cluster: a shipped one, or a file with the key `groups`."""
    if not isinstance(source, str | os.PathLike):
        return isinstance(source, Mapping) and "groups" in source
    path = os.fspath(source)
    if not isinstance(path, str) or is_shipped(path):
        return False
    if is_bare(path) and path in shipped_clusters():
        return True
    if not path.lower().endswith(SUFFIXES) or not is_file(path):
        return False
    label = label_of(path)
    data = parse(read_file(path), label)
    return isinstance(data, Mapping) and "groups" in data


def read_cluster(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that make the cluster of a file, of a shipped name, or of the data itself.

    Raises:
        HardwareConfigError: it cannot be read, or is invalid; all faults are listed.
    """
    if isinstance(source, Mapping):
        return _Reader("cluster", Path()).read(source)
    path = os.fspath(source)
    if is_bare(path) and path in shipped_clusters():
        text = str(shipped_folder().joinpath(CLUSTERS, f"{path}.yaml").read_text("utf-8"))
        return _Reader(f"{path}.yaml", Path()).read(parse(text, f"{path}.yaml"))
    label = label_of(path)
    return _Reader(label, Path(path).parent).read(parse(read_file(path), label))


class _Reader:
    """Reads one cluster, and collects what is wrong with it.

    Args:
        label: what messages call the file.
        folder: what paths in it are relative to.
    """

    def __init__(self, label: str, folder: Path) -> None:
        self.label = label
        self.folder = folder
        self.faults: list[str] = []

    def read(self, data: Any) -> dict[str, Any]:
        """Return the arguments of `Cluster`."""
        if not isinstance(data, Mapping):
            raise refuse(self.label, [f"expected an object with groups and links, found {shown(data)}"])
        data, self.faults = plain(data, self.label)
        self._require_known(data, _CLUSTER, ())
        groups = self._list(data, "groups", self._group)
        links = dict(found for found in self._list(data, "links", self._link) if found)
        between = self._made(Link, data.get("between_groups"), _LINK, ("between_groups",))
        name = data.get("name", Path(self.label).stem)
        if not isinstance(name, str):
            self._fault(("name",), "a text", name)
        if not groups and not self.faults:
            self._fault(("groups",), "a list of at least one group of devices", data.get("groups"))
        if self.faults:
            raise refuse(self.label, self.faults)
        return {"groups": groups, "links": links, "between_groups": between, "name": name}

    def _list(self, data: Mapping[str, Any], key: str, read: Callable[[Any, Location], Any]) -> list[Any]:
        """Return the entries of a list."""
        found = data.get(key, [])
        if not isinstance(found, list):
            self._fault((key,), "a list", found)
            return []
        return [read(entry, (key, place)) for place, entry in enumerate(found)]

    def _group(self, data: Any, where: Location) -> Devices | None:
        """Return a group of devices."""
        if not self._is_object(data, where):
            return None
        values = dict(data)
        for key in ("inside_node", "between_nodes"):
            values[key] = self._made(Link, values.get(key), _LINK, (*where, key))
        values["thermal"] = self._made(Thermal, values.get("thermal"), _THERMAL, (*where, "thermal"))
        values["prices"] = self._made(self._prices, values.get("prices"), _PRICES, (*where, "prices"))
        kind = values.get("kind")
        if isinstance(kind, str) and not is_bare(kind):
            values["kind"] = str(self.folder / kind)
        found: Devices | None = self._made(Devices, values, _GROUP, where, ("kind", "count"))
        return found

    def _link(self, data: Any, where: Location) -> tuple[Any, Link] | None:
        """Return a link and the two groups that it is between."""
        if not self._is_object(data, where):
            return None
        values = dict(data)
        ends = values.pop("between", None)
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            self._fault((*where, "between"), "a list of two names of groups", ends)
            return None
        link = self._made(Link, values, _LINK, where, ("bytes_per_s",))
        return None if link is None else (tuple(ends), link)

    def _prices(self, file: Any = None, **chosen: Any) -> MeasuredLayers:
        """Return measured times of layers."""
        return MeasuredLayers.read(self.folder / str(file), **chosen)

    def _made(
        self,
        make: Callable[..., Any],
        values: Any,
        known: frozenset[str],
        where: Location,
        needed: tuple[str, ...] = (),
    ) -> Any:
        """Return what is made of an object; None where there is none, or something is wrong with it."""
        if values is None or not self._is_object(values, where) or not self._require_known(values, known, where):
            return None
        missing = [key for key in needed if values.get(key) is None]
        for key in missing:
            self.faults.append(f"{key_path((*where, key))}: expected a value, found none")
        if missing:
            return None
        try:
            return make(**values)
        except (MinitrainError, TypeError) as error:  # of a value; the message says which
            self.faults.append(f"{key_path(where)}: {error}")
            return None

    def _is_object(self, data: Any, where: Location) -> bool:
        """Return whether a value is an object, and note a fault otherwise."""
        if not isinstance(data, Mapping):
            self._fault(where, "an object", data)
        return isinstance(data, Mapping)

    def _require_known(self, data: Mapping[str, Any], known: frozenset[str], where: Location) -> bool:
        """Note a fault for each unknown key; return whether there was none."""
        unknown = [key for key in data if key not in known]
        for key in unknown:
            self.faults.append(
                f"{key_path((*where, key))}: expected one of the keys {', '.join(sorted(known))}; correct or remove it"
            )
        return not unknown

    def _fault(self, where: Location, expected: str, found: Any) -> None:
        """Note that something else was expected."""
        self.faults.append(f"{key_path(where)}: expected {expected}, found {shown(found)}")
