"""A JAX function as a program for the simulators.

The function is traced with shapes alone, and what its results do not need is dropped. Calls are followed. A scan's body
counts once for each of its steps, a conditional costs what its most expensive branch does, and a loop whose number of
steps depends on data counts once and is reported.

**FLOPs** are those that XLA counts before it optimises. An elementwise operation costs one an element of its result,
whatever its datatype. Exponentials and their like are counted apart by XLA, as transcendentals, and cost none here. A
multiplication and its addition are two. Padding of a convolution costs none, and neither does what moves data. What XLA
leaves to libraries it does not count. Here it costs the leading terms of Golub and Van Loan, Matrix Computations (4th
edition, 2013): 4.2 (Cholesky), 3.2 (LU), 3.1 (triangular systems), 5.2 (Householder QR), 8.3 and 8.4 (symmetric
eigenvalues), 7.5 (others), 8.6 (singular values). A transform counts 5 n log2 n, a real one half, as FFTW's benchmarks
do. Iterative ones take as many steps as is usual.

**Bytes** come from a simple model of what XLA fuses: matrix multiplications and convolutions are kernels of their own.
Whatever else is connected and lies between the same ones runs as one kernel, which reads what comes from outside once
and writes what is used outside. A reduction ends its kernel. Reshapes cost nothing, and a transposition before a matrix
multiplication is part of it. A slice reads what it keeps, and an update in place writes what it changes.
`docs/devices.md` compares the bytes of some programs with those that XLA states after its own fusion on a CPU.

**Several devices** compute the body of a `shard_map` each; its collectives are operations of the mesh's axes, which the
config's network prices. What XLA's partitioner would divide (shardings of `jit`, of arguments, constraints) is refused:
which collectives it inserts is not known.

Left out: what callbacks do on the host and what goes there, which is said, and kernels written in Pallas, whose
primitives count as if they were not fused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from numbers import Integral, Number
from typing import Any, Literal

from minitrain.errors import MinitrainError, UsageError, require_installed
from minitrain.machine.devices.operations import ELEMENT_BYTES, MatmulShape, Operation, Program, known_datatype

Role = Literal[
    "matmul", "convolution", "collective", "reduction", "elementwise", "view", "transpose", "slice", "update"
]
Rule = Callable[[Any], float]
"""The floating-point operations of an equation of a jaxpr."""

_USUAL_BYTES = 4  # of the widest elements that JAX has unless told otherwise
_THREEFRY_FLOP = 124  # integer operations an element: 20 rounds of add, rotate and xor, and five key injections
_MOST_NAMES = 4
_COLLECTIVES = {
    **dict.fromkeys(("psum", "psum_invariant", "psum2", "pmax", "pmin"), "all_reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all_gather"),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), "reduce_scatter"),
    "all_to_all": "all_to_all",
    "ppermute": "p2p",
}
_ON_HOST = ("pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed")


def program_of(function: Callable[..., Any], *shapes: Any, dtype: str = "float32") -> Program:
    """Return a JAX function as a program.

    Args:
        function: takes arrays, or trees of them.
        shapes: of its arguments: tuples of sizes, `jax.ShapeDtypeStruct`, arrays, or trees of these.
        dtype: of the arguments that are given by their sizes alone.

    Raises:
        UsageError: the datatype is unknown, or the function cannot be traced with these shapes.

    Example:
        >>> program_of(lambda x, w: x @ w, (64, 128), (128, 256)).flops
        4194304.0
    """
    name = getattr(function, "__name__", type(function).__name__)
    jaxpr, _ = traced(f"{name} cannot be traced with these shapes", function, *shapes, dtype=dtype)
    return program_of_jaxpr(jaxpr)


def program_of_jaxpr(jaxpr: Any) -> Program:
    """Return a closed jaxpr as a program, without what its results do not need."""
    walk = _Walk()
    results = walk.follow(_without_dead_code(jaxpr.jaxpr), (), count=1, region=0)
    operations = tuple(fused(walk.nodes, [*results, *walk.kept]))
    return Program(operations, tuple(walk.unknown_loops), tuple(walk.on_host))


def without_checkpoints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function without `jax.checkpoint`, so that its derivative keeps all that it needs."""
    import jax  # noqa: PLC0415 - JAX is heavy
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # noqa: PLC0415 - JAX is heavy

    def evaluated(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))

        def read(var: Any) -> Any:
            return var.val if hasattr(var, "val") else known[var]

        for eqn in jaxpr.eqns:
            operands = [read(var) for var in eqn.invars]
            inner = eqn.params.get("jaxpr")
            if eqn.primitive.name in ("checkpoint", "remat2"):
                made = evaluated(inner, (), operands)
            elif eqn.primitive.name in ("jit", "pjit"):
                made = evaluated(inner.jaxpr, inner.consts, operands)
            else:
                read_vars = list(dict.fromkeys(var for var in eqn.invars if not hasattr(var, "val")))
                alone = jaxpr.replace(constvars=[], invars=read_vars, outvars=eqn.outvars, eqns=[eqn])
                made = jaxpr_as_fun(ClosedJaxpr(alone, []))(*map(read, read_vars))
            known |= zip(eqn.outvars, made, strict=True)
        return [read(var) for var in jaxpr.outvars]

    def whole(*arrays: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arrays)
        made = evaluated(closed.jaxpr, closed.consts, jax.tree.leaves(arrays))
        return jax.tree.unflatten(jax.tree.structure(shape), made)

    return whole


