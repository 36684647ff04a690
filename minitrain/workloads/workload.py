"""The interface between the simulator and a trained model: what its layers cost, and how large their tensors are.

A workload is any object with the methods of `Workload`. It knows no hardware: a predictor makes seconds of its FLOPs
and bytes. The default is `minitrain.workloads.matmul`.

**Context parallelism** (`Context`, `num_pairs`): the shards of a sequence that a pass works on, and the pairs that the
causal mask leaves there. A sequence is cut into equal shards. A rank holds some of them, and its queries see keys of
its own and of other shards. The work of attention is that of the pairs whose key is not later than the query, and
within the window if there is one. So it is counted by area: of two shards of c tokens, c^2 pairs where the keys lie
before the queries, c (c + 1) / 2 where they are the same, and none where they come later. A rank with one shard of n
has little work near the beginning of the sequence, and much near its end. With the shards i and 2n - 1 - i of 2n, all
ranks have the same (Llama 3, section 3.3.2; "zigzag" in implementations of ring attention).

**Compressed gradients** (`Packing`): bytes on the wire and in memory, passes through memory, multiplications.
Compressors say what they send and keep of weights of given shapes (`minitrain.tensors.compressed`); a workload says the
shapes (`matrices`) and the bytes of a gradient's element. Quantising, selecting and adding errors are limited by
memory. PowerSGD multiplies each matrix by a factor three times, and makes the first factor's columns orthonormal: 2 n
r^2 FLOPs by the Gram-Schmidt procedure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any, Protocol

from minitrain.errors import TensorTypeError, UsageError, choice_fault, made_a_tensor
from minitrain.tensors.compressed import COMPRESSED_KINDS, ApproximateGrad, CompressedGrad, Compressor, PowerSGD, Shapes

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a query and a key that see one another, where documents say which do.

    Args:
        by_shard: shard of queries, shard of keys, and their number, of those that have any; for one head.
        longest: tokens of the longest document: no query sees more keys.
    """

    by_shard: tuple[tuple[int, int, float], ...]
    longest: int

    @property
    def total(self) -> float:
        """Return the number of all of them."""
        return sum(pairs for _, _, pairs in self.by_shard)


@dataclass(frozen=True, slots=True)
class Context:
    """The shards of the sequence that a pass works on.

    Args:
        queries: the rank's own shards, whose tokens it takes through the network.
        num_shards: number of shards that the sequence is cut into.
        keys: the shards whose keys the queries have to do with; none before they see any.
    """

    queries: frozenset[int]
    num_shards: int
    keys: frozenset[int] = NONE

    @property
    def degree(self) -> int:
        """Return among how many ranks the sequence is divided."""
        return self.num_shards // len(self.queries)

    def seen(self, shard_len: int, window: int | None) -> Iterator[tuple[int, int, int]]:
        """Yield each shard of queries and of keys with pairs between them, and their number for one head and sample.

        Args:
            shard_len: tokens of a shard.
            window: keys that a query sees at most; None for all.

        Example:
            >>> list(Context(frozenset([0, 3]), 4, frozenset([0, 3])).seen(10, None))
            [(0, 0, 55), (3, 0, 100), (3, 3, 55)]
        """
        for query in sorted(self.queries):
            for key in sorted(self.keys):
                pairs = num_pairs((query - key) * shard_len, shard_len, window)
                if pairs:
                    yield query, key, pairs


def num_pairs(distance: int, shard_len: int, window: int | None = None) -> int:
    """Return the pairs of a query and a key that the causal mask (and the window) leaves between two shards.

    Args:
        distance: by how many tokens the shard of queries begins after that of keys.
        shard_len: tokens of either.
        window: keys that a query sees at most; None for all.

    Example:
        >>> [num_pairs(distance, 4) for distance in (-4, 0, 4)]
        [0, 10, 16]
    """
    most = distance + shard_len if window is None else window - 1
    return _up_to(most - distance, shard_len) - _up_to(-1 - distance, shard_len)


