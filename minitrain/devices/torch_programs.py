"""A graph of `torch.export` as a program for the simulators; torch is an extra.

Each node of the graph is a kernel, as torch runs it eagerly: nothing is fused. Matrix multiplications, convolutions
and attention count two FLOPs for a multiplication and its addition; anything else counts one an element of its result.
Views cost nothing. Sums by Einstein's convention and recurrent layers are taken apart by torch first. A conditional
costs what its most expensive branch does, and a loop counts once and is reported. Left out: what `torch.compile` would
fuse, and operations written by hand.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from minitrain.devices.operations import ELEMENT_BYTES, MatmulShape, Operation, Program, known_datatype
from minitrain.errors import UsageError

_VIEWS = frozenset({
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice",
    "select", "split", "split_with_sizes", "chunk", "unbind", "detach", "alias", "getitem", "lift_fresh_copy",
    "contiguous", "unflatten", "flatten", "sym_size", "_assert_tensor_metadata"
})  # fmt: skip
_FREE_FLOP = frozenset({
    "clone", "cat", "stack", "embedding", "index", "copy", "_to_copy", "to", "constant_pad_nd", "arange", "full",
    "zeros", "ones"
})  # fmt: skip


_COMPOSITES = frozenset({
    "einsum", "tensordot", "inner", "outer", "chain_matmul", "gru", "lstm", "rnn_tanh", "rnn_relu", "baddbmm",
    "multi_head_attention_forward"
})  # fmt: skip
_MATRIX = 2  # dimensions
_TRANSPOSED = 6  # which argument of aten.convolution says so
_FOLLOWED = ("cond", "while_loop")


def program_of_export(exported: Any) -> Program:
    """Return an exported program's graph as a program.

    Args:
        exported: what `torch.export.export` returned.

    Raises:
        UsageError: a size is symbolic, or a node holds graphs that are neither a conditional's nor a loop's.
    """
    return _program(_taken_apart(exported).graph_module)


def _taken_apart(exported: Any) -> Any:
    """Return a program whose composite operations, if it has any, are those that they are made of."""
    if not any(_name(node) in _COMPOSITES for node in exported.graph.nodes if node.op == "call_function"):
        return exported
    import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - whoever exported it has it

    default: Any = getattr(torch.export, "default_decompositions", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of what it calls itself
        if default is None:  # before torch 2.6
            return exported.run_decompositions()
        rules = {op: rule for op, rule in default().items() if getattr(op, "_opname", "") in _COMPOSITES}
        return exported.run_decompositions(rules)


def _program(module: Any) -> Program:
    """Return a graph as a program, with the graphs that it holds."""
    operations: list[Operation] = []
    loops: list[str] = []
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        graphs = [getattr(module, other.target) for other in node.all_input_nodes if _is_graph(module, other)]
        if graphs:
            inner = _held(_name(node), [_program(graph) for graph in graphs])
            operations += inner.operations
            loops += inner.unknown_loops
        elif (operation := _operation(node)) is not None:
            operations.append(operation)
    return Program(tuple(operations), tuple(loops))


def _is_graph(module: Any, node: Any) -> bool:
    """Whether a node stands for a graph."""
    return node.op == "get_attr" and hasattr(getattr(module, str(node.target), None), "graph")


def _held(name: str, programs: list[Program]) -> Program:
    """Return what a node costs that holds graphs.

    Raises:
        UsageError: it is neither a conditional nor a loop.
    """
    if name == "cond":
        return max(programs, key=lambda program: (program.flops, program.bytes))
    if name == "while_loop":
        inner = [operation for program in programs for operation in program.operations]
        loops = [loop for program in programs for loop in program.unknown_loops]
        return Program(tuple(inner), ("a while_loop of unknown length", *loops))
    raise UsageError(
        f"a graph may hold {' and '.join(_FOLLOWED)}, but this one holds {name}, whose cost nobody knows; "
        "export a program without it, or give its operations as a list",
        operator=name,
    )


def _operation(node: Any) -> Operation | None:
    """Return a node as a kernel; None for a view."""
    name = _name(node)
    if name in _VIEWS:
        return None
    results, inputs = _tensors(node.meta.get("val")), _inputs(node)
    if not results:
        return None
    operands = _operands(node)
    for tensor in (*inputs, *results):
        _size(tensor)
    shape = _shape(node, name, operands, results[0])
    moved = sum(map(_bytes, inputs)) + sum(map(_bytes, results))
    if name == "embedding":
        moved = 2 * sum(map(_bytes, results)) + _bytes(inputs[1])
    kind = "other" if shape is None else "convolution" if "conv" in name else "matmul"
    return Operation(
        name=f"{name} {' x '.join(str(list(tensor.shape)) for tensor in inputs[:2])}".strip(),
        flops=_flops(name, shape, operands, results),
        bytes=moved,
        datatype=_datatype((inputs or results)[0]),
        kind=kind,  # type: ignore[arg-type]  # one of the three
        shape=shape,
    )


def _shape(node: Any, name: str, inputs: list[Any], result: Any) -> MatmulShape | None:
    """Return the matrix multiplication that a node amounts to."""
    if name.startswith("conv_transpose") or (name == "convolution" and node.args[_TRANSPOSED]):
        return _transposed_convolution(inputs, result)
    if name in ("convolution", "conv1d", "conv2d", "conv3d"):
        return _convolution(inputs, result)
    return _MATMULS[name](inputs) if name in _MATMULS else None


def _name(node: Any) -> str:
    """Return the name of an operator without its namespace and overload."""
    target = node.target
    return str(getattr(target, "_opname", getattr(target, "__name__", target))).split(".")[0]


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in what a node makes."""
    values = value if isinstance(value, list | tuple) else [value]
    return [item for item in values if hasattr(item, "shape")]


