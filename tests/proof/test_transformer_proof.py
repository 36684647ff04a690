"""Every shipped strategy trains transformers as one device does: whole layers, parts, shards of the sequence."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.proof import Adam, Momentum, Problem, TransformerProblem
from tests.small_transformers import DEEPSEEK_LIKE, GPT_LIKE, LLAMA_LIKE, MIXTRAL_LIKE, MODELS, SWITCH_LIKE

CLOSE = 1e-9
BATCH = 8  # of all, so that a model is differentiated once

Sizes = dict[str, Any]


def case(world_size: int, **options: Any) -> Sizes:
    """Return sizes and options."""
    return {"world_size": world_size, "global_batch_size": BATCH, **options}


MEGATRON = [
    case(2, tp=2),
    case(4, pp=2, num_chunks=2),
    case(4, tp=2, zero=1),
    case(8, tp=2, pp=2, microbatch_size=1),
    case(8, tp=2, pp=2, zero=1, overlap_replicas=True),
    case(8, tp=2, pp=2, zero=3, overlap_replicas=True),
    case(4, tp=2, pp=2, scatter_gather=True, recompute="full"),
    case(4, tp=2, pp=2, scatter_gather=True, recompute="selective", num_chunks=2),
    case(4, tp=2, sequence_parallel=True),
    case(8, tp=2, pp=2, sequence_parallel=True, zero=1, overlap_replicas=True, recompute="full"),
    case(8, tp=2, pp=2, num_chunks=3, sequence_parallel=True, microbatch_size=1, zero=1),
]
FSDP = [
    case(4, recompute="full"),
    case(4, tp=2, reshard_after_forward=False),
    case(8, replicas=2, tp=2, sequence_parallel=True, microbatch_size=1),
]


MOE = [
    case(2, ep=2),
    case(4, ep=2, zero=1, microbatch_size=1),
    case(4, ep=4, recompute="full"),
    case(4),
]
DEEPSEEK = [
    case(4, pp=2, ep=2, microbatch_size=1, zero=1),
    case(2, pp=1, ep=2, microbatch_size=2),
    case(4, pp=2, layers_per_stage=[1, 2, 2, 1], recompute="selective", microbatch_size=1),
]


def cases_of(name: str) -> list[Sizes]:
    """Return sizes for a strategy."""
    own: dict[str, list[Sizes]] = {
        "single": [case(1), case(1, microbatch_size=3)],
        "hsdp": [case(4, shard_size=2, microbatch_size=1)],
        "ddp_overlap": [case(4, bucket_size=2)],
        "megatron": MEGATRON,
        "fsdp": FSDP,
        "moe": MOE,
        "deepseek_like": DEEPSEEK,
        "pp_hsdp": [case(8, pp=2, shard_size=2, microbatch_size=1)],
    }
    options = inspect.signature(mt.strategies()[name]).parameters
    if name in own:
        return own[name]
    if "pp" in options and name != "interleaved_1f1b":
        zero = [{"zero": level} for level in (0, 3)] if "zero" in options else [{}]
        return [case(4, pp=2, **level) for level in zero] + [case(2, pp=2, microbatch_size=1)]
    if name in ("gpipe", "1f1b", "zb_h1", "interleaved_1f1b"):
        return [case(2), case(3, microbatch_size=1)] if name != "interleaved_1f1b" else [case(2)]
    return [case(2), case(4, microbatch_size=1)]


def proven(name: str, model: Any, **sizes: Any) -> mt.Proof:
    """Prove a strategy on a model."""
    proof = mt.prove(name, workload=model, **sizes)
    assert proof.largest_relative <= CLOSE, sizes
    return proof


@pytest.mark.few(2)
@pytest.mark.parametrize("name", mt.strategies())
@pytest.mark.parametrize(
    "model",
    [LLAMA_LIKE, pytest.param(DEEPSEEK_LIKE, marks=pytest.mark.slow)],  # the next test trains it by three strategies
    ids=lambda model: model.name,
)
@pytest.mark.one_in(2)
def test_every_strategy_trains_a_transformer_as_one_device_does(name: str, model: mt.Transformer) -> None:
    for sizes in cases_of(name):
        proven(name, model, **sizes)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_kind_of_model_is_trained_as_one_device_does(model: mt.Transformer) -> None:
    for name, sizes in (("ddp", case(4)), ("zb_h1", case(2)), *(("megatron", sizes) for sizes in MEGATRON)):
        proven(name, model, **sizes)


@pytest.mark.ci
@pytest.mark.parametrize(("model", "factor"), [(MIXTRAL_LIKE, 0.4), (SWITCH_LIKE, 1.0)])
def test_tokens_beyond_the_capacity_of_an_expert_are_dropped_as_on_one_device(model: Any, factor: float) -> None:
    problem = TransformerProblem(model, capacity_factor=factor)
    for sizes in MEGATRON:
        proven("megatron", model, numerics=problem, **sizes)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [MIXTRAL_LIKE, DEEPSEEK_LIKE, SWITCH_LIKE], ids=lambda model: model.name)
@pytest.mark.parametrize("factor", [None, 0.75])
def test_experts_among_ranks_train_as_on_one_device(model: mt.Transformer, factor: float | None) -> None:
    problem = TransformerProblem(model, capacity_factor=factor)
    for name, cases in (("moe", MOE), ("deepseek_like", DEEPSEEK)):
        for sizes in cases:
            proof = proven(name, model, numerics=problem, capacity_factor=factor, **sizes)
            assert proof.run.dropped_token_fraction is not None
            assert (proof.run.dropped_token_fraction > 0) == (factor is not None)


def test_the_capacity_of_strategy_and_problem_must_agree() -> None:
    message = r"capacity_factor \(1.5\) of the strategy must be that of what is trained \(None\), .*; give numerics="
    with pytest.raises(mt.UsageError, match=message):
        mt.prove("moe", workload=MIXTRAL_LIKE, world_size=2, global_batch_size=2, ep=2, capacity_factor=1.5)


def test_the_seeded_router_says_what_each_expert_is_sent_and_its_histogram_can_be_priced() -> None:
    sizes = case(4, ep=4, workload=MIXTRAL_LIKE)
    run = mt.simulate("moe", numerics="numpy", **sizes)
    layer = MIXTRAL_LIKE.units().index(next(unit for unit in MIXTRAL_LIKE.units() if unit.kind == "moe"))
    models: Any = run.models
    counts = np.sum([model.copies_by_expert[layer] for model in models], axis=0)
    assert counts.sum() == BATCH * MIXTRAL_LIKE.seq_len * MIXTRAL_LIKE.experts_per_token
    assert len(set(counts)) > 1
    assert run.events == mt.simulate("moe", **sizes).events
    uneven = mt.simulate("moe", imbalance=[int(count) for count in counts], **sizes)
    assert uneven.step_time > run.step_time


@pytest.mark.parametrize("trained", [{"num_layers": 2}, {"workload": "tiny"}], ids=str)
def test_a_rank_without_experts_has_sent_no_copies(trained: dict[str, Any]) -> None:
    run = mt.simulate("ddp", world_size=2, global_batch_size=2, numerics="numpy", **trained)
    models: Any = run.models
    assert [dict(model.copies_by_expert) for model in models] == [{}, {}]


async def _takes_the_second_half_alone(model: Any) -> Any:
    """Go forward on one rank, and ask for the gradient of experts' weights before that of their copies."""
    model.weights[2], _ = model.load_router(2)
    model.activations[0] = model.get_input_activation(range(2))
    for layer in (0, 1):
        model.weights[layer], _ = model.load_weights(layer)
        model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
    model.weights["experts"], _ = model.load_experts(2)
    model.activations["tokens"] = model.route(2, model.activations[2], model.weights[2], 1)
    model.activations["made"] = model.forward(2, model.activations["tokens"], model.weights["experts"])
    model.activations[3] = model.combine(2, model.activations[2], model.activations["made"], model.weights[2])
    for layer in (3, 4, 5):
        model.weights[layer], _ = model.load_weights(layer)
        model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
    model.grad_activations[5] = model.loss(model.activations[6])
    for layer in (5, 4, 3):
        _, model.grad_activations[layer - 1] = model.backward(
            layer, model.activations[layer], model.grad_activations[layer], model.weights[layer]
        )
    made = model.backward_combine(2, model.activations[2], model.activations["made"], model.grad_activations[2])
    model.grad_activations["made"] = made
    model.backward_weight(2, model.activations["tokens"], model.grad_activations["made"])
    return model


