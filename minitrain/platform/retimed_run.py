"""A finished run, timed again on links that its transfers share with one another and with those of other runs.

The dependencies are those of `minitrain.run.contention`: program order, streams, launches, awaits, messages and
collectives; computing is slowed down by communication beside it, as there. A transfer takes links: a collective those
between neighbours of its ring, a message those of its route, a copy to or from the host those of PCIe. Where none of
them is crowded, every moment is that of `contention=True`, to the last float.

A receive takes no links, since its send does. It ends when its own time is over, and not before its send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from minitrain.events import COMM, HOST_MOVES, LAYER, OFFLOAD, PRICE, RECV, SEND, STREAM, STRIDE, TIME, TYP, EventLog
from minitrain.platform.fair_sharing import FairSharing, Flow
from minitrain.platform.timers import at
from minitrain.run.contention import Meeting, Retiming, TransferPart

if TYPE_CHECKING:
    from simpy import Environment

    from minitrain.platform.rank_routes import Phase, RankRoutes


@final
@dataclass(frozen=True, slots=True)
class SharedLink:
    """The reason why a transfer took longer than its price.

    Args:
        link: the link that it shared last.
        others: the transfers that it shared that link with.
        extra_s: by how much longer it took, s.
    """

    link: str
    others: tuple[str, ...]
    extra_s: float = 0.0

    def __str__(self) -> str:
        if not self.others:
            return f"its own ranks shared {self.link}"
        return f"shared {self.link} with {', '.join(self.others)}"


@final
class Replay(Retiming):
    """One run on shared links.

    Args:
        logs: the log of each rank.
        routes: those between its ranks.
        sharing: the flows of all runs that share the links.
        name: what other runs' reasons call this one; nothing where it is alone.
        processor_share: whether transfers slow down the computing beside them.

    Attributes:
        delays: why transfers took longer than their price, by rank and place in its log.
    """

    def __init__(
        self,
        logs: Sequence[EventLog],
        routes: RankRoutes,
        sharing: FairSharing,
        name: str = "",
        *,
        processor_share: bool = True,
    ) -> None:
        super().__init__(logs)
        self.routes = routes
        self.sharing = sharing
        self.env: Environment = sharing.env
        self.name = name
        self.processor_share = processor_share
        self.delays: dict[tuple[int, int], SharedLink] = {}
        self._phases: dict[tuple[Any, ...], list[Phase]] = {}
        self._late: dict[Meeting, list[Meeting]] = {}

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        at(self.env, time, lambda _: self._let(happen))

    def _let(self, happen: Callable[[], None]) -> None:
        """Call a function now, by the environment's clock."""
        self.now = self.env.now
        happen()

    def _carry(self, meeting: Meeting) -> None:
        part = meeting.parts[0]
        row = part.place * STRIDE
        rows = self.logs[part.rank]._rows
        kind = rows[row + STREAM].kind
        end = self.now + part.price.seconds
        if kind == RECV:
            self._at(end, lambda: self._receive(meeting))
            return
        phases = self._phases_of(part, rows[row + TYP], rows[row + STREAM], kind)
        _Carried(self, meeting, self._label(rows, row), phases, end).go_on()

    def _count_transfer(self, part: TransferPart, change: int) -> None:
        if self.processor_share:
            super()._count_transfer(part, change)

    def _receive(self, meeting: Meeting) -> None:
        """End a receive, unless its send is still under way."""
        send = meeting.message
        if send is not None and send.end is None:
            self._late.setdefault(send, []).append(meeting)
        else:
            self._end(meeting)

    def _phases_of(self, part: TransferPart, op: str, stream: Any, kind: str) -> list[Phase]:
        """Return what a transfer puts on the links, remembered for all that are alike."""
        key = (op, stream.group, part.price) if kind == COMM else (op, part.rank, stream.peer, part.price)
        found = self._phases.get(key)
        if found is None:
            found = self._phases[key] = self._make_phases(part, op, stream, kind)
        return found

    def _make_phases(self, part: TransferPart, op: str, stream: Any, kind: str) -> list[Phase]:
        if kind in HOST_MOVES:
            return self.routes.host_copy(part.rank, part.price, to_host=kind == OFFLOAD)
        if kind == SEND:
            return self.routes.message(part.rank, stream.peer, part.price)
        group = range(len(self.logs)) if stream.group is None else stream.group
        return self.routes.collective(op, group, part.price)

    def _label(self, rows: Sequence[Any], row: int) -> str:
        """Return what reasons call a transfer: "all_reduce of layer 17"."""
        layer = rows[row + LAYER]
        label = str(rows[row + TYP]) if layer is None else f"{rows[row + TYP]} of layer {layer}"
        return f"{self.name}: {label}" if self.name else label

    def finish(self, meeting: Meeting, slowed_by: Flow | None) -> None:
        """End a transfer, and the receives that waited for it."""
        self.now = self.env.now
        if slowed_by is not None and slowed_by.slowed_by is not None:
            lane, names = slowed_by.slowed_by
            others = tuple(name for name in names if name is not slowed_by.name)
            begun = self.logs[meeting.parts[0].rank]._rows[meeting.parts[0].place * STRIDE + TIME]
            extra_s = self.now - begun - meeting.parts[0].price.seconds
            reason = SharedLink(lane.link_id or lane.name, others, extra_s)
            for part in meeting.parts:
                self.delays[part.rank, part.place] = reason
        _lengthen(self, meeting)
        self._end(meeting)
        for receive in self._late.pop(meeting, ()):
            _lengthen(self, receive)
            self._end(receive)


