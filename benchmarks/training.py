"""Steps of real processes beside torch's own: `python -m benchmarks.training`.

Two processes on this machine train the same dense layers on the same data: by a strategy, and by torch's
DistributedDataParallel or fully_shard with the same layers, loss and optimizer. Steps alternate; the ratio of each pair
is taken, and the median of these.

Then what the tool itself costs an operation: the processor time of a rank's main thread in a step of narrow layers,
without what passes in torch's computing, its submissions and its waits.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minitrain.engine.model import Model, watched
from minitrain.operations.computations import COMPUTATIONS
from minitrain.proof.units import WHOLE
from minitrain.run.strategy_loading import choose_strategy
from minitrain.training import wire
from minitrain.training.contents import Rows
from minitrain.training.launcher import meeting_place
from minitrain.training.layers import Arithmetic
from minitrain.training.nets import DenseBytes, read_text
from minitrain.training.program import record
from minitrain.training.wire import ProcessExecutor, ProcessTransport
from minitrain.workloads.matmul import DenseRows

RANKS, LAYERS, BATCH, WARM_UP = 2, 8, 64, 3
NARROW = 256  # layers of which torch's share of a step is small
PAIRS = (("ddp", "ddp"), ("ddp_overlap", "ddp"), ("zero3", "fully_shard"), ("fsdp", "fully_shard"))


class Layer(nn.Module):
    """The layer that strategies train: y = tanh(x) W."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        return torch.tanh(x) @ self.weight


def torch_step(kind: str, net: DenseBytes, rank: int) -> Callable[[int], None]:
    """Return what takes a step by torch's own data parallelism."""
    model: Any = nn.Sequential(
        *(Layer(net.initial_weight(k, WHOLE).float().view(net.width, net.width)) for k in range(LAYERS))
    )
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    samples = range(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)

    def step(number: int) -> None:
        output = Rows(model(net.inputs(samples, None, BATCH, number)))
        loss = net.loss(output, samples, BATCH, number) * RANKS
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


class Timed:
    """Adds up the processor time of this thread in some functions; one that is called by another counts once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def timed(*given: Any, **named: Any) -> Any:
            began, self._depth = time.thread_time(), self._depth + 1
            try:
                return do(*given, **named)
            finally:
                self._depth -= 1
                self.seconds += 0.0 if self._depth else time.thread_time() - began

        return timed


def time_torch(timed: Timed) -> None:
    """Let what a rank calls of torch be timed, from now on."""
    for name in [op for op in COMPUTATIONS if hasattr(Arithmetic, op)]:
        setattr(Arithmetic, name, timed.around(getattr(Arithmetic, name)))
    for name in ("all_reduce", "isend", "irecv"):
        setattr(dist, name, timed.around(getattr(dist, name)))
    for name in ("_all_gather", "_reduce_scatter"):
        setattr(wire, name, timed.around(getattr(wire, name)))
    wire.PendingNumbers.wait = timed.around(wire.PendingNumbers.wait)  # type: ignore[method-assign]  # for this process


def print_overhead(net: DenseBytes, rank: int, rounds: int) -> None:
    """Print what an operation of each strategy costs beside torch; its last call in this process."""
    timed = Timed()
    time_torch(timed)
    for name, num_ranks in (("ddp", 1), ("zero3", 1), ("ddp", RANKS), ("ddp_overlap", RANKS), ("zero3", RANKS)):
        place = rank if num_ranks > 1 else 0
        step, found = our_step(name, net, place, num_ranks), []
        num = len(record(name, sizes_of(net, num_ranks)).ranks[place].operations)
        for number in range(rounds + WARM_UP):
            dist.barrier()
            began, timed.seconds = time.thread_time(), 0.0
            step(number)
            found.append((time.thread_time() - began - timed.seconds) / num)
        if rank == 0:
            each = statistics.median(found[WARM_UP:]) * 1e6
            print(f"{name:12} {num_ranks} rank(s), {num} operations, {each:.0f} us each beside torch")


def sizes_of(net: DenseBytes, num_ranks: int = RANKS) -> dict[str, Any]:
    """Return the sizes of all runs, as `simulate` takes them."""
    workload = DenseRows(net.width)
    return {"world_size": num_ranks, "num_layers": LAYERS, "global_batch_size": BATCH, "workload": workload}


def our_step(name: str, net: DenseBytes, rank: int, num_ranks: int = RANKS) -> Callable[[int], None]:
    """Return what takes a step by a strategy."""
    program = record(name, sizes_of(net, num_ranks))
    arithmetic = Arithmetic(net, BATCH)
    executor = ProcessExecutor(program.ranks[rank], arithmetic, {tuple(range(num_ranks)): None})
    make_model = watched(Model, executor)
    transport: Any = ProcessTransport(program.ranks[rank], num_ranks)
    strategy: Any = choose_strategy(name).function
    predictor = program.run.prepared.predictor_of(rank)
    loop = asyncio.new_event_loop()
    carried: dict[int | str, Any] = {}

    def step(number: int) -> None:
        arithmetic.begin(number, carried)
        model: Any = make_model(rank, transport, LAYERS, BATCH, runtime_predictor=predictor)
        loop.run_until_complete(strategy(model))
        executor.end_step(model)
        carried.update({k: (weight._content, arithmetic.states[k]) for k, weight in model.final_weights.items()})

    return step


def rank_main(rank: int, meeting: str, width: int, rounds: int) -> None:
    """Time all pairs on one rank; the first prints."""
    torch.set_num_threads(1)
    host, _, port = meeting.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]  # documented
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    net = DenseBytes(LAYERS, read_text(), width=width)
    if rank == 0:
        print(f"{RANKS} processes, {LAYERS} layers of {width}, batch {BATCH}, float32, fused Adam; ms a step, medians")
    for ours, theirs in PAIRS:
        steps = our_step(ours, net, rank), torch_step(theirs, net, rank)
        times: list[tuple[float, ...]] = []
        for number in range(rounds + WARM_UP):
            found = []
            for step in steps:
                dist.barrier()
                began = time.perf_counter()
                step(number)
                dist.barrier()
                found.append(time.perf_counter() - began)
            times.append(tuple(found))
        mine, other = (statistics.median(column) * 1e3 for column in zip(*times[WARM_UP:], strict=True))
        ratio = statistics.median(one / two for one, two in times[WARM_UP:])
        if rank == 0:
            print(f"{ours:12} {mine:7.1f}   torch {theirs:12} {other:7.1f}   median of ratios {ratio:.2f}")
            sys.stdout.flush()
    print_overhead(DenseBytes(LAYERS, read_text(), width=NARROW), rank, 2 * rounds)
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--short", action="store_true", help="narrow layers and few rounds, to see that it works")
    sizes = (256, 2) if parser.parse_args().short else (1024, 20)
    context = multiprocessing.get_context("spawn")
    with meeting_place() as meeting:
        processes = [context.Process(target=rank_main, args=(rank, meeting, *sizes)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
