"""Fusing operations of a workload: a chain is computed in one pass, and its intermediate results never move.

A rule is a sequence of kinds of operation. Where operations of these kinds follow one another, each the only reader of
the one before, they become one operation, whose result is that of the last. It computes the same steps in the same
order, so that its numbers are the same; its bytes are those of what it reads from outside and of what it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from minitrain.devices.operations import Operation
from minitrain.errors import UsageError
from minitrain.heterogeneous.capabilities import HardwareClass
from minitrain.heterogeneous.operations import operation_named
from minitrain.heterogeneous.workloads import WorkloadProfile


@final
@dataclass(frozen=True, slots=True)
class FusionRule:
    """Kinds of operation that become one where they follow one another.

    Args:
        name: of the rule.
        pattern: two kinds or more; "*" stands for any elementwise one.
        hardware: the classes that can fuse so; all if empty.
    """

    name: str
    pattern: tuple[str, ...]
    hardware: frozenset[HardwareClass] = frozenset()

    def __post_init__(self) -> None:
        """Refuse a pattern that fuses nothing."""
        if not self.pattern[1:]:
            raise UsageError(f"fusion rule {self.name!r} needs two kinds of operation or more, got {self.pattern!r}")
        for kind in self.pattern:
            if kind != "*":
                operation_named(kind)

    def serves(self, hardware_class: HardwareClass) -> bool:
        """Return whether a class of hardware can fuse so."""
        return not self.hardware or hardware_class in self.hardware


@final
@dataclass(frozen=True, slots=True)
class Fusion:
    """Operations of a workload that a device runs as one.

    Args:
        rule: what allows it.
        operations: their names, in order.
        cost: of all of them together.
        saved_bytes: what need not move any more.
    """

    rule: str
    operations: tuple[str, ...]
    cost: Operation
    saved_bytes: float


_OF_ONE = frozenset(("negative", "exp", "log", "tanh", "sqrt", "absolute", "square", "relu", "gelu"))
_OF_MORE = frozenset(("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "where"))
ELEMENTWISE = _OF_ONE | _OF_MORE
"""Operations that compute each element by itself."""

DEFAULT_RULES = (
    FusionRule("matmul_epilogue", ("matmul", "*"), frozenset({HardwareClass.GPU, HardwareClass.TPU})),
    FusionRule("elementwise", ("*", "*")),
)
"""What compilers do: an elementwise operation behind a matrix multiplication, and elementwise ones together."""


def fusions(workload: WorkloadProfile, rules: Sequence[FusionRule], hardware_class: HardwareClass) -> list[Fusion]:
    """Return what a class of hardware fuses: the longest chains that the rules allow, each operation in one at most."""
    serving = [rule for rule in rules if rule.serves(hardware_class)]
    consumers, taken = workload.consumers(), set[str]()
    found = []
    for operation in workload.operations:
        chain, rule = [operation.name], None
        while operation.name not in taken:
            match = _longer(workload, chain, serving, consumers)
            if match is None:
                break
            rule = match[0] if rule is None else rule
            chain += match[1]
        if rule is not None:
            taken |= set(chain)
            found.append(_fused(workload, rule, chain))
    return found


def _longer(
    workload: WorkloadProfile, chain: list[str], rules: Sequence[FusionRule], consumers: dict[str, list[str]]
) -> tuple[FusionRule, list[str]] | None:
    """Return the first rule whose pattern begins with a chain's last operation, and what it adds to the chain."""
    for rule in rules:
        names = list(_following(chain[-1], len(rule.pattern), consumers, workload))
        kinds = [workload.by_name[name].op_type for name in names]
        if len(kinds) == len(rule.pattern) and all(map(_is, kinds, rule.pattern)):
            return rule, names[1:]
    return None


def _following(name: str, count: int, consumers: dict[str, list[str]], workload: WorkloadProfile) -> Iterator[str]:
    """Yield an operation and those that follow it, as long as each is the only reader of the one before."""
    yield name
    while count > 1 and len(consumers[name]) == 1 and name not in workload.outputs:
        name, count = consumers[name][0], count - 1
        yield name


def _is(kind: str, wanted: str) -> bool:
    return kind == wanted or (wanted == "*" and kind in ELEMENTWISE)


def _fused(workload: WorkloadProfile, rule: FusionRule, chain: Sequence[str]) -> Fusion:
    """Return a chain as one operation: what lies between its links is neither written nor read."""
    costs = [workload.costs[name] for name in chain]
    between = chain[:-1]
    size = {name: workload.specs[name].num_bytes for name in between}
    reads = {name: _times_read(workload, name, chain) for name in between}
    saved = sum(size[name] * (1 + reads[name]) for name in between)
    first = next((cost for cost in costs if cost.kind == "matmul"), costs[0])
    whole: dict[str, Any] = {"flops": sum(cost.flops for cost in costs), "bytes": sum(cost.bytes for cost in costs)}
    whole["bytes"] = max(0.0, whole["bytes"] - saved)
    cost = replace(first, name="+".join(workload.by_name[name].op_type for name in chain), **whole)
    return Fusion(rule.name, tuple(chain), cost, saved)


def _times_read(workload: WorkloadProfile, name: str, chain: Sequence[str]) -> int:
    """Return how often a chain's operations read an array, as their costs count it."""
    return sum(
        (value == name) if isinstance(value, str) else value.count(name) if isinstance(value, list) else 0
        for reader in chain
        for value in workload.by_name[reader].inputs.values()
    )