@final
class _Carried:
    """A transfer under way: its phases, one after the other.

    The event of its end at its price is set when it begins, as in `Retiming`, so that events at one moment keep their
    order. If a flow was slowed, the transfer ends with the last flow instead.
    """

    __slots__ = ("_end", "_flow", "_label", "_meeting", "_phases", "_place", "_replay", "_slowed")

    def __init__(self, replay: Replay, meeting: Meeting, label: str, phases: list[Phase], end: float) -> None:
        self._replay = replay
        self._meeting = meeting
        self._label = label
        self._phases = phases
        self._place = 0
        self._end = end
        self._flow: Flow | None = None
        self._slowed: Flow | None = None
        replay._at(end, self._end_at_price)

    def go_on(self) -> None:
        """Begin the next phase, after its latency; or end."""
        replay, now = self._replay, self._replay.env.now
        if self._place == len(self._phases):
            if self._slowed is not None:
                replay.finish(self._meeting, self._slowed)
            return
        phase = self._phases[self._place]
        self._place += 1
        is_at_price = self._slowed is None and self._place == len(self._phases)
        end = self._end if is_at_price else now + phase.seconds
        if not phase.lanes or phase.size_bytes <= 0:
            if not is_at_price:
                replay._at(end, self.go_on)
            return
        self._flow = flow = Flow(
            self._label, phase.lanes, phase.size_bytes, phase.full_rate, lambda: self._arrived(flow), end
        )
        at(replay.env, min(now + phase.latency_s, end), lambda _: replay.sharing.begin(flow))

    def _arrived(self, flow: Flow) -> None:
        if flow.was_slowed:
            self._slowed = flow
        self.go_on()

    def _end_at_price(self) -> None:
        """End, unless a flow was slowed, or is."""
        if self._slowed is None and (self._flow is None or not self._flow.was_slowed):
            self._replay.finish(self._meeting, None)


def _lengthen(replay: Replay, meeting: Meeting) -> None:
    """Write into the logs how long a transfer really took, where that is not its price."""
    for part in meeting.parts:
        rows, row = replay.logs[part.rank]._rows, part.place * STRIDE
        if rows[row + TIME] + part.price.seconds != replay.now:
            rows[row + PRICE] = replace(part.price, seconds=replay.now - rows[row + TIME])
