"""Tied embeddings: one gradient of the table by both of its uses, in price, memory, proofs and laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import autograd.numpy as anp  # type: ignore[import-untyped]
import numpy as np
import pytest
from autograd import grad

import minitrain as mt
from minitrain.errors import MinitrainError, StrategyError
from minitrain.proof.problem import TransformerProblem
from minitrain.proof.reference import _loss_of_units, _mean_gradient

TIED = replace(mt.models()["tiny"], tied_embeddings=True)
GPT = replace(TIED, norm="layernorm", mlp="gelu", positions="learned", bias=True)
SIZES: dict[str, Any] = {"workload": TIED, "global_batch_size": 6}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [TIED, GPT], ids=["without positions", "with positions"])
def test_the_references_gradient_is_that_of_one_table(model: mt.Transformer) -> None:
    """Autograd follows a loss in which the head is made of the embedding."""
    problem = TransformerProblem(model)
    weights = [problem.initial_weight(layer) for layer in range(len(problem.units))]
    vocabulary, hidden = model.vocab_size, model.hidden_size
    inputs, targets = problem.inputs(2), problem.targets(2)

    def loss(table: Any) -> Any:
        first = anp.concatenate([table, weights[0][table.size :]])
        last = anp.concatenate([weights[-1][: -table.size], table.reshape(vocabulary, hidden).T.ravel()])
        return _loss_of_units([first, *weights[1:-1], last], inputs, targets, np.zeros_like(inputs), 10**6, model)

    table = weights[0][: vocabulary * hidden]
    assert weights[-1][-table.size :] == pytest.approx(table.reshape(vocabulary, hidden).T.ravel())
    found = _mean_gradient(problem, weights, 2, range(2))
    assert found[0][: table.size] == pytest.approx(grad(loss)(table), rel=1e-9, abs=1e-15)
    assert found[-1][-table.size :].reshape(hidden, vocabulary).T.ravel() == pytest.approx(found[0][: table.size])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "world_size", "model"),
    [
        *(("single", 1, GPT), ("ddp", 2, TIED), ("1f1b", 2, GPT), ("gpipe", 3, TIED), ("zb_h1", 2, TIED)),
        *(("ddp_overlap", 2, GPT), ("zero1", 3, GPT), ("zero2:microbatch_size=1", 2, TIED), ("zero3", 3, GPT)),
        *(("zero3_prefetch:microbatch_size=1", 2, TIED), ("hsdp:shard_size=2", 4, TIED), ("ring_attention", 2, GPT)),
        *(
            ("fsdp:tp=2,sequence_parallel=true", 4, GPT),
            ("fsdp:replicas=2,microbatch_size=1", 4, TIED),
        ),
        *(("gathered_context:tp=2", 4, GPT), ("packed_context_parallel", 2, TIED), ("local_sgd", 2, GPT)),
        *(
            ("megatron:cp=2,sum_tied=true", 2, TIED),
            ("megatron:tp=2", 2, GPT),
            ("megatron:zero=3,sum_tied=true", 2, TIED),
        ),
        *(
            ("megatron:pp=2,cp=2,zero=2,sum_tied=true", 8, GPT),
            ("megatron:pp=2,overlap_replicas=true,zero=1,sum_tied=true", 4, TIED),
        ),
        *(("megatron:tp=2,pp=2,zero=1,sequence_parallel=true,sum_tied=true", 8, GPT), ("dualpipe_v", 2, TIED)),
        *(("pp_dp", 4, TIED), ("pp_zero1", 4, GPT), ("pp_zero3", 4, TIED), ("pp_hsdp:shard_size=2", 8, GPT)),
        *(("chimera:pp=2", 4, TIED), ("chimera:pp=2,zero=3", 8, GPT), ("chimera:pp=4,zero=1", 8, TIED)),
        *(("pipedream_2bw:num_steps=2", 2, GPT), ("pipedream_2bw:num_steps=2,pp=1", 2, TIED), ("looped_bfs", 2, GPT)),
    ],
)
@pytest.mark.one_in(3)
def test_tied_embeddings_are_those_of_one_device(strategy: str, world_size: int, model: mt.Transformer) -> None:
    sizes = {**SIZES, "workload": model, "global_batch_size": 6 if world_size == 3 else 8}
    assert mt.prove(strategy, world_size=world_size, **sizes).largest_relative < 1e-9


def test_both_copies_of_a_table_stay_equal() -> None:
    run = mt.simulate("1f1b", world_size=2, numerics="numpy", **SIZES)
    first, last = run.models[0].final_weights[0], run.models[1].final_weights[5]
    size = TIED.vocab_size * TIED.hidden_size
    rows = first._content.values[:size].reshape(TIED.vocab_size, TIED.hidden_size)  # type: ignore[attr-defined]
    assert last._content.values[-size:] == pytest.approx(rows.T.ravel(), rel=1e-12)  # type: ignore[attr-defined]


def test_the_first_and_the_last_stage_exchange_the_table_alone() -> None:
    run = mt.simulate("1f1b", world_size=4, workload="gpt2", global_batch_size=8)
    exchanges = [[event for event in log if event.typ == "all_reduce"] for log in run.logs]
    assert [len(found) for found in exchanges] == [1, 0, 0, 1]
    (event,) = exchanges[0]
    assert (event.group, event.size_bytes) == ((0, 3), 4 * 50257 * 768)  # gradients in single precision


GPT2, LLAMA = 124_439_808, 1_235_814_400  # parameters as published, where embedding and head are one Parameter


@pytest.mark.parametrize(
    ("strategy", "workload", "parameters", "held"),
    [
        ("ddp", "gpt2", GPT2, (1, 1)),
        ("ddp_overlap:bucket_size=3", "llama3.2-1b", LLAMA, (1, 1)),
        ("zero1", "gpt2", GPT2, (1, 1 / 8)),
        ("zero3", "llama3.2-1b", LLAMA, (1 / 8, 1 / 8)),
        ("fsdp", "gpt2", GPT2, (1 / 8, 1 / 8)),
    ],
)
def test_a_rank_with_both_layers_has_one_table(
    strategy: str, workload: str, parameters: int, held: tuple[float, float]
) -> None:
    run = mt.simulate(strategy, world_size=8, workload=workload, global_batch_size=64)
    stores = run.models[0].memory_by_store()
    assert stores["weights"] == 2 * parameters * held[0]
    assert stores["opt_states"] == 12 * parameters * held[1]
    reduced = [event.size_bytes for event in run.logs[0] if event.typ in ("all_reduce", "reduce_scatter")]
    assert sum(reduced) == 4 * parameters


def test_a_step_accumulates_one_gradient_of_the_table() -> None:
    """PyTorch's `.grad` of the one Parameter: at the peak, in the second microbatch, all gradients are there once."""
    run = mt.simulate("ddp", world_size=2, workload="gpt2", global_batch_size=8, microbatch_size=1)
    own_of_head = 4 * (2 * 768 + 50257 * 768)  # of the next microbatch, before it is added
    assert run.models[0].peak_by_kind["gradients"] == 4 * GPT2 + own_of_head  # type: ignore[index]  # of a transformer


