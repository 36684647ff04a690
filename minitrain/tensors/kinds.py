"""The five kinds of tensor that a training step handles, as symbols: which layer, which samples, which shards.

A tensor here holds no numbers. It says what part of the model or of the batch a real tensor would hold, so that the
laws of training can be checked and its size accounted for. Sizes are those of the default H x H matmul layer: a
weight has `HIDDEN_SIZE ** 2` elements, an activation `HIDDEN_SIZE * BLOCK_SIZE` elements a sample.

- **Annotations**: a tensor has a slot for each of two, and sums, shards and combinations get theirs from what they are
  made of. `_content` is set by `minitrain.proof`: the numbers that the tensor stands for. `_origin` is set by
  `minitrain.run.strict`: which operation made the tensor. Both are unset in other runs.
- **In a notebook** a tensor shows its layer, and which shards and samples it holds (`tensor_html`).
- **Local steps** (local SGD, DiLoCo): a replica's weight goes its own way between two meetings (`LocalWeight`). It
  knows which samples it has seen since, as a gradient does. So what it adds to the common weight, the difference of
  both, is a `WeightGrad` of these samples, and the laws of sums over samples hold for it: no replica twice, and none
  missing.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from minitrain.errors import LawError, TensorTypeError
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart, ranges, runs, singleton, union

Result = TypeVar("Result")

_enabled = False


def enable_annotations() -> None:
    """Let new tensors get their annotations, for the rest of the process; to be called before any annotation is set.

    Until then, sums and shards do not look for annotations. Looking for one that is unset raises an error inside
    Python, which takes as long as making a tensor.
    """
    global _enabled  # noqa: PLW0603  (tensors may outlive the run that annotates them)
    _enabled = True


class Content(Protocol):
    """What a tensor holds in `_content`: it must be able to do what a tensor can do."""

    __slots__ = ()

    def add(self, other: Any) -> Content:
        """Return the content of the sum."""

    def shard(self, shard: int, num_shards: int) -> Content:
        """Return the content of one of `num_shards` parts."""

    def combine(self, other: Any) -> Content:
        """Return the content of the combination."""


def summed(result: Result, left: Any, right: Any) -> Result:
    """Annotate the sum of two tensors, with their content if both have some, and return it."""
    if not _enabled:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.add(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "+", left, right)


def combined(result: Result, left: Any, right: Any) -> Result:
    """Annotate the combination of two tensors, with their content if both have some, and return it."""
    if not _enabled:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.combine(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "combine", left, right)


def sharded(result: Result, whole: Any, shard: int, num_shards: int) -> Result:
    """Annotate a shard of a tensor, with its part of the content if there is some, and return it."""
    if not _enabled:
        return result
    if hasattr(whole, "_content"):
        result._content = whole._content.shard(shard, num_shards)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "shard", whole)


def _derived(result: Result, how: str, parent: Any, other: Any = None) -> Result:
    """Return a tensor that was made of others, with its origin if the first of them has one."""
    if hasattr(parent, "_origin"):
        parent._origin.derive(result, how, parent, other)
    return result


_COLORS = {
    "Weight": "#77AADD",
    "OptState": "#99DDFF",
    "WeightGrad": "#EE8866",
    "Activation": "#44BB99",
    "ActivationGrad": "#EEDD88",
}
_LABEL, _WIDTH, _ROW, _BAR = 52, 240, 18, 12  # px
_MOST_CELLS = 48  # of more, borders would hide what is inside


def tensor_html(tensor: Any) -> str:
    """Return a tensor as a line of text over an inline SVG: one bar each of its layers, samples and shards."""
    name = type(tensor).__name__
    rows = list(_rows(tensor))
    color = _COLORS.get(name, "#BBBBBB")
    drawn = "".join(_bar(place, label, held, total, color) for place, (label, held, total) in enumerate(rows))
    height = _ROW * len(rows)
    text = " · ".join([f"<b>{html.escape(name)}</b>", *_facts(tensor)])
    return (
        f'<div style="font:12px system-ui,sans-serif">{text}<br><svg width="{_LABEL + _WIDTH}" height="{height}" '
        f'role="img" style="fill:currentColor">{drawn}</svg></div>'
    )


def _facts(tensor: Any) -> Iterator[str]:
    """Yield what a tensor is, in words."""
    yield f"layer {tensor.layer} of {tensor.layers}"
    if hasattr(tensor, "step"):
        yield f"step {tensor.step}"
    if hasattr(tensor, "samples"):
        yield f"samples {ranges(tensor.samples) or 'none'} of {tensor.total_samples}"
    if hasattr(tensor, "shards"):
        yield f"shards {ranges(tensor.shards) or 'none'} of {tensor.num_shards}"


def _rows(tensor: Any) -> Iterator[tuple[str, frozenset[int], int]]:
    """Yield the bars: name, what is held, of how many.

    An input activation may lie one layer beyond the model, and a gradient one before it; the nearest layer is shown.
    """
    layer = min(max(tensor.layer, 0), tensor.layers - 1)
    yield "layers", frozenset([layer]), tensor.layers
    if hasattr(tensor, "samples"):
        yield "samples", tensor.samples, tensor.total_samples
    if hasattr(tensor, "shards"):
        yield "shards", tensor.shards, tensor.num_shards


def _bar(place: int, label: str, held: frozenset[int], total: int, color: str) -> str:
    """Return one bar, filled where something is held; up to `_MOST_CELLS` it has a border around each cell."""
    top, cell = _ROW * place, _WIDTH / max(total, 1)
    text = f'<text x="{_LABEL - 6}" y="{top + _BAR - 2}" text-anchor="end" font-size="11">{label}</text>'
    held_cells = [(first, last - first + 1) for first, last in runs(held)]
    filled = "".join(
        f'<rect x="{_LABEL + cell * first:.2f}" y="{top}" width="{cell * count:.2f}" height="{_BAR}" fill="{color}"/>'
        for first, count in held_cells
    )
    edges = range(total + 1) if total <= _MOST_CELLS else (0, total)
    lines = "".join(f"M{_LABEL + cell * edge:.2f} {top}v{_BAR}" for edge in edges)
    frame = f"{lines}M{_LABEL} {top + 0.5}h{_WIDTH}M{_LABEL} {top + _BAR - 0.5}h{_WIDTH}"
    return f'{text}{filled}<path d="{frame}" stroke="#8b949e" stroke-opacity=".6" fill="none"/>'


HIDDEN_SIZE, BLOCK_SIZE = 4096, 1024
DATATYPE = "float16"
BYTES_PER_ELEMENT = 2

T = TypeVar("T")
O = TypeVar("O")  # noqa: E741  (the specification's own name)
TO = TypeVar("TO")

_UNSHARDED = frozenset([0])


@runtime_checkable
class Reduceable(Protocol[T]):
    """What can be summed over ranks or microbatches, element by element."""

    __slots__ = ()

    def __add__(self, other: T) -> T:
        """Return the element-wise sum."""


@runtime_checkable
class Gatherable(Protocol[O]):
    """What can be cut into shards and put together again."""

    __slots__ = ()

    def shard(self, shard: int, num_shards: int) -> O:
        """Return one of `num_shards` equal parts."""

    def is_complete(self) -> bool:
        """Return whether every shard is held."""

    def combine(self, other: O) -> O:
        """Return a tensor that holds the shards of both."""


@runtime_checkable
class ReduceableGatherable(Reduceable[TO], Gatherable[TO], Protocol[TO]):
    """What can be both summed and cut into shards: a weight gradient."""

    __slots__ = ()


class Tensor:
    """The common root of the five kinds.

    Its slots take no part in equality, repr, copies or pickles. `_units` is the size of the tensor, unset until it is
    measured, and `_home` the account of the rank that stores it (see `minitrain.engine.stores`). `_content` and
    `_origin` are annotations (see `minitrain.tensors.kinds`).

    Attributes:
        parts: the parts of a layer that it is of, or that are summed into it; kinds beside the five have them.
        num_parts: number of parts that the layer is divided into.
        sequence: the part of each sequence that it is of, or that is summed into it.
    """

    __slots__ = ("__weakref__", "_content", "_home", "_origin", "_units")

    parts: frozenset[int] = _UNSHARDED
    num_parts: int = 1
    sequence: SequencePart = WHOLE_SEQUENCE

    _content: Content
    _home: Any
    _origin: Any
    _units: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the fields alone."""
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]  # every subclass is a dataclass
        return type(self), tuple(getattr(self, name) for name in fields)

    def __truediv__(self, other: Any) -> Any:
        """Refuse to scale: what stands for a mean is the sum over its samples.

        Raises:
            TensorTypeError: always.
        """
        raise TensorTypeError(
            f"a tensor cannot be scaled, got {type(self).__name__} and {other!r:.40}; leave the factor out: gradients "
            "are sums over samples, and `loss` has divided by the global batch"
        )

    __mul__ = __rmul__ = __truediv__

    def _repr_html_(self) -> str:
        """Draw in a notebook which layer, samples and shards this is."""
        return tensor_html(self)


