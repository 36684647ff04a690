"""What collectives do to values: pure functions from what the members bring to their results.

Every member gets a result of its own; a reduction combines in rank order, so that the outcome never depends on who
arrived first. A bucket (a list of tensors) is worked on tensor by tensor.

A law of a collective asks `Brought` what the members bring, along the axes of `minitrain.tensors.placed`, and returns
what makes each member's result. Folded runs ask the same laws with one value that stands for a class of ranks.

A new collective is a law and a record here, and a method in `minitrain.engine.strategy_model`. All else that knows
collectives reads the records.

What a rank sends, as records: messages to others, moves to host memory and back, and from there to the storage.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, Protocol

from minitrain.errors import CollectiveMismatchError, LawError, TensorTypeError
from minitrain.operations.computations import Looks
from minitrain.tensors import Activation, ActivationGrad, Sharded, Tensor, WeightGrad, clone
from minitrain.tensors.compressed import CompressedGrad
from minitrain.tensors.fields import fields_of
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart, grouped, ranges, singleton
from minitrain.tensors.kinds import altered, fields_beside
from minitrain.tensors.placed import (
    COPIES,
    PARTIAL,
    PIECES,
    SHARDS,
    ExpertGrad,
    KeysValues,
    KeysValuesGrad,
    TableGrad,
    gathered,
    in_context,
    in_pieces,
    moved,
    piece_of,
    remember,
    with_parts,
    with_pieces,
)

Results = list[Any]

ResultOf = Callable[[Any, Any], Any]
"""Makes a member's result of what it brought and its place in the group."""


class Brought(Protocol):
    """What the members of a collective bring, as far as laws ask.

    Attributes:
        op: the collective.
        first: what the lowest member brings.
        size: number of members.
        detail: what else they agree in, such as the root of a broadcast.
    """

    op: str
    first: Any
    size: int
    detail: Any

    def mismatch(self, rule: str) -> Exception:
        """Return the error of members that do not keep a rule."""

    def agree(self, *names: str) -> None:
        """Require tensors of one kind that agree in some fields."""

    def is_one(self, name: str) -> bool:
        """Return whether all bring the same in a field."""

    def union(self, name: str) -> Any:
        """Return the union of a set that each brings."""

    def total(self, count: Callable[[Any], int]) -> int:
        """Return the sum of a number over what each brings."""


class Values:
    """What members bring, one value each.

    Args:
        op: the collective.
        values: in rank order.
        ranks: the members.
        detail: what else they agree in.
    """

    def __init__(self, op: str, values: Sequence[Any], ranks: Sequence[int], detail: Any = None) -> None:
        self.op, self.values, self.ranks, self.detail = op, values, ranks, detail
        self.first, self.size = values[0], len(values)

    def mismatch(self, rule: str) -> Exception:
        """Return the error that lists what each rank brought."""
        return mismatch(self.op, self.values, self.ranks, rule)

    def agree(self, *names: str) -> None:
        """Require tensors of one kind that agree in some fields."""
        first, found_in = self.first, attrgetter(*names)
        kind, found = first.__class__, found_in(first)
        for value in self.values:
            if value.__class__ is not kind or found_in(value) != found:
                raise self.mismatch(_disagreement(names, first, value))

    def is_one(self, name: str) -> bool:
        """Return whether all bring the same in a field."""
        field_of = attrgetter(name)
        field = field_of(self.first)
        return all(field_of(value) == field for value in self.values)

    def union(self, name: str) -> Any:
        """Return the union of a set that each brings."""
        first, *others = map(attrgetter(name), self.values)
        return first.union(*others)

    def total(self, count: Callable[[Any], int]) -> int:
        """Return the sum of a number over what each brings."""
        return sum(map(count, self.values))


def _disagreement(names: Sequence[str], first: Any, other: Any) -> str:
    """Return the rule that two tensors do not keep, which must be of one kind and agree in some fields."""
    known = [name for name in names if first.sequence != WHOLE_SEQUENCE or "sequence" not in name]
    if other.__class__ is first.__class__:
        differing = [name for name in known if attrgetter(name)(other) != attrgetter(name)(first)]
    else:
        differing = ["kind"]
    told, where = (", ".join(fields).replace("sequence.", "") for fields in (known, differing))
    return f"must bring the same kind of tensor with the same {told}, and differ in {where}"