def test_a_pipeline_keeps_two_tables() -> None:
    run = mt.simulate("1f1b", world_size=2, workload="gpt2", global_batch_size=8)
    weights = sum(model.memory_by_store()["weights"] for model in run.models)
    assert weights == 2 * (GPT2 + 50257 * 768)


def test_the_order_in_which_both_are_loaded_does_not_matter() -> None:
    stores = [
        mt.simulate(loaded, world_size=1, workload="gpt2", global_batch_size=2, options={"order": order})
        for order in (1, -1)
    ]
    assert stores[0].models[0].memory_by_store() == stores[1].models[0].memory_by_store()
    assert stores[0].peak_memory == stores[1].peak_memory


async def loaded(model: Any, order: int) -> Any:
    """Train on one device, and load the layers in an order."""
    await gradients(model, order)
    for layer in range(model.num_layers):
        weight, state = model.weights[layer], model.opt_states[layer]
        model.weights[layer], model.opt_states[layer] = model.update(layer, model.grad_weights[layer], weight, state)
        model.set_final_weight(layer, model.weights[layer])
    return model


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_other_optimizers_keep_one_state_of_the_table(optimizer: str) -> None:
    model = replace(mt.models()["gpt2"], optimizer=optimizer)
    runs = [
        mt.simulate("ddp", world_size=2, workload=each, global_batch_size=8)
        for each in (model, replace(model, tied_embeddings=False))
    ]
    states = [run.models[0].memory_by_store()["opt_states"] for run in runs]
    rows, columns = 50257, 768
    factors = 4 * (rows + columns) if optimizer == "adafactor" else 8 * rows * columns
    assert states[1] - states[0] == 4 * rows * columns + factors  # a copy in single precision, and the moments