def _up_to(difference: int, size: int) -> int:
    """Return the pairs of two numbers of 0..size-1 that differ by at most `difference`."""
    if difference < 0:
        side = max(difference + size, 0)
        return side * (side + 1) // 2
    side = max(size - 1 - difference, 0)
    return size * size - side * (side + 1) // 2


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of an operation: for the processor, and for its memory.

    Args:
        work_flop: floating-point operations.
        traffic_bytes: bytes read and written.
        share: the share of that cost which the operation pays (1/2 for each half of a split backward).
    """

    work_flop: float
    traffic_bytes: float
    share: float = 1.0


Recompute = str
"""What backward computes again: "none", "selective" (the attention core), "full" (the whole transformer layer from its
input), or some of `MODULES`, joined by "+": "layernorm+mla_up_proj"."""

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")

MODULES = (
    *("core_attn", "self_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"),
    *("flash_attn", "mlp_act", "op", "qkv_proj", "context", "out_proj", "mlp_up"),
)
"""What of a transformer layer backward can compute again by itself, in the words of Megatron-Core (`recompute_modules`
of its `transformer_config.py`), and "self_attn" for all of an attention: the attention core; the norms before attention
and MLP; the projections up from the latents, with their norms and rotary embedding; the dense MLP; the layer of
experts, whose tokens travel again; the activation function of its routed experts; its shared experts. Then what other
frameworks repeat: the attention core where it is flash attention, the activation function of the dense MLP; by
MaxText's names the multiplications before the core, the core with its output, and the multiplication behind it; of a
dense MLP's gate and up, one; "op", torchtitan's checkpoints of single operations (`selective_ac_option = "op"`): flash
attention and every other product keep their results, of query, value, gate and down (`_save_list` of its
`parallelize_llama.py`)."""

OURS = ("self_attn", "flash_attn", "mlp_act", "op", "qkv_proj", "context", "out_proj", "mlp_up")
"""Those that Megatron-Core has no word for."""


def as_recompute(words: Any) -> Recompute:
    """Return words for what backward computes again, the same for all that mean the same.

    Raises:
        UsageError: there are no such words.

    Example:
        >>> as_recompute("moe_act+layernorm"), as_recompute("core_attn")
        ('layernorm+moe_act', 'selective')
    """
    if words in RECOMPUTE:
        return str(words)
    given = words.split("+") if isinstance(words, str) else [""]
    if not set(given) <= set(MODULES):
        modules = ", ".join(f'"{name}"' for name in MODULES)
        fault = str(choice_fault("recompute", words, RECOMPUTE))
        guess = "?" if fault.endswith("?") else ""
        raise UsageError(f'{fault.removesuffix("?")}, or some of {modules}, joined by "+"{guess}')
    named = "+".join(module for module in MODULES if module in given)
    return "selective" if named == "core_attn" else named


@lru_cache(maxsize=256)
def modules_of(recompute: Recompute) -> frozenset[str]:
    """Return the modules that backward computes again by themselves: none where it takes the whole layer again."""
    if recompute == "selective":
        return frozenset(["core_attn"])
    return frozenset() if recompute in RECOMPUTE else frozenset(recompute.split("+"))


_WITHIN = {
    "self_attn": ("core_attn", "flash_attn", "layernorm", "mla_up_proj", "qkv_proj", "context", "out_proj"),
    "qkv_proj": ("mla_up_proj",),
    "context": ("core_attn", "flash_attn"),
    "mlp": ("mlp_act", "mlp_up"),
    "moe": ("moe_act", "shared_experts"),
}
"""The modules that are computed again with another one."""


def is_less(recompute: Recompute, other: Recompute) -> bool:
    """Return whether one recomputation repeats some of what another one does, and nothing else.

    Example:
        >>> is_less("layernorm+moe_act", "layernorm+moe"), is_less("mlp", "layernorm+moe"), is_less("moe", "full")
        (True, False, True)
    """
    if "full" in (recompute, other):
        return recompute != other == "full"
    return modules_within(recompute) < modules_within(other)


def modules_within(recompute: Recompute) -> frozenset[str]:
    """Return the modules of a recomputation, and those within them."""
    modules = modules_of(recompute)
    return modules.union(*(_WITHIN.get(module, ()) for module in modules))


def takes_again(recompute: Recompute, module: str) -> bool:
    """Return whether backward computes a module again, by itself or with the whole layer."""
    return recompute == "full" or module in modules_of(recompute)


@dataclass(frozen=True, slots=True)
class PassMode:
    """How a rank takes samples through a layer.

    Args:
        recompute: what backward computes again, as `as_recompute` returns it.
        num_parts: the parts that the layer is divided into, of which the rank computes one.
        sequence_parallel: whether what parts do not divide is divided along the sequence.
        context: the shards of the sequence that the rank takes through the whole network; None for all of it.
        pairs: where sequences are packed, the pairs of a query and a key that their documents leave to an attention,
            over all samples; None for the causal mask alone.
        packing: what is compressed, or made of messages, where the pass is one of compression.
        pieces: of a pass through a weight and no samples, which of its pieces it is, where not all.
    """

    recompute: Recompute = "none"
    num_parts: int = 1
    sequence_parallel: bool = False
    context: Context | None = None
    packing: Packing | None = None
    pairs: Pairs | None = None
    pieces: tuple[Any, ...] = ()


USUAL = PassMode()
"""The whole layer, everything kept for backward."""


_ARRAYS: Mapping[str, int] = {"local_copy": 2, "outer_gradient": 3, "outer_update": 5, "mix": 3}
"""How often an element's bytes are read or written by what goes through weights and no samples: a copy reads one array
and writes one, a difference and a mixture read two, and Nesterov's step reads weight, momentum and gradient and writes
two."""

COMPRESSING = ("compress", "second_factor", "decompress")
"""The computations of compression."""

WEIGHT_PASSES = frozenset((*_ARRAYS, *COMPRESSING))
"""The passes through a weight or its gradient, and no samples."""


def cost_of_weight_pass(workload: Any, typ: str, layer: int, mode: PassMode) -> Cost:
    """Return the cost of one of `WEIGHT_PASSES` for 1 / `mode.num_parts` of a layer's weight."""
    if mode.packing is not None:
        products = multiplications(workload, typ, layer, mode.packing)
        traffic = workload.gradient_bytes * sum((m * k + k * n + m * n) * batch for m, n, k, batch in products)
        return Cost(flop_of(typ, products), traffic + traffic_of(workload, typ, layer, mode.packing))
    return Cost(0, _ARRAYS[typ] * workload.load_bytes(1, mode.num_parts, layer, *mode.pieces))