def require_same(rule: str, left: Any, right: Any, *names: str) -> None:
    """Raise a LawError unless two tensors are of one kind and agree in the named fields."""
    if type(left) is not type(right):
        raise LawError(f"{rule}: both must be {type(left).__name__}, got {right!r}", left=left, right=right)
    for name in names:
        found = [getattr(tensor, name) for tensor in (left, right)]
        if found[0] != found[1]:
            got = " and ".join(f"{{{ranges(one)}}}" if isinstance(one, frozenset) else str(one) for one in found)
            layers = [*dict.fromkeys((left.layer, right.layer))]
            raise LawError(
                f"{rule}: {name} must be equal, got {got} "
                f"(layer{'s' * (len(layers) - 1)} {' and '.join(map(str, layers))})",
                left=left,
                right=right,
                layer=left.layer,
            )


def require_disjoint(tensor: Any, left: Any, right: Any, name: str, of: str) -> None:
    """Raise a LawError if some shards are summed into both of two tensors.

    Args:
        tensor: one of them.
        left: what has the shards of one.
        right: what has those of the other.
        name: the attribute that these are.
        of: what they are shards of, for messages.
    """
    twice = getattr(left, name) & getattr(right, name)
    if twice:
        rule = (
            f"sums over {of}: shard {ranges(twice)} of {tensor.sequence.num_shards} is in both (layer {tensor.layer}); "
            "add what comes of each shard once"
        )
        raise LawError(rule, left=left, right=right, layer=tensor.layer)


