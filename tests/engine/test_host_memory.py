"""Host memory: what offload and fetch cost, hold and require, and that every way to run and to look knows them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, OutOfMemoryError, TensorTypeError
from minitrain.lib import Model
from minitrain.machine import load_config
from minitrain.machine.device import Storage
from minitrain.machine.price import Price
from minitrain.operations import ON_COMPUTE, STREAM, STRIDE
from minitrain.run.analysis.retiming import critical_path, make_graph, retimed_events, what_ifs
from minitrain.run.analysis.timeline import as_timeline, timeline_of_events
from minitrain.tensors.fields import OnHost
from minitrain.view.exports import write_chakra, write_hta
from minitrain.workloads.matmul import MATMUL_LAYER

GPT = mt.Transformer(num_layers=4, hidden_size=128, num_heads=8, vocab_size=256, seq_len=96, dropout=0.1)
SAMPLE = 2 * 4096 * 1024  # bytes of an activation of the default layer
Program = Callable[[Model], Awaitable[Model]]


def train(**options: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": GPT, "world_size": 8, "global_batch_size": 16, "microbatch_size": 1}
    return mt.simulate("fsdp", **{"offload": "activations", **usual, **options})


def alone(program: Program, **options: Any) -> mt.Run:
    """Run a program of one rank on one default layer, for eight samples."""
    sizes: dict[str, Any] = {"world_size": 1, "num_layers": 1, "global_batch_size": 8, "check": False}
    return mt.simulate(program, **sizes | options)


async def begin(model: Model) -> None:
    """Store a weight, its state, and an input."""
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(range(8))


def of(run: mt.Run, *typs: str) -> list[Any]:
    return [event for event in run.logs[0] if event.typ in typs]


# ---- what it costs and holds -----------------------------------------------------------------------------------------


def test_a_move_takes_the_time_of_the_link_to_the_host() -> None:
    async def program(model: Model) -> Model:
        await begin(model)
        model.host["x"] = await model.offload(model.activations.pop(0))
        model.activations[0] = await model.fetch(model.host["x"])
        return model

    link = load_config("h100_80g_nvl8").mem_pcie
    expected = 8 * SAMPLE / link.throughput(8 * SAMPLE)
    run = alone(program)
    assert [event.duration for event in of(run, "offload", "fetch")] == [expected, expected]
    assert [event.size_bytes for event in of(run, "offload", "fetch")] == [8 * SAMPLE] * 2
    assert [(event.stream, event.layer, event.samples) for event in of(run, "offload", "fetch")] == [
        ("offload", 0, frozenset(range(8))),
        ("fetch", 0, frozenset(range(8))),
    ]


def test_what_is_offloaded_frees_the_device_and_fills_the_host_until_it_is_deleted() -> None:
    held: list[tuple[float, float]] = []

    async def program(model: Model) -> Model:
        await begin(model)

        def note() -> None:
            held.append((model.memory_by_store()["activations"], sum(kept._units for kept in model.host.values())))

        note()
        model.host["x"] = await model.offload(model.activations[0])
        note()  # a copy: both are there
        del model.activations[0]
        note()
        model.activations[0] = await model.fetch(model.host["x"])
        note()
        del model.host["x"]
        note()
        return model

    run = alone(program)
    elements, units = 8 * SAMPLE / 2, 8 * SAMPLE // 2 * 2**40
    assert held == [(elements, 0), (elements, units), (0, units), (elements, units), (elements, 0)]
    assert run.peak_host_memory_bytes == 8 * SAMPLE


def test_each_direction_has_a_stream_of_its_own_beside_computing() -> None:
    async def program(model: Model) -> Model:
        await begin(model)
        model.host["w"] = await model.offload(model.opt_states[0])
        out = model.launch(model.offload(model.activations[0]))
        again = model.launch(model.offload(model.weights[0]))
        back = model.launch(model.fetch(model.host["w"]))
        model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
        for work in (out, again, back):
            await work
        return model

    run = alone(program)
    first, out, again = of(run, "offload")
    (back,), (forward,) = of(run, "fetch"), of(run, "forward")
    assert out.time == back.time == forward.time == first.end
    assert again.time == out.end  # one direction is one stream
    assert run.last_clock == max(again.end, forward.end, back.end)


def test_a_launched_fetch_holds_its_result_from_its_launch_on() -> None:
    async def program(model: Model) -> Model:
        await begin(model)
        model.host["x"] = await model.offload(model.activations.pop(0))
        before = model.memory()
        work = model.launch(model.fetch(model.host["x"]))
        assert model.memory() - before == 8 * SAMPLE / 2
        model.activations[0] = await work
        assert model.memory() - before == 8 * SAMPLE / 2
        return model

    alone(program)


def test_an_activation_moves_with_all_that_its_layer_keeps() -> None:
    run = train(global_batch_size=8)
    moved = {event.layer: event.size_bytes for event in of(run, "offload")}
    work = mt.simulate("ddp", world_size=1, workload=GPT, global_batch_size=1).models[0].runtime_predictor.workload
    kept = {layer: work.kept_elements(layer, 1, mode_of_usual()) for layer in moved}
    assert moved == kept
    assert run.peak_host_memory_bytes == sum(kept.values())
    fetched = {event.layer: event.size_bytes for event in of(run, "fetch")}
    assert fetched == moved


def mode_of_usual() -> Any:
    from minitrain.workloads.workload import USUAL

    return USUAL


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_backward_costs_the_same_after_a_fetch(recompute: str) -> None:
    here, there = train(offload=None, recompute=recompute), train(recompute=recompute)
    prices = [[(e.layer, e.duration) for e in run.logs[0] if e.typ == "backward"] for run in (here, there)]
    assert prices[0] == prices[1]
    assert here.hfu is not None
    assert there.hfu is not None
    assert there.hfu * there.step_time == pytest.approx(here.hfu * here.step_time, rel=1e-12)
    assert there.peak_memory < here.peak_memory


def test_offloaded_optimizer_state_is_not_on_the_device_when_most_is_held() -> None:
    large: dict[str, Any] = {"workload": "llama3-8b", "seq_len": 2048, "global_batch_size": 8, "world_size": 4}
    here, there = train(offload=None, **large), train(offload="optimizer", **large)
    assert here.memory_by_kind is not None
    assert there.memory_by_kind is not None
    saved = here.memory_by_kind["optimizer"] - there.memory_by_kind["optimizer"]
    assert saved == pytest.approx(here.memory_by_kind["optimizer"], rel=0.1)
    assert there.peak_host_memory_bytes == pytest.approx(here.memory_by_kind["optimizer"])


async def write_input(model: Model) -> Model:
    """Write an input beside a forward, and delete the host's copy at once."""
    await begin(model)
    model.host["x"] = await model.offload(model.activations[0])
    work = model.launch(model.write(model.host["x"]))
    del model.host["x"]
    assert model.host._account.units == model.activations[0]._units
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    await work
    assert model.host._account.units == 0
    return model