def program_of_stage(stage: Any) -> Program:
    """Return what `jax.jit(f).lower(...)` or its `compile()` gives as one operation, by XLA's own count.

    XLA counts the body of a loop once, and says neither kinds nor datatypes: the operation is taken for a matrix
    multiplication in the datatype of the first floating-point argument.

    Raises:
        UsageError: it is divided over several devices, or XLA does not count it.
    """
    import jax  # noqa: PLC0415 - JAX is heavy

    kind, text = type(stage).__name__, stage.as_text()
    _require_one_device(kind, text)
    types = [str(leaf.dtype) for leaf in jax.tree.leaves(stage.args_info)]
    datatype = next((each for each in types if "float" in each), "float32")
    return _as_xla_counts(kind, stage.cost_analysis() or {}, datatype, "while" in text, "callback" in text)


def program_of_hlo(text: str) -> Program:
    """Return the text of an HLO module, as `Compiled.as_text()` gives it, as one operation; as `program_of_stage`.

    Raises:
        UsageError: the text is no HLO, or calls a library, which XLA does not count; or as for `program_of_stage`.
    """
    require_installed("jax", "HLO text", "jax")
    from jax.extend.backend import get_backend  # noqa: PLC0415 - JAX is heavy
    from jaxlib import _hlo, _jax  # type: ignore[attr-defined]  # noqa: PLC0415 - no public module reads HLO; no stubs

    kind = "HLO text"
    _require_one_device(kind, text)
    called = re.findall(r'custom_call_target="([^"]*)"', text)
    libraries = [target for target in called if "callback" not in target]
    if libraries:
        raise UsageError(
            f"this {kind} calls {libraries[0]}, which XLA does not count; simulate the function, or the text of "
            'lower(...).as_text("hlo"), which is not yet optimised'
        )
    try:
        counted = _jax.hlo_module_cost_analysis(get_backend("cpu"), _hlo.hlo_module_from_text(text))
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise UsageError(f"XLA cannot read this {kind}: {said}; give what Compiled.as_text() says, whole") from error
    layout = re.search(r"entry_computation_layout=\{([^\n]*)", text)
    types = re.findall(r"\b(b?f\d+\w*)\[", "" if layout is None else layout[1])
    datatype = re.sub(r"^(b?)f(\d)", r"\1float\2", types[0]) if types else "float32"
    return _as_xla_counts(kind, counted, datatype, " while(" in text, bool(called))


def _require_one_device(kind: str, text: str) -> None:
    parts = re.search(r"(?:mhlo\.)?num_partitions ?= ?(\d+)", text)
    if parts is not None and int(parts[1]) > 1:
        raise UsageError(
            f"this {kind} is divided over {parts[1]} devices by XLA's partitioner; write it with jax.shard_map"
        )