def tensors_of(value: Any) -> list[Any]:
    """Return the tensors of a bucket, or the one tensor."""
    return value if isinstance(value, list) else [value]


def by_tensor(values: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Return the values of buckets by tensor, of which a broadcast needs the root's alone."""
    bucket = next((value for value in values if isinstance(value, list)), None)
    if bucket is None:
        return [values]
    return list(zip(*([None] * len(bucket) if value is None else value for value in values), strict=True))


def describe(value: Any) -> str:
    """Return what a member brought in words: the fields of a tensor that must agree, or just its type."""
    if isinstance(value, list):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, str):  # a description already
        return value
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__}({', '.join(_facts(value))})"


def _facts(tensor: Any) -> Iterator[str]:
    """Yield the fields of a tensor that must agree, in words."""
    fields = tensor.__dataclass_fields__
    yield f"layer {tensor.layer}"
    yield from (f"{name} {_brief(getattr(tensor, name))}" for name in ("step", "samples") if name in fields)
    yield from (f"{name} {_of(tensor, name)}" for name in ("shards", "parts") if name in fields)
    if "uses" in fields:
        yield f"uses {_brief(tensor.uses)}"
    if "sequence" in fields:
        sequence, name = tensor.sequence, "sequence shards" if "shards" in fields else "shards"
        is_cut, in_pieces = sequence.num_shards > 1, sequence.num_pieces > 1
        if is_cut or (name == "shards" and not in_pieces and tensor.__class__ not in _OFTEN_WHOLE):
            yield f"{name} {_of(sequence, 'shards')}"
        if in_pieces:
            yield f"{'pieces' if is_cut else name} {_of(sequence, 'pieces')}"
    for name in ("keys", "queries"):
        if name in fields:
            yield f"{name} {_brief(getattr(tensor, name))} of {tensor.sequence.num_shards}"


_OFTEN_WHOLE = frozenset((*PARTIAL, *COPIES))


def _of(holder: Any, name: str) -> str:
    """Return a set and the number of the whole."""
    return f"{_brief(getattr(holder, name))} of {getattr(holder, f'num_{name}')}"


def _brief(value: Any) -> str:
    """Return a number, or a set of numbers as ranges."""
    if not isinstance(value, frozenset):
        return str(value)
    numbers = sorted(value)
    if len(numbers) > 4 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    more = ", ..." if len(numbers) > 8 else ""
    return "{" + ", ".join(str(number) for number in numbers[:8]) + more + "}"


def mismatch(op: str, values: Sequence[Any], ranks: Sequence[int], rule: str) -> CollectiveMismatchError:
    """Return the error that lists what each rank brought, ranks with the same together."""
    brought = grouped(zip(map(describe, values), ranks, strict=True))
    listing = "; ".join(f"{_ranks(who)}: {what}" for what, who in brought.items())
    return CollectiveMismatchError(
        f"all ranks of {op} {rule}; {listing}", op=op, ranks=tuple(ranks), brought=brought, rule=rule
    )


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_brief(frozenset(ranks))[1:-1]}"


def all_reduce(brought: Brought) -> ResultOf:
    """Sum what all bring; each member gets the sum."""
    first = brought.first
    if isinstance(first, PARTIAL):
        sum_of_parts = _sum_of_parts(brought)
        return lambda value, _: remember(clone(sum_of_parts), value)
    if isinstance(first, CompressedGrad):
        return _copies_of(_messages_of_all(brought, is_sum=True))
    if isinstance(first, KeysValuesGrad):
        sum_of_queries = _sum_over_queries(brought)
        return lambda *_: clone(sum_of_queries)
    if not isinstance(first, WeightGrad):
        other = _combined(brought, operator.add, "add (a WeightGrad)")
        return lambda *_: copy.copy(other)
    if first.__class__ not in (WeightGrad, ExpertGrad, TableGrad) and not brought.is_one("parts"):
        pieces = _pieces_of_what_all_hold(brought)
        return lambda value, _: altered(value, sequence=value.sequence.with_pieces(pieces))
    return _copies_of(_sum_of_gradients(brought))


