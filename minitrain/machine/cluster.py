"""A cluster of unlike devices: groups of devices, the nodes they sit in, and the links between them.

    fast = mt.Devices("h100_80g_nvl8", 8, name="new")
    slow = mt.Devices("a100_80g", 8, name="old", power_cap_watts=300)
    cluster = mt.Cluster([fast, slow], between_groups=mt.Link(3.1e9, 20e-6))

All devices of a group are alike: one hardware config, one speed, one cap. A hardware config says what a device reaches
inside its node and between nodes; a group may say otherwise. Links between groups are given here alone, as no config
has them.

Ranks take the devices in the order of the groups, node by node, unless a run has a `placement`. Nodes are numbered in
the same order. `Places` says which rank has which device: its node, its group, and its place among the group's ranks.

A cluster can also be a file (`read_cluster`), YAML or JSON:

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
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any, ClassVar

from minitrain.errors import MinitrainError, UsageError, typed, typed_methods
from minitrain.files import StrPath, is_file, key_path, shown
from minitrain.machine import config
from minitrain.machine.device_groups import Devices, Link, Thermal, require_positive
from minitrain.machine.measured_layers import MeasuredLayers
from minitrain.machine.topology import node_of_each_rank

Pair = frozenset[str]


@typed_methods
@typed
@dataclass(frozen=True, slots=True)
class Cluster:
    """Groups of unlike devices and the links between them, for `simulate(..., hardware=cluster)`.

    Args:
        groups: the groups, or counts by the name of a hardware config, `{"h100_80g_nvl8": 8, "a100_80g": 8}`.
        links: links by pairs of group names, `{("new", "old"): mt.Link(3.1e9)}`.
        between_groups: the link between any two groups that `links` does not name.
        name: what runs call the hardware.

    Raises:
        UsageError: there are no groups, two have one name, a link is of a group that is not there, or two groups have
            no link.
        HardwareConfigError: a hardware config cannot be found or read, or is invalid.

    >>> cluster = Cluster({"h100_80g_nvl8": 8, "a100_80g": 4}, between_groups=Link(12.5e9, 2e-5))
    >>> cluster.num_devices, cluster.num_nodes
    (12, 2)
    """

    groups: Sequence[Devices] | Mapping[str, int]
    links: Mapping[Any, Link] = field(default_factory=dict, hash=False)
    between_groups: Link | None = None
    name: str = "cluster"
    is_cluster: ClassVar[bool] = True

    def __post_init__(self) -> None:
        groups = self.groups
        if isinstance(groups, Mapping):
            groups = [Devices(kind, count) for kind, count in groups.items()]
        object.__setattr__(self, "groups", _checked_groups(groups))
        object.__setattr__(self, "links", _checked_links(self.links, self.devices, self.between_groups))

    @classmethod
    def load(cls, path: StrPath | Mapping[str, Any]) -> Cluster:
        """Read a cluster from a YAML or JSON file, that of a shipped name, or the data of one.

        Raises:
            HardwareConfigError: the file cannot be read, or is invalid; all faults are listed by key path.
        """
        return cls(**read_cluster(path))

    @property
    def devices(self) -> tuple[Devices, ...]:
        """The groups in the order of their ranks."""
        return tuple(self.groups)  # type: ignore[arg-type]  # counts by name have become groups

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return sum(group.count for group in self.devices)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return sum(group.num_nodes for group in self.devices)

    @property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together, W; None where a config does not say its power."""
        watts = [group.watts for group in self.devices]
        known = [each * group.count for each, group in zip(watts, self.devices, strict=True) if each is not None]
        return sum(known) if len(known) == len(watts) else None

    def group(self, name: str) -> Devices:
        """Return the group of a name.

        Raises:
            UsageError: there is none.
        """
        found = next((group for group in self.devices if group.label == name), None)
        if found is None:
            known = ", ".join(group.label for group in self.devices)
            raise UsageError(f"{self.name} has no group called {name!r:.80}; use one of {known}")
        return found

    def link(self, first: str, second: str) -> Link:
        """Return what carries transfers between two groups."""
        return self.links[frozenset((first, second))]

    def part(self, names: Sequence[str]) -> Cluster:
        """Return some groups, in the order of their names here, and the links between them."""
        links = {tuple(pair): link for pair, link in self.links.items() if pair <= set(names)}
        return Cluster([self.group(name) for name in names], links=links, name=self.name)

    def changed(self, name: str, **changes: Any) -> Cluster:
        """Return the cluster with other fields of one group: `cluster.changed("old", power_cap_watts=250)`."""
        old = self.group(name)
        given = {key: getattr(old, key) for key in Devices.__dataclass_fields__ if key != "system"}
        unknown = sorted(changes.keys() - given.keys())
        if unknown:
            raise UsageError(f"a group of devices has no {', '.join(unknown)}; it has {', '.join(given)}")
        new = Devices(**(given | changes))
        return replace(self, groups=[new if group is old else group for group in self.devices])

    def within_power(self, watts: float) -> Cluster:
        """Return the cluster with caps under which all devices together draw no more than a budget.

        Every device keeps its idle power and the same share of what it draws beside that. A planner may do better.

        Args:
            watts: of all devices together.

        Raises:
            UsageError: the budget is no more than what all draw when they are idle.
            HardwareConfigError: a config does not say its power.
        """
        require_positive("a power budget", watts)
        least = sum(group.idle_watts * group.count for group in self.devices)
        most = sum((group.watts or 0.0) * group.count for group in self.devices)
        if watts <= least:
            raise UsageError(
                f"{self.name} draws {least:g} W when all its devices are idle, so that a budget of {watts:g} W is too "
                f"small; give more than {least:g} W, or leave devices out"
            )
        share = min(1.0, (watts - least) / (most - least))
        found = self
        for group in self.devices:
            cap = group.idle_watts + share * ((group.watts or 0.0) - group.idle_watts)
            found = found.changed(group.label, power_cap_watts=cap)
        return found

    def data(self) -> dict[str, Any]:
        """Return what the cluster is made of, ready for JSON."""
        groups = [
            {
                "name": group.label,
                "hardware": group.system.name,
                "count": group.count,
                "num_nodes": group.num_nodes,
                "watts": group.watts,
                "clock_share": group.clock_share,
                "limited_by": group.limited_by,
            }
            for group in self.devices
        ]
        links = [
            {"between": sorted(pair), "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
            for pair, link in self.links.items()
        ]
        return {"name": self.name, "num_devices": self.num_devices, "groups": groups, "links": links}

    def lines(self) -> list[str]:
        """Return what the cluster is made of in words, a line a group and a link."""
        links = [f"  between {' and '.join(sorted(pair))}: {link}" for pair, link in self.links.items()]
        watts = "" if self.peak_watts is None else f", {self.peak_watts:,.0f} W at most"
        head = f"{self.name}: {self.num_devices} devices in {self.num_nodes} nodes{watts}"
        return [head, *(f"  {group}" for group in self.devices), *links]

    def __str__(self) -> str:
        """Say it in words."""
        links = {str(link) for link in self.links.values()}
        between = f"; between them {', '.join(sorted(links))}" if links else ""
        return f"{self.name}: {', '.join(map(str, self.devices))}{between}"


def _checked_groups(groups: Any) -> tuple[Devices, ...]:
    """Return groups of different names."""
    found = tuple(groups) if isinstance(groups, Sequence) and not isinstance(groups, str) else ()
    if not found or not all(isinstance(group, Devices) for group in found):
        raise UsageError(
            "a cluster is made of groups of devices, as in mt.Cluster([mt.Devices('h100_80g_nvl8', 8), "
            f"mt.Devices('a100_80g', 8)], between_groups=mt.Link(12.5e9)); got {groups!r:.80}"
        )
    names = [group.label for group in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two groups of the cluster are called {twice}; give each a name of its own")
    return found


def _checked_links(links: Mapping[Any, Link], groups: Sequence[Devices], rest: Link | None) -> dict[Pair, Link]:
    """Return the link of each pair of groups."""
    names = [group.label for group in groups]
    given = {_pair(ends, names): link for ends, link in links.items()}
    missing = []
    for first, second in combinations(names, 2):
        pair = frozenset((first, second))
        if pair not in given and rest is not None:
            given[pair] = rest
        elif pair not in given:
            missing.append(f"{first} and {second}")
    if missing:
        raise UsageError(
            f"there must be a link between any two groups, and there is none between {', '.join(missing)}; add it to "
            "links, or give between_groups for all that links does not name"
        )
    return given


def _pair(ends: Any, names: Sequence[str]) -> Pair:
    """Return the two groups that a link is between."""
    pair = frozenset(ends) if isinstance(ends, Sequence | frozenset) and not isinstance(ends, str) else frozenset()
    unknown = sorted(str(name) for name in pair if name not in names)
    if unknown:
        raise UsageError(
            f"a link is between groups of the cluster, and {', '.join(unknown)} is none of them; use two of "
            f"{', '.join(names)}"
        )
    if len(pair) != 2:
        raise UsageError(f"a link is between two groups, as in ({names[0]!r}, {names[-1]!r}), got {ends!r:.80}")
    return pair


class Places:
    """Where the ranks of a run on a cluster are.

    Args:
        cluster: groups of devices.
        world_size: number of ranks.
        placement: the node of each rank; by default devices are taken in order, node by node.

    Attributes:
        nodes: the node of each rank, numbered over the whole cluster.

    Raises:
        UsageError: there are more ranks than devices, or the placement names a node that is not there or is full.
    """

    def __init__(self, cluster: Cluster, world_size: int, placement: Sequence[int] | None = None) -> None:
        self._names = [group.label for group in cluster.devices]
        self._first_nodes = [0, *accumulate(group.num_nodes for group in cluster.devices)]
        if world_size > cluster.num_devices:
            raise UsageError(
                f"{cluster.name} has {cluster.num_devices} devices, and the run {world_size} ranks; use at most "
                f"{cluster.num_devices} ranks, or add devices",
                world_size=world_size,
            )
        sizes = [size for group in cluster.devices for size in node_sizes(group)]
        if placement is None:
            self.nodes = tuple([node for node, size in enumerate(sizes) for _ in range(size)][:world_size])
        else:
            self.nodes = _checked(placement, world_size, sizes, cluster)
        self._members: dict[str, list[int]] = {}
        self._local = [self._enlist(rank) for rank in range(world_size)]

    def _enlist(self, rank: int) -> int:
        """Add a rank to the ranks of its group, and return its place among them."""
        members = self._members.setdefault(self.group(rank), [])
        members.append(rank)
        return len(members) - 1

    @property
    def used_groups(self) -> tuple[str, ...]:
        """The groups of which some rank has a device, in the cluster's order."""
        return tuple(name for name in self._names if name in self._members)

    def num_ranks_of(self, name: str) -> int:
        """Return how many ranks have devices of a group."""
        return len(self._members[name])

    def local_nodes(self, name: str) -> list[int]:
        """Return the node of each rank of a group, counted within the group."""
        first = self._first_nodes[self._names.index(name)]
        return [self.nodes[rank] - first for rank in self._members[name]]

    def group(self, rank: int) -> str:
        """Return the group that a rank's device belongs to."""
        return self.group_of_node(self.nodes[rank])

    def group_of_node(self, node: int) -> str:
        """Return the group that a node belongs to."""
        return self._names[bisect_right(self._first_nodes, node) - 1]

    def groups_of(self, ranks: Sequence[int]) -> set[str]:
        """Return the groups of some ranks."""
        return {self.group(rank) for rank in ranks}

    def local(self, ranks: Sequence[int]) -> Sequence[int]:
        """Return the places of some ranks among those of their group; a range stays one."""
        if isinstance(ranks, range):
            first = self._local[ranks[0]]
            places = range(first, first + len(ranks) * ranks.step, ranks.step)
            if all(self._local[rank] == place for rank, place in zip(ranks, places, strict=True)):
                return places
        return tuple(self._local[rank] for rank in ranks)


def node_sizes(group: Devices) -> list[int]:
    """Return how many devices each node of a group has; the last one may have fewer.

    >>> from minitrain.machine.device_groups import Devices
    >>> node_sizes(Devices("a100_80g", 12))
    [8, 4]
    """
    size = group.devices_per_node
    return [min(size, group.count - start) for start in range(0, group.count, size)]


def _checked(placement: Sequence[int], world_size: int, sizes: Sequence[int], cluster: Cluster) -> tuple[int, ...]:
    """Return a placement as a tuple, or say what does not fit."""
    nodes = node_of_each_rank(placement, world_size)
    for node, number in sorted(Counter(nodes).items()):
        if not 0 <= node < len(sizes):
            raise UsageError(f"a placement's nodes must be in 0..{len(sizes) - 1}, those of {cluster.name}, not {node}")
        if number > sizes[node]:
            raise UsageError(
                f"node {node} of {cluster.name} has {sizes[node]} devices, and the placement puts {number} ranks "
                "there; spread them over more nodes"
            )
    return nodes


Location = tuple[int | str, ...]

_SUFFIXES = (".yaml", ".yml", ".json")

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
    if not isinstance(path, str) or config.is_shipped(path):
        return False
    if config.is_bare(path) and path in config.shipped_clusters():
        return True
    if not path.lower().endswith(_SUFFIXES) or not is_file(path):
        return False
    label = config.label_of(path)
    data = config.parse(config.read_file(path), label)
    return isinstance(data, Mapping) and "groups" in data


def read_cluster(source: StrPath | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that make the cluster of a file, of a shipped name, or of the data itself.

    Raises:
        HardwareConfigError: it cannot be read, or is invalid; all faults are listed.
    """
    if isinstance(source, Mapping):
        return _FileReader("cluster", Path()).read(source)
    path = os.fspath(source)
    if config.is_bare(path) and path in config.shipped_clusters():
        text = str(config.shipped_folder().joinpath(config.CLUSTERS, f"{path}.yaml").read_text("utf-8"))
        return _FileReader(f"{path}.yaml", Path()).read(config.parse(text, f"{path}.yaml"))
    label = config.label_of(path)
    return _FileReader(label, Path(path).parent).read(config.parse(config.read_file(path), label))


class _FileReader:
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
            raise config.refuse(self.label, [f"expected an object with groups and links, found {shown(data)}"])
        data, self.faults = config.plain(data, self.label)
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
            raise config.refuse(self.label, self.faults)
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
        if isinstance(kind, str) and not config.is_bare(kind):
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
