"""The route from one endpoint to another: the fewest links, and of equally short routes one by a stated hash (ECMP).

At every endpoint, the next link is chosen among those on shortest routes, in the order in which they were listed, by
the CRC-32 of "source>dest>endpoint" modulo their number. So all bytes between two endpoints take one route, and
different pairs spread over the routes (Hopps 2000, RFC 2992).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import final
from zlib import crc32

from minitrain.errors import UsageError
from minitrain.platform.links import Lane, VirtualNetworkLink
from minitrain.workloads.field_faults import closest


@final
class Routes:
    """All routes over some links.

    Args:
        links: each has one lane in each direction that it can be used in.
        endpoints: names beside those of the links.

    Raises:
        UsageError: two links have one name.
    """

    def __init__(self, links: Iterable[VirtualNetworkLink], endpoints: Iterable[str] = ()) -> None:
        self.links: dict[str, VirtualNetworkLink] = {}
        self._out: dict[str, list[tuple[str, Lane]]] = defaultdict(list)
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._into: dict[str, list[str]] = defaultdict(list)
        for name in endpoints:
            self._out[name] = []
        for link in links:
            self._add(link)
        self._steps_to: dict[str, dict[str, int]] = {}
        self._found: dict[tuple[str, str], tuple[Lane, ...]] = {}

    def _add(self, link: VirtualNetworkLink) -> None:
        if link.link_id in self.links:
            raise UsageError(f"two links are called {link.link_id!r}; give each a name of its own")
        self.links[link.link_id] = link
        self._connect(link, link.source_id, link.dest_id)
        if link.bidirectional:
            self._connect(link, link.dest_id, link.source_id)

    def _connect(self, link: VirtualNetworkLink, source: str, dest: str) -> None:
        name = f"{link.link_id}: {source} to {dest}"
        lane = Lane(name, link.bytes_per_s, link.latency_s, link.link_id)
        self._out[source].append((dest, lane))
        self._lanes.setdefault((source, dest), lane)
        self._out[dest]
        self._into[dest].append(source)

    @property
    def endpoints(self) -> list[str]:
        """Return all names that a route can begin or end at."""
        return list(self._out)

    @property
    def lanes(self) -> list[Lane]:
        """Return both directions of all links."""
        return [lane for exits in self._out.values() for _, lane in exits]

    def along(self, names: Sequence[str]) -> tuple[Lane, ...]:
        """Return the lanes between endpoints that are neighbours, one after the other."""
        return tuple(self._lanes[pair] for pair in pairwise(names))

    def route(self, source: str, dest: str) -> tuple[Lane, ...]:
        """Return the lanes of the route from one endpoint to another; none where they are the same.

        Raises:
            UsageError: an endpoint is unknown, or no links lead there.
        """
        found = self._found.get((source, dest))
        if found is None:
            found = self._found[source, dest] = tuple(self._walk(source, dest))
        return found

    def _walk(self, source: str, dest: str) -> Iterable[Lane]:
        for name in (source, dest):
            if name not in self._out:
                raise UsageError(
                    f"there is no endpoint {name!r} {closest(name, self._out)}; there are "
                    f"{', '.join(list(self._out)[:8])}{' ...' if len(self._out) > 8 else ''}",
                    endpoint=name,
                )
        steps = self._steps(dest)
        if source not in steps:
            raise UsageError(f"no links lead from {source} to {dest}; add one", source_id=source, dest_id=dest)
        here = source
        while here != dest:
            exits = [one for one in self._out[here] if steps.get(one[0], -1) == steps[here] - 1]
            here, lane = exits[crc32(f"{source}>{dest}>{here}".encode()) % len(exits)]
            yield lane

    def _steps(self, dest: str) -> dict[str, int]:
        """Return how many links lie between each endpoint and `dest`."""
        found = self._steps_to.get(dest)
        if found is None:
            found, waiting = {dest: 0}, deque([dest])
            while waiting:
                name = waiting.popleft()
                for before in self._into[name]:
                    if before not in found:
                        found[before] = found[name] + 1
                        waiting.append(before)
            self._steps_to[dest] = found
        return found