def reduce_scatter(brought: Brought) -> ResultOf:
    """Sum what all bring; the k-th member gets the k-th shard of the sum, or what is its own of it."""
    first, size = brought.first, brought.size
    if isinstance(first, PARTIAL):
        sum_of_parts = _sum_of_parts(brought)
        if isinstance(sum_of_parts, PARTIAL):
            missing = ranges(set(range(sum_of_parts.num_parts)) - sum_of_parts.parts)
            raise brought.mismatch(f"must together bring every part; {missing} is missing")
        return lambda value, place: remember(piece_of(sum_of_parts, place, size), value)
    if isinstance(first, KeysValuesGrad):
        total = _sum_over_queries(brought)
        shards = total.sequence.shards
        if total.queries != shards:
            raise brought.mismatch(
                "must together have queries of the same shards as the keys are of, so that each gets its own; "
                f"{ranges(shards ^ total.queries)} is not in both"
            )
        return lambda value, _: altered(total, sequence=total.sequence.with_shards(value.queries))
    if not isinstance(first, WeightGrad):
        other = _combined(brought, operator.add, "add (a WeightGrad)")
        return lambda _, place: other.shard(place, size)
    total = _sum_of_gradients(brought)
    if not total.is_complete():
        raise brought.mismatch("must bring complete gradients")
    return _shards_of(total, size)


def all_gather(brought: Brought) -> ResultOf:
    """Put the shards of all together; each member gets what holds them."""
    first = brought.first
    if isinstance(first, Activation | ActivationGrad) and in_pieces(first):
        brought.agree("layer", "samples", "sequence.shards", "sequence.cut")
        whole = with_pieces(first, brought.union("sequence.pieces"))
        return lambda value, _: gathered(clone(whole), value)
    if isinstance(first, KeysValues):
        brought.agree("layer", "samples", "sequence.cut", "parts", "num_parts")
        both: Any = altered(first, sequence=first.sequence.with_shards(brought.union("sequence.shards")))
    elif isinstance(first, CompressedGrad):
        both = _messages_of_all(brought, is_sum=False)
    elif isinstance(first, Sharded):
        brought.agree(*fields_beside(first.__class__, "shards"))
        both = altered(first, shards=brought.union("shards"))
    else:
        both = _combined(brought, _combine, "combine (a Weight, WeightGrad or OptState)")
        return lambda *_: copy.copy(both)
    return _copies_of(both)


def _copies_of(tensor: Any) -> ResultOf:
    """Give each member an equal tensor, an object of its own."""
    kind, fields = tensor.__class__, fields_of(tensor)
    return lambda *_: kind(*fields)


def _shards_of(tensor: Any, num_shards: int) -> ResultOf:
    """Give the k-th member the k-th shard of a tensor."""
    kind, fields = tensor.__class__, list(fields_of(tensor))
    at = list(kind.__dataclass_fields__).index("shards")
    fields[at + 1] = num_shards

    def shard(_: Any, place: Any) -> Any:
        fields[at] = singleton(place)
        return kind(*fields)

    return shard


def all_to_all(brought: Brought) -> ResultOf:
    """Give the k-th item of every member's list to the k-th member; or copies of tokens to experts, and back."""
    values = getattr(brought, "values", [brought.first])
    if any(value.__class__ in COPIES for value in values):
        return _exchange(brought)
    for rank, value in zip(getattr(brought, "ranks", [0]), values, strict=True):
        if len(value) != brought.size:
            rule = f"all_to_all needs one tensor for each of the {brought.size} ranks, rank {rank} brought {len(value)}"
            raise LawError(rule, rank=rank)
    return lambda _, place: [_duplicate(value[place]) for value in values]


def broadcast(brought: Brought) -> ResultOf:
    """Give each member what the root brings."""
    value = brought.values[brought.ranks.index(brought.detail)]  # type: ignore[attr-defined]  # never of folded ranks
    return lambda *_: _duplicate(value)


def barrier(_: Brought) -> ResultOf:
    """Give nothing: members wait for one another."""
    return lambda *_: None