class Workload(Protocol):
    """A trained model as the simulator sees it: the cost of an operation on a layer, and the size of a tensor.

    A tensor knows its layer, so that sizes may differ between layers too: an `Activation` of layer k is the input of
    layer k and the output of layer k - 1, and an `ActivationGrad` of layer k belongs to the output of layer k.

    Attributes:
        datatype: the key of the hardware config's rates that apply.
        bytes_per_element: size of an element.
        is_uniform: whether all layers cost the same and hold tensors of the same sizes, so that the output of a layer
            is as large as its input, and backward needs nothing else. Prices and sizes are then remembered for all
            layers together.
    """

    datatype: str
    bytes_per_element: int
    is_uniform: bool

    def max_shards(self, layer: int) -> int:
        """Return the most shards that a layer can be cut into.

        That is its rows where it is cut between rows, since what is less than a row would cost nothing.
        """

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = ...) -> Cost:
        """Return the cost of a pass of some samples, such as forward, loss, backward, backward_input, backward_weight.

        The loss is of layer `num_layers`, one after the last. `mode` is another one than `USUAL` only where layers
        differ, or are divided into parts.
        """

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = ...) -> Cost:
        """Return the cost of an optimizer step on some shards of a layer, or of one of its parts."""

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = ...) -> int:
        """Return the bytes read from storage to load some shards of a layer, or of one of its parts."""

    def common_bytes(self, weight_grad: Any) -> int:
        """Return the bytes on the wire of what all parts of a layer hold, of the gradient of one part."""

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes that a tensor puts on the wire."""

    def memory_elements(self, tensor: Any) -> float:
        """Return the elements that a tensor holds in memory."""

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:
        """Return the elements that a layer's forward keeps for its backward, its input included.

        It is called only where layers differ.
        """

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:
        """Return the FLOPs that a backward does again, counted as in `training_flop`; called as `kept_elements` is."""

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return the floating-point operations that one training step has to do, summed over its layers."""


