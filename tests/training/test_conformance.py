"""One strategy, three lives: it communicates the same in all, and real processes train what a single device does.

Weights and moments are those of a NumPy run on one device, to 1e-10. The program that a simulation and a proof record
has one digest: of operations, groups, layers and tensors, in each rank's order. A process that does another operation
than the recorded ends with an error; how many bytes it gives to torch is compared with what the simulation prices.

All strategies of a size run in the same processes, one after the other: starting them takes longer than training.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import cloudpickle  # type: ignore[import-untyped]  # noqa: E402
import numpy as np  # noqa: E402

import minitrain as mt  # noqa: E402
from minitrain.proof import arithmetic  # noqa: E402
from minitrain.proof.compression import (  # noqa: E402
    Exchange,
    decoded,
    encoded,
    orthonormal,
)
from minitrain.proof.problem import Problem  # noqa: E402
from minitrain.proof.units import Part, taken  # noqa: E402
from minitrain.run.parameters import split_keywords  # noqa: E402
from minitrain.tensors.compressed import PowerSGD, compressor_of  # noqa: E402
from minitrain.training import contents  # noqa: E402
from minitrain.training.checkpoints import read_checkpoint  # noqa: E402
from minitrain.training.launcher import meeting_place  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.ranks import Training  # noqa: E402
from minitrain.training.wire import ProcessExecutor  # noqa: E402
from minitrain.training.worker import Doing, Task, train_rank  # noqa: E402
from minitrain.workloads.matmul import DenseRows  # noqa: E402
from tests.small_transformers import DEEPSEEK_LIKE, DEEPSEEK_V2_LITE_LIKE, GPT_LIKE, RELU_LIKE  # noqa: E402

BATCH = 16
DIVIDES = {
    2: {
        "tiny": (
            "ring_attention",
            "gathered_context",
            "megatron:tp=2",
            "megatron:tp=2,sequence_parallel=true,overlap_parts=true",
            "megatron:cp=2",
            "megatron:tp=2,schedule=zb_h1",
        ),
        "tiny-moe": ("moe:ep=2", "deepseek_like:ep=2", "megatron:ep=2"),
    },
    4: {
        "tiny": (
            "ring_attention:tp=2",
            "ring_attention:balanced=false",
            "gathered_context:tp=2",
            "megatron:tp=2,pp=2",
            "megatron:tp=2,cp=2",
            "megatron:cp=4,cp_comm_type=all_gather",
            "megatron:tp=2,sequence_parallel=true,zero=1",
            "megatron:tp=2,zero=3",
            "megatron:tp=4",
        ),
        "tiny-moe": (
            "moe:ep=2,zero=1",
            "moe:ep=4",
            "deepseek_like:ep=2",
            "megatron:ep=2,tp=2,sequence_parallel=true",
            "megatron:ep=2,cp=2",
        ),
    },
}
"""What divides layers, sequences or experts, by number of ranks and what is trained; only transformers can be."""

NOT_BY = {2: ("pp_hsdp", "single"), 4: ("single",)}
"""What so many ranks are too few or too many for."""

LOCAL = ("diloco", "local_sgd")
"""Whose replicas take steps of their own, and so train something else than a single device."""

OPTIONS = {"pp_dp": "pp=2", "pp_zero1": "pp=2", "pp_zero3": "pp=2", "pp_hsdp": "pp=2"}


def rank_of_all(rank: int, sent: bytes) -> None:
    """Be one rank in several runs, one after the other."""
    os.environ["NCCL_HOSTID"] = str(rank)  # nccl takes ranks that share a GPU for those of different machines then
    for tasks in cloudpickle.loads(sent):
        task: Task = tasks[rank]
        train_rank(task, lambda _: None, Doing())
        torch.distributed.destroy_process_group()


def trained(
    names: Sequence[Any],
    world_size: int,
    folder: Path,
    has_tags: bool = True,
    steps: int = 1,
    backend: str = "gloo",
    **given: Any,
) -> dict[str, dict[int | str, Any]]:
    """Return weights and optimizer states after some steps of each strategy on real processes, by layer."""
    runs, held = [], ExitStack()
    for name in names:
        run, options = split_keywords({"world_size": world_size, "global_batch_size": BATCH, **given})
        training = Training(
            strategy=name,
            run=run,
            options=options,
            steps=steps,
            backend=backend,
            data=None,
            optimizer=None,
            seed=0,
            dtype="float64",
            numerics="numpy",
            folder=folder / re.sub(r"\W", "_", str(name)),
            checkpoint_every=steps,
        )
        program = record(name, {"world_size": world_size, "global_batch_size": BATCH, **given})
        meeting = held.enter_context(meeting_place())
        tasks = [training.task(program, rank, meeting) for rank in range(world_size)]
        runs.append(tasks if has_tags else [replace(task, lanes=program.lanes) for task in tasks])
    context = multiprocessing.get_context("forkserver")  # spawned, each takes seconds to import torch
    context.set_forkserver_preload([__name__])
    sent = cloudpickle.dumps(runs)
    processes = [context.Process(target=rank_of_all, args=(rank, sent)) for rank in range(1, world_size)]
    for process in processes:
        process.start()
    rank_of_all(0, sent)  # here, so that a debugger and coverage see it
    for process in processes:
        process.join(200)
    held.close()
    assert [process.exitcode for process in processes] == [0] * (world_size - 1)
    return {name: read_checkpoint(next((folder / re.sub(r"\W", "_", str(name))).iterdir())) for name in names}


def reference(**given: Any) -> dict[int, tuple[Any, Any]]:
    """Return what a single device trains in NumPy, by layer."""
    (model,) = mt.simulate("single", world_size=1, global_batch_size=BATCH, numerics="numpy", **given).models
    found: Any = model
    return {
        layer: (weight._content.values, found.final_states[layer].values)
        for layer, weight in found.final_weights.items()
    }


def require_same(found: dict[str, dict[int | str, Any]], wanted: Mapping[Any, tuple[Any, Any]]) -> None:
    """Require that weights and moments are the same: the first step of Adam alone hides a wrong scale."""
    for name, layers in found.items():
        assert layers.keys() == wanted.keys(), name
        for layer, both in layers.items():
            for what, one, other in zip(("weight", "state"), both, wanted[layer], strict=True):
                np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-10, err_msg=f"{name}, {layer}, {what}")


def names_of(world_size: int) -> list[str]:
    """Return the shipped strategies, with options, that so many ranks can run."""
    divide = {name.partition(":")[0] for names in DIVIDES[world_size].values() for name in names} - {"megatron"}
    others = {*divide, *NOT_BY[world_size], *LOCAL, "packed_context_parallel", "pipedream_2bw", "powersgd_ddp"}
    names = [name for name in mt.strategies() if name not in others]
    return [f"{name}:{OPTIONS[name]}" if name in OPTIONS else name for name in names]


@pytest.mark.ci
def test_local_steps_are_those_of_their_reference(tmp_path: Path) -> None:
    dense: dict[str, Any] = {"num_layers": 3, "workload": DenseRows(Problem().width, 8)}
    for name in LOCAL:
        for layers in trained([name], 2, tmp_path / name, **dense).values():
            (run,) = (mt.simulate(name, world_size=2, global_batch_size=BATCH, numerics="numpy", **dense),)
            finals: dict[Any, Any] = dict(run.models[0].final_weights)
            assert layers.keys() == finals.keys()
            for layer, (weight, _) in layers.items():
                np.testing.assert_allclose(weight.numpy(), finals[layer]._content.values, rtol=0, atol=1e-10)


LOOP = f"{Path(__file__).parents[1] / 'engine' / 'own_loop.py'}:zero3_loop"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("world_size", "strategy", "delay"),
    [(1, "pipedream_2bw:pp=1", 1), (2, "pipedream_2bw:pp=2", 1), (2, "pipedream_2bw:pp=1", 1), (2, LOOP, 0)],
)
def test_steps_in_turn_are_those_of_their_reference(world_size: int, strategy: str, delay: int, tmp_path: Path) -> None:
    """Two rounds: the second goes on from the first one's last weights and moments."""
    problem, steps, num_layers = Problem(), 4, 4
    inputs, targets, adam, size = problem.inputs(BATCH), problem.targets(BATCH), problem.optimizer, BATCH // steps
    states = [np.zeros((adam.num_moments, problem.width, problem.width)) for _ in range(num_layers)]
    weights = [problem.initial_weight(layer) for layer in range(num_layers)]
    for number in range(2):
        versions = [weights]
        for step in range(steps):
            old, first = versions[max(0, step - delay)], step * size
            seen = [inputs[first : first + size]]
            for weight in old:
                seen.append(arithmetic.forward(seen[-1], weight))
            grad, new = (seen.pop() - targets[first : first + size]) / size, list(versions[-1])
            for layer in reversed(range(num_layers)):
                of_weight = arithmetic.backward_weight(seen[layer], grad)
                grad = arithmetic.backward_input(seen[layer], grad, old[layer])
                count = number * steps + step + 1
                new[layer], states[layer] = adam.step(new[layer], of_weight, states[layer], count)
            versions.append(new)
        weights = versions[-1]
    dense: dict[str, Any] = {"num_layers": num_layers, "workload": DenseRows(problem.width, 8)}
    strategy += f"{',' if delay else ':'}num_steps={steps}"
    (layers,) = trained([strategy], world_size, tmp_path, steps=2, **dense).values()
    for layer, wanted in enumerate(weights):
        np.testing.assert_allclose(layers[layer][0].numpy(), wanted.ravel(), rtol=0, atol=1e-10)
        moments = states[layer].reshape(adam.num_moments, -1)
        np.testing.assert_allclose(layers[layer][1].numpy(), moments, rtol=0, atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["powersgd:2", "topk:0.1"])
