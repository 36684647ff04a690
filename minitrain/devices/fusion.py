"""Which primitives run as one kernel, and so how many bytes a program moves.

A simple model of what XLA does: matrix multiplications and convolutions are kernels of their own. Whatever else is
connected and lies between the same ones runs as one kernel, which reads what comes from outside once and writes what is
used outside. A reduction ends its kernel. Reshapes cost nothing, and a transposition before a matrix multiplication is
part of it. A slice reads what it keeps, and an update in place writes what it changes.

`docs/devices.md` compares the bytes of some programs with those that XLA states after its own fusion on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from minitrain.devices.operations import ELEMENT_BYTES, MatmulShape, Operation

Role = Literal["matmul", "convolution", "reduction", "elementwise", "view", "transpose", "slice", "update"]
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An array that a program makes or is given; compared by identity.

    Args:
        shape: its sizes.
        datatype: of its elements, one of `ELEMENT_BYTES`.
    """

    shape: tuple[int, ...]
    datatype: str

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.datatype]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A primitive of a program.

    Args:
        name: of the primitive.
        role: how it takes part in kernels.
        inputs: what it reads.
        outputs: what it makes.
        flops: floating-point operations.
        count: how often it runs.
        region: which loop's body it stands in; kernels do not reach across.
        shape: of a matrix multiplication.
    """

    name: str
    role: Role
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    flops: float
    count: int
    region: int
    shape: MatmulShape | None = None


def fused(nodes: Sequence[Node], results: Iterable[Value]) -> list[Operation]:
    """Return the kernels that primitives run as, in order.

    Args:
        nodes: in an order in which they can run.
        results: what the program returns, and what loops carry on.
    """
    group_of = _groups(nodes)
    members: dict[int, list[Node]] = {}
    for node in nodes:
        members.setdefault(group_of[node], []).append(node)
    readers: dict[Value, set[int]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, set()).add(group_of[node])
    kept = set(results)
    operations = [_operation(group, number, readers, kept) for number, group in members.items()]
    return [operation for operation in operations if operation is not None]


def _groups(nodes: Sequence[Node]) -> dict[Node, int]:
    """Return the kernel of each primitive: connected ones of the same depth, in the same loop."""
    maker: dict[Value, Node] = {}
    depth: dict[Node, int] = {}
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in nodes:
        parent[node] = node
        before = [maker[value] for value in node.inputs if value in maker]
        depth[node] = max((depth[other] + _ends_kernel(other) for other in before), default=0)
        depth[node] += _ends_kernel(node) and node.role != "reduction" and bool(before)
        for other in before:
            if _may_join(node, other) and depth[other] == depth[node]:
                parent[root(other)] = root(node)
        maker.update(dict.fromkeys(node.outputs, node))
    numbers: dict[Node, int] = {}
    return {node: numbers.setdefault(root(node), len(numbers)) for node in nodes}


def _is_heavy(node: Node) -> bool:
    """Whether a primitive is a kernel of its own."""
    return node.role in ("matmul", "convolution")


def _ends_kernel(node: Node) -> bool:
    """Whether what reads its result is another kernel."""
    return _is_heavy(node) or node.role == "reduction"


def _may_join(node: Node, other: Node) -> bool:
    """Whether a primitive and one that it reads from may be one kernel."""
    return not _is_heavy(node) and not _ends_kernel(other) and node.region == other.region


def _operation(
    group: Sequence[Node], number: int, readers: dict[Value, set[int]], kept: set[Value]
) -> Operation | None:
    """Return a kernel, or None where nothing moves."""
    if all(node.role == "view" for node in group) or _is_absorbed(group, readers, kept):
        return None
    made = {value for node in group for value in node.outputs}
    read = sum(_bytes_read(node, made) for node in _first_readers(group, made))
    written = sum(
        _bytes_written(node)
        for node in group
        if any(value in kept or readers.get(value, set()) - {number} for value in node.outputs)
    )
    first = next((node for node in group if _is_heavy(node)), group[-1])
    return Operation(
        name=_name(group),
        flops=sum(node.flops for node in group),
        bytes=read + written,
        datatype=(first.inputs or first.outputs)[0].datatype,
        kind=first.role if first.role in ("matmul", "convolution") else "other",
        count=group[0].count,
        shape=first.shape,
    )


def _is_absorbed(group: Sequence[Node], readers: dict[Value, set[int]], kept: set[Value]) -> bool:
    """Whether a lone transposition or view only feeds other kernels, which read through it."""
    if any(node.role not in ("view", "transpose") for node in group):
        return False
    outputs = [value for node in group for value in node.outputs]
    return not any(value in kept for value in outputs) and any(value in readers for value in outputs)


def _first_readers(group: Sequence[Node], made: set[Value]) -> list[Node]:
    """Return nodes that between them read each value from outside once."""
    seen: set[Value] = set()
    found = []
    for node in group:
        outside = [value for value in node.inputs if value not in made and value not in seen]
        outside = outside if _is_heavy(node) else list(dict.fromkeys(outside))  # x + x reads x once
        if outside:
            seen.update(outside)
            found.append(Node(node.name, node.role, tuple(outside), node.outputs, 0, 1, 0))
    return found


def _bytes_read(node: Node, made: set[Value]) -> float:
    """Return what a primitive reads from outside its kernel."""
    sizes = [value.bytes for value in node.inputs if value not in made]
    if node.role == "slice":
        most = sum(value.bytes for value in node.outputs)
        return sum(min(size, most) for size in sizes)
    if node.role == "update" and len(sizes) > 1:
        return sum(sizes) - max(sizes)  # what is updated stays where it is
    return sum(sizes)


def _bytes_written(node: Node) -> float:
    """Return what a primitive writes for others."""
    size = sum(value.bytes for value in node.outputs)
    if node.role == "update":
        updates = sorted(value.bytes for value in node.inputs)[:-1]
        return min(size, sum(updates)) if updates else size
    return size


def _name(group: Sequence[Node]) -> str:
    """Return what a kernel does, with the sizes of a matrix multiplication's operands."""
    heavy = next((node for node in group if _is_heavy(node)), None)
    if heavy is not None:
        sizes = " x ".join(f"{value.datatype}{list(value.shape)}" for value in heavy.inputs[:2])
        return f"{heavy.name} {sizes}".replace(" ", "", 0)
    names = list(dict.fromkeys(node.name for node in group if node.role != "view")) or [group[-1].name]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