class AlikeLayers:
    """What is true of layers that are alike and whole, and whose backward needs their input and nothing else."""

    __slots__ = ()

    is_uniform = True

    def first_like(self, layer: int) -> int:  # noqa: ARG002
        """Return 0: all layers are alike."""
        return 0

    def common_bytes(self, weight_grad: Any) -> int:  # noqa: ARG002
        """Return 0: parts have nothing in common."""
        return 0

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return 0: nothing is computed again."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelHabits:
    """What a framework's kernels are, whatever the device.

    Args:
        eager: factor on the traffic of passes over memory; above 1 where a framework fuses less.
        dispatcher: how tokens travel to experts of other ranks: one of `minitrain.machine.dispatchers.DISPATCHERS`.
        in_turn: whether each token has the experts that follow those of the token before, as benchmarks of NeMo
            AutoModel do (`FakeBalancedGate` of its `components/moe/layers.py`), which few ranks have; else any.
        fused_router: whether Transformer Engine's kernels fuse what chooses experts (`moe_router_fusion` of
            Megatron-Core).
        pads_experts: whether experts are given as many tokens as they take at most, so that the host need not wait for
            their number (`--moe-pad-expert-input-to-capacity` of Megatron-Core).
        parts_overlap: which collectives of tensor parallelism run beside multiplications, "none", "gradients",
            "pieces", "gathers" or "windows": see `minitrain.machine.platforms.EXPOSED`.
        separate_gradients: whether gradients are added up in single precision by a kernel of its own.
        stops_early: whether full recomputation ends before a layer's last multiplication, as PyTorch's non-reentrant
            checkpoints and jax.checkpoint's dead code elimination do.
        one_hot_embedding: whether the embedding is a multiplication by one-hot rows, which matrix units do (MaxText's
            `use_iota_embed`), and no lookup.
        fused_loss: whether softmax and cross entropy are one kernel.
        jitted_loss: whether they are what torch.compile makes of Megatron-Core's own (`cross_entropy_fusion_impl` is
            "native"): five kernels, of which two write logits to an array of their own and copy them back.
        gates_apart: whether a kernel of its own activates a gate, and what goes back to it and to its factor is put
            together again, where layers are fused (`bias_activation_fusion=False` of Megatron-Core).
        gradient_accesses: how often a step of replicas reads or writes an element of a rank's whole gradients, beside
            what the optimizer does with its shards. Megatron-LM divides its buffer of gradients by the number of
            replicas before it is summed (two accesses: `allreduce_gradients` of `model/distributed.py` in 2021).
            Megatron-Core also takes its norm, to find what is no number, and sets it to zero (four together:
            `Bucket.start_grad_sync` and `zero_grad_buffer` of `core/distributed` 0.8).
        apart: whether each operation that PyTorch dispatches is a kernel of its own, as models of plain PyTorch without
            `torch.compile` have it.
        moves_apart: whether what moves copies of tokens to experts is apart, although the rest is compiled, and one
            kernel multiplies all experts: torchtitan's `MoE`, of which `apply_compile` compiles the modules alone.
        hugging_face: whether these are the operations of Hugging Face's transformers, and of its trainer's AdamW.
        hooked: the stage of ZeRO whose hooks DeepSpeed runs around each module and gradient; 0 without it.
        launch_factor: time of a launch within a model over that of `torch.nn.Linear`'s forward, or of an
            optimizer's, where PyTorch dispatches operations one by one.
        by_parameter: whether AdamW updates one parameter after another (PyTorch's `foreach=False`).
        copies_units: ranks that share units whose weights and gradients FSDP2 casts and copies; 0 without it, 1 where
            the layout says how many.
        copies_parts: whether tensor parallelism's collectives along the sequence are copied into and out of, as
            DTensor's are.
        dtensors: whether PyTorch dispatches each operation on divided weights as one on DTensors, without
            `torch.compile`.
        ring: how ranks that share a sequence exchange keys and values (`minitrain.workloads.rings`); "" where attention
            hides it.
        by_xla: whether the operations are MaxText's, which XLA fuses.
        one_hot_capacity: tokens that each expert takes over the mean, where products with one-hot matrices send them
            (`capacity_factor` of MaxText); 0 where they are sorted.
    """

    eager: float = 1.0
    dispatcher: str = "alltoall"
    in_turn: bool = False
    fused_router: bool = True
    pads_experts: bool = False
    parts_overlap: str = "none"
    separate_gradients: bool = False
    stops_early: bool = False
    one_hot_embedding: bool = False
    fused_loss: bool = False
    jitted_loss: bool = False
    gates_apart: bool = False
    gradient_accesses: float = 0.0
    apart: bool = False
    moves_apart: bool = False
    hugging_face: bool = False
    hooked: int = 0
    launch_factor: float = 1.0
    by_parameter: bool = False
    copies_units: int = 0
    copies_parts: bool = False
    dtensors: bool = False
    ring: str = ""
    by_xla: bool = False
    one_hot_capacity: float = 0.0


@dataclass(frozen=True, slots=True)
class Style(KernelHabits):
    """How a framework runs a model's kernels on a device: its habits, and what follows from the device.

    Args:
        attention: generation of the attention kernel, where the model has flash attention.
        datatype: key of the hardware config's rates, for matrices; the model's own if None.
        captures: whether a pass is the replay of a CUDA graph, but for experts; "router" if what leads to them is.
        captures_experts: whether these are too, as they can be where the number of their tokens does not change.
        transposes: whether matrix units take eight-bit operands in one order alone, as Hopper's do.
        casts_apart: whether activation functions write 16 bits, which another kernel casts.
        loop_share: how long a launch of experts takes, which a loop in C++ makes, of one that Python dispatches.
        module_share: the same of a dense layer's multiplication, which Transformer Engine's modules launch.
        num_gathered: how often a device gathers weights: once for each core that frameworks count as a device.
    """

    attention: str = "flash2"
    datatype: str | None = None
    captures: bool | str = False
    captures_experts: bool = False
    transposes: bool = True
    casts_apart: bool = False
    loop_share: float = 1.0
    module_share: float = 1.0
    num_gathered: int = 1

    def captured(self, num_launches: int, kind: str) -> tuple[int, int]:
        """Return how many launches are left of some, of a kind of unit, and how many kernels a graph has of them."""
        is_captured = kind == "moe" if self.captures == "router" else self.captures
        return (min(1, num_launches), num_launches) if is_captured else (num_launches, 0)