@pytest.mark.parametrize(
    ("storage", "world_size", "rate"), [(None, 1, 25e9), (None, 16, 25e9 / 8), (10.0, 16, 10e9 / 16)]
)
def test_ranks_share_what_the_storage_and_their_nodes_port_take(
    storage: float | None, world_size: int, rate: float
) -> None:
    """A node has eight ranks."""
    config = load_config("h100_80g_nvl8")
    system = config if storage is None else replace(config, storage=Storage(storage, 25.0))
    run = alone(write_input, hardware=system, world_size=world_size)
    write, forward = of(run, "write")[0], of(run, "forward")[0]
    assert write.duration == pytest.approx(8 * SAMPLE / rate, rel=1e-12)
    assert (write.stream, write.size_bytes, write.time) == ("write", 8 * SAMPLE, forward.time)
    assert run.peak_host_memory_bytes == 8 * SAMPLE
    assert alone(write_input, hardware=system, world_size=world_size, strict=True).logs == run.logs


# ---- laws ------------------------------------------------------------------------------------------------------------


async def offloaded_input(model: Model) -> OnHost:
    await begin(model)
    model.host["x"] = await model.offload(model.activations.pop(0))
    return model.host["x"]


async def forward_of_what_is_away(model: Model) -> Model:
    model.forward(0, await offloaded_input(model), model.weights[0])  # type: ignore[arg-type]  # the mistake
    return model


async def update_without_its_state(model: Model) -> Model:
    await begin(model)
    model.host["s"] = await model.offload(model.opt_states[0])
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations[1])
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.update(0, grad, model.weights[0], model.host["s"])  # type: ignore[arg-type]  # the mistake
    return model


