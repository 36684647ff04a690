"""Delays put into real steps, and whether `mt.diff` names them: `python -m benchmarks.injected`.

Two processes train by a shipped strategy. Every other step is delayed at a place drawn by chance: in one operation, in
all computing of one rank, in all transfers, or in one kernel on all ranks. Torch's functions are wrapped in the ranks,
below what the tool measures: one that computes sleeps before it returns, and a transfer's result comes later. On a slow
link each transfer begins when the one before has ended. The delayed steps are compared with those between them, and
with a prediction by a calibration from those between them. A place is found where the operations that are named are
those that were delayed.

The delay is so many times the distance of the quartiles of undelayed steps (`--spreads`), which were taken before.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import minitrain as mt
from minitrain.run.analysis.moments import Moments
from minitrain.run.analysis.retiming import collectives, make_graph, messages
from minitrain.run.analysis.timeline import Bools, Timeline
from minitrain.training import wire
from minitrain.training.calibration import asking, calibration_of, measured_by
from minitrain.training.layers import Arithmetic
from minitrain.workloads.matmul import DenseRows

STRATEGY = f"{__file__}:slowed"
NAMES = ("ddp", "zero3", "zero3_prefetch", "1f1b", "fsdp")
KINDS = ("operation", "rank", "link", "kernel")
STEPS, WARM_UP = 50, 2
SIZES: dict[str, Any] = {
    "world_size": 2,
    "num_layers": 8,
    "global_batch_size": 64,
    "workload": DenseRows(512),
    "steps": STEPS,
    "force": True,
}
COMPUTING = ("forward", "loss", "backward", "update")


class Delay(NamedTuple):
    """What is delayed in every other step.

    Args:
        kind: "operation", "rank", "link", "kernel"; "" for nothing.
        name: of the function.
        rank: where; -1 for all.
        number: which call of the function in a step.
        seconds: the delay of each call, s; of "rank" and "kernel" as a multiple of what the call takes.
    """

    kind: str = ""
    name: str = ""
    rank: int = -1
    number: int = -1
    seconds: float = 0.0


# --- in the ranks ------------------------------------------------------------------------------------------------


class LateWork:
    """A transfer of torch.distributed whose result comes later.

    Args:
        begin: begins the transfer.
        seconds: by how much, s.
    """

    def __init__(self, begin: Callable[[], Any], seconds: float) -> None:
        self._begin, self._seconds = begin, seconds
        self._ended, self._future = threading.Event(), torch.futures.Future[None]()

    def carry(self) -> None:
        """Wait for the transfer, and for its delay."""
        self._begin().wait()
        sleep(self._seconds)
        self._ended.set()
        self._future.set_result(None)

    def wait(self) -> None:
        """Wait until the result is there."""
        self._ended.wait()

    def is_completed(self) -> bool:
        """Return whether it is."""
        return self._ended.is_set()

    def get_future(self) -> Any:
        """Return what is done then."""
        return self._future


class Injector:
    """Wraps torch's functions in a rank."""

    def __init__(self, delay: Delay) -> None:
        self._delay, self._rank = delay, dist.get_rank()
        self._step, self._inside = -1, False
        self._calls: Counter[str] = Counter()
        self._link: queue.SimpleQueue[LateWork] = queue.SimpleQueue()
        for name in COMPUTING:
            setattr(Arithmetic, name, self._slower(name, getattr(Arithmetic, name)))
        for module, name in ((wire, "_all_gather"), (wire, "_reduce_scatter"), (dist, "all_reduce"), (dist, "irecv")):
            setattr(module, name, self._later(name.removeprefix("_"), getattr(module, name)))
        threading.Thread(target=self._carry, daemon=True).start()

    def begin_step(self) -> None:
        """Count calls anew."""
        self._step += 1
        self._calls.clear()

    def _is_meant(self, name: str) -> bool:
        """Return whether a call is to be delayed, and count it."""
        number, delay = self._calls[name], self._delay
        self._calls[name] += 1
        if not self._step % 2 or delay.rank not in (-1, self._rank):
            return False
        return {"operation": (name, number) == (delay.name, delay.number), "kernel": name == delay.name}.get(
            delay.kind, True
        )

    def _slower(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def computed(*given: Any, **named: Any) -> Any:
            if self._inside or self._delay.kind == "link":
                return do(*given, **named)
            self._inside, began = True, perf_counter()
            try:
                return do(*given, **named)
            finally:
                self._inside = False
                if self._is_meant(name):
                    sleep(self._delay.seconds * (1 if self._delay.kind == "operation" else perf_counter() - began))

        return computed

    def _later(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def begun(*given: Any, **named: Any) -> Any:
            begin, waits = partial(do, *given, **named), name != "irecv" and not named.get("async_op")
            if waits or self._delay.kind != "link":
                work = begin()
                if work is None or self._delay.kind != "operation" or not self._is_meant(name):
                    return work
                late = LateWork(lambda: work, self._delay.seconds)
            elif self._is_meant(name):
                late = LateWork(begin, self._delay.seconds)
            else:
                return begin()
            self._link.put(late)
            return late

        return begun

    def _carry(self) -> None:
        while True:
            self._link.get().carry()


_injectors: list[Injector] = []  # of this rank's process


async def slowed(model: mt.Model, *, base: str = "ddp", delay: tuple[Any, ...] = ()) -> mt.Model:
    """Run a shipped strategy, delayed in every other step where ranks are processes."""
    if dist.is_initialized():
        if not _injectors:
            _injectors.append(Injector(Delay(*delay)))
        _injectors[0].begin_step()
    done: mt.Model = await mt.strategies()[base](model)
    return done


# --- trials ------------------------------------------------------------------------------------------------------


class Base(NamedTuple):
    """A strategy's undelayed steps."""

    run: mt.MeasuredRun
    spread_s: float


def taken(name: str, delay: Delay) -> mt.MeasuredRun:
    """Return the steps of a strategy, every other one delayed."""
    return mt.train(STRATEGY, base=name, delay=tuple(delay), hardware=asking(SIZES["world_size"]), **SIZES)


def base_of(name: str) -> Base:
    """Return undelayed steps of a strategy."""
    run = taken(name, Delay())
    low, _, high = statistics.quantiles(run.step_times[WARM_UP:], n=4)
    return Base(run, high - low)


def drawn(kind: str, base: Base, delay_s: float, chance: random.Random) -> tuple[Delay, list[Bools]]:
    """Return a delay of a kind at a place by chance, and which operations are delayed, in each way to say it."""
    line = base.run.typical_timeline
    moved = ~line.computes & ~line.loading
    if kind == "rank":
        rank = chance.randrange(line.num_ranks)
        here = line.computes & ~line.loading & (line.rank == rank)
        return Delay(kind, rank=rank, seconds=delay_s / float(line.duration[here].sum())), [here]
    if kind == "link":
        received = moved & ~line.of_types(["send"])
        each_s = delay_s / int(received[line.rank == 0].sum())
        return Delay(kind, seconds=each_s), [moved, received]
    path = Moments(make_graph(line))
    on_path = [event for event in path.longest_path(path.case(line)).events.tolist() if line.duration[event] > 0]
    if kind == "kernel":
        event = chance.choice([event for event in on_path if line.computes[event]])
        alike = line.typ == line.typ[event]
        busy_s = max(float(line.duration[alike & (line.rank == rank)].sum()) for rank in range(line.num_ranks))
        return Delay(kind, line.typs[line.typ[event]], seconds=delay_s / busy_s), [alike]
    return one_operation(line, chance.choice(on_path), delay_s)


def one_operation(line: Timeline, event: int, delay_s: float) -> tuple[Delay, list[Bools]]:
    """Return what delays one operation, on all ranks that take part in it."""
    chosen = np.zeros(line.num_events, dtype=bool)
    chosen[event] = True
    sends, receives = messages(line)
    if line.of_types(["send", "recv"])[event]:
        (pair,) = np.flatnonzero((sends == event) | (receives == event))
        event = int(receives[pair])
        chosen[[sends[pair], event]] = True
    members, places = collectives(line)
    for low, high in pairwise(places.tolist()):
        chosen[members[low:high]] |= event in members[low:high]
    typ, rank = line.typs[line.typ[event]], int(line.rank[event])
    before = (line.typ == line.typ[event]) & (line.rank == rank)
    name = {"recv": "irecv"}.get(typ, typ)
    is_collective = int(chosen.sum()) > 1 and typ != "recv"
    return Delay("operation", name, -1 if is_collective else rank, int(before[:event].sum()), delay_s), [chosen]


def is_named(gap: mt.Gap, ways: list[Bools]) -> bool:
    """Return whether the operations that explain a gap are those that were delayed."""
    line, found = gap.lines[0], gap.explanation
    if found is None:
        return False

    def said(chosen: Bools) -> tuple[Any, ...]:
        layers, ranks = line.layer[chosen], line.rank[chosen]
        return int(chosen.sum()), {*layers[layers >= 0].tolist()}, {*ranks.tolist()}

    return (found.count, {*found.layers}, {*found.ranks}) in [said(chosen) for chosen in ways]


def trial(kind: str, name: str, base: Base, spreads: float, seed: int) -> tuple[bool, bool]:
    """Delay one place, print what is found, and return whether it was: beside undelayed steps, and a prediction."""
    delay_s = spreads * base.spread_s
    delay, ways = drawn(kind, base, delay_s, random.Random(f"{seed} {kind} {name}"))
    run = taken(name, delay)
    usual, delayed = (run.of_steps(range(WARM_UP + odd, STEPS, 2)) for odd in (0, 1))
    low, _, high = statistics.quantiles(usual.seconds, n=4)
    parameters = {**SIZES, "base": name, "delay": tuple(delay)}
    calibration = calibration_of([measured_by(usual, STRATEGY, parameters)], SIZES["world_size"])
    predicted = mt.simulate(
        STRATEGY,
        **{key: value for key, value in parameters.items() if key not in ("steps", "force")},
        hardware=calibration,
    )
    gaps = mt.diff(usual, delayed), mt.diff(predicted, delayed)
    found = [is_named(gap, ways) for gap in gaps]
    for gap in gaps:
        assert abs(sum(part.seconds for part in gap.attribution) - gap.seconds) < 0.05 * abs(gap.seconds)
    told = " / ".join("nothing" if gap.explanation is None else gap.explanation.what for gap in gaps)
    where = " ".join(map(str, filter(None, (delay.name, f"rank {delay.rank}" if delay.rank >= 0 else ""))))
    print(
        f"{kind:10}{name:15}{1e3 * delay_s:5.0f} ms ({delay_s / (high - low):4.1f} spreads then), "
        f"{1e3 * statistics.median(usual.seconds):4.0f} to {1e3 * statistics.median(delayed.seconds):4.0f} ms"
        f"  {where}: {told}  {found}",
        flush=True,
    )
    return found[0], found[1]


def main() -> None:
    """Print each trial, and how many were found."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spreads", type=float, default=2.0, help="the delay, in spreads of undelayed steps")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    counts: dict[str, list[tuple[bool, bool]]] = {kind: [] for kind in KINDS}
    for name in NAMES:
        base = base_of(name)
        for kind in KINDS:
            counts[kind].append(trial(kind, name, base, given.spreads, given.seed))
    print("| a delay in | found beside other steps | found beside a prediction |\n|---|---|---|")
    for kind, found in counts.items():
        print(f"| one {kind} | {' | '.join(f'{sum(each)} of {len(each)}' for each in zip(*found, strict=True))} |")
    print(f"{given.spreads:g} spreads; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
