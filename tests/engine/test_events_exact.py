"""Every event against the specification's formulas, to the last float.

`SpecModel` is the specification written down anew in the plainest way: dicts, sums over dicts, queues and one future
a collective. Shipped strategies and small programs run on it and on the real thing, and the rows must be the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import reduce
from importlib import resources
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import minitrain as mt
import minitrain.lib as lib

H, BLOCK = 4096, 1024
PIPELINES = ("gpipe", "1f1b")
CONFIG: Any = json.loads(resources.files("minitrain.hw_configs").joinpath("h100_80g_nvl8.json").read_text())
Row = tuple[Any, ...]


def rate(peak: float, rows: list[list[float]], unit: float, amount: float) -> float:
    """Peak times the efficiency of the first row whose bound the operation reaches."""
    return float(peak * next(efficiency for bound, efficiency in rows if amount >= bound * unit))


def roofline(work_flop: int, size_bytes: int) -> float:
    matrix, hbm = CONFIG["matrix"]["float16"], CONFIG["mem1"]
    compute = work_flop / rate(matrix["tflops"] * 1e12, matrix["gflops_efficiency"], 1e9, work_flop)
    return max(compute, size_bytes / rate(hbm["GBps"] * 1e9, hbm["MB_efficiency"], 1e6, size_bytes))


def transfer(op: str, size_bytes: int, n: int, world_size: int) -> float:
    tier = next(tier for tier in CONFIG["networks"] if tier["size"] >= world_size)
    scalar, offset = tier["ops"][op]
    x = size_bytes * scalar
    if offset is not None:
        x += (1 / n * x) * offset
    return float(tier["latency"] + x / (tier["bandwidth"] * 1e9 * tier["efficiency"]))


def message_bytes(v: Any) -> int:
    if isinstance(v, lib.Weight | lib.WeightGrad):
        return 2 * H * H
    if isinstance(v, lib.OptState):
        return 2 * (H * H // v.num_shards)
    return 2 * H * BLOCK * len(v.samples)


def samples_of(v: Any) -> frozenset[int]:
    return getattr(v, "samples", frozenset())


class SpecDist:
    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.queues: dict[tuple[int, int], asyncio.Queue[Any]] = {}
        self.meetings: dict[int, tuple[dict[int, Any], asyncio.Future[None]]] = {}
        self.count = [0] * world_size

    def queue(self, source: int, dest: int) -> asyncio.Queue[Any]:
        return self.queues.setdefault((source, dest), asyncio.Queue(1))

    async def meet(self, rank: int, value: Any, time: float) -> tuple[list[Any], float]:
        place, self.count[rank] = self.count[rank], self.count[rank] + 1
        new = asyncio.get_running_loop().create_future()
        brought, everybody = self.meetings.setdefault(place, ({}, new))
        brought[rank] = value, time
        if len(brought) == self.world_size:
            everybody.set_result(None)
        await everybody
        return [brought[r][0] for r in sorted(brought)], max(clock for _, clock in brought.values())


class SpecModel:
    """The specified Model, as literally as it can be written."""

    def __init__(self, rank: int, dist: SpecDist, num_layers: int, global_batch_size: int) -> None:
        self.rank, self.dist, self.world_size = rank, dist, dist.world_size
        self.num_layers, self.global_batch_size = num_layers, global_batch_size
        self.stores: tuple[dict[Any, Any], ...] = ({}, {}, {}, {}, {})
        self.time, self.log = 0.0, list[Row]()
        self.final_weights: dict[int, Any] = {}

    def storage(self) -> tuple[dict[Any, Any], ...]:
        return self.stores

    def record(self, typ: str, layer: Any, seconds: float, samples: frozenset[int] = frozenset()) -> None:
        memory = sum(value.memory() for store in self.stores for value in store.values())
        self.log.append((typ, layer, self.time, seconds, memory, samples))
        self.time += seconds

    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> Any:
        pcie, size_bytes = CONFIG["mem2"], 2 * (H * H * 1 // num_shards)
        seconds = size_bytes / rate(pcie["GBps"] * 1e9, pcie["MB_efficiency"], 1e6, size_bytes)
        self.record("load_weights", layer, seconds)
        shards = frozenset([shard])
        return (
            lib.Weight(layer, self.num_layers, 0, shards, num_shards),
            lib.OptState(layer, self.num_layers, 0, shards, num_shards),
        )

    def set_final_weight(self, layer: int, weight: Any) -> None:
        self.final_weights[layer] = weight

    def get_input_activation(self, samples: Any) -> Any:
        return lib.Activation(0, self.num_layers, frozenset(samples), self.global_batch_size)

    def _pass(self, typ: str, layer: int, samples: frozenset[int]) -> None:
        tokens = len(samples) * BLOCK
        self.record(typ, layer, roofline(2 * H * H * tokens, 2 * (H * H + 2 * tokens * H)), samples)

    def forward(self, layer: int, inp: Any, weight: Any) -> Any:
        self._pass("forward", layer, inp.samples)
        return lib.Activation(layer + 1, self.num_layers, inp.samples, self.global_batch_size)

    def loss(self, inp: Any) -> Any:
        self.record("loss", self.num_layers, 0, inp.samples)
        return lib.ActivationGrad(self.num_layers - 1, self.num_layers, inp.samples, self.global_batch_size)

    def backward(self, layer: int, inp: Any, grad: Any, weight: Any) -> Any:
        self._pass("backward", layer, inp.samples)
        return (
            lib.WeightGrad(layer, self.num_layers, inp.samples, self.global_batch_size),
            lib.ActivationGrad(layer - 1, self.num_layers, inp.samples, self.global_batch_size),
        )

    def update(self, layer: int, weight_grad: Any, weight: Any, opt_state: Any) -> Any:
        h2 = H * len(weight.shards) // weight.num_shards
        self.record("update", layer, roofline(H * h2, 2 * 3 * H * h2), weight_grad.samples)
        return (
            lib.Weight(layer, self.num_layers, weight.step + 1, weight.shards, weight.num_shards),
            lib.OptState(layer, self.num_layers, opt_state.step + 1, opt_state.shards, opt_state.num_shards),
        )

    async def _collective(self, op: str, v: Any, layer: int, combine: Callable[[list[Any]], Any]) -> Any:
        values, self.time = await self.dist.meet(self.rank, v, self.time)
        result = v if self.world_size == 1 else combine(values)
        seconds = 0.0 if self.world_size == 1 else transfer(op, message_bytes(v), self.world_size, self.world_size)
        self.record(op, layer, seconds, samples_of(result))
        return result

    async def all_reduce(self, v: Any, layer: int) -> Any:
        return await self._collective("all_reduce", v, layer, lambda values: reduce(lambda a, b: a + b, values))

    async def reduce_scatter(self, v: Any, layer: int) -> Any:
        return await self._collective(
            "reduce_scatter",
            v,
            layer,
            lambda values: reduce(lambda a, b: a + b, values).shard(self.rank, self.world_size),
        )

    async def all_gather(self, v: Any, layer: int) -> Any:
        return await self._collective("all_gather", v, layer, lambda values: reduce(lambda a, b: a.combine(b), values))

    async def send(self, dest: int, v: Any, tag: None = None) -> None:
        carried = v, self.time
        self.record("send", v.layer, transfer("p2p", message_bytes(v), 2, self.world_size), samples_of(v))
        await self.dist.queue(self.rank, dest).put(carried)

    async def receive(self, source: int) -> Any:
        v, carried = await self.dist.queue(source, self.rank).get()
        self.time = max(self.time, carried)
        self.record("recv", v.layer, transfer("p2p", message_bytes(v), 2, self.world_size), samples_of(v))
        return v


def spec_logs(program: Any, world_size: int, num_layers: int, batch: int, **options: Any) -> list[list[Row]]:
    async def main() -> list[list[Row]]:
        dist = SpecDist(world_size)
        models = [SpecModel(rank, dist, num_layers, batch) for rank in range(world_size)]
        await asyncio.gather(*(program(model, **options) for model in models))
        return [model.log for model in models]

    return asyncio.run(main())


def real_logs(program: Any, world_size: int, num_layers: int, batch: int, **options: Any) -> list[list[Row]]:
    options |= {"world_size": world_size, "num_layers": num_layers, "global_batch_size": batch}
    run = mt.simulate(program, check=False, network="flat", **options)
    return [[(e.typ, e.layer, e.time, e.duration, e.memory, e.samples) for e in log] for log in run.logs]


def waiting_for_messages(name: str) -> dict[str, Any]:
    """Return the options of the specified loops, in which a rank waits for each of its messages."""
    return {"overlap_messages": False} if name in PIPELINES else {}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3", *PIPELINES])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 16])
def test_strategies_log_exactly_what_the_specification_computes(name: str, world_size: int) -> None:
    strategy = mt.strategies()[name]
    sizes, options = (world_size, 2 * world_size, 4 * world_size), waiting_for_messages(name)
    assert real_logs(strategy, *sizes, **options) == spec_logs(strategy, *sizes, **options)


@given(
    st.sampled_from(["ddp", "zero1", "zero2", "zero3", *PIPELINES]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 4),
)
@example("1f1b", 4, 1, 5, 2)
def test_any_sizes_log_exactly_what_the_specification_computes(
    name: str, world_size: int, layers: int, samples: int, microbatch: int
) -> None:
    strategy = mt.strategies()[name]
    sizes = (world_size, layers * world_size, samples * world_size)
    options = {"microbatch_size": min(microbatch, samples), **waiting_for_messages(name)}
    assert real_logs(strategy, *sizes, **options) == spec_logs(strategy, *sizes, **options)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("world_size", [3, 5, 7])
def test_shards_of_any_number_log_the_specified_memory_to_1e_12(name: str, world_size: int) -> None:
    strategy = mt.strategies()[name]
    sizes = (world_size, world_size, world_size)
    for real, spec in zip(real_logs(strategy, *sizes), spec_logs(strategy, *sizes), strict=True):
        assert [row[:4] + row[5:] for row in real] == [row[:4] + row[5:] for row in spec]
        assert [row[4] for row in real] == pytest.approx([row[4] for row in spec], rel=1e-12, abs=0)


async def uneven(model: Any) -> Any:
    """Let ranks come late, by different amounts, to messages and collectives of every kind of tensor."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    right, left = (model.rank + 1) % model.world_size, (model.rank - 1) % model.world_size
    for layer in range(model.num_layers - model.rank % 2):
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)
    weights[0] = await model.all_gather(weights[0], 0)
    opt_states["all"] = await model.all_gather(opt_states[0], 0)
    activations[0] = model.get_input_activation(range(model.rank, model.global_batch_size))
    for _ in range(1 + model.rank):
        activations[1] = model.forward(0, activations[0], weights[0])
    for tensor, store in ((activations[1], activations), (weights[0], weights), (opt_states[0], opt_states)):
        await model.send(right, tensor)
        store["left"] = await model.receive(left)
    activations[1].layer = model.num_layers
    grad_activations[0] = model.loss(activations[1])
    grad_activations[0].layer = 0
    grad_weights[0], grad_activations[-1] = model.backward(0, activations[0], grad_activations[0], weights[0])
    await model.send(left, grad_weights[0])
    grad_weights["right"] = await model.receive(right)
    await model.send(left, grad_activations.pop(-1))
    await model.receive(right)
    grad_weights["sum"] = await model.all_reduce(grad_weights[0], 0)
    grad_weights[0] = await model.reduce_scatter(grad_weights[0], 0)
    await model.all_gather(grad_weights[0], 0)
    model.update(0, grad_weights["sum"], weights[0], opt_states["all"])
    return model


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_late_ranks_and_every_kind_of_tensor_log_exactly_what_the_specification_computes(world_size: int) -> None:
    assert real_logs(uneven, world_size, 5, 16) == spec_logs(uneven, world_size, 5, 16)
