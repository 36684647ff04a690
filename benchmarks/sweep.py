"""`python -m benchmarks.sweep`: configurations a second and core, folded, of 64 ranks and 8 layers, rows included.

Each batch of configurations takes turns with the floor (`benchmarks/floor.py`) in the same process, so that a busy
machine slows both. Rates are medians. "Floor events" is how many events the floor makes in one configuration's time.
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks.floor import floor
from benchmarks.measure import timed
from minitrain.search.sweeps.batches import Batch, run_batch

STRATEGIES: dict[str, dict[str, int]] = {
    "ddp": {},
    "zero1": {},
    "zero2": {},
    "zero3": {},
    "hsdp": {"shard_size": 8},
    "pp_dp": {"pp": 2},
    "pp_zero1": {"pp": 2},
    "1f1b": {"world_size": 8},  # at most one stage a layer, all different
}
SIZES = {"world_size": 64, "num_layers": 8, "fold": True}
FLOOR_RANKS, FLOOR_LAYERS = 64, 100


def batch_of(strategy: str, size: int) -> Batch:
    """Return configurations of a strategy, of nine different batches."""
    sizes = {**SIZES, **STRATEGIES[strategy]}
    return [("", (strategy, {**sizes, "global_batch_size": 64 * (1 + place % 9)})) for place in range(size)]


def rates(strategy: str, size: int, num_turns: int) -> tuple[float, float]:
    """Return configurations a second, and how many events the floor makes in the time of one; medians over the turns.

    Args:
        strategy: one of `STRATEGIES`.
        size: configurations a turn.
        num_turns: how often the two take turns.

    Raises:
        RuntimeError: a configuration failed.
    """
    batch = batch_of(strategy, size)
    _, rows = run_batch(batch[:9])
    failed = [row["error"] for _, row in rows if row["status"] == "failed"]
    if failed:
        raise RuntimeError(failed[0])
    ours: list[float] = []
    events: list[float] = []
    for _ in range(num_turns):
        floor_s, num_events = timed(lambda: floor(FLOOR_RANKS, FLOOR_LAYERS))
        batch_s, _ = timed(lambda: run_batch(batch))
        ours.append(size / batch_s)
        events.append(num_events / floor_s * batch_s / size)
    return median(ours), median(events)


def main() -> None:
    """Print a row a strategy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("strategies", nargs="*", choices=[[], *STRATEGIES], metavar="STRATEGY", help="all if left out")
    parser.add_argument("--short", action="store_true", help="few configurations: does it run at all?")
    asked = parser.parse_args()
    size, num_turns = (9, 1) if asked.short else (300, 7)
    print(f"{'strategy':<18}{'configurations/s':>18}{'floor events':>14}")
    for strategy in asked.strategies or STRATEGIES:
        rate, events = rates(strategy, size, num_turns)
        print(f"{strategy:<18}{rate:>18.0f}{events:>14.0f}", flush=True)
    print("floor events: those of benchmarks/floor.py in the time of one configuration")


if __name__ == "__main__":
    main()
