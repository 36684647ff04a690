"""What the ranks of a run remember of layers that are alike: the prices and sizes of their operations.

The operations of `minitrain.engine.computation` are quick where one expression shows that a call is legal and one look
into a table finds its price. Where layers differ the tables stay empty, so that every operation goes on to
`minitrain.engine.placed_passes`, which fills them where it may. So an operation need not ask what kind of workload it
is for: that is decided by whether its price is here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

from minitrain.machine.price import Predictor, Price


class Remembered:
    """Prices and sizes that layers share, as far as they were asked for. Ranks of one predictor share them too.

    Args:
        predictor: what computes the prices; kept, so that no other one has its identity.

    Attributes:
        may_be_shared: whether layers have one price, by their workload and by their predictor.
        loads: price of a load, and units of the shard of a weight and of its optimizer state, by number of shards.
        forwards: price of a forward, by number of samples.
        backwards: price of a backward, and units of the weight's gradient, by number of samples.
        backward_inputs: price of the first half of a backward, by number of samples.
        backward_weights: price of the second half, and units of the weight's gradient, by number of samples.
        updates: price of an update, by number of shards that are worked on and of all.
    """

    __slots__ = (
        "backward_inputs",
        "backward_weights",
        "backwards",
        "forwards",
        "loads",
        "may_be_shared",
        "predictor",
        "updates",
    )

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.may_be_shared = predictor.workload.is_uniform and getattr(predictor, "prices_layers_alike", False)
        self.loads: dict[int, tuple[Price, int, int]] = {}
        self.forwards: dict[int, Price] = {}
        self.backwards: dict[int, tuple[Price, int]] = {}
        self.backward_inputs: dict[int, Price] = {}
        self.backward_weights: dict[int, tuple[Price, int]] = {}
        self.updates: dict[tuple[int, int], Price] = {}


class _Shared:
    """What the models of one run and process share: prices by the identity of predictors, and whole batches by size."""

    def __init__(self) -> None:
        self.prices: dict[int, Remembered] = {}
        self.whole_batches: defaultdict[int, dict[int, frozenset[int]]] = defaultdict(dict)


_BY_TRANSPORT: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()  # nothing that a strategy is given leads here


def _shared_by(transport: Any) -> _Shared:
    """Return what the models on a transport share."""
    found = _BY_TRANSPORT.get(transport)
    if found is None:
        found = _BY_TRANSPORT[transport] = _Shared()
    return found


def remembered_of(predictor: Predictor, transport: Any) -> Remembered:
    """Return what all models of one predictor and transport remember together.

    Args:
        predictor: that of a model.
        transport: that of its run.
    """
    prices = _shared_by(transport).prices
    found = prices.get(id(predictor))
    if found is None:
        found = prices[id(predictor)] = Remembered(predictor)
    return found


def whole_batches_of(transport: Any, global_batch_size: int) -> dict[int, frozenset[int]]:
    """Return the sets that are known to hold every sample, by identity, which models on a transport share."""
    return _shared_by(transport).whole_batches[global_batch_size]
