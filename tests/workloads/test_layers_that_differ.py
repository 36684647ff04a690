"""A workload whose layers differ in cost and size: every price and every size is that of its own layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.engine.observers import Observer
from minitrain.lib import Model, RuntimePredictor
from minitrain.operations import UNITS_PER_ELEMENT, Event
from minitrain.tensors import Activation, ActivationGrad
from minitrain.workloads.workload import USUAL, Cost, PassMode

WIDTHS = (512, 4096, 1024, 8192, 256, 2048, 128, 4096, 64)
NUM_LAYERS = len(WIDTHS) - 1
BATCH = 8


class Perceptron:
    """Layer k multiplies a vector of WIDTHS[k] by a matrix to one of WIDTHS[k + 1]; only the last layer has a loss."""

    datatype = "float16"
    bytes_per_element = 2
    is_uniform = False

    def max_shards(self, layer: int) -> int:
        """Return the rows of a layer's matrix."""
        return WIDTHS[layer]

    def has_attention(self, layer: int) -> bool:
        """Return False: there are no tokens."""
        return False

    def weight_elements(self, layer: int) -> int:
        """Return the size of a layer's matrix."""
        return WIDTHS[layer] * WIDTHS[layer + 1]

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:
        """Return the cost of one pass, and of a loss that reads the model's output."""
        if typ == "loss":
            return Cost(0, 2 * num_samples * WIDTHS[layer])
        traffic = self.weight_elements(layer) + num_samples * (WIDTHS[layer] + WIDTHS[layer + 1])
        return Cost(2 * self.weight_elements(layer) * num_samples, 2 * traffic, 1.0 if typ == "forward" else 2.0)

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> Cost:
        """Return the cost of an optimizer step."""
        held = self.weight_elements(layer) * num_shards_on_device // num_shards
        return Cost(held, 6 * held)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> int:
        """Return the bytes of some shards."""
        return 2 * self.weight_elements(layer) * num_shards_on_device // num_shards

    def common_bytes(self, weight_grad: Any) -> int:
        """Return 0: this workload has no parts."""
        return 0

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; what is cut into shards counts whole."""
        whole = 1 if isinstance(tensor, Activation | ActivationGrad) else tensor.num_shards / len(tensor.shards)
        return int(2 * self.memory_elements(tensor) * whole)

    def memory_elements(self, tensor: Any) -> float:
        """Return the size of a tensor by its layer."""
        if isinstance(tensor, Activation):
            return len(tensor.samples) * WIDTHS[tensor.layer]
        if isinstance(tensor, ActivationGrad):
            return len(tensor.samples) * WIDTHS[tensor.layer + 1]
        share: float = len(tensor.shards) / tensor.num_shards
        return self.weight_elements(tensor.layer) * share

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:
        """Return the size of a layer's input."""
        return num_samples * WIDTHS[layer]

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:
        """Return 0: what is kept is the input alone."""
        return 0

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return the flop of a forward and a backward, twice as long, through every layer."""
        return sum(6 * self.weight_elements(layer) * num_samples for layer in range(num_layers))


WORKLOAD = Perceptron()


def simulate(strategy: Any, world_size: int = 4, **parameters: Any) -> mt.Run:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": NUM_LAYERS, "global_batch_size": BATCH}
    predictor = RuntimePredictor(world_size, workload=WORKLOAD)
    return mt.simulate(strategy, hardware=predictor, **sizes, **parameters)


def expected_seconds(event: Event, predictor: RuntimePredictor, num_shards: int) -> float | None:
    """Return how long an operation lasts on one device, by the roofline; None for a communication."""
    layer, num_samples = event.layer, len(event.samples)
    if event.typ == "load_weights":
        size_bytes = WORKLOAD.load_bytes(1, num_shards, layer or 0)
        return size_bytes / predictor.mem_pcie.throughput(size_bytes)
    if event.typ == "update":
        cost = WORKLOAD.update_cost(1, num_shards, layer or 0)
    elif event.typ in ("forward", "loss", "backward"):
        cost = WORKLOAD.compute_cost(event.typ, num_samples, layer or 0)
    else:
        return None
    return predictor.get_processing_time(cost.work_flop, cost.traffic_bytes) * cost.share


@pytest.mark.parametrize(("strategy", "num_shards"), [("ddp", 1), ("zero3", 4), ("gpipe", 1)])
def test_every_operation_lasts_as_long_as_its_own_layer_asks_for(strategy: str, num_shards: int) -> None:
    predictor = RuntimePredictor(4, workload=WORKLOAD)
    run = simulate(strategy)
    computed = [event for event in run.events if expected_seconds(event, predictor, num_shards) is not None]
    assert {event.typ for event in computed} == {"load_weights", "forward", "loss", "backward", "update"}
    assert [event.duration for event in computed] == [
        expected_seconds(event, predictor, num_shards) for event in computed
    ]
    by_layer = {event.layer: event.duration for event in computed if event.typ == "forward"}
    assert len(set(by_layer.values())) > NUM_LAYERS / 2  # they do differ


def test_messages_and_collectives_are_as_large_as_their_own_layer_makes_them() -> None:
    run = simulate("gpipe", microbatch_size=2, layers_per_stage=[2, 2, 2, 2])
    sends = {event.size_bytes for event in run.events if event.typ == "send"}
    borders = [WIDTHS[layer] for layer in range(2, NUM_LAYERS, 2)]  # two layers a stage
    assert sends == {2 * 2 * width for width in borders}
    reduces = {(event.layer, event.size_bytes) for event in simulate("ddp").events if event.typ == "all_reduce"}
    assert reduces == {(layer, 2 * WORKLOAD.weight_elements(layer)) for layer in range(NUM_LAYERS)}


class Measuring(Observer):
    """Requires every tensor in a store to have the size that the workload gives it."""

    def stored(self, store: Any, key: Any, value: Any) -> None:
        assert store._account.units_of(value) == WORKLOAD.memory_elements(value) * UNITS_PER_ELEMENT, value


@pytest.mark.few(6)
@pytest.mark.parametrize("strategy", sorted(mt.strategies()))
def test_whatever_a_strategy_stores_has_the_size_of_its_layer(strategy: str) -> None:
    world_size = 1 if strategy == "single" else 4
    plain, measured = (simulate(strategy, world_size, observers=observers) for observers in ((), [Measuring()]))
    assert measured.peak_memory_per_rank == plain.peak_memory_per_rank


async def keeps_everything(model: Model) -> Model:
    """Take all samples through all layers and back, and keep every tensor."""
    samples = range(model.global_batch_size)
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
    model.activations[0] = model.get_input_activation(samples)
    for layer in range(model.num_layers):
        model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
    model.grad_activations[model.num_layers] = model.loss(model.activations[model.num_layers])
    for layer in reversed(range(model.num_layers)):
        inp, grad, weight = model.activations[layer], model.grad_activations[layer + 1], model.weights[layer]
        model.grad_weights[layer], model.grad_activations[layer] = model.backward(layer, inp, grad, weight)
    return model


async def keeps_everything_of_a_split_backward(model: Model) -> Model:
    """Do the same with a backward in two halves."""
    samples = range(model.global_batch_size)
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
    model.activations[0] = model.get_input_activation(samples)
    for layer in range(model.num_layers):
        model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
    model.grad_activations[model.num_layers] = model.loss(model.activations[model.num_layers])
    for layer in reversed(range(model.num_layers)):
        inp, grad, weight = model.activations[layer], model.grad_activations[layer + 1], model.weights[layer]
        model.grad_activations[layer] = model.backward_input(layer, inp, grad, weight)
        model.grad_weights[layer] = model.backward_weight(layer, inp, grad)
    return model


@pytest.mark.parametrize("program", [keeps_everything, keeps_everything_of_a_split_backward])
@pytest.mark.parametrize("how", [{}, {"strict": True}, {"log": "summary"}, {"memory_by_kind": True}])
def test_memory_is_the_sum_over_the_layers_in_every_kind_of_run(
    program: Callable[[Model], Any], how: dict[str, Any]
) -> None:
    weights = sum(WIDTHS[layer] * WIDTHS[layer + 1] for layer in range(NUM_LAYERS))
    run = simulate(program, 1, check=False, **how)
    assert run.peak_memory == 3 * weights + 2 * BATCH * sum(WIDTHS)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "1f1b", "zb_h1"])
def test_strict_and_summary_runs_give_the_figures_of_a_plain_one(strategy: str) -> None:
    plain, summary, strict = simulate(strategy), simulate(strategy, log="summary"), simulate(strategy, strict=True)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert summary.summary() | {"held_outside_bytes": None} == plain.summary()
    assert plain.useful_flop == 6 * BATCH * sum(WIDTHS[k] * WIDTHS[k + 1] for k in range(NUM_LAYERS))


@pytest.mark.parametrize(
    ("strategy", "world_size", "options"),
    [("zero3", 8, {}), ("interleaved_1f1b", 8, {"pp": 4, "microbatch_size": 1})],
)
def test_folding_tells_layers_apart(strategy: str, world_size: int, options: dict[str, Any]) -> None:
    full, folded = (simulate(strategy, world_size, fold=fold, **options) for fold in (False, True))
    assert len(folded.class_logs) < len(full.class_logs)
    assert folded.step_time == full.step_time
    assert folded.peak_memory_per_rank == full.peak_memory_per_rank
    assert (folded.mfu, folded.num_events) == (full.mfu, full.num_events)
