"""A JAX function as the layer of a training step: counted by its program, priced by a simulator, in any strategy."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import minitrain as mt
from minitrain.errors import TensorTypeError, UsageError
from minitrain.machine.devices import make_simulator
from minitrain.machine.devices.jax_programs import program_of
from minitrain.machine.devices.layer import JaxLayer, JaxLayerPredictor, layer
from minitrain.tensors import Activation, OptState, Weight

WEIGHTS = {"up": (64, 256), "down": (256, 64)}
SAMPLE = (16, 64)


def mlp(weights: Any, x: Any) -> Any:
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def predictor(world_size: int = 4, **options: Any) -> JaxLayerPredictor:
    return layer(mlp, weights=WEIGHTS, sample=SAMPLE, world_size=world_size, **options)


def test_a_pass_takes_what_the_simulator_says_of_its_program() -> None:
    found = predictor().compute("forward", 8).seconds
    program = program_of(mlp, WEIGHTS, (8, *SAMPLE), dtype="float16")
    assert found == make_simulator("h100_80g_nvl8").predict(program)


@pytest.mark.parametrize("wrap", [lambda chain: chain, jax.checkpoint, lambda chain: jax.jit(jax.checkpoint(chain))])
def test_what_backward_computes_again_is_no_useful_work(wrap: Any) -> None:
    chain = wrap(lambda weights, x: jnp.tanh(jnp.tanh(x @ weights) @ weights))
    workload = JaxLayer(chain, (256, 256), (256,))
    product = 2 * 64 * 256 * 256
    assert workload.training_flop(64, 3) == pytest.approx(3 * 6 * product, rel=0.02)
    assert workload.program("backward", 64).flops == pytest.approx(6 * product, rel=0.02)  # two of forward's again


def test_the_backward_pass_is_the_derivative() -> None:
    workload = JaxLayer(mlp, WEIGHTS, SAMPLE)
    flops = {
        typ: workload.program(typ, 8).flops for typ in ("forward", "backward", "backward_input", "backward_weight")
    }
    assert flops["backward"] > 1.9 * flops["forward"]
    assert flops["forward"] < flops["backward_input"] < flops["backward"]
    assert flops["forward"] < flops["backward_weight"] < flops["backward"]
    assert workload.training_flop(8, 3) < 3 * (
        flops["forward"] + flops["backward"]
    )  # which computes gelu's input again


def test_sizes_are_those_of_the_function_s_arrays() -> None:
    workload = JaxLayer(mlp, WEIGHTS, SAMPLE, "float32")
    shard: dict[str, Any] = {"layer": 0, "layers": 4, "step": 0, "shards": frozenset([0]), "num_shards": 4}
    weight, state, activation = Weight(**shard), OptState(**shard), Activation(0, 4, frozenset([0, 1]), 8)
    assert workload.weight_elements == 2 * 64 * 256
    assert [workload.memory_elements(each) for each in (weight, activation)] == [2 * 64 * 256 / 4, 2 * 16 * 64]
    sizes = [workload.message_bytes(each) for each in (weight, state, activation)]
    assert sizes == [4 * 2 * 64 * 256, 4 * 2 * 64 * 256 / 4, 4 * 2 * 16 * 64]
    assert workload.load_bytes(1, 4, 0) == workload.message_bytes(state)
    assert workload.update_cost(1, 4, 0).work_flop == 2 * 64 * 256 / 4
    assert (workload.compute_cost("loss", 8, 4).work_flop, workload.bytes_per_element) == (0, 4)
    with pytest.raises(TensorTypeError, match="only a Weight, WeightGrad, OptState, Activation or ActivationGrad can"):
        workload.message_bytes(5)


@pytest.mark.few(4)
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("fidelity", ["default", "seed"])
def test_any_strategy_trains_such_layers(strategy: str, fidelity: str) -> None:
    run = mt.simulate(
        strategy, world_size=4, num_layers=8, global_batch_size=32, hardware=predictor(fidelity=fidelity), check=True
    )
    assert run.step_time > 0
    assert run.hardware == "h100_80g_nvl8"
    assert run.mfu is not None
    assert 0 < run.mfu < 1


def test_single_precision_layers_use_the_rates_that_the_config_has() -> None:
    found = predictor(dtype="float32", device="a100_80g")
    assert found.peak_flop_per_s == 19.5e12
    assert found.capacity_bytes == 80 * 2**30
    assert found.update(1, 1).seconds > 0
    assert found.load(1, 1).seconds > 0


def test_bfloat16_layers_are_priced_at_the_rate_of_half_precision() -> None:
    found = predictor(dtype=jnp.bfloat16)
    assert found.peak_flop_per_s == pytest.approx(989.4e12, rel=1e-12)
    assert found.compute("forward", 8).seconds == predictor(dtype="bfloat16").compute("forward", 8).seconds


def test_a_slow_rank_s_layers_take_longer() -> None:
    found = predictor()
    assert found.slowed(2).compute("forward", 8).seconds == 2 * found.compute("forward", 8).seconds


def test_jax_numpy_and_a_tuple_of_sizes_will_do() -> None:
    dense = layer(lambda w, x: jnp.tanh(x @ w), weights=(64, 64), sample=(64,), world_size=1)
    assert dense.compute("forward", 4).seconds > 0
    assert dense.workload.max_shards(0) == 64 * 64


def test_a_spec_s_simulator_survives_copies() -> None:
    simulator = make_simulator("a100_80g")
    program = program_of(jnp.matmul, (8, 8), (8, 8))
    for other in (copy.deepcopy(simulator), pickle.loads(pickle.dumps(simulator))):
        assert other.predict(program) == simulator.predict(program)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": (8, 4)}, r"of the shape that it takes, \(1, 4, 8\), got \(1, 4, 4\)"),
        ({"weights": (7, 8)}, "the layer cannot be traced with weights"),
        ({"function": lambda w, x: (x, w)}, r"of the shape that it takes, .* got \("),
        ({"sample": 8}, r"sample is the shape of one sample's activations, such as \(512, 1024\), got 8"),
        ({"sample": (0, 8)}, "each size of sample must be an integer of at least 1, got 0"),
        ({"weights": (-8, 8)}, r"a shape is a tuple of whole numbers >= 0, got \(-8, 8\)"),
        ({"dtype": "int8"}, "dtype of a layer must be a floating-point one, which has a derivative, got 'int8'"),
        ({"dtype": "fp16"}, "dtype must be one of float64, .* got 'fp16'"),
        ({"function": lambda w, x: x if x.sum() > 0 else w}, "the layer cannot be traced .* jnp.where or jax.lax.cond"),
        ({"function": lambda w, x: w.nothing}, "the layer cannot be traced .* it raised AttributeError"),
    ],
)
def test_layers_that_cannot_be_priced_are_one_clear_error(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"function": lambda w, x: x @ w, "weights": (8, 8), "sample": (4, 8), "world_size": 2}
    given |= changed
    with pytest.raises(UsageError, match=message):
        mt.hw.layer(given.pop("function"), **given)


def test_a_layer_made_for_fewer_ranks_than_the_run_has_is_refused() -> None:
    made = mt.hw.layer(lambda w, x: x @ w, weights=(8, 8), sample=(4, 8), world_size=2)
    with pytest.raises(UsageError, match="network was made for 2 ranks, but the run has 4; make it with world_size=4"):
        mt.simulate("ddp", world_size=4, num_layers=2, global_batch_size=4, hardware=made)
