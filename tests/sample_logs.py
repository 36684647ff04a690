"""Made-up event logs of textbook schedules, to test analyses and pictures without the simulator.

Durations are constants, and memory is a plausible curve: nothing is modelled here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minitrain.operations import COMM, RECV, SEND, Event

_FORWARD, _TRANSFER, _REDUCE, _UPDATE = 2e-3, 4e-4, 2.5e-3, 1e-3
_WEIGHT, _ACTIVATION = 2.0**24, 2.0**27


@dataclass
class _Rank:
    """One rank's clock (s), memory (elements) and log."""

    rank: int
    time: float = 0.0
    memory: float = 0.0
    comm_end: float = 0.0
    log: list[Event] = field(default_factory=list)

    def compute(self, typ: str, layer: int, samples: frozenset[int], duration: float, gain: float = 0.0) -> None:
        self.log.append(Event(typ, layer, self.rank, self.time, duration, self.memory, samples))
        self.time += duration
        self.memory += gain


def one_f_one_b(num_stages: int = 4, num_microbatches: int = 8, num_layers: int = 1) -> list[list[Event]]:
    """Return the logs of a 1F1B pipeline with `num_layers` layers a stage; messages block both sides."""
    ranks = [_Rank(rank) for rank in range(num_stages)]
    programs = [_stage(rank, num_stages, num_microbatches, num_layers) for rank in ranks]
    mail: dict[tuple[int, int, str, int], float] = {}
    waiting = [0] * num_stages
    while any(waiting[stage] < len(program) for stage, program in enumerate(programs)):
        for stage, program in enumerate(programs):
            while waiting[stage] < len(program) and program[waiting[stage]](mail):
                waiting[stage] += 1
    return [rank.log for rank in ranks]


_Op = Callable[[dict[tuple[int, int, str, int], float]], bool]


def _stage(rank: _Rank, num_stages: int, num_microbatches: int, num_layers: int) -> list[_Op]:
    """Return the operations of one stage; each tells whether it could be done."""
    warmup = min(num_stages - rank.rank, num_microbatches)
    order = [("F", m) for m in range(warmup)]
    for m in range(num_microbatches):
        order += [("B", m)] + ([("F", m + warmup)] if m + warmup < num_microbatches else [])
    layers = list(range(rank.rank * num_layers, (rank.rank + 1) * num_layers))
    ops: list[_Op] = [_compute(rank, "load_weights", layers, -1, _UPDATE, _WEIGHT)]
    for what, m in order:
        ops += _forward(rank, m, layers, num_stages) if what == "F" else _backward(rank, m, layers, num_stages)
    return [*ops, _compute(rank, "update", layers, -1, _UPDATE, 0.0)]


def _forward(rank: _Rank, m: int, layers: list[int], num_stages: int) -> list[_Op]:
    """Return receive, forward and send of one microbatch."""
    ops = [_receive(rank, rank.rank - 1, "F", m, layers[0])] if rank.rank else []
    ops.append(_compute(rank, "forward", layers, m, _FORWARD, _ACTIVATION))
    return [*ops, _send(rank, rank.rank + 1, "F", m, layers[-1] + 1)] if rank.rank < num_stages - 1 else ops


def _backward(rank: _Rank, m: int, layers: list[int], num_stages: int) -> list[_Op]:
    """Return receive, backward and send of one microbatch."""
    ops = [_receive(rank, rank.rank + 1, "B", m, layers[-1])] if rank.rank < num_stages - 1 else []
    ops.append(_compute(rank, "backward", layers[::-1], m, 2 * _FORWARD, -_ACTIVATION))
    return [*ops, _send(rank, rank.rank - 1, "B", m, layers[0] - 1)] if rank.rank else ops