def test_half_a_backward_through_experts_needs_the_other_half() -> None:
    with pytest.raises(mt.LawError, match=r"backward_weight of layer 2 \(moe 0\) needs what backward_input made"):
        mt.simulate(
            _takes_the_second_half_alone,
            workload=MIXTRAL_LIKE,
            world_size=1,
            global_batch_size=2,
            numerics="numpy",
            check=False,
        )


def test_four_parts_divide_a_vocabulary_that_they_do_not_divide_evenly() -> None:
    assert GPT_LIKE.vocab_size % 4
    for sequence_parallel in (False, True):
        proven("megatron", GPT_LIKE, **case(4, tp=4, sequence_parallel=sequence_parallel))


@pytest.mark.ci
def test_tiny_is_proven_with_eight_parts_of_its_heads_and_sequence() -> None:
    proof = proven("megatron", "tiny", world_size=8, tp=4, pp=2, num_chunks=3, sequence_parallel=True)
    assert str(proof).startswith("megatron on 8 ranks trains tiny as one device does: the largest relative difference")
    assert set(proof.relative_differences) == set(range(6))
    assert proof.largest < 1e-9


def test_a_shorter_sequence_is_another_problem() -> None:
    proven("megatron", "tiny", world_size=2, global_batch_size=4, tp=2, seq_len=6)


