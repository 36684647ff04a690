"""torch.export graphs as programs, against torch's own count and against the same function in JAX."""

import copy
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.devices.simulator import as_program

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of torch, in what it calls itself
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]


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


class Calls(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (Mlp(), [(8, 16, 64)]),
        (torch.nn.Conv2d(8, 12, 3, stride=2, groups=4, bias=False), [(2, 8, 17, 19)]),
        (Calls(torch.matmul), [(8, 16), (4, 16, 8)]),
        (Calls(torch.matmul), [(2, 1, 8, 16), (4, 16, 8)]),
        (Calls(torch.matmul), [(2, 4, 8, 16), (16, 8)]),
        (Calls(torch.matmul), [(16,), (16, 8)]),
        (Calls(lambda x: x @ x), [(16, 16)]),
        (Calls(lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b)), [(2, 8, 4, 16), (2, 6, 4, 16)]),
        (Calls(lambda a, b: torch.tensordot(a, b, 1)), [(8, 16), (16, 8)]),
        (Calls(torch.baddbmm), [(4, 8, 8), (4, 8, 16), (4, 16, 8)]),
        (torch.nn.ConvTranspose2d(8, 12, 3, stride=2, bias=False), [(2, 8, 7, 7)]),
        (torch.nn.ConvTranspose2d(8, 12, 3, groups=4, bias=False), [(2, 8, 7, 7)]),
        (torch.nn.Conv1d(8, 12, 3, bias=False), [(2, 8, 40)]),
    ],
)
@pytest.mark.one_in(3)
def test_products_of_any_form_cost_what_torch_counts(module: Any, shapes: list[tuple[int, ...]]) -> None:
    graph = exported(module, *shapes)
    added = 4 * 8 * 8 if len(shapes) == 3 else 0  # baddbmm adds its first argument, which torch does not count
    assert matmul_flops(graph) - counted_by_torch(module, *shapes) in (0, added)
    assert matmul_flops(graph.run_decompositions()) - counted_by_torch(module, *shapes) in (0, added)


def test_a_product_with_a_vector_costs_two_flops_an_element() -> None:
    assert matmul_flops(exported(Calls(torch.mv), (8, 16), (16,))) == 2 * 8 * 16


def test_recurrent_layers_are_taken_apart() -> None:
    flops = matmul_flops(exported(torch.nn.LSTM(16, 32), (5, 2, 16)))
    gates = 4 * 32
    assert flops == 5 * 2 * gates * (2 * (16 + 32) + 2)  # two products and two biases a step


def test_a_conditional_costs_its_most_expensive_branch() -> None:
    def either(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y @ y @ y, lambda y: y @ y, (x,))

    assert matmul_flops(exported(Calls(either), (16, 16))) == 2 * 2 * 16**3


class Until(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, x: Any) -> Any:
        return torch._higher_order_ops.while_loop(lambda y: y.sum() < 10, lambda y: (y @ y + 1,), (x,))


def test_a_loop_of_unknown_length_is_reported() -> None:
    graph = exported(Until(), (16, 16))
    with pytest.warns(UserWarning, match="a while_loop of unknown length counts once"):
        result = mt.hw.simulate(graph)
    assert result.unknown_loops == ("a while_loop of unknown length",)
    assert matmul_flops(graph) == 2 * 16**3


def test_what_torch_programs_cannot_say_is_one_clear_error() -> None:
    given, sizes = (torch.zeros(4, 8),), ({0: torch.export.Dim("b")},)
    varying = torch.export.export(torch.nn.Linear(8, 8), given, dynamic_shapes=sizes)
    with pytest.raises(
        UsageError, match=r"must have fixed sizes, but one tensor has .* export it without dynamic_shapes"
    ):
        mt.hw.simulate(varying)
    with pytest.raises(UsageError, match=r"read from its graph: mt.hw.simulate\(torch.export.export.* got Linear"):
        mt.hw.simulate(torch.nn.Linear(8, 8), (4, 8))
    with pytest.raises(UsageError, match="shapes belong to a function; ExportedProgram says its own"):
        mt.hw.simulate(exported(Mlp(), (8, 16, 64)), (8, 16, 64))


def test_attention_costs_two_products_an_element() -> None:
    attention = Calls(torch.nn.functional.scaled_dot_product_attention)
    program = as_program(exported(attention, *[(2, 4, 32, 16)] * 3))
    assert program.flops == 2 * 2 * 2 * 4 * 32 * 32 * 16


@pytest.mark.ci
def test_attention_is_computed_by_the_units_that_multiply_matrices() -> None:
    attention = Calls(torch.nn.functional.scaled_dot_product_attention)
    graph = exported(attention, *[(8, 16, 1024, 64)] * 3)
    assert matmul_flops(graph) == 2 * counted_by_torch(Calls(torch.matmul), (128, 1024, 64), (128, 64, 1024))
    vector = mt.hw.make_simulator("a100_80g").spec.processor.vector["float32"].peak_flop_per_s
    fast = torch.export.export(attention, (torch.zeros(8, 16, 1024, 64, dtype=torch.bfloat16),) * 3)
    assert mt.hw.simulate(fast, device="a100_80g").time_seconds < 0.2 * matmul_flops(graph) / vector


def test_dropout_costs_something_where_it_drops() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    names = [
        [each.name.split()[0] for each in as_program(torch.export.export(form, (torch.zeros(4, 8),))).operations]
        for form in (copy.deepcopy(module).train(), module.eval())
    ]
    assert names == [["linear", "dropout"], ["linear"]]


def test_an_exported_program_is_simulated_like_any_other() -> None:
    result = mt.hw.simulate(exported(Mlp(), (8, 16, 64)), device="a100_80g")
    assert [row.operation.kind for row in result.operations].count("matmul") == 2
    assert all("view" not in row.operation.name for row in result.operations)
    assert result.time_seconds > 0