def _compute(rank: _Rank, typ: str, layers: list[int], m: int, duration: float, gain: float) -> _Op:
    samples = frozenset() if m < 0 else frozenset([2 * m, 2 * m + 1])

    def run(_: dict[tuple[int, int, str, int], float]) -> bool:
        for layer in layers:
            rank.compute(typ, layer, samples, duration, gain)
        return True

    return run


def _send(rank: _Rank, peer: int, tag: str, m: int, layer: int) -> _Op:
    def run(mail: dict[tuple[int, int, str, int], float]) -> bool:
        mail[rank.rank, peer, tag, m] = rank.time
        rank.log.append(_message(rank, SEND, peer, tag, m, layer, rank.time, None))
        rank.time += _TRANSFER
        return True

    return run


def _receive(rank: _Rank, peer: int, tag: str, m: int, layer: int) -> _Op:
    def run(mail: dict[tuple[int, int, str, int], float]) -> bool:
        if (peer, rank.rank, tag, m) not in mail:
            return False
        start = max(rank.time, mail[peer, rank.rank, tag, m])
        rank.log.append(_message(rank, RECV, peer, tag, m, layer, start, peer if start > rank.time else None))
        rank.time = start + _TRANSFER
        return True

    return run


def _message(
    rank: _Rank, kind: str, peer: int, tag: str, m: int, layer: int, start: float, waited_for: int | None
) -> Event:
    return Event(
        kind,
        layer,
        rank.rank,
        start,
        _TRANSFER,
        rank.memory,
        frozenset([2 * m, 2 * m + 1]),
        stream=kind,
        peer=peer,
        tag=tag,
        size_bytes=2.0**24,
        launched=rank.time,
        waited_for=waited_for,
        awaited=len(rank.log) + 1,
    )


def data_parallel(
    world_size: int = 4, num_layers: int = 8, overlap: bool = False, straggler: float = 1.1
) -> list[list[Event]]:
    """Return the logs of DDP whose last rank is `straggler` times slower; reductions may overlap backward."""
    ranks = [_Rank(rank) for rank in range(world_size)]
    for rank in ranks:
        _forward_and_load(rank, num_layers, straggler if rank.rank == world_size - 1 else 1.0)
    for layer in reversed(range(num_layers)):
        for rank in ranks:
            slow = straggler if rank.rank == world_size - 1 else 1.0
            rank.compute("backward", layer, frozenset([rank.rank]), 2 * _FORWARD * slow, _WEIGHT - _ACTIVATION)
        _all_reduce(ranks, layer, num_layers, overlap)
    for rank in ranks:
        rank.time = max(rank.time, rank.comm_end)
        for layer in range(num_layers):
            rank.compute("update", layer, frozenset(range(world_size)), _UPDATE, -_WEIGHT)
    return [rank.log for rank in ranks]


def _forward_and_load(rank: _Rank, num_layers: int, slow: float) -> None:
    for layer in range(num_layers):
        rank.compute("load_weights", layer, frozenset(), _UPDATE, _WEIGHT)
    for layer in range(num_layers):
        rank.compute("forward", layer, frozenset([rank.rank]), _FORWARD * slow, _ACTIVATION)


def _all_reduce(ranks: list[_Rank], layer: int, num_layers: int, overlap: bool) -> None:
    """Log one collective of all ranks; launched to overlap, it is awaited before the first update."""
    latest = max(ranks, key=lambda rank: (max(rank.time, rank.comm_end), -rank.rank))
    start = max(latest.time, latest.comm_end)
    for rank in ranks:
        event = Event("all_reduce", layer, rank.rank, start, _REDUCE, rank.memory, frozenset(range(len(ranks))))
        event.stream, event.size_bytes, event.launched = COMM, 2.0**25, rank.time
        event.waited_for = latest.rank if max(rank.time, rank.comm_end) < start else None
        updates = 2 * num_layers + 2 * num_layers
        event.awaited = updates if overlap else len(rank.log) + 1
        rank.log.append(event)
        rank.comm_end = start + _REDUCE
        rank.time = rank.time if overlap else rank.comm_end