def test_compressed_steps_are_those_of_their_papers(how: str, tmp_path: Path) -> None:
    """Two rounds of two workers: the second goes on with the errors and the factors that the first has left."""
    problem, steps, num_layers, width = Problem(), 4, 3, Problem().width
    adam, size = problem.optimizer, BATCH // (steps * 2)
    states = [np.zeros((adam.num_moments, width, width)) for _ in range(num_layers)]
    weights = [problem.initial_weight(layer) for layer in range(num_layers)]
    compressor: Any = compressor_of(how)
    exchanges = [Exchange(compressor, layer, ((width, width),)) for layer in range(num_layers)]
    for number in range(2 * steps):
        first, sent = number % steps * 2 * size, list[list[Any]]([[] for _ in range(num_layers)])
        for worker in range(2):
            chosen = slice(first + worker * size, first + (worker + 1) * size)
            seen = [problem.inputs(BATCH)[chosen]]
            for weight in weights:
                seen.append(arithmetic.forward(seen[-1], weight))
            grad = (seen.pop() - problem.targets(BATCH)[chosen]) / (2 * size)
            for layer in reversed(range(num_layers)):
                sent[layer].append(arithmetic.backward_weight(seen[layer], grad).ravel())
                grad = arithmetic.backward_input(seen[layer], grad, weights[layer])
        for layer, exchange in enumerate(exchanges):
            found = exchange.of(sent[layer]).reshape(width, width)
            weights[layer], states[layer] = adam.step(weights[layer], found, states[layer], number + 1)
    dense: dict[str, Any] = {"num_layers": num_layers, "workload": DenseRows(width, 8)}
    (layers,) = trained([f"powersgd_ddp:num_steps={steps},compression={how}"], 2, tmp_path, steps=2, **dense).values()
    for layer, wanted in enumerate(weights):
        np.testing.assert_allclose(layers[layer][0].numpy(), wanted.ravel(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", ["int8:16", "fp8:16", "int4:16+feedback", "topk:0.3", "powersgd:3"])
def test_messages_are_the_bytes_that_prices_count_and_say_what_proofs_say(how: str) -> None:
    compressor: Any = compressor_of(how)
    values = np.random.default_rng(5).normal(size=(7, 11)).ravel()
    if isinstance(compressor, PowerSGD):
        columns = np.random.default_rng(6).normal(size=(2, 7, 3))
        np.testing.assert_allclose(orthonormal(torch.tensor(columns)), orthonormal(columns), atol=1e-12)
        return
    message = contents.encoded(compressor, torch.tensor(values))
    assert message.numel() == compressor.message_bytes(((7, 11),), 1.0, 8)
    found = contents.decoded(compressor, message, torch.tensor(values)).numpy()
    wanted = decoded(compressor, encoded(compressor, values), values.size)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)  # scales are in single precision


def dense_gradients(own: list[Any], first: int, share: int) -> list[Any]:
    """Return the mean gradients of some samples by layer."""
    seen = [Problem().inputs(BATCH)[first : first + share]]
    for weight in own:
        seen.append(arithmetic.forward(seen[-1], weight))
    grad, found = (seen.pop() - Problem().targets(BATCH)[first : first + share]) / share, list[Any]()
    for x, weight in zip(reversed(seen), reversed(own), strict=True):
        found.insert(0, arithmetic.backward_weight(x, grad))
        grad = arithmetic.backward_input(x, grad, weight)
    return found


def rounds_of_diloco(
    num_rounds: int, num_layers: int, local_steps: int, fragments: int = 1, overlap: int = 0, mixing: float = 0.0
) -> list[Any]:
    """Return the weights after some rounds of two replicas, in NumPy.

    Douillard et al. 2023, algorithm 1, and 2025, algorithm 2: steps are counted through all rounds, and t_p is such
    that the last fragment takes the common weight at the end of each.
    """
    problem = Problem()
    adam, share = problem.optimizer, BATCH // (2 * local_steps)
    weights = [problem.initial_weight(layer) for layer in range(num_layers)]
    momenta = [np.zeros_like(weight) for weight in weights]
    states = [[np.zeros((adam.num_moments, *weight.shape)) for weight in weights] for _ in range(2)]
    own, drifts = [list(weights), list(weights)], dict[int, Any]()
    for t in range(1, num_rounds * local_steps + 1):
        for replica in range(2):
            grads = dense_gradients(own[replica], (2 * ((t - 1) % local_steps) + replica) * share, share)
            before = zip(own[replica], grads, states[replica], strict=True)
            own[replica], states[replica] = map(list, zip(*(adam.step(*each, t) for each in before), strict=True))
        for layer in range(num_layers):
            sent_at = (layer * fragments // num_layers + 1) * local_steps // fragments - overlap
            if (t - sent_at) % local_steps == 0:
                drifts[layer] = weights[layer] - (own[0][layer] + own[1][layer]) / 2
            if (t - sent_at - overlap) % local_steps == 0 and layer in drifts:
                drift = drifts.pop(layer)
                momenta[layer] = 0.9 * momenta[layer] + drift
                weights[layer] = weights[layer] - 0.7 * (drift + 0.9 * momenta[layer])
                for mine in own:
                    mine[layer] = mixing * mine[layer] + (1 - mixing) * weights[layer]
    return weights


@pytest.mark.ci
def test_rounds_on_real_processes_carry_momentum_and_every_replicas_state(tmp_path: Path) -> None:
    dense: dict[str, Any] = {"num_layers": 3, "workload": DenseRows(Problem().width, 8)}
    streaming: dict[str, Any] = {"fragments": 2, "overlap": 1, "mixing": 0.25}
    words = ["diloco:local_steps=4", "diloco:local_steps=4,fragments=2,overlap=1,mixing=0.25"]
    found = trained(words, 2, tmp_path, steps=3, **dense)
    for layers, options in zip(found.values(), (dict[str, Any](), streaming), strict=True):
        for layer, wanted in enumerate(rounds_of_diloco(3, 3, 4, **options)):
            np.testing.assert_allclose(layers[layer][0].numpy(), wanted.ravel(), rtol=0, atol=1e-10)


@pytest.mark.ci
def test_rounds_on_real_processes_learn() -> None:
    given: dict[str, Any] = {"num_layers": 2, "global_batch_size": 64, "workload": DenseRows(256, 16)}
    run = mt.train("diloco", world_size=2, local_steps=4, steps=12, force=True, **given)
    assert run.losses[-1] < 0.9 * run.losses[0]


def test_rounds_have_no_common_state_and_masters_of_no_rounded_weights() -> None:
    with pytest.raises(mt.UsageError, match="one state for all ranks"):
        mt.train("diloco", world_size=2, num_layers=2, global_batch_size=64, steps=1, checkpoints="here", force=True)
    with pytest.raises(mt.UsageError, match="float32 or float64"):
        mt.train("diloco", world_size=2, num_layers=2, global_batch_size=64, steps=1, dtype="bfloat16", force=True)


async def overtaken(model: mt.Model) -> mt.Model:
    """Swap the weights of both ranks' halves of the batch by messages that overtake, in both directions at once."""
    other, batch = 1 - model.rank, model.global_batch_size
    layers = range(model.num_layers)
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    activations[0] = model.get_input_activation(frozenset(range(model.rank, batch, 2)))
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations[len(layers)] = model.loss(activations.pop(len(layers)))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations[layer], grad_activations[layer + 1], weights[layer]
        )
        del activations[layer], grad_activations[layer + 1]
        await model.send(other, grad_weights[layer], tag=layer)
    for layer in layers:  # the one that was sent last comes first
        grad_weights[layer] += await model.receive(other, tag=layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def test_messages_without_tags_go_in_lanes(tmp_path: Path) -> None:
    """As on nccl, whose messages have no tags; groups of gloo do for it here."""
    dense: dict[str, Any] = {"num_layers": 8, "workload": DenseRows(Problem().width, 8)}
    names = ["1f1b", "zb_h1", overtaken]
    require_same(trained(names, 2, tmp_path, has_tags=False, **dense), reference(**dense))


@pytest.mark.ci
def test_experts_go_in_lanes(tmp_path: Path) -> None:
    moe: dict[str, Any] = {"workload": "tiny-moe"}
    one, other = (trained(["moe:ep=2"], 2, tmp_path / str(has_tags), has_tags, **moe) for has_tags in (True, False))
    require_same(one, {key: tuple(map(torch.Tensor.numpy, both)) for key, both in other["moe:ep=2"].items()})


@pytest.fixture
def given_to_torch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Return what fills with each communication of rank 0: its name, its bytes as priced, and those of torch."""
    found: list[tuple[str, int, int]] = []
    settle, send = ProcessExecutor.settle, ProcessExecutor.communicate

    def note(operation: Any) -> None:
        value = operation.value
        if value is not None and len(getattr(operation.owner, "ranks", (0, 1))) > 1:
            contents = [each._content for each in (value if isinstance(value, list) else [value])]
            given = sum(each.packed().nbytes for each in contents)
            found.append((f"{operation.op}, operation {operation.row}", operation.model.held_bytes(value), given))

    def settled(self: Any, operations: Any, results: Any) -> None:
        note(operations[0])
        settle(self, operations, results)

    def communicated(self: Any, model: Any, op: str, *given: Any) -> Any:
        operation = send(self, model, op, *given)
        if op == "send":
            note(operation)
        return operation

    monkeypatch.setattr(ProcessExecutor, "settle", settled)
    monkeypatch.setattr(ProcessExecutor, "communicate", communicated)
    return found


def test_of_adapters_alone_no_more_is_sent_than_is_priced(given_to_torch: Any, tmp_path: Path) -> None:
    model = replace(mt.models()["tiny"], precision=mt.Precision("double", 8, 8, 16, 8))
    trained(["ddp", "fsdp", "zero1", "1f1b"], 2, tmp_path, workload=model, lora=4)
    assert {name.split(",")[0] for name, *_ in given_to_torch} >= {"all_reduce", "all_gather", "reduce_scatter", "send"}
    assert [each for each in given_to_torch if each[1] != each[2]] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["ddp", "zero3", "fsdp", "1f1b", "zb_h1", "pp_dp:pp=2", "ddp_overlap"])
@pytest.mark.parametrize("workload", [None, "tiny"])
def test_a_proof_and_a_simulation_are_the_same_program(name: str, workload: str | None) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": BATCH}
    sizes |= {"num_layers": 4} if workload is None else {"workload": workload}
    assert record(name, sizes).digest == record(name, {**sizes, "numerics": "numpy"}).digest


@pytest.mark.parametrize(
    ("is_dense", "world_size", "one_of"),
    [
        (True, 2, 6),
        pytest.param(True, 2, 1, marks=pytest.mark.slow),
        pytest.param(True, 4, 1, marks=pytest.mark.ci),
        pytest.param(False, 2, 1, marks=pytest.mark.ci),
        pytest.param(False, 4, 1, marks=pytest.mark.slow),
    ],
)
def test_all_shipped_strategies_train_what_a_single_device_trains(
    world_size: int, is_dense: bool, one_of: int, given_to_torch: Any, tmp_path: Path
) -> None:
    """Dense layers send the bytes that the simulation prices, too."""
    given: dict[str, Any] = {"num_layers": 8, "workload": DenseRows(Problem().width, 8)}
    if not is_dense:
        given = {"workload": replace(mt.models()["tiny"], num_layers=4)}  # ten units, for eight stages
    found = trained(names_of(world_size)[::one_of], world_size, tmp_path, **given)
    require_same(found, reference(**given))
    assert {name.split(",")[0] for name, *_ in given_to_torch} >= {"all_reduce", "all_gather", "reduce_scatter", "send"}
    assert not is_dense or [each for each in given_to_torch if each[1] != each[2]] == []


@pytest.mark.ci
def test_experts_that_are_whole_are_trained(tmp_path: Path) -> None:
    given: dict[str, Any] = {"workload": "tiny-moe"}
    require_same(trained(["ddp", "zero3", "1f1b"], 2, tmp_path, **given), reference(**given))


def divided(wanted: Any, name: str, model: Any) -> Any:
    """Return the weight and the optimizer state of a part of a layer, of those of whole layers."""
    found = re.fullmatch(r"(\d+)(part|router|experts)?((\d+)of(\d+))?", name)
    assert found is not None
    layer, piece, _, *of = found.groups()
    index, count = map(int, of) if of[0] else (0, 1)
    part = {
        None: Part(),
        "part": Part(index, count),
        "router": Part(piece="router"),
        "experts": Part(expert_index=index, num_expert_parts=count, piece="experts"),
    }[piece]
    return tuple(taken(values, model.units()[int(layer)], part) for values in wanted[int(layer)])


def parts_of(name: str) -> set[str]:
    """Return the names of all parts of the layer that a part is of."""
    layer, piece, count = re.fullmatch(r"(\d+)(?:(\D+)(?:\d+of(\d+))?)?", name).groups()  # type: ignore[union-attr]
    if piece == "part":
        return {f"{layer}part{index}of{count}" for index in range(int(count))}
    return {name}


@pytest.mark.parametrize(
    ("workload", "world_size"),
    [
        pytest.param("tiny", 2, marks=pytest.mark.slow),
        pytest.param("tiny", 4, marks=pytest.mark.ci),
        ("tiny-moe", 2),
        pytest.param("tiny-moe", 4, marks=pytest.mark.slow),
    ],
)
def test_what_is_divided_is_trained_as_on_a_single_device(world_size: int, workload: str, tmp_path: Path) -> None:
    wanted, model = reference(workload=workload), mt.models()[workload]
    found = trained(list(DIVIDES[world_size][workload]), world_size, tmp_path, workload=workload)
    for name, layers in found.items():
        names = {str(key) for key in layers}
        assert {int(re.match(r"\d+", key)[0]) for key in names} == wanted.keys(), name  # type: ignore[index]
        assert set().union(*map(parts_of, names)) == names, name
        require_same({name: layers}, {key: divided(wanted, str(key), model) for key in layers})
        for key, held in layers.items():  # assert_allclose would let one element stand for all
            assert [one.shape for one in held] == [one.shape for one in divided(wanted, str(key), model)]


ODD = {
    GPT_LIKE: ("megatron:tp=2,sequence_parallel=true", "ring_attention:recompute=full", "zero3"),
    DEEPSEEK_LIKE: ("megatron:tp=2,sequence_parallel=true", "megatron:ep=2,recompute=full", "ddp"),
    DEEPSEEK_V2_LITE_LIKE: ("megatron:tp=2,recompute=full", "gathered_context:recompute=full"),
    RELU_LIKE: ("megatron:tp=2", "ring_attention:microbatch_size=4"),
}
"""Models with biases and learned positions, latents and a router's bias, latents alone, and windows."""


TIED = (
    *("ddp", "zero3", "1f1b", "megatron:tp=2,sequence_parallel=true"),
    *("megatron:zero=1,sum_tied=true", "megatron:pp=2,sum_tied=true", "fsdp:tp=2"),
)


@pytest.mark.parametrize("names", [TIED[2:4], pytest.param(TIED, marks=pytest.mark.ci)])
def test_a_table_that_embedding_and_head_share_takes_the_steps_of_both(names: Sequence[str], tmp_path: Path) -> None:
    model = replace(GPT_LIKE, tied_embeddings=True)
    wanted = reference(workload=model)
    for name, layers in trained(names, 2, tmp_path, workload=model).items():
        require_same({name: layers}, {key: divided(wanted, str(key), model) for key in layers})


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ODD, ids=lambda model: model.name)
@pytest.mark.one_in(3)
def test_odd_models_are_trained_as_on_a_single_device(model: mt.Transformer, tmp_path: Path) -> None:
    wanted = reference(workload=model)
    for name, layers in trained(list(ODD[model]), 2, tmp_path, workload=model).items():
        require_same({name: layers}, {key: divided(wanted, str(key), model) for key in layers})


@pytest.mark.parametrize("name", ["offloaded_context", pytest.param("offloaded_tensor_parallel", marks=pytest.mark.ci)])
def test_what_is_divided_may_wait_in_the_hosts_memory(name: str, tmp_path: Path) -> None:
    wanted, model, path = reference(workload="tiny"), mt.models()["tiny"], Path(__file__).parent / "offloaded_parts.py"
    (layers,) = trained([f"{path}:{name}"], 2, tmp_path, workload="tiny", hardware="h100_80g_nvl8").values()
    require_same({name: layers}, {key: divided(wanted, str(key), model) for key in layers})


def test_the_host_takes_the_steps_of_a_device(tmp_path: Path) -> None:
    names = ("fsdp:offload=optimizer_step", "fsdp:offload=parameters", "megatron:zero=1,optimizer_offload_fraction=0.5")
    wanted = reference(workload="tiny")
    found = trained(names, 2, tmp_path, workload="tiny", hardware="h100_80g_nvl8")
    require_same(found, wanted)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["ddp", "zero2", "zero3", "fsdp", "zero3_prefetch", "1f1b"])
