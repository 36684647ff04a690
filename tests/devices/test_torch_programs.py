"""torch.export graphs as programs, against torch's own count and against the same function in JAX."""

from typing import Any

import pytest

import minitrain as mt
from minitrain.devices.programs import as_program

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def exported(module: Any, *shapes: tuple[int, ...]) -> Any:
    return torch.export.export(module.eval(), tuple(torch.zeros(shape) for shape in shapes))


def matmul_flops(graph: Any) -> float:
    return sum(operation.flops for operation in as_program(graph).operations if operation.kind != "other")


def counted_by_torch(module: Any, *shapes: tuple[int, ...]) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # type: ignore[import-not-found, unused-ignore]

    with FlopCounterMode(display=False) as counter:
        module(*(torch.zeros(shape) for shape in shapes))
    return int(counter.get_total_flops())


class Mlp(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256, bias=False), torch.nn.Linear(256, 64, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_matrix_multiplications_cost_what_torch_counts() -> None:
    assert matmul_flops(exported(Mlp(), (8, 16, 64))) == counted_by_torch(Mlp(), (8, 16, 64))


def test_convolutions_cost_what_torch_counts() -> None:
    module = torch.nn.Conv2d(8, 12, 3, stride=2, groups=4, bias=False)
    assert matmul_flops(exported(module, (2, 8, 17, 19))) == counted_by_torch(module, (2, 8, 17, 19))


def test_attention_costs_two_products_an_element() -> None:
    program = as_program(exported(Attention(), *[(2, 4, 32, 16)] * 3))
    assert sum(operation.flops for operation in program.operations) == 2 * 2 * 2 * 4 * 32 * 32 * 16


def test_an_exported_program_is_simulated_like_any_other() -> None:
    result = mt.hw.simulate(exported(Mlp(), (8, 16, 64)), device="a100_80g")
    assert [row.operation.kind for row in result.operations].count("matmul") == 2
    assert all("view" not in row.operation.name for row in result.operations)
    assert result.time_seconds > 0