def altered(tensor: T, **changes: Any) -> T:
    """Return a tensor that differs from another one in some fields."""
    kind: Any = tensor.__class__
    made: T = kind(*[changes[name] if name in changes else getattr(tensor, name) for name in kind.__dataclass_fields__])
    return made


def fields_beside(kind: Any, *names: str) -> tuple[str, ...]:
    """Return the fields in which tensors of a kind must agree, but for some that come together."""
    return _fields_beside(kind, names)


@lru_cache(maxsize=256)
def _fields_beside(kind: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same; each collective asks again."""
    return tuple(name for name in kind.__dataclass_fields__ if name not in {*names, "layers", "total_samples"})


class Sharded(Tensor, Generic[O]):
    """What can be cut into shards: the common base of weights, their gradients and optimizer states.

    A whole has `HIDDEN_SIZE ** 2` elements. A shard is one of `num_shards` equal parts of them.
    """

    __slots__ = ()

    _combines_as: ClassVar[str]
    """What messages call several tensors of this kind that combine."""

    layer: int
    shards: frozenset[int]
    num_shards: int

    def shard(self, shard: int, num_shards: int) -> O:
        """Return one of `num_shards` parts of a complete tensor.

        Raises:
            LawError: the tensor is not complete, or there is no such shard.
        """
        self._require_shardable(shard, num_shards)
        return sharded(self._with_shards(singleton(shard), num_shards), self, shard, num_shards)

    def _with_shards(self, shards: frozenset[int], num_shards: int) -> O:
        """Return a tensor that differs from this one in its shards alone."""
        other: Any = altered(self, shards=shards, num_shards=num_shards)
        return other  # type: ignore[no-any-return]  # of the same kind

    def combine(self, other: O) -> O:
        """Return a tensor that holds the shards of both.

        Raises:
            LawError: the two are of different kinds, layers, steps or samples, or are cut differently.
        """
        require_same(self._combines_as, self, other, *fields_beside(type(self), "shards"))
        others: Any = other
        return combined(self._with_shards(self.shards | others.shards, self.num_shards), self, other)

    def is_complete(self) -> bool:
        """Return whether every shard is held."""
        return len(self.shards) == self.num_shards

    def memory(self) -> float:
        """Return the size in elements: the share of shards held times H x H, of a part its share of that."""
        return (len(self.shards) / self.num_shards) * HIDDEN_SIZE * HIDDEN_SIZE / self.num_parts

    def _require_shardable(self, shard: int, num_shards: int) -> None:
        """Raise a LawError unless this is whole and `shard` is one of `num_shards`."""
        if not self.is_complete():
            raise LawError(
                f"only a complete tensor can be sharded: layer {self.layer} holds shards {sorted(self.shards)} of "
                f"{self.num_shards}; all_gather it first",
                layer=self.layer,
            )
        if fault := shard_fault(shard, num_shards):
            raise LawError(f"{fault} (layer {self.layer})", layer=self.layer)


def shard_fault(shard: Any, num_shards: Any) -> str:
    """Return what is wrong with a shard out of some number of them; "" if nothing is."""
    if isinstance(shard, float) or isinstance(num_shards, float):
        return f"shard and num_shards must be whole numbers, got shard {shard} of {num_shards}; divide by // for these"
    return "" if 0 <= shard < num_shards else f"shard must lie in 0..num_shards-1, got shard {shard} of {num_shards}"


class Passage:
    """How one layer made an activation and the next one used it; see `minitrain.engine.placed_passes`.

    Attributes:
        mode: how it went through its layer.
        made_in: how the layer before made it.
        kept_by: what stands for what was kept then.
        gathered_from: the shard of the sequence that it was gathered from.
        logits: how many units of what it stands for are logits.
        made_before: how many units that the layer before holds again are counted with it.
    """

    __slots__ = ("gathered_from", "kept_by", "logits", "made_before", "made_in", "mode")

    def __init__(self) -> None:
        self.mode: Any = None
        self.made_in: Any = None
        self.kept_by: Any = None
        self.gathered_from: Any = None
        self.logits = self.made_before = 0


def passage_of(tensor: Any) -> Passage:
    """Return how an activation was made and used, to be read and written."""
    found: Passage | None = getattr(tensor, "_passage", None)
    if found is None:
        found = tensor._passage = Passage()
    return found


class Sampled(Tensor):
    """What holds values for samples: the common base of activations and their gradients.

    Its slot `_passage` is unset where layers are alike and whole.
    """

    __slots__ = ("_passage",)

    _passage: Passage

    samples: frozenset[int]

    def memory(self) -> int:
        """Return the size in elements: samples x H x BLOCK_SIZE, of a part of each sequence its share of that."""
        return self.sequence.share_of(len(self.samples) * HIDDEN_SIZE * BLOCK_SIZE)


@dataclass(slots=True)
class Weight(Sharded["Weight"]):
    """The parameters of one layer, whole or in shards.

    Args:
        layer: which layer, 0 to layers - 1.
        layers: number of layers of the model.
        step: how many updates they have seen.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    step: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    _combines_as = "weights that combine"


@dataclass(slots=True)
class Activation(Sampled):
    """The input of one layer for some samples; that of layer `layers` is the model's output.

    Args:
        layer: the layer it is an input of, 0 to layers.
        layers: number of layers of the model.
        samples: indices into the global batch.
        total_samples: size of the global batch.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int


@dataclass(slots=True)
class WeightGrad(Sharded["WeightGrad"]):
    """The gradient of one layer's weight, summed over some samples, whole or in shards.

    Args:
        layer: which layer.
        layers: number of layers of the model.
        samples: the samples summed into it.
        total_samples: size of the global batch.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    _combines_as = "gradients that combine"

    def __add__(self, other: WeightGrad) -> WeightGrad:
        """Return the sum, which covers the samples of both, or the shards of the sequence of both; all else agrees.

        What covers all shards of its sequences adds to what covers sequences that were not cut, or otherwise.

        Raises:
            LawError: the two are of different kinds, layers, shards or parts, or a shard of the sequence is in both.
        """
        kind, layer, shards, num_shards = self.__class__, self.layer, self.shards, self.num_shards
        if (
            kind is other.__class__ is WeightGrad
            and other.layer == layer
            and other.num_shards == num_shards
            and (other.shards is shards or other.shards == shards)
        ):
            samples = union(self.samples, other.samples)
            total = WeightGrad(layer, self.layers, samples, self.total_samples, shards, num_shards)
        elif (wholes := _wholes(self, other)) is not None:
            whole: WeightGrad = wholes[0] + wholes[1]
            return summed(whole, self, other)
        else:
            require_same("gradients that add", self, other, *fields_beside(kind, "samples", "sequence"))
            total = self._sum_of_parts(other)
        if hasattr(self, "_units"):  # a sum is as large as its parts; measuring it would take longer
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)

    def whole_sequences(self) -> WeightGrad:
        """Return the same, as of sequences that were never cut; itself where it does not cover all shards of them."""
        return self

    def _sum_of_parts(self, other: WeightGrad) -> WeightGrad:
        """Return the sum with a gradient of the same parts and shards."""
        of_shards = self.sequence.num_shards > 1 and self.samples == other.samples
        if not of_shards:
            require_same("gradients that add", self, other, *_SEQUENCE.intersection(fields_beside(type(self))))
            return altered(self, samples=union(self.samples, other.samples))
        require_disjoint(self, self.sequence, other.sequence, "shards", "the sequence")
        return altered(self, sequence=self.sequence.with_shards(self.sequence.shards | other.sequence.shards))