@pytest.mark.one_in(3)
def test_what_a_step_no_longer_needs_is_freed(name: str) -> None:
    """Gathered weights and the state of the step before are not kept to its end; autograd and gloo take some beside."""
    run = mt.train(name, world_size=2, num_layers=8, steps=3)
    assert run.predicted is not None
    for real, predicted in zip(run.peak_memory_per_rank, run.predicted.peak_memory_per_rank, strict=True):
        assert 0.95 * predicted < real < 1.3 * predicted


@pytest.mark.ci
def test_parts_take_the_memory_of_parts() -> None:
    """Weights, gradients and moments of half the layers, where data parallelism has all of them."""
    model = replace(mt.models()["tiny"], hidden_size=128, head_dim=16, ffn_hidden_size=512)
    whole, half = (
        max(mt.train(name, workload=model, global_batch_size=2, steps=2).peak_memory_per_rank)
        for name in ("ddp", "megatron:tp=2")
    )
    assert 0.4 * whole < half < 0.65 * whole


@pytest.mark.ci
@pytest.mark.parametrize("world_size", [2, 4])
def test_parts_are_less_than_the_whole(world_size: int, tmp_path: Path) -> None:
    name, wanted = f"megatron:tp={world_size}", reference(workload="tiny")
    found = trained([name], world_size, tmp_path, workload="tiny")[name]
    for layer, (whole, _) in wanted.items():
        parts = [found[f"{layer}part{index}of{world_size}"][0].numel() for index in range(world_size)]
        assert len(set(parts)) == 1
        assert parts[0] < 0.6 * whole.size if world_size == 2 else parts[0] < 0.4 * whole.size


