"""What happened on a rank: `Event`, one operation on the logical clock.

The first seven fields are the specification's. The optional ones that follow explain the time it took: on which stream
the operation ran, with which ranks, how many bytes it moved, and which rank it waited for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from minitrain.operations import collectives as operations
from minitrain.operations.computations import names_of
from minitrain.operations.transfers import TRANSFERS

COMPUTE = "compute"
COMM = "comm"
SEND = "send"
RECV = "recv"

LOAD_WEIGHTS = "load_weights"
ROUTING = names_of("experts")
"""Passes of a layer with experts that go before the experts or after them."""
_PASSES_IN_ORDER = (*names_of("pass", "attention"), *ROUTING)
PASSES = frozenset(_PASSES_IN_ORDER)
UPDATE = "update"
COMPUTING = frozenset((*PASSES, *names_of("compression", "local", "update")))
"""What takes longer on a slower device: loading weights is no computing."""
COLLECTIVES = tuple(operations.COLLECTIVES)
COMMUNICATIONS = (*COLLECTIVES, SEND, RECV)
OFFLOAD, FETCH = "offload", "fetch"
HOST_MOVES = tuple(record.name for record in TRANSFERS.values() if record.of_host)
EVENT_TYPES = (
    LOAD_WEIGHTS,
    *_PASSES_IN_ORDER,
    *names_of("compression", "local", "update"),
    *COMMUNICATIONS,
    *HOST_MOVES,
)
"""Every type of event: what a rank computes, in the order of a step, its collectives and messages, then host memory."""

STORES = ("weights", "opt_states", "activations", "grad_activations", "grad_weights")
"""The stores of a rank."""


@dataclass(slots=True)
class Event:
    """One operation of one rank. Times are in seconds, memory in elements.

    Args:
        typ: load_weights, forward, loss, backward, backward_input, backward_weight, update, all_reduce,
            reduce_scatter, all_gather, broadcast, all_to_all, barrier, send, recv, offload or fetch; of an attention
            in steps, keys_values, attend, project, backward_project, backward_attend or backward_keys_values; around
            experts, route, combine, backward_combine and backward_route.
        layer: the layer it works on, or None.
        rank: the rank it ran on.
        time: when it began to work (after all waiting), s.
        duration: how long it worked, s.
        memory: elements in the rank's five stores when it was logged, before its result could be stored.
        samples: samples it works on.
        stream: where it ran: "compute", "comm" (collectives; one stream a group), "send" or "recv" (one stream a
            peer and direction), "offload" or "fetch" (host memory).
        group: ranks of the collective's group, or None (None too for the whole world).
        peer: the other rank of a send or recv, or None.
        tag: the tag of a send or recv, or None.
        size_bytes: bytes of the message or collective, 0 for compute.
        launched: clock of the rank's compute stream when the operation was submitted, s.
        waited_for: the rank that the operation had to wait for, or None: the lowest rank with the latest clock.
        awaited: index in the rank's log of the first event that was logged after its result was awaited; the index
            of the very next event unless it was launched to overlap.
        recomputed: a forward of samples that this rank had already taken through the layer.
        algorithm: how a collective was priced where there is a choice ("ring" or "hierarchical"), or None.
        after: indices in the rank's log of the launched operations whose results it was given before their await, and
            of the launched send to another rank that its interface carries before it.
    """

    typ: str
    layer: int | None
    rank: int
    time: float
    duration: float
    memory: float
    samples: frozenset[int] = frozenset()
    stream: str = COMPUTE
    group: tuple[int, ...] | None = None
    peer: int | None = None
    tag: Hashable = None
    size_bytes: float = 0
    launched: float | None = None
    waited_for: int | None = None
    awaited: int | None = None
    recomputed: bool = False
    algorithm: str | None = None
    after: tuple[int, ...] = ()

    @property
    def end(self) -> float:
        """When it finished, s."""
        return self.time + self.duration


class MemoryChange(NamedTuple):
    """Something entered or left a rank's memory.

    Args:
        place: how many events the rank had logged by then.
        kind: one of the stores (weights, opt_states, activations, grad_activations, grad_weights), logits for those
            among a transformer's activations, or in_flight for what launched operations hold.
        elements: what entered, negative for what left.
        tensor: which tensor it was, a number from 1 on that no other one of the rank has; 0 in files that do not say.
        layer: the tensor's layer, if it has one.
    """

    place: int
    kind: str
    elements: float
    tensor: int = 0
    layer: int | None = None


class Outage(NamedTuple):
    """A time in which no rank could go on, until a moment that no operation sets.

    Args:
        start: when it began, s.
        end: when ranks could go on, s.
        reason: why, in words.
    """

    start: float
    end: float
    reason: str