def _exchange(brought: Brought) -> ResultOf:
    """Give the k-th member the copies for the k-th part of the experts; or those of its own samples, back.

    Members bring copies of their own samples for all parts, or copies for a part each, of the samples of all.
    """
    first, size = brought.first, brought.size
    if first.__class__ not in COPIES or not brought.is_one("__class__"):
        raise brought.mismatch("must bring copies of tokens, or a list of one tensor a rank each")
    brought.agree("layer", "num_parts", "load", "sequence.cut")
    if first.num_parts != size:
        rule = f"must be as many as there are parts of the experts ({first.num_parts}), which are {size}"
        raise brought.mismatch(rule)
    if brought.total(lambda value: len(value.parts) == value.num_parts) == size:
        samples, sequence = _covered(brought, "copies of different samples, or different parts of all of them")
        return lambda value, place: moved(value, samples, singleton(place), sequence)
    parts = brought.union("parts")
    if len(parts) != brought.total(lambda value: len(value.parts)) or len(parts) != size:
        raise brought.mismatch("must bring copies for all parts of the experts, or for another part each")
    brought.agree("samples", "sequence")
    return lambda value, _: moved(value, value.own, parts, value.own_sequence)


def _sum_of_parts(brought: Brought) -> Any:
    """Return the sum of partial sums of different parts."""
    brought.agree(*fields_beside(brought.first.__class__, "parts"))
    return with_parts(brought.first, _all_different(brought, "parts", "different parts of one sum"))


def _all_different(brought: Brought, name: str, what: str, why: str = ", so that each is added once") -> Any:
    """Return the union of sets that have nothing in common."""
    found, members = brought.union(name), attrgetter(name)
    if len(found) != brought.total(lambda value: len(members(value))):
        raise brought.mismatch(f"must bring {what}{why}")
    return found


def _sum_of_gradients(brought: Brought) -> Any:
    """Return the sum of gradients of one weight: over samples, over parts of the sequence, or over both at once."""
    first = brought.first
    if first.__class__ is TableGrad:
        brought.agree("samples", "parts", "num_parts", "sequence")
        return altered(first, uses=_all_different(brought, "uses", "shares of different uses of the table"))
    if first.__class__ is WeightGrad:
        brought.agree("layer", "shards", "num_shards")
        return altered(first, samples=brought.union("samples"))
    if first.__class__ is ExpertGrad and not brought.is_one("parts"):
        raise brought.mismatch(
            "must bring gradients of one part of the experts: those of different parts have nothing to add, and hold "
            "the samples of all ranks that exchange tokens already; reduce them over the ranks that hold the same part"
        )
    of_pieces = () if first.__class__ in PIECES else ("sequence.pieces",)
    brought.agree("layer", "shards", "num_shards", "parts", "num_parts", "sequence.cut", *of_pieces)
    if first.sequence.share == 1:
        return altered(first, samples=brought.union("samples"))
    samples, sequence = _covered(
        brought,
        "gradients of the same shards of the sequence, or of the same samples in different shards, so that each sample "
        "is added once in each shard",
    )
    return altered(first, samples=samples, sequence=sequence)


def _messages_of_all(brought: Brought, *, is_sum: bool) -> Any:
    """Return the messages of all workers, summed or side by side, each worker's once."""
    brought.agree("layer", "shards", "num_shards", "how", "phase")
    first = brought.first
    if first.how.sums is not is_sum:
        rule = "gather them" if is_sum else "all_reduce them"
        raise brought.mismatch(f"must bring what it can put together, and messages of {first.how} are not that; {rule}")
    samples = _all_different(brought, "samples", "messages of different samples", ", so that each is counted once")
    return altered(first, samples=samples, members=1 if is_sum else brought.total(lambda value: value.members))


def _covered(brought: Brought, what: str) -> tuple[Any, SequencePart]:
    """Return the samples and the part of their sequences that the members bring together, each token once."""
    samples, sequence = brought.union("samples"), brought.first.sequence
    sequence = sequence.with_shards(brought.union("sequence.shards")).with_pieces(brought.union("sequence.pieces"))
    if len(samples) * sequence.count != brought.total(lambda value: len(value.samples) * value.sequence.count):
        raise brought.mismatch(f"must bring {what}")
    return samples, sequence