def test_a_tied_pipeline_is_the_same_folded_strict_and_saved() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "workload": "gpt2", "global_batch_size": 8}
    plain = mt.simulate("1f1b", fold=False, **sizes)
    strict = mt.simulate("1f1b", strict=True, **sizes)
    assert strict.logs == plain.logs
    assert strict.summary()["held_outside_bytes"] < 4 * 2**20  # messages between stages alone
    wide: dict[str, Any] = {"world_size": 16, "workload": GPT, "global_batch_size": 32}
    for strategy in ("ddp", "zero3", "megatron:tp=2,zero=1,sum_tied=true", "pp_dp:pp=4", "pp_zero3:pp=2"):
        folded, each = (mt.simulate(strategy, fold=fold, **wide) for fold in (True, False))
        assert folded.summary() == each.summary()
        assert folded.is_folded
        assert folded.logs == each.logs


async def gradients(model: Any, order: int = 1) -> None:
    """Compute the gradients of a rank's own samples."""
    acts, layers = model.activations, range(model.num_layers)
    for layer in layers[::order]:
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
    acts[0] = model.get_input_activation(range(model.rank, model.global_batch_size, model.world_size))
    for layer in layers:
        acts[layer + 1] = model.forward(layer, acts[layer], model.weights[layer])
    model.grad_activations[layer] = model.loss(acts.pop(len(layers)))
    for layer in reversed(layers):
        model.grad_weights[layer], model.grad_activations[layer - 1] = model.backward(
            layer, acts[layer], model.grad_activations[layer], model.weights[layer]
        )


async def wrong(model: Any, mistake: str = "") -> Any:
    """Train as DDP does, with a mistake in what is done with the table."""
    weights, states, _, _, grads = model.storage()
    layers, last = range(model.num_layers), model.num_layers - 1
    await gradients(model)
    for layer in layers if mistake != "before the sum" else ():
        grads[layer] = await model.all_reduce(grads[layer], layer)
    of = (0, 1) if mistake == "another layer" else (0, last)
    if mistake == "shards":
        grads[0] = grads[0].shard(0, 2)
    tables = [model.table_gradient(layer, grads[layer]) for layer in of]
    table = tables[0] + tables[0 if mistake == "one twice" else 1]
    if mistake == "of other samples":
        await gradients(model)
    if mistake == "one use":
        table = tables[0]
    if mistake == "as a gradient":
        model.update(0, table, weights[0], states[0])
    for layer in of[:1] if mistake == "the head forgotten" else of:
        grads[layer] = model.with_table(layer, grads[layer], table)
    for layer in layers:
        weights[layer], states[layer] = model.update(layer, grads[layer], weights[layer], states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


MISTAKES = {
    "one twice": "must be the sum of what embedding and head have made",
    "one use": "must be the sum of what embedding and head have made, got TableGrad",
    "another layer": "layer 1 shares no table with another, layers 0 and 5 do",
    "before the sum": "must cover all 6 samples",
    "shards": "tables are summed whole, before gradients are sharded",
    "of other samples": "both must be of the same samples, sequence and part",
    "as a gradient": "weight_grad must be the gradient of the whole layer, got TableGrad",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_with_a_shared_table_are_refused_by_name(mistake: str) -> None:
    with pytest.raises(MinitrainError, match=MISTAKES[mistake]):
        mt.simulate(wrong, world_size=2, options={"mistake": mistake}, **SIZES)


def test_a_copy_that_is_forgotten_is_disproved() -> None:
    assert mt.prove(wrong, world_size=2, **SIZES).largest_relative < 1e-9
    with pytest.raises(mt.ProofError, match=r"layer 5 \(head\) on rank 0 differs"):
        mt.prove(wrong, world_size=2, options={"mistake": "the head forgotten"}, **SIZES)
    with pytest.raises(
        mt.LawError, match="tied_embeddings: megatron updates the copies of the table in layers 0 and 5"
    ):
        mt.prove("megatron", world_size=2, pp=2, **SIZES)


def test_there_is_no_table_without_ties() -> None:
    with pytest.raises(StrategyError, match="layer 0 shares no table with another, no layers do"):
        mt.simulate(wrong, world_size=2, workload="tiny", global_batch_size=6)