@pytest.mark.parametrize(
    "numerics", [Problem(seed=3, optimizer=Momentum()), TransformerProblem(LLAMA_LIKE, optimizer=Adam(rate=1.0))]
)
def test_the_proof_holds_for_other_seeds_and_optimizers(numerics: Any) -> None:
    proof = proven("megatron", LLAMA_LIKE, numerics=numerics, **case(4, tp=2, pp=2))
    assert proof.run.models[0].problem.optimizer == numerics.optimizer  # type: ignore[attr-defined]  # of a rank with numbers


@given(
    tp=st.sampled_from([1, 2]),
    pp=st.integers(1, 3),
    replicas=st.sampled_from([1, 2]),
    chunks=st.integers(1, 3),
    size=st.none() | st.integers(1, 3),
    zero=st.integers(0, 1),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_megatron_of_any_size_trains_as_one_device_does_or_is_refused(
    tp: int,
    pp: int,
    replicas: int,
    chunks: int,
    size: int | None,
    zero: int,
    sequence_parallel: bool,
    recompute: str,
) -> None:
    options = {"num_chunks": chunks, "microbatch_size": size, "zero": zero, "recompute": recompute}
    sizes = case(tp * pp * replicas, tp=tp, pp=pp, sequence_parallel=sequence_parallel, **options)
    try:
        proven("megatron", LLAMA_LIKE, **sizes)
    except (mt.StrategyError, mt.UsageError):
        return


def test_arrays_change_no_log() -> None:
    sizes = case(4, workload=LLAMA_LIKE, tp=2, pp=2, sequence_parallel=True, recompute="full")
    assert mt.simulate("megatron", numerics="numpy", **sizes).logs == mt.simulate("megatron", **sizes).logs


def test_a_model_that_is_too_large_is_refused_with_one_that_is_not() -> None:
    with pytest.raises(mt.UsageError, match=r"num_parameters \(8,030,261,248\) must be at most .*workload=\"tiny\""):
        mt.prove("megatron", workload="llama3-8b", world_size=8, tp=2)


def test_all_that_cannot_be_computed_is_said_at_once() -> None:
    with pytest.raises(mt.UsageError) as caught:
        mt.prove("ddp", workload="gpt2")
    assert [word in str(caught.value) for word in ("num_parameters", "dropout")] == [True] * 2


def test_too_many_samples_or_ranks_are_refused() -> None:
    with pytest.raises(
        mt.UsageError, match=r"floating-point operations is too large .* global_batch_size than 1048576"
    ):
        mt.prove("ddp", workload="tiny", world_size=8, global_batch_size=2**20)
    with pytest.raises(mt.UsageError, match=r"512 ranks with 106,816 parameters are too many .* at most 314 ranks"):
        mt.prove("ddp", workload="tiny", world_size=512, global_batch_size=512)


def test_heads_that_do_not_divide_are_refused_as_without_numbers() -> None:
    with pytest.raises(mt.UsageError, match=r"num_kv_heads \(2\) must be a multiple of tp \(4\)"):
        mt.prove("megatron", workload=LLAMA_LIKE, world_size=4, tp=4)


@pytest.mark.parametrize("options", [{"sequence_parallel": True}, {"pp": 2, "scatter_gather": True}])
def test_a_sequence_that_does_not_divide_is_refused(options: Any) -> None:
    with pytest.raises(
        (mt.UsageError, mt.LawError), match=r"seq_len \(5\) must be a multiple of|5 tokens .* multiple of 2"
    ):
        mt.prove("megatron", workload="tiny", seq_len=5, world_size=4, tp=2, **options)


def test_numbers_of_another_model_are_refused() -> None:
    with pytest.raises(mt.UsageError, match="numerics are of gpt-like with seq_len=8, and the workload is Transformer"):
        mt.prove("ddp", workload=LLAMA_LIKE, numerics=TransformerProblem(GPT_LIKE))
    with pytest.raises(mt.UsageError, match="numerics are of gpt-like"):
        mt.prove("ddp", numerics=TransformerProblem(GPT_LIKE))


def test_dense_layers_have_no_parts() -> None:
    with pytest.raises(mt.UsageError, match=r'dense layers of numerics are whole, .* as in workload="tiny"'):
        mt.prove("megatron", world_size=2, num_layers=2, tp=2)


def test_the_number_of_layers_is_the_models() -> None:
    with pytest.raises(mt.UsageError, match=r"num_layers .* does not go with a workload"):
        mt.prove("ddp", workload="tiny", num_layers=8)
