"""A JAX function as the layer of a training step, priced by a device simulator.

`JaxLayer` is a workload: it counts FLOPs, bytes and elements of one layer, given as a function of its weights and of
the activations of some samples. Its backward pass is the function's derivative (`jax.vjp`), the half of it for inputs
or for weights where a strategy splits it. `SimulatedDevice` lets a device simulator price the programs. Together they
stand in any strategy in place of the specified layer:

    mt.simulate("zero3", hardware=mt.hw.layer(fn, weights=..., sample=..., device="h100_80g_nvl8", world_size=8))

Left out: recomputation, and what the derivative keeps of the forward pass beside the layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from minitrain.errors import UsageError, require_count
from minitrain.machine import Processor, SystemConfig, load_config
from minitrain.machine.device import RooflineDevice
from minitrain.machine.devices.operations import ELEMENT_BYTES, Program, known_datatype
from minitrain.machine.devices.simulator import DeviceSimulator, make_simulator
from minitrain.machine.predictor import DevicePredictor
from minitrain.machine.topology import make_topology
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.compressed import COMPRESSED_KINDS, Shapes
from minitrain.workloads.workload import (
    USUAL,
    WEIGHT_PASSES,
    AlikeLayers,
    Cost,
    PassMode,
    cost_of_weight_pass,
    held_compressed_bytes,
    other_message_bytes,
)

_OPTIMIZER_ARRAYS = 3  # a step reads and writes as the specified layer's does
_NOTHING = Program(())
_PASSES = ("forward", "backward", "backward_input", "backward_weight")


@dataclass(frozen=True, slots=True)
class ProgramCost(Cost):
    """What a pass of a layer costs: a program.

    Args:
        program: what runs.
    """

    program: Program = _NOTHING


class JaxLayer(AlikeLayers):
    """A layer that a JAX function computes.

    Args:
        function: takes the layer's weights and the activations of some samples, which are the first dimension, and
            returns activations of the same shape.
        weights: shapes of the weights: a tuple of sizes, or a tree of tuples.
        sample: shape of one sample's activations.
        dtype: of weights and activations.

    Raises:
        UsageError: the function cannot be traced, or returns another shape than it takes.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], weights: Any, sample: tuple[int, ...], dtype: str = "float16"
    ) -> None:
        from minitrain.machine.devices.jax_programs import traced  # noqa: PLC0415 - JAX is heavy

        self.function = function
        self.weights = weights
        self.sample = _sample(sample)
        self.dtype = _float_type(dtype)
        known = known_datatype(self.dtype)
        self.datatype = "float16" if known == "bfloat16" else known
        self.bytes_per_element = ELEMENT_BYTES[known]
        self.sample_elements = math.prod(self.sample)
        self.tokens_per_sample = self.sample[0] if len(self.sample) > 1 else 1  # a sequence of them, or one
        self.program = cache(self._program)
        taken = (1, *self.sample)
        fault = f"the layer cannot be traced with weights {weights} and {taken}"
        jaxpr, found = traced(fault, function, weights, taken, dtype=self.dtype)
        if getattr(found, "shape", None) != taken:
            raise UsageError(
                f"a layer returns activations of the shape that it takes, {taken}, got {getattr(found, 'shape', found)}"
            )
        *of_weights, _ = jaxpr.in_avals
        self.shapes: Shapes = tuple(tuple(array.shape) for array in of_weights)
        self.weight_elements: int = sum(map(math.prod, self.shapes))

    def max_shards(self, layer: int) -> int:  # noqa: ARG002  (all layers are alike, as below)
        """Return how many elements the weights have."""
        return self.weight_elements

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient."""
        return self.bytes_per_element

    def matrices(self, layer: int) -> Shapes:  # noqa: ARG002
        """Return the shapes of the layer's weights."""
        return self.shapes

    def _program(self, typ: str, num_samples: int) -> Program:
        """Return what a pass runs."""
        from minitrain.machine.devices.jax_programs import program_of  # noqa: PLC0415 - JAX is heavy

        activations = (num_samples, *self.sample)
        if typ == "forward":
            return program_of(self.function, self.weights, activations, dtype=self.dtype)
        return program_of(_derivative(self.function, typ), self.weights, activations, activations, dtype=self.dtype)

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:
        """Return the cost of a pass; the loss is free."""
        if typ in WEIGHT_PASSES:
            return cost_of_weight_pass(self, typ, layer, mode)
        _require_whole(mode.num_parts)
        if typ not in _PASSES:
            return Cost(0, 0)
        found = self.program(typ, num_samples)
        return ProgramCost(found.flops, found.bytes, program=found)

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> Cost:  # noqa: ARG002
        """Return the cost of an optimizer step: one FLOP and three arrays of traffic an element."""
        _require_whole(num_parts)
        elements = self.weight_elements * num_shards_on_device // num_shards
        return Cost(elements, self.bytes_per_element * _OPTIMIZER_ARRAYS * elements)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> int:  # noqa: ARG002
        """Return the bytes of some shards of the weights."""
        _require_whole(num_parts)
        return self.bytes_per_element * (self.weight_elements * num_shards_on_device // num_shards)

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        if tensor.__class__ in COMPRESSED_KINDS:
            return other_message_bytes(self, tensor)
        if isinstance(tensor, Activation | ActivationGrad):
            return self.bytes_per_element * self.sample_elements * len(tensor.samples)
        if isinstance(tensor, Weight | WeightGrad):
            return self.bytes_per_element * self.weight_elements
        if isinstance(tensor, OptState):
            return self.bytes_per_element * (self.weight_elements // tensor.num_shards)
        return other_message_bytes(self, tensor)

    def memory_elements(self, tensor: Any) -> float:
        """Return the elements that a tensor holds: the share of shards times the weights, or its samples."""
        if isinstance(tensor, Activation | ActivationGrad):
            return self.sample_elements * len(tensor.samples)
        if tensor.__class__ in COMPRESSED_KINDS:
            return held_compressed_bytes(self, tensor) / self.bytes_per_element
        if isinstance(tensor, Weight | WeightGrad | OptState):
            return len(tensor.shards) / tensor.num_shards * self.weight_elements
        return float(tensor.memory())

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return the elements of a layer's input, from which backward computes the rest."""
        return self.sample_elements * num_samples

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return the FLOPs of forward and backward passes, without what backward does again of forward."""
        return (self.program("forward", num_samples).flops + self._gradient_flop(num_samples)) * num_layers

    def _gradient_flop(self, num_samples: int) -> float:
        """Return the FLOPs of a backward pass that finds all that forward made."""
        import jax  # noqa: PLC0415 - JAX is heavy

        from minitrain.machine.devices.jax_programs import (  # noqa: PLC0415 - JAX is heavy
            as_arguments,
            program_of,
            without_checkpoints,
        )

        given = [as_arguments(shape, self.dtype) for shape in (self.weights, (num_samples, *self.sample))]
        function = without_checkpoints(self.function)
        made, pull_back = jax.eval_shape(lambda *arrays: jax.vjp(function, *arrays), *given)
        return program_of(lambda pull_back, gradient: pull_back(gradient), pull_back, made).flops


def _sample(sample: Any) -> tuple[int, ...]:
    """Return the shape of one sample.

    Raises:
        UsageError: it is no tuple of whole numbers >= 1.
    """
    if not isinstance(sample, tuple | list):
        raise UsageError(f"sample is the shape of one sample's activations, such as (512, 1024), got {sample!r}")
    return tuple(require_count("each size of sample", size) for size in sample)


def _float_type(dtype: Any) -> str:
    """Return the name of a datatype that a derivative can be of.

    Raises:
        UsageError: it is unknown, or holds whole numbers.
    """
    import jax.numpy as jnp  # noqa: PLC0415 - JAX is heavy

    from minitrain.machine.devices.jax_programs import element_type  # noqa: PLC0415

    found = element_type(dtype)
    if not jnp.issubdtype(found, jnp.floating):
        raise UsageError(f"dtype of a layer must be a floating-point one, which has a derivative, got {dtype!r}")
    return str(found)


def _require_whole(num_parts: int) -> None:
    """Raise a UsageError for one part of a layer: a function does not say how it can be divided."""
    if num_parts != 1:
        raise UsageError(
            f"a layer that is a function cannot be divided into parts, got num_parts={num_parts}; load it whole"
        )


def _derivative(function: Callable[[Any, Any], Any], typ: str) -> Callable[[Any, Any, Any], Any]:
    """Return the function that computes gradients, of what a kind of backward pass needs."""
    import jax  # noqa: PLC0415 - JAX is heavy

    def backward(weights: Any, activations: Any, gradient: Any) -> Any:
        _, pull_back = jax.vjp(function, weights, activations)
        of_weights, of_activations = pull_back(gradient)
        return {"backward_input": of_activations, "backward_weight": of_weights}.get(typ, (of_weights, of_activations))

    return backward


class SimulatedDevice:
    """A device on which a simulator prices programs, and a roofline everything else.

    Matrix units compute the datatypes that they have, vector units the others.

    Args:
        system: the hardware config.
        simulator: what prices programs.
    """

    def __init__(self, system: SystemConfig, simulator: DeviceSimulator) -> None:
        self.system = system
        self.simulator = simulator
        rates = Processor({**system.vector, **system.matrix}, system.vector)
        self._roofline = RooflineDevice(rates, system.mem_hbm, system.mem_pcie)
        self.capacity_bytes = self._roofline.capacity_bytes

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the peak rate for a datatype, FLOP/s."""
        return self._roofline.peak_flop_per_s(datatype)

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return how long an operation takes, s."""
        if isinstance(cost, ProgramCost):
            return self.simulator.simulate(cost.program).time_seconds
        return self._roofline.seconds(cost, datatype)

    def load_seconds(self, size_bytes: float) -> float:
        """Return how long it takes to load weights from the host, s."""
        return self._roofline.load_seconds(size_bytes)


class JaxLayerPredictor(DevicePredictor):
    """Price a training step whose layers a JAX function computes: give it to `simulate` as its hardware.

    Args:
        workload: the layer.
        device: what prices it.
        world_size: number of ranks of the run.
        network: "auto", "flat" or "hierarchical".
    """

    def __init__(self, workload: JaxLayer, device: SimulatedDevice, world_size: int, network: str = "auto") -> None:
        self.system = device.system
        self.world_size = world_size
        super().__init__(workload, device, make_topology(device.system.networks, world_size, network))


def layer(
    function: Callable[[Any, Any], Any],
    *,
    weights: Any,
    sample: tuple[int, ...],
    world_size: int,
    device: str | SystemConfig = "h100_80g_nvl8",
    dtype: str = "float16",
    fidelity: str = "default",
    network: str = "auto",
) -> JaxLayerPredictor:
    """Return what prices a training step whose layers a JAX function computes.

    Args:
        function: takes the layer's weights and the activations of some samples, which are the first dimension, and
            returns activations of the same shape.
        weights: shapes of the weights: a tuple of sizes, or a tree of tuples.
        sample: shape of one sample's activations.
        world_size: number of ranks of the run.
        device: a hardware config.
        dtype: of weights and activations.
        fidelity: of the device simulator: "default" or "seed".
        network: "auto", "flat" or "hierarchical".

    Raises:
        UsageError: the function cannot be traced, or returns another shape than it takes.
        HardwareConfigError: the config cannot be found or read, or is invalid.

    Example:
        >>> import minitrain as mt
        >>> mlp = layer(lambda w, x: x + (x @ w["up"]) @ w["down"], weights={"up": (64, 256), "down": (256, 64)},
        ...             sample=(16, 64), world_size=2)
        >>> mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=8, hardware=mlp).num_events
        42
    """
    system = load_config(device)
    simulated = SimulatedDevice(system, make_simulator(system, fidelity))
    return JaxLayerPredictor(JaxLayer(function, weights, sample, dtype), simulated, world_size, network)