def _as_xla_counts(kind: str, counted: Any, datatype: str, has_loop: bool, has_callback: bool) -> Program:
    """Return a program of one operation, of what XLA counts."""
    if "flops" not in counted and "bytes accessed" not in counted:
        raise UsageError(f"XLA does not count what this {kind} does; simulate the function")
    flops, num_bytes = (max(0.0, counted.get(name, 0.0)) for name in ("flops", "bytes accessed"))
    operation = Operation(f"all of this {kind}", flops, num_bytes, known_datatype(datatype), "matmul")
    loops = (f"a loop of this {kind}",) if has_loop else ()
    return Program((operation,), loops, ("a callback",) if has_callback else ())


def traced(fault: str, function: Callable[..., Any], *shapes: Any, dtype: str) -> tuple[Any, Any]:
    """Return a function's closed jaxpr, and the shapes of what it returns; arguments as for `program_of`.

    Elements of 64 bits are taken at their word: JAX makes 32 of them otherwise, without a word.

    Raises:
        UsageError: as for `program_of`; the message begins with `fault`.
    """
    require_installed("jax", "a JAX function", "jax")
    import jax  # noqa: PLC0415 - JAX is heavy
    import numpy as np  # noqa: PLC0415

    arguments = [as_arguments(shape, dtype) for shape in shapes]
    for leaf in jax.tree.leaves(arguments):
        _require_undivided("an argument", {"sharding": getattr(leaf, "sharding", None)})
    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.ShapeDtypeStruct)]
    is_wide = any(each.itemsize * (1 if each.kind != "c" else 0.5) > _USUAL_BYTES for each in types)
    try:
        with jax.enable_x64(True) if is_wide else nullcontext():
            return jax.make_jaxpr(function, return_shape=True)(*arguments)
    except MinitrainError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise UsageError(f"{fault}: {_why_untraced(error)}") from error


def _why_untraced(error: Exception) -> str:
    """Return what an error of a function that was traced says, and what to do."""
    import jax  # noqa: PLC0415

    said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        return f"{said}; only shapes are known: use jnp.where or jax.lax.cond for if, and jax.numpy for numpy"
    if isinstance(error, TypeError | ValueError | IndexError):
        return f"{said}; check number and sizes of them: a shape is a tuple of whole numbers, such as (64, 128)"
    return f"it raised {type(error).__name__}: {said}; it must run under jax.make_jaxpr with fixed sizes"


def as_arguments(shape: Any, dtype: str) -> Any:
    """Return a tree of shapes as a tree of what JAX traces with.

    Raises:
        UsageError: the datatype is unknown, or a size is no whole number >= 0.
    """
    import jax  # noqa: PLC0415

    of_elements, struct = element_type(dtype), jax.ShapeDtypeStruct

    def is_shape(value: Any) -> bool:  # a tuple without arrays or trees in it
        return isinstance(value, tuple) and all(isinstance(size, Number | str | None) for size in value)

    def leaf(value: Any) -> Any:
        if not is_shape(value):
            return value
        if not all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0 for size in value):
            raise UsageError(
                f"a shape is a tuple of whole numbers >= 0, got {value!r}; where a size varies, simulate each"
            )
        return struct(tuple(map(int, value)), of_elements)  # type: ignore[no-untyped-call]

    return jax.tree.map(leaf, shape, is_leaf=is_shape)


def element_type(dtype: Any) -> Any:
    """Return a datatype as JAX has it.

    Raises:
        UsageError: the datatype is unknown.
    """
    require_installed("jax", "a JAX function", "jax")
    import jax.numpy as jnp  # noqa: PLC0415

    try:
        return jnp.dtype("nothing" if dtype is None else dtype)  # NumPy takes None as float64
    except TypeError:
        known = ", ".join(name for name in ELEMENT_BYTES if name not in ("float8", "tf32"))
        raise UsageError(f"dtype must be one of {known}, float8_e4m3fn or float8_e5m2, got {dtype!r}") from None


def _without_dead_code(jaxpr: Any) -> Any:
    """Return a jaxpr with those equations alone that its results need.

    JAX does the same before it compiles. Without it, the gradient of an attention block counts 11 % too many FLOPs.
    """
    from jax.interpreters import partial_eval  # noqa: PLC0415

    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return needed