def fills_devices(workload: object) -> bool:
    """Return whether a run says all that a device must hold: of a transformer, whose units are known.

    Other workloads, the specified one among them, count tensors alone.
    """
    return hasattr(workload, "units")


@dataclass(frozen=True, slots=True)
class Packing:
    """What is compressed, or made of messages.

    Args:
        how: the compressor.
        members: messages that are read.
        share: of the layer that the rank works on.
    """

    how: Compressor
    members: int = 1
    share: float = 1.0


def traffic_of(workload: Any, typ: str, layer: int, packing: Packing) -> int:
    """Return the bytes that a computation of compression reads and writes, but for its multiplications."""
    shapes: Shapes = workload.matrices(layer)
    element_bytes: int = workload.gradient_bytes
    elements = ceil(sum(map(prod, shapes)) * packing.share)
    phase = int(isinstance(packing.how, PowerSGD) and typ != "compress")
    message = packing.how.message_bytes(shapes, packing.share, element_bytes, phase)
    return packing.how.element_passes(typ) * elements * element_bytes + packing.members * message


def multiplications(workload: Any, typ: str, layer: int, packing: Packing) -> list[tuple[int, int, int, int]]:
    """Return the multiplications of a computation of compression: each as m, n, k and how many alike."""
    how = packing.how
    if not isinstance(how, PowerSGD):
        return []
    found = []
    for shape in filter(how.takes, workload.matrices(layer)):
        batch, (n, m) = prod(shape[:-2]), shape[-2:]
        rows, columns, inner = {"compress": (n, how.rank, m), "second_factor": (m, how.rank, n)}.get(
            typ, (n, m, how.rank)
        )
        found.append((rows, columns, inner, batch))
    return found


def flop_of(typ: str, sizes: list[tuple[int, int, int, int]]) -> int:
    """Return the FLOPs of a computation of compression that has some multiplications."""
    flop = sum(2 * m * n * k * batch for m, n, k, batch in sizes)
    if typ == "second_factor":  # and the columns of the first factor are made orthonormal
        flop += sum(2 * k * n * n * batch for _, n, k, batch in sizes)
    return flop


def other_message_bytes(workload: Any, tensor: Any) -> int:
    """Return the bytes on the wire of messages of compression, or of an approximate gradient.

    Raises:
        TensorTypeError: it is a rank's own state of compression, which no other can use, or nothing that can be sent.
    """
    if isinstance(tensor, CompressedGrad):
        return held_compressed_bytes(workload, tensor)
    if isinstance(tensor, ApproximateGrad):
        return int(workload.gradient_bytes * sum(map(prod, workload.matrices(tensor.layer))))
    kind = type(tensor).__name__
    if tensor.__class__ in COMPRESSED_KINDS:
        raise TensorTypeError(
            f"a {kind} is its own rank's and cannot be communicated; communicate what compress returns", value=tensor
        )
    raise TensorTypeError(
        "only a Weight, WeightGrad, OptState, Activation or ActivationGrad can be communicated, "
        f"got {kind} ({tensor!r:.80}){made_a_tensor(tensor)}",
        value=tensor,
    )


def held_compressed_bytes(workload: Any, tensor: Any) -> int:
    """Return the bytes in memory of messages, of an approximate gradient, or of a state of compression."""
    shapes: Shapes = workload.matrices(tensor.layer)
    element_bytes: int = workload.gradient_bytes
    share: float = len(tensor.shards) / tensor.num_shards
    elements = element_bytes * ceil(sum(map(prod, shapes)) * share)
    if isinstance(tensor, ApproximateGrad):
        return elements
    if isinstance(tensor, CompressedGrad):
        members: int = tensor.members
        return members * tensor.how.message_bytes(shapes, share, element_bytes, tensor.phase)
    state_how: Compressor = tensor.how
    return elements * state_how.feedback + state_how.factor_bytes(shapes, element_bytes)