def _wholes(one: Any, other: Any) -> tuple[Any, Any] | None:
    """Return two gradients of whole sequences that were cut in different ways; None if they are of something else.

    Raises:
        LawError: only one covers all shards of its sequences.
    """
    if not isinstance(other, WeightGrad):
        return None
    cuts = [getattr(each, "sequence", WHOLE_SEQUENCE) for each in (one, other)]
    if cuts[0] is cuts[1] or cuts[0].cut == cuts[1].cut:
        return None
    wholes = one.whole_sequences(), other.whole_sequences()
    missing = [frozenset(range(cut.num_shards)) - cut.shards for cut in cuts]
    if not any(missing):
        return None if wholes[0] is one and wholes[1] is other else wholes
    if not all(missing):
        lacks = int(bool(missing[1]))
        grads = (other, one) if lacks else (one, other)
        rule = (
            f"gradients that add: one is of whole sequences (samples {ranges(grads[1].samples)}), the other lacks "
            f"shards {ranges(missing[lacks])} of {cuts[lacks].num_shards} of its own (samples "
            f"{ranges(grads[0].samples)}, layer {one.layer}); all_reduce that over the ranks that share these first"
        )
        raise LawError(rule, left=one, right=other, layer=one.layer)
    return None


_SEQUENCE = frozenset(["sequence"])