async def offload_twice(model: Model) -> Model:
    await model.offload(await offloaded_input(model))
    return model


async def fetch_what_is_here(model: Model) -> Model:
    await begin(model)
    await model.fetch(model.activations[0])  # type: ignore[arg-type]  # the mistake
    return model


async def fetch_what_was_dropped(model: Model) -> Model:
    kept = await offloaded_input(model)
    del model.host["x"]
    await model.fetch(kept)
    return model


async def write_from_the_device(model: Model) -> Model:
    await begin(model)
    await model.write(model.activations[0])  # type: ignore[arg-type]  # the mistake
    return model


async def write_what_was_dropped(model: Model) -> Model:
    kept = await offloaded_input(model)
    del model.host["x"]
    await model.write(kept)
    return model


async def hide_a_tensor_on_the_host(model: Model) -> Model:
    await begin(model)
    model.host["x"] = model.activations.pop(0)
    return model


async def gather_what_is_away(model: Model) -> Model:
    await begin(model)
    model.host["w"] = await model.offload(model.weights[0])
    await model.all_gather(model.host["w"], 0)
    return model


MISTAKES: list[tuple[Program, type[Exception], str]] = [
    (
        forward_of_what_is_away,
        mt.LawError,
        "forward on rank 0: inp must be in the device's memory, and the Activation of layer 0 was offloaded to the "
        "host's; `await model.fetch(...)` brings it back",
    ),
    (
        update_without_its_state,
        mt.LawError,
        "update on rank 0: opt_state must be in the device's memory, and the OptState of layer 0 was offloaded to the "
        "host's; `await model.fetch(...)` brings it back",
    ),
    (
        offload_twice,
        mt.LawError,
        "offload on rank 0: OnHost(Activation of layer 0, in host memory: fetch it to use it); it need not be "
        "offloaded again",
    ),
    (
        fetch_what_is_here,
        mt.LawError,
        "fetch on rank 0 takes what offload gave, got Activation(layer 0, samples {0..7}), which is on the device "
        "already; offload it first",
    ),
    (
        fetch_what_was_dropped,
        mt.LawError,
        "fetch on rank 0: what was offloaded must be in model.host, so that its memory counts, got OnHost(Activation "
        "of layer 0, in host memory: fetch it to use it); put it there, and delete it after the fetch is submitted",
    ),
    (
        write_from_the_device,
        mt.LawError,
        "write on rank 0 takes what offload gave, got Activation(layer 0, samples {0..7}), which is not in host "
        "memory; offload it first",
    ),
    (
        write_what_was_dropped,
        mt.LawError,
        "put it there, and delete it after the write is submitted",
    ),
    (
        hide_a_tensor_on_the_host,
        mt.LawError,
        "model.host of rank 0 holds what was offloaded alone, got Activation(layer 0, samples {0..7}); "
        "`model.host[key] = await model.offload(tensor)` moves a tensor there",
    ),
    (
        gather_what_is_away,
        TensorTypeError,
        "got OnHost (OnHost(Weight of layer 0, in host memory: fetch it to use it))",
    ),
]