def _pieces_of_what_all_hold(brought: Brought) -> Any:
    """Return the pieces of each sequence over which members, with a part each, sum what all parts hold (norms)."""
    brought.agree(*fields_beside(brought.first.__class__, "parts", "sequence"), "sequence.shards", "sequence.cut")
    what = "gradients of one part, or of parts that have each seen other shards of the sequence"
    return _all_different(brought, "sequence.pieces", what, "; parts that have seen all of it have nothing to add")


def _sum_over_queries(brought: Brought) -> KeysValuesGrad:
    """Return the sum of gradients of the same keys and values, each over other queries."""
    brought.agree(*fields_beside(KeysValuesGrad, "queries"))
    queries = _all_different(brought, "queries", "sums over different queries")
    found: KeysValuesGrad = altered(brought.first, queries=queries)
    return found


def _combined(brought: Brought, together: Callable[[Any, Any], Any], what: str) -> Any:
    """Return what values come to that are no tensors of ours, in rank order: those of a bare `Dist` may be any."""
    try:
        return reduce(together, getattr(brought, "values", [brought.first]))
    except (TypeError, AttributeError) as error:
        kind = type(brought.first).__name__
        raise TensorTypeError(f"{brought.op} needs values that {what}, got {kind}", value=brought.first) from error


def at_root(law: Callable[[Brought], ResultOf]) -> Callable[[Brought], ResultOf]:
    """Return the law by which the root alone gets what all would get by another one."""

    def at_the_root(brought: Brought) -> ResultOf:
        result_of, ranks = law(brought), brought.ranks  # type: ignore[attr-defined]  # never of folded ranks
        root = ranks.index(brought.detail)
        return lambda value, place: result_of(value, place) if place == root else None

    return at_the_root


def _combine(left: Any, right: Any) -> Any:
    """Return what holds the shards of both."""
    if in_context(left):
        raise TypeError("shards of a sequence go through the whole network, and are not put together")
    return left.combine(right)


def require_whole(results: Results, values: Sequence[Any], ranks: Sequence[int]) -> None:
    """Raise a LawError if what all ranks of the world gathered is not complete."""
    first = results[0]
    if isinstance(first, Sharded) and not first.is_complete():
        raise mismatch("all_gather", values, ranks, "must together bring every shard")


def results_that_are(results: Sequence[Any]) -> Results:
    """Return the results without those of members that get nothing, where a root alone gets something."""
    return [result for result in results if any(item is not None for item in tensors_of(result))]


def _duplicate(value: Any) -> Any:
    """Return an equal value, an object of its own; so are the tensors of a bucket."""
    return [_duplicate(item) for item in value] if isinstance(value, list) else copy.copy(value)


def perform(op: str, values: Sequence[Any], ranks: Sequence[int], detail: Any, *, whole: bool) -> Results:
    """Return the members' results of a collective.

    Args:
        op: which collective.
        values: what the members brought, in rank order.
        ranks: the members.
        detail: the root, of a collective that has one.
        whole: whether a gather must give complete tensors (all ranks of the world take part).

    Raises:
        CollectiveMismatchError: the values do not belong together.
        TensorTypeError: the operation is not defined for such values.
    """
    record = COLLECTIVES[op]
    if record.takes_buckets and any(map(_is_bucket, values)):
        lengths = {len(value) if isinstance(value, list) else None for value in values}
        if len(lengths) != 1:
            raise mismatch(op, values, ranks, "must bring buckets of the same length")
        places = [perform(op, place, ranks, detail, whole=whole) for place in zip(*values, strict=True)]
        return [list(results) for results in zip(*places, strict=True)] if places else [[] for _ in values]
    make = record.law(Values(op, values, ranks, detail))
    results = [make(value, place) for place, value in enumerate(values)]
    if whole and record.gives == "union":
        require_whole(results_that_are(results), values, ranks)
    return results


def _is_bucket(value: Any) -> bool:
    """Return whether a value is a list of tensors; any other list is a value that may add like a number."""
    return isinstance(value, list) and all(isinstance(item, Tensor) or _is_bucket(item) for item in value)


