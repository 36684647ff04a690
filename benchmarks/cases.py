"""What is measured: strategies at sizes that make about the same number of events each."""

from __future__ import annotations

from dataclasses import dataclass, field

from minitrain.tensors import HIDDEN_SIZE

STRATEGIES = ("ddp", "zero3", "1f1b", "interleaved_1f1b")
WORLD_SIZES = (8, 64, 1024, 4096, 16384)
NUM_EVENTS = 200_000
MOST_EVENTS = 2_000_000

SHORT_WORLD_SIZES = (8, 64)
SHORT_NUM_EVENTS = 4_000


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Args:
        strategy: name of a shipped strategy.
        world_size: number of ranks.
        parameters: further arguments of `simulate`.
        num_events: number of its events, about.
    """

    strategy: str
    world_size: int
    parameters: dict[str, int] = field(hash=False)
    num_events: int


def cases(world_sizes: tuple[int, ...] = WORLD_SIZES, num_events: int = NUM_EVENTS) -> list[Case]:
    """Return the rows of the table, by strategy.

    Args:
        world_sizes: numbers of ranks.
        num_events: events that a row should make, about; at least what one step needs.
    """
    makers = (_ddp, _zero3, _one_f_one_b, _interleaved)
    found = [maker(world_size, num_events) for maker in makers for world_size in world_sizes]
    return [case for case in found if case.strategy != "zero3" or case.world_size <= HIDDEN_SIZE]  # a shard is a row


def floor_layers(world_size: int, num_events: int) -> int:
    """Return the layers with which the floor has about as many events."""
    return max(2, num_events // (7 * world_size))


def _ddp(world_size: int, num_events: int) -> Case:
    """Data parallel: 5 events a layer and a loss."""
    layers = max(2, num_events // (5 * world_size))
    parameters = {"num_layers": layers, "global_batch_size": world_size}
    return Case("ddp", world_size, parameters, world_size * (5 * layers + 1))


def _zero3(world_size: int, num_events: int) -> Case:
    """ZeRO stage 3: 7 events a layer and a loss."""
    layers = floor_layers(world_size, num_events)
    parameters = {"num_layers": layers, "global_batch_size": world_size}
    return Case("zero3", world_size, parameters, world_size * (7 * layers + 1))


def _one_f_one_b(world_size: int, num_events: int) -> Case:
    """1F1B, a layer a stage: 6 events a microbatch and rank."""
    num_microbatches = max(2, num_events // (6 * world_size))
    parameters = {"num_layers": world_size, "global_batch_size": num_microbatches, "microbatch_size": 1}
    return Case("1f1b", world_size, parameters, world_size * (6 * num_microbatches + 2))


def _interleaved(world_size: int, num_events: int) -> Case:
    """Interleaved 1F1B, two stages of a layer a rank.

    Its microbatches are a multiple of a pipeline's ranks, so that events grow with the square of these. So more than 64
    ranks are pipelines of 8 side by side.
    """
    pp = world_size if world_size <= 64 else 8
    num_microbatches = max(1, num_events // (12 * world_size * pp)) * pp
    num_replicas = world_size // pp
    parameters = {
        "num_layers": 2 * pp,
        "global_batch_size": num_microbatches * num_replicas,
        "microbatch_size": 1,
        "pp": pp,
    }
    exchanges = 2 if num_replicas > 1 else 0
    return Case("interleaved_1f1b", world_size, parameters, world_size * (12 * num_microbatches + 4 + exchanges))