# What primitives are: how they take part in kernels, and how many FLOPs they have.


def _size(var: Any) -> int:
    """Return the number of elements of a value."""
    return math.prod(getattr(var.aval, "shape", ()))


def _elements(eqn: Any, each: float = 1) -> float:
    """Return some FLOPs for each element of the result."""
    return float(each * sum(map(_size, eqn.outvars)))


def _matmul_shape(eqn: Any) -> MatmulShape:
    """Return batch, free and contracting dimensions of a product as a matrix multiplication.

    In a ragged one, groups of rows have matrices of their own: every row meets one of them.
    """
    numbers, groups = eqn.params.get("dimension_numbers"), ()
    if eqn.primitive.name == "ragged_dot_general":
        ragged = eqn.params["ragged_dot_dimension_numbers"]
        numbers, groups = ragged.dot_dimension_numbers, ragged.rhs_group_dimensions
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    left, right = (var.aval.shape for var in eqn.invars[:2])
    return MatmulShape(
        m=math.prod(size for dim, size in enumerate(left) if dim not in (*left_sum, *left_batch)),
        n=math.prod(size for dim, size in enumerate(right) if dim not in (*right_sum, *right_batch, *groups)),
        k=math.prod(left[dim] for dim in left_sum),
        batch=math.prod(left[dim] for dim in left_batch),
    )


