"""Whether a finished run is what the operations made of it.

Every row of a log must say what the clock arithmetic gives: an operation is launched when its rank's compute stream has
done what came before and awaited what it needed; a collective begins when the last member is there and the group's
stream is free; a send when its stream is free, a receive also when the message is there. Each time is checked against
the other rows, to the last float, so that all of them together have one solution: the run's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from minitrain.collectives import describe
from minitrain.errors import LawError, StrategyError
from minitrain.events import COMM, NOTE, ON_COMPUTE, PRICE, RECV, SAMPLES, SEND, STREAM, STRIDE, TIME, TYP
from minitrain.events import LAUNCHED as LAUNCHED_AT
from minitrain.predictor import PENDING, Price
from minitrain.strict.genuine import FIELDS
from minitrain.strict.model import StrictModel
from minitrain.strict.strangers import Final

_PASSES = frozenset({"forward", "loss", "backward", "backward_input", "backward_weight"})


class Transfer:
    """One rank's part in a communication, as its log has it.

    Args:
        rank: whose log.
        rows: the log's rows.
        row: where it stands.
    """

    __slots__ = ("awaited", "end", "launched", "rank", "row", "stream", "tag", "time", "typ")

    def __init__(self, rank: int, rows: Sequence[Any], row: int) -> None:
        self.rank = rank
        self.row = row
        self.typ: str = rows[row + TYP]
        self.time: float = rows[row + TIME]
        self.launched: float = rows[row + LAUNCHED_AT]
        price: Price = rows[row + PRICE]
        self.end: float | None = None if price is PENDING else self.time + price.seconds  # None: never settled
        self.stream = rows[row + STREAM]
        note = rows[row + NOTE]
        self.tag: Hashable = None if note is None else note.tag
        self.awaited: int | None = note.awaited if note is not None and note.overlaps else row // STRIDE + 1

    def expect(self, awaits: dict[int, float]) -> None:
        """Enter its end where it was awaited."""
        if self.awaited is not None and self.end is not None:
            awaits[self.awaited] = max(awaits.get(self.awaited, 0.0), self.end)

    def channel(self) -> tuple[Hashable, ...]:
        """Return its side of its channel: kind, source, dest and tag."""
        kind, peer = self.stream.kind, self.stream.peer
        source, dest = (self.rank, peer) if kind == SEND else (peer, self.rank)
        return kind, source, dest, self.tag

    def require_start(self, start: float) -> None:
        """Require that it began when it could.

        Raises:
            StrategyError: it did not.
        """
        if self.time != start:
            raise _tampered(self.rank, f"the start of a {self.typ}", self.time, start)


def audit(models: Sequence[StrictModel]) -> None:
    """Look whether transport, clocks, logs, stores and final weights were left to the operations.

    Args:
        models: the model of each rank, after the run.

    Raises:
        StrategyError: the transport was called directly, a clock or a log was written, or a model's parts exchanged.
        LawError: a final weight is not what was handed in.
    """
    for model in models:
        _require_untouched(model)
        _check_prices(model)
    transfers = [transfer for model in models for transfer in _replay(model)]
    _require_all_logged(models, transfers)
    _check_groups(transfers)
    _check_messages([transfer for transfer in transfers if transfer.stream.kind != COMM and transfer.end is not None])
    for model in models:
        _check_final_weights(model)


def _require_untouched(model: StrictModel) -> None:
    """Require the parts that the model was made of, and an account that agrees with the stores."""
    names = ("dist", "log", "runtime_predictor", "rank", "world_size", "num_layers", "global_batch_size")
    for name, given, present in zip(names, model.given, model.given_now(), strict=True):
        if given is not present and (not isinstance(given, int) or given != present):
            raise StrategyError(
                f"model.{name} of rank {model.given[3]} was exchanged during the run; leave it as it is",
                rank=model.given[3],
            )
    held = sum(model.account.units_of(value) for store in model.storage() for value in store.values())
    if held != model.account.units or len(model.log.rows) % STRIDE:
        raise StrategyError(
            f"rank {model.rank} changed its account of memory or its log; only stores and operations may",
            rank=model.rank,
        )


def _tampered(rank: int, what: str, found: float, expected: float) -> StrategyError:
    """Return the error for a time that does not follow from the rest of the logs."""
    return StrategyError(
        f"the clock of rank {rank} does not add up: {what} is {found!r} s, and its operations give {expected!r} s; "
        "model.time and model.log are for reading",
        rank=rank,
    )


def _replay(model: StrictModel) -> list[Transfer]:
    """Go through the compute stream of a rank, and return its communications.

    Raises:
        StrategyError: an operation did not begin when the one before it was over.
    """
    rows, rank, clock = model.log.rows, model.rank, 0.0
    transfers: list[Transfer] = []
    awaits: dict[int, float] = {}  # the latest end of what was awaited, by the place of the next event
    columns = (rows[column::STRIDE] for column in (STREAM, TIME, PRICE, LAUNCHED_AT))
    for place, (stream, time, price, launched) in enumerate(zip(*columns, strict=True)):
        if place in awaits and awaits[place] > clock:
            clock = awaits[place]
        if launched != clock:
            raise _tampered(rank, f"the launch of event {place}", launched, clock)
        if stream is ON_COMPUTE:
            if time != clock:
                raise _tampered(rank, f"the start of event {place}", time, clock)
            clock += price.seconds
        else:
            transfer = Transfer(rank, rows, place * STRIDE)
            transfers.append(transfer)
            transfer.expect(awaits)
    clock = max(clock, awaits.get(len(model.log), 0.0))
    if model.time != clock:
        raise _tampered(rank, "model.time at the end", model.time, clock)
    return transfers


def _check_prices(model: StrictModel) -> None:
    """Check what the passes through layers lasted; loads, updates and transfers do not say in the log what of."""
    compute = model.runtime_predictor.compute
    rows = model.log.rows
    known: dict[tuple[str, int], Price] = {}
    for typ, samples, price in zip(rows[TYP::STRIDE], rows[SAMPLES::STRIDE], rows[PRICE::STRIDE], strict=True):
        if typ not in _PASSES or known.get((typ, len(samples))) is price:
            continue
        known[typ, len(samples)] = expected = compute(typ, len(samples))
        if price != expected:
            raise _tampered(model.rank, f"the duration of a {typ}", price.seconds, expected.seconds)


def _require_all_logged(models: Sequence[StrictModel], transfers: Sequence[Transfer]) -> None:
    """Require that the transport did as many operations as the logs have."""
    world_size = models[0].world_size
    logged = sum(
        transfer.stream.kind != COMM or _group_size(transfer.stream.group, world_size) > 1 for transfer in transfers
    )
    done = models[0].dist.watch.operations
    if done != logged:
        raise StrategyError(
            f"the transport carried out {done} operations and the logs have {logged}; use the operations of the model, "
            "not those of model.dist, which cost no time",
            operations=done,
            logged=logged,
        )


def _group_size(group: tuple[int, ...] | None, world_size: int) -> int:
    """Return the number of ranks of a group."""
    return world_size if group is None else len(group)


def _check_groups(transfers: Sequence[Transfer]) -> None:
    """Check when collectives began: each meets those at the same place of its group's order."""
    groups: dict[Hashable, dict[int, list[Transfer]]] = defaultdict(lambda: defaultdict(list))
    for transfer in transfers:
        if transfer.stream.kind == COMM:
            groups[transfer.stream.group][transfer.rank].append(transfer)
    for members in groups.values():
        free = 0.0
        for meeting in zip(*members.values(), strict=False):  # what not all have started was never carried out
            if meeting[0].end is not None:
                start = max(free, *(part.launched for part in meeting))
                for part in meeting:
                    part.require_start(start)
                free = meeting[0].end