def _inputs(node: Any) -> list[Any]:
    """Return the tensors that a node reads, each once."""
    return [tensor for other in node.all_input_nodes for tensor in _tensors(other.meta.get("val"))]


def _operands(node: Any) -> list[Any]:
    """Return the tensors that a node is given, in order; the same one twice comes twice."""
    given = [
        item for argument in node.args for item in (argument if isinstance(argument, list | tuple) else [argument])
    ]
    return [tensor for item in given if hasattr(item, "meta") for tensor in _tensors(item.meta.get("val"))]


def _datatype(tensor: Any) -> str:
    return known_datatype(str(tensor.dtype).removeprefix("torch."))


def _size(tensor: Any) -> int:
    """Return the number of elements of a tensor.

    Raises:
        UsageError: a size is a symbol.
    """
    if not all(isinstance(size, int) for size in tensor.shape):
        raise UsageError(
            f"the exported program must have fixed sizes, but one tensor has {tuple(tensor.shape)}; export it without "
            "dynamic_shapes"
        )
    return math.prod(tensor.shape)


def _bytes(tensor: Any) -> int:
    return _size(tensor) * ELEMENT_BYTES[_datatype(tensor)]


def _flops(name: str, shape: MatmulShape | None, inputs: list[Any], results: list[Any]) -> float:
    """Return a node's floating-point operations."""
    if name.lstrip("_").startswith("scaled_dot_product"):
        query, key, value = inputs[:3]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return float(2 * pairs * (query.shape[-1] + value.shape[-1]))
    if shape is not None:
        biased = _size(results[0]) if len(inputs) > 2 else 0
        return 2.0 * shape.batch * shape.m * shape.n * shape.k + biased
    return 0.0 if name in _FREE_FLOP else float(sum(map(_size, results)))


def _matmul(inputs: list[Any]) -> MatmulShape:
    """Return the shape of a product of the last two operands; vectors are rows or columns, and batches broadcast."""
    left, right = (tuple(tensor.shape) for tensor in inputs[-2:])
    rows, columns = (left[-2] if len(left) > 1 else 1), (right[-1] if len(right) > 1 else 1)
    if len(right) <= _MATRIX:  # one matrix, or vector, for all rows of all batches
        return MatmulShape(math.prod(left[:-1]), columns, left[-1])
    batch = zip_longest(reversed(left[:-2]), reversed(right[:-2]), fillvalue=1)
    return MatmulShape(rows, columns, left[-1], math.prod(max(pair) for pair in batch))


def _linear(inputs: list[Any]) -> MatmulShape:
    left, weight = inputs[:2]
    return MatmulShape(math.prod(left.shape[:-1]), weight.shape[0], left.shape[-1])


def _convolution(inputs: list[Any], result: Any) -> MatmulShape:
    """Return a convolution as a matrix multiplication: places of the result by channels, summed over the kernel."""
    image, kernel = inputs[:2]
    groups = image.shape[1] // kernel.shape[1]
    places = result.shape[0] * math.prod(result.shape[2:])
    return MatmulShape(places, kernel.shape[0] // groups, math.prod(kernel.shape[1:]), groups)


def _transposed_convolution(inputs: list[Any], result: Any) -> MatmulShape:
    """Return a transposed convolution as a matrix multiplication: places of the image by what each spreads to."""
    image, kernel = inputs[:2]
    places = image.shape[0] * math.prod(image.shape[2:])
    groups = result.shape[1] // kernel.shape[1]
    return MatmulShape(places, math.prod(kernel.shape[1:]), kernel.shape[0] // groups, groups)


_MATMULS: Mapping[str, Callable[[list[Any]], MatmulShape]] = MappingProxyType(
    {"linear": _linear}
    | dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "matmul", "mv", "addmv", "dot", "vdot"), _matmul)
)
