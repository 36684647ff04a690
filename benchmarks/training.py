"""Steps of real processes beside torch's own: `python -m benchmarks.training`.

Two processes on this machine train the same dense layers on the same data: by a strategy, and by torch's
DistributedDataParallel or fully_shard with the same layers, loss and optimizer. Steps alternate; the ratio of each pair
is taken, and the median of these.
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

from minitrain.engine.model import Model
from minitrain.engine.watched import watched
from minitrain.run.strategy_loading import choose_strategy
from minitrain.training.launcher import meeting_place
from minitrain.training.layers import Arithmetic
from minitrain.training.nets import DenseBytes, read_text
from minitrain.training.program import record
from minitrain.training.wire import ProcessExecutor, ProcessTransport
from minitrain.workloads.dense_rows import DenseRows

RANKS, LAYERS, BATCH, WARM_UP = 2, 8, 64, 3
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
        *(Layer(net.initial_weight(k).float().view(net.width, net.width)) for k in range(LAYERS))
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
        loss = net.loss(model(net.inputs(samples, BATCH, number)), samples, BATCH, number) * RANKS
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_step(name: str, net: DenseBytes, rank: int) -> Callable[[int], None]:
    """Return what takes a step by a strategy."""
    workload = DenseRows(net.width)
    sizes = {"world_size": RANKS, "num_layers": LAYERS, "global_batch_size": BATCH}
    program = record(name, {**sizes, "workload": workload})
    arithmetic = Arithmetic(net, BATCH)
    executor = ProcessExecutor(program.ranks[rank], arithmetic, {tuple(range(RANKS)): None})
    make_model = watched(Model, executor)
    transport: Any = ProcessTransport(program.ranks[rank], RANKS)
    strategy: Any = choose_strategy(name).function
    predictor = program.run.prepared.predictor_of(rank)
    runner = asyncio.Runner()
    carried: dict[int, Any] = {}

    def step(number: int) -> None:
        arithmetic.begin(number, carried)
        model: Any = make_model(rank, transport, LAYERS, BATCH, runtime_predictor=predictor)
        runner.run(strategy(model))
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