@dataclass(frozen=True, slots=True, eq=False)
class Collective(Looks):
    """A collective: what it does to values and memory, what it puts on the wire, and what others call it.

    Args:
        name: of the method of a rank, and of its events.
        law: what members must bring, and what each gets.
        gives: what comes of what all bring: their sum, which takes its place in memory; what holds the shards of all;
            a copy of the root's; tensors of one another; or nothing.
        scatters: whether each member gets its own shard of that.
        to_root: the collective by which all get what here the root alone gets; "" where there is none.
        priced_by: the tensor whose bytes are priced: what a member gives, what it gets, or the most that one gives.
        kinds: tensors that folded ranks may bring, whose results follow from one of them by symmetry.
        takes_buckets: whether members may bring lists of tensors, which share one latency.
        passes: how often a ring takes the bytes round, (n-1)/n of them each time; 0 where there is no ring.
        priced_as: the operation whose row prices it on a network that has none of its own.
        wire_share: the share of the bytes that are priced so, by the number of ranks.
        algorithms: those that a strategy may ask for.
        chakra: its number in et_def.proto of MLCommons Chakra.
        nccl: the name of its kernel, as Holistic Trace Analysis knows it.
        color: of its bars.
    """

    name: str
    law: Callable[[Brought], ResultOf]
    gives: Literal["sum", "union", "copy", "exchange", "nothing"]
    chakra: int
    nccl: str
    color: str
    _: KW_ONLY
    scatters: bool = False
    to_root: str = ""
    priced_by: Literal["given", "result", "largest"] = "given"
    kinds: tuple[type[Any], ...] = ()
    takes_buckets: bool = True
    passes: int = 0
    priced_as: str | None = None
    wire_share: Callable[[float], float] = lambda _: 1
    algorithms: tuple[str, ...] = ()

    @property
    def result_is_new(self) -> bool:
        """Whether the result has memory of its own, not that of what was given."""
        return self.gives in ("union", "copy", "exchange")

    @property
    def has_root(self) -> bool:
        """Whether one member is named from which, or to which, all goes."""
        return self.gives == "copy" or bool(self.to_root)

    @property
    def has_two_levels(self) -> bool:
        """Whether it may be done inside nodes and across them."""
        return "hierarchical" in self.algorithms or self.gives == "exchange"


_SUMMANDS = (WeightGrad, *PARTIAL, KeysValuesGrad, CompressedGrad)
_RING = ("ring", "hierarchical")
_IN_ORDER = (
    Collective(
        "all_reduce", all_reduce, "sum", 0, "ncclDevKernel_AllReduce", "#CC79A7",
        kinds=_SUMMANDS, passes=2, algorithms=("ring", "tree", "hierarchical"),
        torch="torch.distributed.all_reduce(grad)", jax='jax.lax.psum(grad, "dp")',
    ),
    Collective(
        "reduce_scatter", reduce_scatter, "sum", 7, "ncclDevKernel_ReduceScatter", "#D55E00", ink="#ffffff",
        scatters=True, kinds=_SUMMANDS, passes=1, algorithms=_RING,
        torch="torch.distributed.reduce_scatter_tensor(shard, grad)", jax='jax.lax.psum_scatter(grad, "dp")',
    ),
    Collective(
        "all_gather", all_gather, "union", 2, "ncclDevKernel_AllGather", "#0072B2", ink="#ffffff",
        priced_by="result", kinds=(Sharded, *SHARDS, KeysValues), passes=1, algorithms=_RING,
        torch="torch.distributed.all_gather_into_tensor(whole, shard)", jax='jax.lax.all_gather(shard, "dp")',
    ),
    Collective(
        "reduce", at_root(all_reduce), "sum", 1, "ncclDevKernel_Reduce", "#DDCC77",
        to_root="all_reduce", priced_as="all_gather", torch="torch.distributed.reduce(grad, dst)",
    ),
    Collective(
        "broadcast", broadcast, "copy", 5, "ncclDevKernel_Broadcast", "#44AA99",
        priced_by="result", takes_buckets=False, priced_as="all_gather",
        torch="torch.distributed.broadcast(weight, src)",
        jax="jax.experimental.multihost_utils.broadcast_one_to_all(weight)",
    ),
    Collective(
        "all_to_all", all_to_all, "exchange", 6, "ncclDevKernel_AllToAll", "#882255",
        ink="#ffffff", dark="#C04A86", dark_ink="#ffffff",
        priced_by="largest", kinds=tuple(COPIES), takes_buckets=False, priced_as="p2p",
        wire_share=lambda num_ranks: (num_ranks - 1) / num_ranks,
        torch="torch.distributed.all_to_all_single(received, tokens)", jax='jax.lax.all_to_all(tokens, "ep", 0, 0)',
    ),
    Collective(
        "barrier", barrier, "nothing", 9, "ncclDevKernel_Barrier", "#AAAAAA",
        takes_buckets=False, priced_as="all_reduce", wire_share=lambda _: 0,
        torch="torch.distributed.barrier()", jax="jax.experimental.multihost_utils.sync_global_devices(name)",
    ),
)  # fmt: skip
COLLECTIVES = {record.name: record for record in _IN_ORDER}
"""All collectives, by name."""