@pytest.mark.parametrize("name", ["ring_attention", "gathered_context"])
def test_dense_layers_that_are_divided_are_refused_before_a_process_starts(name: str) -> None:
    with pytest.raises(mt.UsageError, match="dense layers are whole, as are their rows"):
        mt.train(name, steps=1)


@pytest.mark.ci
def test_a_divided_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategy": "megatron", "tp": 2, "workload": "tiny", "global_batch_size": 8}
    whole = mt.train(steps=3, **given).losses
    first = mt.train(steps=2, checkpoints=tmp_path, **given).losses
    last = mt.train(steps=3, checkpoints=tmp_path, **given).losses
    assert [*first, *last] == list(whole)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ({"lora": 4}, ["ddp", "zero1", "zero3", "fsdp", "1f1b", "zb_h1", "ddp:recompute=full"]),
        ({"frozen_layers": 1}, ["ddp", "fsdp", "zb_h1", "megatron:tp=2", "megatron:cp=2"]),
        (
            {"lora": mt.Lora(rank=3, targets=("query", "key", "output", "down"))},
            [
                "fsdp:tp=2",
                "megatron:tp=2,sequence_parallel=true,zero=1",
                "megatron:cp=2",
                "megatron:tp=2,schedule=zb_h1",
            ],
        ),
        ({"lora": 2, "workload": "tiny-moe"}, ["ddp", "moe:ep=2", "megatron:ep=2"]),
        ({"ema": 0.9}, ["ddp", "zero1", "fsdp"]),
        ({"workload": replace(mt.models()["tiny"], optimizer="muon"), "ema": 0.5}, ["ddp", "1f1b"]),
        ({"workload": replace(mt.models()["tiny-moe"], optimizer="adafactor")}, ["ddp", "1f1b"]),
        (
            {"documents": mt.Documents(median=7, sigma=0.9)},
            [
                "ddp",
                "megatron:tp=2",
                "ring_attention",
                "packed_context_parallel:cut=document",
                "packed_context_parallel:cp=1",
            ],
        ),
    ],
    ids=["adapters", "frozen", "divided", "experts", "average", "muon", "adafactor", "documents"],
)
@pytest.mark.one_in(3)
def test_a_model_is_trained_as_on_one_device(what: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    given: dict[str, Any] = {"workload": "tiny", **what}
    workload: Any = split_keywords(given)[0].workload
    wanted = reference(**given)
    for name, layers in trained(names, 2, tmp_path, **given).items():
        assert {int(re.match(r"\d+", str(key))[0]) for key in layers} == wanted.keys(), name  # type: ignore[index]
        for key, (weight, moments) in layers.items():
            whole, state = divided(wanted, str(key), workload.model)
            np.testing.assert_allclose(weight.numpy(), whole, rtol=0, atol=1e-10, err_msg=f"{name}, {key}")
            num_frozen = state.shape[1] - moments.shape[-1]  # it comes first, and has no moments
            assert not state[:, :num_frozen].any()
            if moments.numel():
                np.testing.assert_allclose(moments.numpy(), state[:, num_frozen:], rtol=0, atol=1e-10)
        assert any(moments.numel() for _, moments in layers.values())
