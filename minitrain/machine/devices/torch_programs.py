"""A graph of `torch.export` as a program for the simulators; torch is an extra.

Each node of the graph is a kernel, as torch runs it eagerly: nothing is fused. Matrix multiplications, convolutions
and attention count two FLOPs for a multiplication and its addition; anything else counts one an element of its result.
Views cost nothing, and neither does dropout outside of training. Attention is one kernel on the units that multiply
matrices, which reads queries, keys and values once. Sums by Einstein's convention and recurrent layers are taken apart
by torch first. A conditional costs what its most expensive branch does, and a loop counts once and is reported. Left
out: what `torch.compile` would fuse, and operations written by hand.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from minitrain.errors import UsageError
from minitrain.machine.devices.operations import ELEMENT_BYTES, MatmulShape, Operation, Program, known_datatype

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
_DROPOUTS = frozenset(("dropout", "feature_dropout", "alpha_dropout", "native_dropout"))
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "matmul", "mv", "addmv", "dot", "vdot"))
_CONVOLUTIONS = frozenset(("convolution", "conv1d", "conv2d", "conv3d"))
_TRANSPOSED = 6  # which argument of aten.convolution says so
_TRAINS = 2  # which argument of a dropout does


def exported(function: Callable[..., Any], *inputs: Any) -> Any:
    """Return a function of tensors, or a module, as `torch.export.export` takes it apart; a module is to evaluate."""
    import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

    class Calls(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def forward(self, *given: Any) -> Any:
            return function(*given)

    module = function.eval().requires_grad_(False) if isinstance(function, torch.nn.Module) else Calls()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of what it calls itself
        return torch.export.export(module, inputs, strict=False)


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
    programs: list[Program] = []
    for node in module.graph.nodes:
        if node.op != "call_function" or _does_nothing(node):
            continue
        held = (getattr(module, str(other.target), None) for other in node.all_input_nodes if other.op == "get_attr")
        graphs = [_program(graph) for graph in held if hasattr(graph, "graph")]
        results = _tensors(node.meta.get("val"))
        if graphs:
            programs.append(_held(_name(node), graphs))
        elif results:
            programs.append(Program((_operation(node, results),)))
    return _joined(programs)


def _does_nothing(node: Any) -> bool:
    """Return whether a node is a view, or dropout that drops nothing."""
    name = _name(node)
    return name in _VIEWS or (name in _DROPOUTS and not node.args[_TRAINS])


def _joined(programs: list[Program], *loops: str) -> Program:
    """Return programs that run one after the other as one."""
    operations = tuple(operation for program in programs for operation in program.operations)
    return Program(operations, (*loops, *(loop for program in programs for loop in program.unknown_loops)))


def _held(name: str, programs: list[Program]) -> Program:
    """Return what a node costs that holds graphs.

    Raises:
        UsageError: it is neither a conditional nor a loop.
    """
    if name == "cond":
        return max(programs, key=lambda program: (program.flops, program.bytes))
    if name == "while_loop":
        return _joined(programs, "a while_loop of unknown length")
    raise UsageError(
        f"a graph may hold cond and while_loop, but this one holds {name}, whose cost nobody knows; "
        "export a program without it, or give its operations as a list"
    )


def _name(node: Any) -> str:
    """Return the name of an operator without its namespace and overload."""
    target = node.target
    return str(getattr(target, "_opname", getattr(target, "__name__", target))).split(".")[0]


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in what a node makes."""
    values = value if isinstance(value, list | tuple) else [value]
    return [item for item in values if hasattr(item, "shape")]


def _operation(node: Any, results: list[Any]) -> Operation:
    """Return a node as a kernel."""
    name = _name(node)
    inputs = [tensor for other in node.all_input_nodes for tensor in _tensors(other.meta.get("val"))]  # each once
    given = [one for each in node.args for one in (each if isinstance(each, list | tuple) else [each])]
    operands = [tensor for one in given if hasattr(one, "meta") for tensor in _tensors(one.meta.get("val"))]
    moved = sum(map(_bytes, inputs)) + sum(map(_bytes, results))
    if name == "embedding":
        moved = 2 * sum(map(_bytes, results)) + _bytes(inputs[1])
    shape = _shape(node, name, operands, results[0])
    return Operation(
        name=f"{name} {' x '.join(str(list(tensor.shape)) for tensor in inputs[:2])}".strip(),
        flops=_flops(name, shape, operands, results),
        bytes=moved,
        datatype=_datatype((inputs or results)[0]),
        kind="other" if shape is None else "convolution" if "conv" in name else "matmul",
        shape=shape,
    )


def _is_attention(name: str) -> bool:
    return name.lstrip("_").startswith("scaled_dot_product")


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


def _flops(name: str, shape: MatmulShape | None, operands: list[Any], results: list[Any]) -> float:
    """Return a node's floating-point operations."""
    if _is_attention(name):
        query, key, value = operands[:3]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return float(2 * pairs * (query.shape[-1] + value.shape[-1]))
    if shape is not None:
        return float(shape.flops + (_size(results[0]) if len(operands) > 2 else 0))  # and a bias
    return 0.0 if name in _FREE_FLOP else float(sum(map(_size, results)))


def _shape(node: Any, name: str, operands: list[Any], result: Any) -> MatmulShape | None:
    """Return the matrix multiplication that a node amounts to; None for anything else.

    A convolution multiplies places of its result by channels, summed over the kernel. A transposed one multiplies
    places of its image by what each spreads to. Of a product count the last two operands: vectors are rows or columns,
    and batches broadcast. Of attention it is the product of queries and keys.
    """
    shapes = [tuple(operand.shape) for operand in operands]
    if _is_attention(name):
        query, key = shapes[:2]
        return MatmulShape(query[-2], key[-2], query[-1], math.prod(query[:-2]))
    if name.startswith("conv_transpose") or (name == "convolution" and node.args[_TRANSPOSED]):
        image, kernel = shapes[:2]
        groups = result.shape[1] // kernel[1]
        return MatmulShape(image[0] * math.prod(image[2:]), math.prod(kernel[1:]), kernel[0] // groups, groups)
    if name in _CONVOLUTIONS:
        image, kernel = shapes[:2]
        groups, places = image[1] // kernel[1], result.shape[0] * math.prod(result.shape[2:])
        return MatmulShape(places, kernel[0] // groups, math.prod(kernel[1:]), groups)
    if name == "linear":
        left, weight = shapes[:2]
        return MatmulShape(math.prod(left[:-1]), weight[0], left[-1])
    if name not in _PRODUCTS:
        return None
    left, right = shapes[-2:]
    columns = right[-1] if len(right) > 1 else 1
    if len(right) <= 2:  # one matrix, or vector, for all rows of all batches
        return MatmulShape(math.prod(left[:-1]), columns, left[-1])
    batch = zip_longest(reversed(left[:-2]), reversed(right[:-2]), fillvalue=1)
    return MatmulShape(left[-2] if len(left) > 1 else 1, columns, left[-1], math.prod(max(pair) for pair in batch))