def _check_messages(transfers: Sequence[Transfer]) -> None:
    """Check when sends and receives began: each receive gets the message at the same place of its channel's order."""
    channels: dict[Hashable, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        channels[transfer.channel()].append(transfer)
    free: dict[Hashable, float] = defaultdict(float)
    taken: Counter[Hashable] = Counter()
    for transfer in transfers:
        kind, peer = transfer.stream.kind, transfer.stream.peer
        start = max(transfer.launched, free[transfer.rank, kind, peer])
        if kind == RECV:
            channel = transfer.channel()
            sent = channels[SEND, *channel[1:]]
            start = max(start, sent[taken[channel]].time if taken[channel] < len(sent) else 0.0)
            taken[channel] += 1
        transfer.require_start(start)
        free[transfer.rank, kind, peer] = transfer.end or 0.0


def _check_final_weights(model: StrictModel) -> None:
    """Check that every final weight is one that was handed in for its layer, and is what it was then."""
    for layer, weight in model.final_weights.items():
        origin = getattr(weight, "_origin", None)
        if not isinstance(origin, Final) or origin.ledger is not model.ledger:
            raise LawError(
                f"the final weight of layer {layer} on rank {model.rank} was not handed in there, got "
                f"{describe(weight)}; call model.set_final_weight",
                rank=model.rank,
                layer=layer,
            )
        if FIELDS[type(weight)](weight) != origin.fields or weight.layer != layer:
            raise LawError(
                f"the final weight of layer {layer} on rank {model.rank} was altered after it was handed in "
                f"(made at {origin.line}), got {describe(weight)}",
                rank=model.rank,
                layer=layer,
            )
