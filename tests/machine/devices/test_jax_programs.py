"""JAX functions as programs: FLOPs against XLA's own count, loops against unrolled code, and bytes with fusion."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import minitrain as mt
from minitrain.errors import MinitrainError, UsageError
from minitrain.machine.devices import matmul
from minitrain.machine.devices.jax_programs import program_of

D = 128


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.relu(jax.nn.gelu(x @ up) @ down)


def norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def attention_block(x: Any, query: Any, key: Any, value: Any, out: Any, up: Any, down: Any) -> Any:
    batch, length, width = x.shape
    q, k, v = ((norm(x) @ w).reshape(batch, length, 8, width // 8) for w in (query, key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(width // 8)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(batch, length, width)
    x = x + mixed @ out
    return x + jax.nn.gelu(norm(x) @ up) @ down


def convolution(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def dilated(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), [(2, 3), (1, 0)], (2, 1), (1, 2), numbers, feature_group_count=4
    )


@jax.custom_vjp
def clipped(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _clipped_forward(x: Any, w: Any) -> Any:
    return clipped(x, w), (x, w)


def _clipped_backward(kept: Any, gradient: Any) -> Any:
    x, w = kept
    return gradient @ w.T, x.T @ gradient


clipped.defvjp(_clipped_forward, _clipped_backward)

PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (jnp.matmul, [(512, 256), (256, 1024)]),
    "mlp": (mlp, [(256, D), (D, 4 * D), (4 * D, D)]),
    "attention_block": (attention_block, [(2, 64, D), *[(D, D)] * 4, (D, 4 * D), (4 * D, D)]),
    "convolution": (convolution, [(4, 32, 32, 16), (3, 3, 16, 32)]),
    "grouped_and_dilated": (dilated, [(2, 17, 19, 8), (3, 5, 2, 12)]),
    "custom_vjp": (clipped, [(256, D), (D, D)]),
    "max_pool": (lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID"), [(64, 64)]),
    "embedding": (lambda table, w: jnp.take(table, jnp.arange(64), axis=0) @ w, [(1000, D), (D, D)]),
}


def gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    return jax.grad(lambda *given: (function(*given) ** 2).sum(), argnums=tuple(range(count)))


def cases() -> Iterator[Any]:
    for name, (function, shapes) in PROGRAMS.items():
        yield pytest.param(function, shapes, id=name)
        yield pytest.param(gradient(function, len(shapes)), shapes, id=f"gradient-of-{name}")


def lowered_flops(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> float:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    counted_by_xla: Any = jax.jit(function).lower(*arguments).cost_analysis()
    return float(counted_by_xla["flops"])


@pytest.mark.few(1)
@pytest.mark.parametrize(("function", "shapes"), list(cases()))
def test_flops_are_those_of_the_lowered_program(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    assert program_of(function, *shapes).flops == pytest.approx(lowered_flops(function, shapes), rel=0.002)


def test_a_matmul_is_what_it_is_by_hand() -> None:
    (operation,) = program_of(jnp.matmul, (512, 256), (256, 1024)).operations
    assert replace(operation, name="") == replace(matmul(512, 256, 1024), name="")


def unrolled(x: Any, weights: Any) -> Any:
    for place in range(8):
        x = jnp.tanh(x @ weights[place]) + 1
    return x


def scanned(x: Any, weights: Any) -> Any:
    return jax.lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight) + 1, None), x, weights)[0]


def counted(x: Any, weights: Any) -> Any:
    return jax.lax.fori_loop(0, 8, lambda place, carry: jnp.tanh(carry @ weights[place]) + 1, x)


@pytest.mark.parametrize("loop", [scanned, counted])
@pytest.mark.parametrize("change", [lambda function: function, lambda function: gradient(function, 2)])
def test_loops_cost_what_unrolled_code_does(loop: Callable[..., Any], change: Callable[..., Any]) -> None:
    shapes = [(64, 64), (8, 64, 64)]
    plain, looped = (program_of(change(function), *shapes) for function in (unrolled, loop))
    assert looped.flops == pytest.approx(plain.flops, rel=0.02)
    products = [sum(op.count for op in each.operations if op.kind == "matmul") for each in (plain, looped)]
    assert products[0] == products[1]


def until(x: Any) -> Any:
    return jax.lax.while_loop(lambda y: y.sum() < 10, lambda y: y @ y, x)


def nested(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, y: jax.lax.fori_loop(0, 5, lambda _, z: z @ z, y), x)


def either(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda y: y @ y @ y, lambda y: y @ y, x)


def test_nested_loops_multiply_and_a_conditional_costs_its_most_expensive_branch() -> None:
    products = [
        [op.count for op in program_of(f, (16, 16)).operations if op.kind == "matmul"] for f in (nested, either)
    ]
    assert products == [[15], [1, 1]]


def test_a_loop_of_unknown_length_is_reported() -> None:
    program = program_of(until, (16, 16))
    assert program.unknown_loops == ("a while loop of unknown length over (float32[16, 16])",)
    with pytest.warns(UserWarning, match="a while loop of unknown length over .* counts once"):
        result = mt.hw.simulate(until, (16, 16))
    assert result.unknown_loops == program.unknown_loops
    assert "a lower bound" in result.table()


def test_what_results_do_not_need_costs_nothing() -> None:
    assert program_of(lambda x: (x @ x, x + 1)[1], (16, 16)).flops == 256


def test_calls_checkpoints_and_maps_are_followed() -> None:
    shapes = [(8, D), (D, D), (D, D)]
    plain = program_of(mlp, *shapes)
    assert program_of(jax.jit(mlp), *shapes) == plain
    assert program_of(jax.checkpoint(mlp), *shapes).flops == plain.flops
    assert program_of(jax.vmap(mlp, in_axes=(0, None, None)), (4, 8, D), *shapes[1:]).flops == 4 * plain.flops
    again, once = (program_of(gradient(function, 3), *shapes).flops for function in (jax.checkpoint(mlp), mlp))
    assert again > 1.2 * once


def test_elementwise_chains_are_one_kernel_that_moves_its_ends() -> None:
    (kernel,) = program_of(lambda x, y: jnp.tanh(x * y + 1).reshape(-1), (64, 32), (64, 32)).operations
    assert kernel.bytes == 3 * 64 * 32 * 4


def test_a_reduction_joins_what_it_reduces_and_ends_the_kernel() -> None:
    def softmax(x: Any) -> Any:
        weights = jnp.exp(x)
        return weights / weights.sum(-1, keepdims=True)

    first, second = program_of(softmax, (64, 32)).operations
    assert first.bytes == second.bytes == 2 * 64 * 32 * 4 + 64 * 4


def test_chains_around_a_matmul_are_kernels_and_transpositions_before_it_and_views_are_free() -> None:
    def around(x: Any, w: Any) -> Any:
        before = jnp.tanh(x)
        return before + before @ w

    kinds = [operation.kind for operation in program_of(around, (64, 64), (64, 64)).operations]
    assert kinds == ["other", "matmul", "other"]
    viewed = program_of(lambda x, w: x.T.reshape(32, 64) @ w, (64, 32), (64, 16))
    assert [operation.kind for operation in viewed.operations] == ["matmul"]


def test_slices_read_what_they_keep_and_updates_write_what_they_change() -> None:
    (read,) = program_of(lambda x: x[3:5] + 1, (1000, 64)).operations
    assert read.bytes == 2 * 2 * 64 * 4
    (write,) = program_of(lambda x, y: jax.lax.dynamic_update_slice(x, y, (3, 0)), (1000, 64), (2, 64)).operations
    assert write.bytes == pytest.approx(2 * 2 * 64 * 4, abs=64)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matmul", "mlp", "attention_block", "convolution"])
def test_bytes_are_near_those_of_the_compiled_program(name: str) -> None:
    function, shapes = PROGRAMS[name]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    compiled: Any = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert program_of(function, *shapes).bytes == pytest.approx(float(compiled["bytes accessed"]), rel=0.3)


def test_shapes_may_be_trees_arrays_and_structs() -> None:
    struct = jax.ShapeDtypeStruct((4,), jnp.int32)  # type: ignore[no-untyped-call]
    program = program_of(
        lambda tree, index, scalar: tree["a"][index] * scalar + tree["b"][0],
        {"a": (10, 3), "b": [(3,)]},
        struct,
        (),
        dtype="bfloat16",
    )
    assert program.operations[-1].bytes > 0
    assert program_of(lambda x: x + 1, jnp.zeros((3, 3))).flops == 9


def reads_a_value(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def uses_numpy(x: Any) -> Any:
    return np.asarray(x) + 1


def fails(x: Any) -> Any:
    raise RuntimeError(f"no luck with {x.shape}")


SYMBOL = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), jnp.float32)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: program_of(jnp.matmul, (2, 3), (4, 5)), "matmul cannot be traced with these shapes"),
        (lambda: program_of(jnp.matmul, (2, 3)), "matmul cannot be traced with these shapes"),
        (lambda: program_of(reads_a_value, (4,)), "reads_a_value cannot be traced .* jnp.where or jax.lax.cond for if"),
        (lambda: program_of(uses_numpy, (4,)), "uses_numpy cannot be traced .* and jax.numpy for numpy"),
        (lambda: program_of(fails, (4,)), r"it raised RuntimeError: no luck with \(4,\); it must run"),
        (lambda: program_of(jnp.tanh, [8, 8]), r"a shape is a tuple of whole numbers, such as \(64, 128\)"),
        (lambda: program_of(jnp.tanh, SYMBOL), r"a program must have fixed sizes, but an array has \(b, 8\)"),
        (lambda: mt.hw.simulate(matmul(2, 2, 2), (2, 2)), "shapes belong to a function; Operation says its own"),
        (lambda: mt.hw.simulate(None, (8, 8)), "a simulator takes a Program, .* got NoneType; for a function use"),
        (lambda: mt.hw.simulate(jnp.dot, (8,), (8,), dtype="float64"), "a100_80g has no rate for float64, .* add"),
    ],
)
def test_what_no_trace_can_tell_is_one_clear_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MinitrainError, match=message):
        call()


@pytest.mark.parametrize("size", [-1, 2.5, "b", None, True])
def test_a_size_that_is_no_whole_number_is_refused(size: Any) -> None:
    with pytest.raises(UsageError, match=r"a shape is a tuple of whole numbers >= 0, got \(.*, 8\); where a size"):
        program_of(jnp.tanh, (size, 8))


@pytest.mark.parametrize("dtype", ["float3", "fp16", None])
def test_an_unknown_datatype_is_refused(dtype: Any) -> None:
    with pytest.raises(UsageError, match=f"dtype must be one of float64, .* got {dtype!r}"):
        program_of(jnp.tanh, (2, 3), dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("complex64", 8), ("complex128", 16), ("int64", 8), ("float8_e4m3fn", 1), (jnp.bfloat16, 2)],
)
def test_elements_are_as_wide_as_they_are_said_to_be(dtype: Any, size: int) -> None:
    assert program_of(lambda x: x + x, (np.int64(10), 3), dtype=dtype).bytes == 2 * 30 * size


def test_programs_without_work_take_no_time() -> None:
    for nothing in (lambda: 1.0, lambda: None):
        assert mt.hw.simulate(nothing).time_seconds == 0
    assert mt.hw.simulate(lambda x: x @ x.T, (0, 8)).flops == 0


def test_a_product_of_groups_costs_one_matrix_a_row() -> None:
    def experts(x: Any, weights: Any) -> Any:
        return jax.lax.ragged_dot(x, weights, jnp.array([3, 5], jnp.int32))

    (operation,) = (op for op in program_of(experts, (8, 16), (2, 16, 4)).operations if op.kind == "matmul")
    assert operation.flops == 2 * 8 * 16 * 4
    assert operation.bytes >= 4 * (8 * 16 + 2 * 16 * 4 + 8 * 4)
    backward = program_of(gradient(experts, 2), (8, 16), (2, 16, 4))
    assert sum(op.flops for op in backward.operations if op.kind == "matmul") == 3 * operation.flops


N = 96
LIBRARY: dict[str, tuple[Callable[..., Any], list[Any], float]] = {  # leading terms of Golub and Van Loan (2013)
    "cholesky": (jax.lax.linalg.cholesky, [(N, N)], N**3 / 3),
    "triangular": (lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True), [(N, N), (N, 8)], 8 * N**2),
    "lu": (jax.lax.linalg.lu, [(2, N, N)], 2 * (2 * N**3 / 3)),
    "solve": (jnp.linalg.solve, [(N, N), (N, 8)], 2 * N**3 / 3 + 2 * 8 * N**2),
    "qr": (jnp.linalg.qr, [(2 * N, N)], 4 * N**2 * (2 * N - N / 3)),
    "eigh": (jnp.linalg.eigh, [(N, N)], 9 * N**3),
    "svd": (jnp.linalg.svd, [(N, N)], 21 * N**3),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), [(N, N)], 8 * N**3 / 3),
    "fft": (lambda x: jnp.fft.fft(x + 0j), [(16, 64)], 16 * 5 * 64 * 6),
    "rfft": (jnp.fft.rfft, [(16, 64)], 16 * 5 * 64 * 6 / 2),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_what_a_library_computes_counts_by_its_leading_term(name: str) -> None:
    function, shapes, flops = LIBRARY[name]
    counted = program_of(function, *shapes).flops
    assert flops <= counted <= 1.25 * flops


def test_simulate_takes_a_function_shapes_and_a_device() -> None:
    seed = mt.hw.simulate(jnp.matmul, (1024, 1024), (1024, 1024), device="NVIDIA A100", fidelity="seed")
    assert seed.time_ms == 0.11012736656410257
    assert (seed.flops, seed.bytes) == (2 * 1024**3, 3 * 1024 * 1024 * 4)
    half = mt.hw.simulate(jnp.matmul, (1024, 1024), (1024, 1024), dtype="float16")
    single = mt.hw.simulate(jnp.matmul, (1024, 1024), (1024, 1024))
    assert half.time_seconds < single.time_seconds
    assert half.operations[0].operation.name == "dot_general float16[1024, 1024] x float16[1024, 1024]"
    jaxpr = jax.make_jaxpr(jnp.matmul)(jnp.zeros((64, 64)), jnp.zeros((64, 64)))
    assert mt.hw.simulate(jaxpr) == mt.hw.simulate(jnp.matmul, (64, 64), (64, 64))