RING_ROWS: Mapping[str, tuple[float, float | None]] = MappingProxyType(
    {"p2p": (1.0, None), **{record.name: (float(record.passes), -1.0) for record in _IN_ORDER if record.passes}}
)
"""What crosses the wire of messages and of rings, as rows of a network; see `minitrain.machine.network`."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfer(Looks):
    """A transfer between two memories, on a stream of its own for each partner and direction.

    Args:
        name: of its events, and of the kind of its stream.
        submits: the method of a rank that submits it.
        partner: whom or what it goes to or comes from, in words.
        kernel: its name, as Holistic Trace Analysis knows it.
        chakra: the type of its node in et_def.proto of MLCommons Chakra.
        color: of its bars.
        of_host: whether it is between host memory and a device, or the storage, or the host's own work.
        on_host: whether what it is given lies in host memory, and stays there.
        result_is_new: whether the result takes memory of the device.
    """

    name: str
    submits: str
    partner: str
    kernel: str
    chakra: int
    color: str
    _: KW_ONLY
    of_host: bool = False
    on_host: bool = False
    result_is_new: bool = False


_TRANSFERS_IN_ORDER = (
    Transfer(
        "send", "_send", "to rank", "ncclDevKernel_Send", 5, "#332288",
        ink="#ffffff", dark="#6F5FE8", dark_ink="#ffffff",
        torch="torch.distributed.isend(activation, dst)", jax='jax.lax.ppermute(activation, "pp", pairs)',
    ),
    Transfer(
        "recv", "_receive", "from rank", "ncclDevKernel_Recv", 6, "#8C7BC8",
        ink="#ffffff", dark="#B9ACEB", dark_ink="#111111", result_is_new=True,
        torch="torch.distributed.irecv(activation, src)", jax='jax.lax.ppermute(activation, "pp", pairs)',
    ),
    Transfer(
        "offload", "_offload", "to the host", "Memcpy DtoH", 3, "#999933", of_host=True,
        torch='torch.Tensor.to(state, "cpu", non_blocking=True)', jax="jax.device_put(state, host)",
    ),
    Transfer(
        "fetch", "_fetch", "from the host", "Memcpy HtoD", 2, "#DDCC77", of_host=True, result_is_new=True,
        torch='torch.Tensor.to(state, "cuda", non_blocking=True)', jax="jax.device_put(state, device)",
    ),
    Transfer(
        "write", "_write", "to the storage", "Checkpoint write", 3, "#5A3A22", ink="#ffffff", dark="#A8744A",
        dark_ink="#111111", of_host=True, on_host=True, torch="torch.distributed.checkpoint.async_save(state)",
        jax="orbax.checkpoint.AsyncCheckpointer.save(path, state)",
    ),
    Transfer(
        "update_on_host", "_update_on_host", "by the host", "CPUAdam", 4, "#00735A", ink="#ffffff", of_host=True,
        on_host=True, torch="torch.optim.Adam.step(optimizer_on_cpu)",
    ),
)  # fmt: skip
TRANSFERS: Mapping[str, Transfer] = MappingProxyType({record.name: record for record in _TRANSFERS_IN_ORDER})
"""All transfers, by name."""