def _convolution_shape(eqn: Any) -> MatmulShape:
    """Return a convolution as a matrix multiplication: places of the result by channels, summed over the kernel."""
    right, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
    result, out, rhs = eqn.outvars[0].aval.shape, numbers.out_spec, numbers.rhs_spec
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    places = math.prod(result[dim] for dim in out[2:]) * result[out[0]]
    taps = math.prod(right[dim] for dim in rhs[1:])
    return MatmulShape(m=places, n=max(1, result[out[1]] // groups), k=taps, batch=groups)


def _convolution(eqn: Any) -> float:
    """Return two FLOPs for each product of an input, not of padding, with an element of the kernel."""
    left, right = (var.aval.shape for var in eqn.invars[:2])
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    result = eqn.outvars[0].aval.shape
    products = left[lhs[0]] // params["batch_group_count"]
    for place, dim in enumerate(out[2:]):  # pairs of a place in the result and one in the kernel that meet an input
        lhs_dilation, rhs_dilation = params["lhs_dilation"][place], params["rhs_dilation"][place]
        end = (left[lhs[2 + place]] - 1) * lhs_dilation + 1
        begins = (spot * params["window_strides"][place] - params["padding"][place][0] for spot in range(result[dim]))
        taps = range(right[rhs[2 + place]])
        meets = (begin + tap * rhs_dilation for begin in begins for tap in taps)
        products *= sum(0 <= at < end and at % lhs_dilation == 0 for at in meets)
    return float(2 * right[rhs[1]] * right[rhs[0]] * products)


def _window(eqn: Any) -> float:
    """Return one FLOP for each element that joins another in its window."""
    window = math.prod(eqn.params.get("window_dimensions", (1,)))
    if eqn.primitive.name.startswith("select_and"):  # the gradient of a maximum: a choice in each window, and a sum
        return float(_size(eqn.invars[0]) * window)
    return _elements(eqn, max(1, window - 1))


def _integer_pow(eqn: Any) -> float:
    """Return the multiplications of repeated squaring, and a division for a negative power."""
    power = abs(eqn.params["y"])
    multiplications = max(0, power.bit_length() - 1) + max(0, power.bit_count() - 1)
    return _elements(eqn, multiplications + (eqn.params["y"] < 0))


def _gather(eqn: Any) -> float:
    """Return the cost of filling up where indices lie outside: three comparisons an index, a choice an element."""
    return 0.0 if "FILL" not in str(eqn.params.get("mode")) else _elements(eqn) + 3 * _size(eqn.invars[1])


def _sort(eqn: Any) -> float:
    size = _size(eqn.invars[0])
    return float(size * max(1, math.ceil(math.log2(max(2, size)))))


def _cubes(share: float) -> Rule:
    """Return a rule that counts a multiple of n cubed for each matrix."""

    def rule(eqn: Any) -> float:
        *batch, rows, columns = eqn.invars[0].aval.shape
        return float(share * math.prod(batch) * rows * columns * min(rows, columns))

    return rule


def _eliminations(share: float) -> Rule:
    """Return a rule that counts a multiple of what an LU factorisation takes."""

    def rule(eqn: Any) -> float:
        *batch, rows, columns = eqn.invars[0].aval.shape
        least = min(rows, columns)
        return float(share * math.prod(batch) * least**2 * (max(rows, columns) - least / 3))

    return rule


def _transform(eqn: Any) -> float:
    """Return 5 n log2 n for each complex transform, and half for a real one."""
    arrays = [var.aval for var in (*eqn.invars, *eqn.outvars)]
    share = 5.0 if all("complex" in str(array.dtype) for array in arrays) else 2.5
    larger = max(math.prod(array.shape) for array in arrays)
    return float(share * larger * math.log2(max(2, math.prod(eqn.params["fft_lengths"]))))


def _free(eqn: Any) -> float:  # noqa: ARG001
    return 0.0


_PRIMITIVES: tuple[tuple[str, Role, Rule], ...] = (
    ("reshape squeeze expand_dims broadcast_in_dim broadcast iota bitcast_convert_type stop_gradient", "view", _free),
    ("copy copy_p optimization_barrier sharding_constraint mesh_cast pvary name layout_constraint", "view", _free),
    ("random_wrap random_unwrap", "view", _free),
    ("transpose", "transpose", _free),
    ("slice dynamic_slice split", "slice", _free),
    ("gather", "slice", _gather),
    ("dynamic_update_slice scatter", "update", _free),
    ("scatter*", "update", lambda eqn: float(_size(eqn.invars[2]))),
    ("concatenate pad rev device_put reduce_precision create_token random_seed", "elementwise", _free),
    # transcendentals, which XLA counts apart from FLOPs
    ("exp exp2 expm1 log log1p logistic tanh sin cos tan sqrt rsqrt cbrt pow erf erfc", "elementwise", _free),
    ("erf_inv asin acos atan atan2 sinh cosh asinh acosh atanh lgamma digamma", "elementwise", _free),
    ("dot_general ragged_dot_general", "matmul", lambda eqn: float(_matmul_shape(eqn).flops)),
    ("conv_general_dilated", "convolution", _convolution),
    ("reduce_window* select_and*", "reduction", _window),
    ("reduce_* arg*", "reduction", lambda eqn: float(_size(eqn.invars[0]) - _size(eqn.outvars[0]))),
    ("cum*", "reduction", _elements),
    ("sort", "reduction", _sort),
    ("integer_pow", "elementwise", _integer_pow),
    ("threefry2x32 random_bits", "elementwise", lambda eqn: _elements(eqn, _THREEFRY_FLOP)),
    # what XLA hands to a library without counting it
    ("cholesky", "elementwise", _cubes(1 / 3)),
    ("triangular_solve", "elementwise", lambda eqn: float(_size(eqn.invars[1]) * eqn.invars[0].aval.shape[-1])),
    ("lu", "elementwise", _eliminations(1)),
    ("geqrf householder_product", "elementwise", _eliminations(2)),
    ("qr", "elementwise", _eliminations(4)),  # to find the reflections, and to multiply them
    ("eigh", "elementwise", lambda eqn: _cubes(9.0 if len(eqn.outvars) > 1 else 4 / 3)(eqn)),
    ("eig schur", "elementwise", _cubes(25.0)),
    ("hessenberg", "elementwise", _cubes(10 / 3)),
    ("tridiagonal", "elementwise", _cubes(4 / 3)),
    ("svd", "elementwise", lambda eqn: _cubes(21.0 if eqn.params.get("compute_uv") else 8 / 3)(eqn)),
    ("fft", "elementwise", _transform),
    ("*", "elementwise", _elements),
)
"""Names of primitives, where a star stands for any end; the first row that fits counts."""


@cache
def _kind(name: str) -> tuple[Role, Rule]:
    """Return how a primitive takes part in kernels, and its rule."""
    return next(
        (role, rule) for names, role, rule in _PRIMITIVES if any(fnmatchcase(name, each) for each in names.split())
    )


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
        collective: of several devices, and how many.
    """

    name: str
    role: Role
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    flops: float
    count: int
    region: int
    shape: MatmulShape | None = None
    collective: tuple[str, int] | None = None

    @property
    def is_heavy(self) -> bool:
        """Whether it is a kernel of its own."""
        return self.role in ("matmul", "convolution", "collective")

    @property
    def ends_kernel(self) -> bool:
        """Whether what reads its result is another kernel."""
        return self.is_heavy or self.role == "reduction"


def _value(var: Any) -> Value:
    """Return what a variable holds.

    Raises:
        UsageError: its sizes are symbols.
    """
    shape = tuple(getattr(var.aval, "shape", ()))
    if not all(isinstance(size, int) for size in shape):
        raise UsageError(f"a program must have fixed sizes, but an array has {shape}; simulate each size")
    return Value(shape, known_datatype(str(getattr(var.aval, "dtype", "float32"))))


@dataclass
class _Walk:
    """Follow a jaxpr through calls and loops, and list its primitives.

    Attributes:
        nodes: the primitives, in order.
        kept: what loops carry on, and so has to be written.
        unknown_loops: loops whose number of steps is not known.
        ones: arrays of ones.
        num_regions: how many bodies of loops were seen.
        axes: devices along each axis of the meshes around.
        on_host: what the host does.
    """

    nodes: list[Node] = field(default_factory=list)
    kept: list[Value] = field(default_factory=list)
    unknown_loops: list[str] = field(default_factory=list)
    ones: set[Value] = field(default_factory=set)
    num_regions: int = 0
    axes: dict[str, int] = field(default_factory=dict)
    on_host: list[str] = field(default_factory=list)

    def follow(self, jaxpr: Any, inputs: Sequence[Value], count: int, region: int) -> list[Value]:
        """List the primitives of a jaxpr, and return what it returns.

        Args:
            jaxpr: what to follow.
            inputs: what its first inputs are; the others are new.
            count: how often it runs.
            region: which loop's body it is.
        """
        env = {var: _value(var) for var in (*jaxpr.invars, *jaxpr.constvars)}
        env.update(zip(jaxpr.invars, inputs, strict=False))

        def read(var: Any) -> Value:
            return _value(var) if hasattr(var, "val") else env[var]

        for eqn in jaxpr.eqns:
            outputs = self._equation(eqn, [read(var) for var in eqn.invars], count, region)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """List an equation, or what it calls, and return its results."""
        name, params = eqn.primitive.name, eqn.params
        _require_undivided(name, params)
        if name == "shard_map":  # a device's own parts are not the arrays of outside
            around, self.axes = self.axes, self.axes | dict(params["mesh"].shape)
            self.kept += self.follow(params["jaxpr"], (), count, region)
            self.axes = around
            return [_value(var) for var in eqn.outvars]
        if name in _ON_HOST or (name == "device_put" and "host" in str(params.get("devices"))):
            self.on_host.append(name)
        if name == "scan":  # once for each step; constants are those of outside, all else is new in each step
            constants = params["num_consts"] if "num_consts" in params else len(params["ft_in"].unpack()[0])  # JAX 0.12
            self._body(params["jaxpr"], inputs[:constants], count * params["length"])
            return [_value(var) for var in eqn.outvars]
        if name == "while":
            return self._while(eqn, inputs, count)
        if name == "cond":
            return self._cond(eqn, inputs, count, region)
        if name == "custom_linear_solve":  # beside how the system is solved stands how its derivatives are
            counts, solve = params["const_lengths"], params["jaxprs"].solve
            before = counts.matvec + counts.vecmat
            given = [*inputs[before : before + counts.solve], *inputs[sum(counts) :]]
            return self.follow(solve.jaxpr, given, count, region)
        called = (params.get(key) for key in ("call_jaxpr", "jaxpr", "fun_jaxpr") if name != "pallas_call")
        inner = next((each for each in called if each is not None), None)
        if inner is None:
            return self._primitive(eqn, inputs, count, region)
        inner = getattr(inner, "jaxpr", inner)
        return self.follow(inner, inputs[len(inputs) - len(inner.invars) :], count, region)[: len(eqn.outvars)]

    def _primitive(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """List a primitive, but for multiplications by one, as in derivatives of a sum: XLA drops them too."""
        name, outputs = eqn.primitive.name, [_value(var) for var in eqn.outvars]
        if name == "broadcast_in_dim" and getattr(eqn.invars[0], "val", None) == 1:
            self.ones.update(outputs)
        others = [value for value in inputs if value not in self.ones]
        if name == "mul" and 0 < len(others) < len(inputs):
            return others[:1]
        arrays = tuple(value for var, value in zip(eqn.invars, inputs, strict=True) if not hasattr(var, "val"))
        role, rule = _kind(name)
        group = self._collective(eqn)
        if group is not None:
            self.nodes.append(Node(name, "collective", arrays, tuple(outputs), 0, count, region, collective=group))
            return outputs
        shape = {"matmul": _matmul_shape, "convolution": _convolution_shape}.get(role, lambda _: None)(eqn)
        self.nodes.append(Node(name, role, arrays, tuple(outputs), rule(eqn), count, region, shape))
        return outputs

    def _collective(self, eqn: Any) -> tuple[str, int] | None:
        """Return what several devices do in an equation, and how many; None where it concerns one.

        Raises:
            UsageError: the mesh of its axis is not known.
        """
        op = _COLLECTIVES.get(eqn.primitive.name)
        given = eqn.params.get("axes", eqn.params.get("axis_name", ())) if op else ()
        names = [each for each in (given if isinstance(given, tuple) else (given,)) if isinstance(each, str)]
        if any(name not in self.axes for name in names):
            raise UsageError(f"{eqn.primitive.name} over {', '.join(names)} needs the mesh of a shard_map around it")
        num_devices = math.prod(self.axes[name] for name in names)
        return (str(op), num_devices) if num_devices > 1 else None

    def _while(self, eqn: Any, inputs: list[Value], count: int) -> list[Value]:
        """Follow a loop of unknown length once, and report it."""
        num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = ", ".join(f"{value.datatype}{list(value.shape)}" for value in inputs[num_cond + num_body :])
        self.unknown_loops.append(f"a while loop of unknown length over ({carried})")
        self._body(eqn.params["cond_jaxpr"], inputs[:num_cond], count)
        self._body(eqn.params["body_jaxpr"], inputs[num_cond : num_cond + num_body], count)
        return [_value(var) for var in eqn.outvars]

    def _body(self, closed: Any, constants: Sequence[Value], count: int) -> None:
        """Follow the body of a loop, whose results have to be written for the next step."""
        if count:
            self.num_regions += 1
            self.kept += self.follow(_without_dead_code(closed.jaxpr), constants, count, self.num_regions)

    def _cond(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """Follow the branch with the most FLOPs, and of equal ones that with the most bytes."""
        walks = [_Walk(ones=self.ones, num_regions=self.num_regions, axes=self.axes) for _ in eqn.params["branches"]]
        results = [
            walk.follow(branch.jaxpr, inputs[1:], count, region)
            for walk, branch in zip(walks, eqn.params["branches"], strict=True)
        ]
        walk, result = max(zip(walks, results, strict=True), key=lambda pair: _weight(pair[0].nodes))
        self.nodes += walk.nodes
        self.kept += walk.kept
        self.unknown_loops += walk.unknown_loops
        self.on_host += [each for walk in walks for each in walk.on_host]
        self.num_regions = walk.num_regions
        return result


def _require_undivided(name: str, params: Any) -> None:
    """Raise a UsageError where XLA's partitioner would divide what is computed over devices."""
    given = [*params.get("in_shardings", ()), *params.get("out_shardings", ()), params.get("sharding")]
    num_devices = max((getattr(each, "num_devices", 1) for each in given), default=1)
    if num_devices > 1:
        raise _divided(name, num_devices)


def _divided(name: str, num_devices: int) -> UsageError:
    return UsageError(
        f"{name} is divided over {num_devices} devices by XLA's partitioner, whose collectives are not known before it "
        "has run; write it with jax.shard_map, whose collectives are priced by the config's network"
    )


def _weight(nodes: Sequence[Node]) -> tuple[float, float]:
    """Return FLOPs and bytes of some primitives."""
    sizes = (value.bytes for node in nodes for value in (*node.inputs, *node.outputs))
    return sum(node.flops * node.count for node in nodes), math.fsum(sizes)


def fused(nodes: Sequence[Node], results: Iterable[Value]) -> list[Operation]:
    """Return the kernels that primitives run as, in order.

    Args:
        nodes: in an order in which they can run.
        results: what the program returns, and what loops carry on.
    """
    group_of = _groups(nodes)
    members: dict[int, list[Node]] = {}
    readers: dict[Value, set[int]] = {}
    for node in nodes:
        members.setdefault(group_of[node], []).append(node)
        for value in node.inputs:
            readers.setdefault(value, set()).add(group_of[node])
    kept = set(results)
    operations = (_operation(group, number, readers, kept) for number, group in members.items())
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
        depth[node] = max((depth[other] + other.ends_kernel for other in before), default=0)
        depth[node] += node.is_heavy and bool(before)
        for other in before:
            may_join = not node.is_heavy and not other.ends_kernel and node.region == other.region
            if may_join and depth[other] == depth[node]:
                parent[root(other)] = root(node)
        maker.update(dict.fromkeys(node.outputs, node))
    numbers: dict[Node, int] = {}
    return {node: numbers.setdefault(root(node), len(numbers)) for node in nodes}


def _operation(
    group: Sequence[Node], number: int, readers: dict[Value, set[int]], kept: set[Value]
) -> Operation | None:
    """Return a kernel, or None where nothing moves: a lone transposition or view that feeds other kernels."""
    outputs = [value for node in group for value in node.outputs]
    only_feeds = kept.isdisjoint(outputs) and any(value in readers for value in outputs)
    if all(node.role == "view" or (node.role == "transpose" and only_feeds) for node in group):
        return None
    written = [
        node for node in group if any(value in kept or readers.get(value, set()) - {number} for value in node.outputs)
    ]
    first = next((node for node in group if node.is_heavy), group[-1])
    if first.collective is not None:
        sizes = [sum(value.bytes for value in values) for values in (first.inputs, first.outputs)]
        whole, datatype = max(sizes), first.outputs[0].datatype
        return Operation(first.name, 0, whole, datatype, count=first.count, collective=first.collective)
    return Operation(
        name=_name(group),
        flops=sum(node.flops for node in group),
        bytes=_bytes_read(group, set(outputs)) + sum(map(_bytes_written, written)),
        datatype=(first.inputs or first.outputs)[0].datatype,
        kind=first.role if first.role in ("matmul", "convolution") else "other",
        count=group[0].count,
        shape=first.shape,
    )


def _bytes_read(group: Sequence[Node], made: set[Value]) -> int:
    """Return what a kernel reads of what it does not make: each value once, by the first that needs it."""
    total, known = 0, set(made)
    for node in group:
        outside = [value for value in node.inputs if value not in known]
        outside = outside if node.is_heavy else list(dict.fromkeys(outside))  # x + x reads x once
        known.update(outside)
        sizes = [value.bytes for value in outside]
        if node.role == "slice":
            most = sum(value.bytes for value in node.outputs)
            sizes = [min(size, most) for size in sizes]
        stays = max(sizes) if node.role == "update" and len(sizes) > 1 else 0  # what is updated stays where it is
        total += sum(sizes) - stays
    return total


def _bytes_written(node: Node) -> int:
    """Return what a primitive writes for others."""
    size = sum(value.bytes for value in node.outputs)
    updates = sorted(value.bytes for value in node.inputs)[:-1] if node.role == "update" else []
    return min(size, sum(updates)) if updates else size


def _name(group: Sequence[Node]) -> str:
    """Return what a kernel does, with the sizes of a matrix multiplication's operands."""
    heavy = next((node for node in group if node.is_heavy), None)
    if heavy is not None:
        return f"{heavy.name} {' x '.join(f'{value.datatype}{list(value.shape)}' for value in heavy.inputs[:2])}"
    names = list(dict.fromkeys(node.name for node in group if node.role != "view")) or [group[-1].name]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
