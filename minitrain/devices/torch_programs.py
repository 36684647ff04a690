"""A graph of `torch.export` as a program for the simulators; torch is an extra.

Each node of the graph is a kernel, as torch runs it eagerly: nothing is fused. Matrix multiplications, convolutions
and attention count two FLOPs for a multiplication and its addition; anything else counts one an element of its result.
Views cost nothing. Left out: what `torch.compile` would fuse, and operations written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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


def program_of_export(exported: Any) -> Program:
    """Return an exported program's graph as a program.

    Args:
        exported: what `torch.export.export` returned.

    Raises:
        UsageError: a node has no shape, as where sizes are symbolic.
    """
    operations = [_operation(node) for node in exported.graph.nodes if node.op == "call_function"]
    return Program(tuple(operation for operation in operations if operation is not None))


def _operation(node: Any) -> Operation | None:
    """Return a node as a kernel; None for a view."""
    name = _name(node)
    if name in _VIEWS:
        return None
    results, inputs = _tensors(node.meta.get("val")), _inputs(node)
    if not results:
        return None
    shape = _shape(name, inputs, results[0])
    moved = sum(map(_bytes, inputs)) + sum(map(_bytes, results))
    if name == "embedding":
        moved = 2 * sum(map(_bytes, results)) + _bytes(inputs[1])
    kind = "other" if shape is None else "convolution" if "conv" in name else "matmul"
    return Operation(
        name=f"{name} {' x '.join(str(list(tensor.shape)) for tensor in inputs[:2])}".strip(),
        flops=_flops(name, shape, inputs, results),
        bytes=moved,
        datatype=_datatype((inputs or results)[0]),
        kind=kind,  # type: ignore[arg-type]  # one of the three
        shape=shape,
    )


def _shape(name: str, inputs: list[Any], result: Any) -> MatmulShape | None:
    """Return the matrix multiplication that a node amounts to."""
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
    """Return the tensors that a node reads."""
    return [tensor for other in node.all_input_nodes for tensor in _tensors(other.meta.get("val"))]


def _datatype(tensor: Any) -> str:
    return known_datatype(str(tensor.dtype).removeprefix("torch."))


def _size(tensor: Any) -> int:
    """Return the number of elements of a tensor."""
    try:
        return math.prod(int(size) for size in tensor.shape)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the exported program must have fixed sizes, but one tensor has {tuple(tensor.shape)}; export it without "
            "dynamic_shapes"
        ) from error


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


def _mm(inputs: list[Any]) -> MatmulShape:
    left, right = inputs[-2:]
    return MatmulShape(math.prod(left.shape[:-1]), right.shape[-1], left.shape[-1])


def _bmm(inputs: list[Any]) -> MatmulShape:
    left, right = inputs[:2]
    return MatmulShape(left.shape[-2], right.shape[-1], left.shape[-1], math.prod(left.shape[:-2]))


def _matmul(inputs: list[Any]) -> MatmulShape:
    return _bmm(inputs) if len(inputs[1].shape) > 2 else _mm(inputs)


def _linear(inputs: list[Any]) -> MatmulShape:
    left, weight = inputs[:2]
    return MatmulShape(math.prod(left.shape[:-1]), weight.shape[0], left.shape[-1])


def _convolution(inputs: list[Any], result: Any) -> MatmulShape:
    """Return a convolution as a matrix multiplication: places of the result by channels, summed over the kernel."""
    image, kernel = inputs[:2]
    groups = image.shape[1] // kernel.shape[1]
    places = result.shape[0] * math.prod(result.shape[2:])
    return MatmulShape(places, kernel.shape[0] // groups, math.prod(kernel.shape[1:]), groups)


_MATMULS: Mapping[str, Callable[[list[Any]], MatmulShape]] = MappingProxyType(
    {"mm": _mm, "addmm": _mm, "bmm": _bmm, "matmul": _matmul, "linear": _linear}
)