@dataclass(slots=True)
class OptState(Sharded["OptState"]):
    """The optimizer state of one layer, whole or in shards.

    Args:
        layer: which layer.
        layers: number of layers of the model.
        step: how many updates it has seen.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    step: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    _combines_as = "optimizer states that combine"


@dataclass(slots=True)
class ActivationGrad(Sampled):
    """The gradient of the loss with respect to the output of one layer, for some samples.

    Args:
        layer: the layer whose output it belongs to, -1 (the model's input) to layers - 1.
        layers: number of layers of the model.
        samples: indices into the global batch.
        total_samples: size of the global batch.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int


KINDS: tuple[type[Any], ...] = (Weight, OptState, Activation, ActivationGrad, WeightGrad)
"""The five kinds."""


def maker_of(kind: type[T]) -> Callable[..., T]:
    """Return what makes a tensor of a size, in units, and of the fields of its kind, in less time than the class."""
    fields = ["_units", *kind.__dataclass_fields__]  # type: ignore[attr-defined]  # every kind is a dataclass
    values = "; ".join(f"made.{name} = {name}" for name in fields)
    scope: dict[str, Any] = {"new": object.__new__, "kind": kind}
    exec(f"def make({', '.join(fields)}): made = new(kind); {values}; return made", scope)
    make: Callable[..., T] = scope["make"]
    make.__defaults__ = kind.__init__.__defaults__
    return make


@dataclass(slots=True)
class LocalWeight(Weight):
    """A replica's own weight of a layer, whole or in shards.

    Args:
        layer, layers, shards, num_shards: as of `Weight`.
        step: how many steps of its own it has seen since it was the common one.
        samples: the samples of these steps.
        total_samples: size of the global batch: of all samples between two meetings.
        has_met: whether it was mixed with the common weight in this round, where fragments of layers are in turn.
    """

    samples: frozenset[int] = frozenset()
    total_samples: int = 1
    has_met: bool = False


@dataclass(slots=True)
class OuterState(OptState):
    """The state of the optimizer that takes the common weight on: one momentum."""


OUTER_MOMENTUM_BYTES = 4
"""What an element of a transformer's outer momentum takes: it is kept in single precision."""