@pytest.mark.parametrize(("program", "kind", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("strict", [False, True])
def test_mistakes_with_host_memory_say_what_to_do(
    program: Program, kind: type[Exception], message: str, strict: bool
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        alone(program, strict=strict)


def test_a_host_holds_no_more_than_the_config_gives_it() -> None:
    small = load_config("h100_80g_nvl8")
    with pytest.raises(OutOfMemoryError, match=r"got 0\.0625 GiB for 0\.04 GiB \(mem2\.GiB of the hardware config\)"):
        alone(offloaded_input_only, hardware=with_host(small, 0.04))


async def offloaded_input_only(model: Model) -> Model:
    await offloaded_input(model)
    return model


def with_host(system: Any, gib: float) -> Any:
    return replace(system, mem2=replace(system.mem2, GiB=gib))


class NoHost:
    """A predictor of one's own, which knows no host."""

    workload = MATMUL_LAYER
    peak_flop_per_s = None
    capacity_bytes = None

    def free(self, *_: Any, **__: Any) -> Price:
        return Price(0.0)

    compute = update = load = collective = p2p = free

    def slowed(self, _: float) -> NoHost:
        return self

    def training(self, _: Any) -> NoHost:
        return self


def test_hardware_without_a_host_is_one_clear_error() -> None:
    with pytest.raises(
        HardwareConfigError,
        match=r"offload on rank 0 needs the memory of a host and the link to it, of which the hardware \(NoHost\) says "
        r"nothing; use a hardware config with mem2, or give the predictor host_capacity_bytes and host_transfer",
    ):
        alone(offloaded_input_only, hardware=NoHost())


def test_durations_by_hand_have_offload_and_fetch() -> None:
    run = train(hardware=mt.FixedPredictor(forward=1, backward=2, offload=3, fetch=5))
    assert {event.duration for event in of(run, "offload")} == {3.0}
    assert {event.duration for event in of(run, "fetch")} == {5.0}


async def use_anothers(model: Model) -> Model:
    kept = await offloaded_input(model)
    kept.fields = (0, *kept.fields[1:3], 99)
    await model.fetch(kept)
    return model


def test_a_strict_run_fetches_only_what_was_offloaded_as_it_was() -> None:
    with pytest.raises(mt.LawError, match="did not come out of an offload of this rank, or was altered since"):
        alone(use_anothers, strict=True)


# ---- the step by the host --------------------------------------------------------------------------------------------


async def begin_on_host(model: Model) -> list[OnHost]:
    """Take all samples forward and backward, and move gradient, weight and state to the host."""
    await begin(model)
    grad = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    model.grad_activations[0] = grad
    model.grad_weights[0], _ = model.backward(0, model.activations[0], grad, model.weights[0])
    for store in (model.grad_weights, model.weights, model.opt_states):
        model.host[store[0].__class__] = await model.offload(store[0])
    return [*model.host.values()]


async def step_on_host(model: Model) -> Model:
    await model.update_on_host(*await begin_on_host(model))
    model.set_final_weight(0, await model.fetch(list(model.host.values())[1]))
    return model


def with_rate(seconds: float | None) -> Any:
    system = load_config("h100_80g_nvl8")
    return replace(system, mem2=replace(system.mem2, update_s_per_billion=seconds))


@pytest.mark.parametrize(
    ("strategy", "stated", "expected"),
    [
        ("megatron:optimizer_offload_fraction=1", None, 1.476),
        ("fsdp:offload=optimizer_step", None, 1.476),
        ("fsdp:offload=optimizer_step", 0.5, 0.5),
    ],
)
@pytest.mark.parametrize(("world_size", "ranks_a_node"), [(1, 1), (4, 4), (16, 8)])
def test_ranks_of_a_node_share_the_time_of_the_hosts_step(
    strategy: str, stated: float | None, expected: float, world_size: int, ranks_a_node: int
) -> None:
    more: dict[str, Any] = {"zero": 1} if strategy.startswith("megatron") else {}
    sizes: dict[str, Any] = {"world_size": world_size, "workload": "tiny", "global_batch_size": 16}
    run = mt.simulate(strategy, hardware=with_rate(stated), **sizes, **more)
    seconds = sum(event.duration for event in of(run, "update_on_host")) * world_size
    assert seconds == pytest.approx(mt.models()["tiny"].num_parameters / 1e9 * expected * ranks_a_node)
    run = mt.simulate(strategy, hardware=with_rate(stated), platform="DeepSpeed", **sizes, **more)
    seconds = sum(event.duration for event in of(run, "update_on_host")) * world_size
    adam = 0.257 if stated is None else stated
    assert seconds == pytest.approx(mt.models()["tiny"].num_parameters / 1e9 * adam * ranks_a_node)


def test_the_hosts_step_is_a_step_and_is_strict() -> None:
    run = alone(step_on_host, strict=True, check=True)
    (event,) = of(run, "update_on_host")
    assert (event.layer, event.samples, event.stream) == (0, frozenset(range(8)), "update_on_host")
    assert run.models[0].final_weights[0].step == 1


async def update_from_the_device(model: Model) -> Model:
    _, weight, state = await begin_on_host(model)
    await model.update_on_host(model.grad_weights[0], weight, state)  # type: ignore[arg-type]  # on purpose
    return model


async def fetch_what_is_updated(model: Model) -> Model:
    _, weight, _ = given = await begin_on_host(model)
    model.launch(model.update_on_host(*given))
    await model.fetch(weight)
    return model


async def update_with_an_old_gradient(model: Model) -> Model:
    given = await begin_on_host(model)
    await model.update_on_host(*given)
    await model.update_on_host(*given)
    return model


async def update_without_all_samples(model: Model) -> Model:
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(range(4))
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    for store in (model.grad_weights, model.weights, model.opt_states):
        model.host[store[0].__class__] = await model.offload(store[0])
    await model.update_on_host(*model.host.values())
    return model


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (update_from_the_device, r"update_on_host on rank 0 takes what offload gave, got WeightGrad"),
        (fetch_what_is_updated, "is being updated by a launched update_on_host; await that first"),
        (update_with_an_old_gradient, "the gradient stems from weights of step 0"),
        (update_without_all_samples, "needs the gradient of all 8 samples|must cover all|all 8 samples"),
    ],
)
def test_the_host_keeps_the_laws_of_an_update(program: Program, message: str) -> None:
    with pytest.raises(mt.LawError, match=message):
        alone(program, strict=True)


def test_a_fraction_of_the_state_lies_on_the_host_and_the_rest_does_not() -> None:
    runs = [
        mt.simulate("megatron", world_size=2, workload=GPT, global_batch_size=2, optimizer_offload_fraction=share)
        for share in (0, 0.5, 1)
    ]
    steps = [len(of(run, "update_on_host")) for run in runs]
    assert (steps[0], steps[2]) == (0, 10)
    assert 0 < steps[1] < 10
    states = [(run.memory_by_kind or {})["optimizer"] for run in runs]
    assert states[0] > states[1] > states[2] == 0
    host = [run.peak_host_memory_bytes for run in runs]
    assert host[0] == 0 < host[1] < host[2]


def test_copies_beside_the_hosts_step_make_it_shorter() -> None:
    usual, beside = (
        mt.simulate(
            "megatron", world_size=2, workload=GPT, global_batch_size=2, optimizer_offload_fraction=1,
            overlap_cpu_optimizer_d2h_h2d=overlap,
        ).step_time
        for overlap in (False, True)
    )  # fmt: skip
    assert beside < usual


def test_weights_on_the_host_leave_the_device_and_come_for_each_gather() -> None:
    there, all_there = train(offload="optimizer_step"), train(offload="parameters")
    assert all_there.peak_memory_bytes < there.peak_memory_bytes
    units, gathered_again, batches = 6, 5, 2
    fetched = [event for event in of(all_there, "fetch") if event.time >= 0]
    layers = 2 * 4 + 2
    gathers = batches * (layers + layers - 1)  # the head stays whole until backward
    assert len(of(all_there, "all_gather")) == batches * (units + gathered_again)
    added_to = (layers - 2) * (
        batches - 1
    )  # gradients; those of the table that the ends share stay until both are there
    assert len(fetched) == gathers + layers + added_to


def test_the_headline_says_how_sure_the_hosts_step_is() -> None:
    said = "the host's step by a rate that differs by up to 80 times elsewhere"
    assert said in repr(train(offload="optimizer_step"))
    assert said not in repr(train(offload="optimizer"))


@pytest.mark.parametrize("share", [1.5, -0.1, "all"])
def test_a_fraction_is_a_share(share: Any) -> None:
    with pytest.raises(mt.StrategyError, match="optimizer_offload_fraction must be a share, 0 to 1, for megatron, got"):
        mt.simulate("megatron", world_size=1, workload="tiny", global_batch_size=1, optimizer_offload_fraction=share)


# ---- every way to run and to look ------------------------------------------------------------------------------------

GRID: list[dict[str, Any]] = [
    {},
    {"recompute": "full"},
    {"offload": "optimizer", "replicas": 2},
    {"tp": 2, "sequence_parallel": True, "recompute": "selective", "reshard_after_forward": False},
    {"offload": "optimizer", "tp": 2},
    {"offload": "optimizer_step"},
    {"offload": "optimizer_step", "replicas": 2, "tp": 2},
    {"offload": "parameters"},
    {"offload": "parameters", "replicas": 8},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", GRID, ids=str)
def test_folded_summary_strict_and_saved_runs_agree(options: dict[str, Any], tmp_path: Path) -> None:
    plain = train(fold=False, **options)
    assert train(fold=True, **options).summary() == plain.summary()
    by_itself: dict[str, Any] = {"contention": False, **options}  # totals are not timed again
    assert train(log="summary", **by_itself).summary() == train(**by_itself).summary()
    assert [list(log) for log in train(strict=True, **options).logs] == [list(log) for log in plain.logs]
    plain.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert loaded.summary() == plain.summary()
    assert loaded.logs == [list(log) for log in plain.logs]


@pytest.mark.parametrize("offload", ["activations", "optimizer", "optimizer_step", "parameters"])
def test_fsdp_with_host_memory_is_proven_on_arrays(offload: str) -> None:
    proof = mt.prove("fsdp", world_size=4, num_layers=3, global_batch_size=8, microbatch_size=1, offload=offload)
    assert proof.largest < 1e-12


def test_columns_dependencies_and_critical_path_know_the_streams() -> None:
    run = train(offload="optimizer")
    line = as_timeline(run.logs)
    again = timeline_of_events([list(log) for log in run.logs])
    assert line.streams == again.streams
    assert {stream.kind for stream in line.streams} >= {"compute", "comm", "offload", "fetch"}
    graph = make_graph(line)
    assert np.array_equal(retimed_events(graph, line.duration)[1], line.time)
    assert critical_path(graph).by_typ()
    assert {"offload", "fetch"} <= set(what_ifs(graph))
    assert run.communication_by_axis["host"].seconds > 0


def test_pages_and_exports_show_moves(tmp_path: Path) -> None:
    run = train()
    page = run.write_html(tmp_path / "run.html").read_text()
    assert "to the host" in page
    trace = json.loads(run.write_chrome_trace(tmp_path / "trace.json").read_text())
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {"offload", "fetch"} <= named
    text = write_hta(tmp_path / "hta", run.logs)[0].read_text()
    assert "Memcpy DtoH" in text
    assert "Memcpy HtoD" in text
    assert write_chakra(tmp_path / "chakra", run.logs)[0].stat().st_size > 0
    assert "offload" in str(run.explain())


def test_contention_leaves_moves_as_long_as_they_are() -> None:
    plain, slowed = train(workload="llama3-8b", seq_len=512), train(workload="llama3-8b", seq_len=512, contention=True)
    moves = [[event.duration for event in of(run, "offload", "fetch")] for run in (plain, slowed)]
    assert sorted(moves[0]) == sorted(moves[1])


def test_runs_that_offload_nothing_have_no_host_streams() -> None:
    rows = train(offload=None).models[0].log._rows
    assert {stream.kind for stream in rows[STREAM::STRIDE]} == {ON_COMPUTE.kind, "comm"}


# ---- where it is not counted otherwise -------------------------------------------------------------------------------


def test_what_is_offloaded_and_not_stored_counts_too() -> None:
    async def program(model: Model) -> Model:
        kept = [await model.offload(model.get_input_activation(range(8))) for _ in range(3)]
        for place, value in enumerate(kept):
            model.host[place] = value
            del model.host[place]
        return model

    assert alone(program).peak_host_memory_bytes == 3 * 8 * SAMPLE


def test_what_was_deleted_from_the_host_does_not_come_back() -> None:
    async def program(model: Model) -> Model:
        model.host["x"] = value = await model.offload(model.get_input_activation(range(8)))
        del model.host["x"]
        model.host["x"] = value
        return model

    with pytest.raises(mt.LawError, match="takes what offload gave, once"):
        alone(program)


@pytest.mark.parametrize("workload", [None, GPT])
def test_what_a_strategy_writes_to_its_predictor_changes_no_price(workload: mt.Transformer | None) -> None:
    async def program(model: Model, *, writes: bool = True) -> Model:
        predictor: Any = model.runtime_predictor
        if writes:
            predictor.compute = lambda *_: Price(1e-9)
            predictor.device, predictor.slowdown = None, 1e-9
            for name in ("datatype", "flop_per_weight"):
                with contextlib.suppress(AttributeError):
                    setattr(model.runtime_predictor.workload, name, 0)
        await begin(model)
        model.activations[0] = model.forward(0, model.activations[0], model.weights[0])
        return model

    sizes: dict[str, Any] = {"num_layers": 1} if workload is None else {"workload": workload}
    honest, written = (
        mt.simulate(program, world_size=1, global_batch_size=8, check=False, options={"writes": writes}, **sizes)
        for writes in (False, True)
    )
    assert written.step_time == honest.step_time > 0
