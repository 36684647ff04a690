"""A JAX function as a program for the simulators.

The function is traced with shapes alone, and what its results do not need is dropped. Calls are followed. A scan's body
counts once for each of its steps, a conditional costs what its most expensive branch does, and a loop whose number of
steps depends on data counts once and is reported. FLOPs are those of XLA's own count before it optimises (`jax_flops`),
bytes those of a simple model of fusion (`fusion`).

Left out: collectives, host callbacks, and kernels written in Pallas, whose primitives count as if they were not fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral, Number
from typing import Any, final

from minitrain.devices.fusion import Node, Role, Value, fused
from minitrain.devices.jax_flops import DATA_MOVEMENT, flops_of, matmul_shape
from minitrain.devices.operations import ELEMENT_BYTES, Program, known_datatype
from minitrain.errors import MinitrainError, UsageError

_VIEWS = frozenset({
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "broadcast", "iota", "bitcast_convert_type",
    "stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint", "mesh_cast", "pvary", "name",
    "layout_constraint", "random_wrap", "random_unwrap"
})  # fmt: skip
_USUAL_BYTES = 4  # of the widest elements that JAX has unless told otherwise
_SLICES = frozenset(("slice", "dynamic_slice", "gather", "split"))


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
    import jax  # noqa: PLC0415 - JAX is heavy

    arguments = [as_arguments(shape, dtype) for shape in shapes]
    try:
        with wide_enough(arguments):
            jaxpr = jax.make_jaxpr(function)(*arguments)
    except MinitrainError:
        raise
    except Exception as error:  # whatever the user's function raises
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(f"{name} cannot be traced with these shapes: {why_untraced(error)}") from error
    return program_of_jaxpr(jaxpr)


def why_untraced(error: Exception) -> str:
    """Return what an error of a function that was traced says, and what to do."""
    import jax  # noqa: PLC0415

    said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        return f"{said}; only shapes are known: use jnp.where or jax.lax.cond for if, and jax.numpy for numpy"
    if isinstance(error, TypeError | ValueError | IndexError):
        return f"{said}; check number and sizes of them: a shape is a tuple of whole numbers, such as (64, 128)"
    return f"it raised {type(error).__name__}: {said}; it must run under jax.make_jaxpr with fixed sizes"


def program_of_jaxpr(jaxpr: Any) -> Program:
    """Return a closed jaxpr as a program, without what its results do not need."""
    walk = _Walk()
    needed = without_dead_code(jaxpr.jaxpr)
    env: dict[Any, Value] = {var: _value(var) for var in (*needed.invars, *needed.constvars)}
    results = walk.follow(needed, env, count=1, region=0)
    return Program(tuple(fused(walk.nodes, [*results, *walk.kept])), tuple(walk.unknown_loops))


def without_dead_code(jaxpr: Any) -> Any:
    """Return a jaxpr with those equations alone that its results need.

    JAX does the same before it compiles. Without it, the gradient of an attention block counts 11 % too many FLOPs.
    """
    from jax.interpreters import partial_eval  # noqa: PLC0415

    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return needed


def as_arguments(shape: Any, dtype: str) -> Any:
    """Return a tree of shapes as a tree of what JAX traces with.

    Raises:
        UsageError: the datatype is unknown.
    """
    import jax  # noqa: PLC0415

    of_elements = element_type(dtype)

    def leaf(value: Any) -> Any:
        struct: Any = jax.ShapeDtypeStruct
        return struct(_sizes(value), of_elements) if _is_shape(value) else value

    return jax.tree.map(leaf, shape, is_leaf=_is_shape)


def element_type(dtype: Any) -> Any:
    """Return a datatype as JAX has it.

    Raises:
        UsageError: the datatype is unknown.
    """
    import jax.numpy as jnp  # noqa: PLC0415

    try:
        return jnp.dtype("nothing" if dtype is None else dtype)  # NumPy takes None as float64
    except TypeError:
        known = ", ".join(name for name in ELEMENT_BYTES if name != "float8")
        raise UsageError(
            f"dtype must be one of {known}, float8_e4m3fn or float8_e5m2, got {dtype!r}", dtype=dtype
        ) from None


def _is_shape(value: Any) -> bool:
    """Whether a value is meant as a tuple of sizes: a tuple without arrays or trees in it."""
    return isinstance(value, tuple) and all(isinstance(size, Number | str | None) for size in value)


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a tuple of sizes.

    Raises:
        UsageError: one of them is no whole number >= 0.
    """
    if not all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0 for size in shape):
        raise UsageError(
            f"a shape is a tuple of whole numbers >= 0, got {shape!r}; where a size varies, simulate each", shape=shape
        )
    return tuple(int(size) for size in shape)


@contextmanager
def wide_enough(arguments: Any) -> Iterator[None]:
    """Let JAX have elements of 64 bits while arguments have some; it makes 32 of them otherwise, without a word."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.ShapeDtypeStruct)]
    is_wide = any(each.itemsize * (1 if each.kind != "c" else 0.5) > _USUAL_BYTES for each in types)
    with jax.enable_x64(True) if is_wide else nullcontext():
        yield


def _value(var: Any) -> Value:
    """Return what a variable holds.

    Raises:
        UsageError: its sizes are symbols.
    """
    shape = tuple(getattr(var.aval, "shape", ()))
    if not all(isinstance(size, int) for size in shape):
        raise UsageError(f"a program must have fixed sizes, but an array has {shape}; simulate each size", shape=shape)
    return Value(shape, known_datatype(str(getattr(var.aval, "dtype", "float32"))))


@final
class _Walk:
    """Follow a jaxpr through calls and loops, and list its primitives.

    Attributes:
        nodes: the primitives, in order.
        kept: what loops carry on, and so has to be written.
        unknown_loops: loops whose number of steps is not known.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.kept: list[Value] = []
        self.unknown_loops: list[str] = []
        self._regions = 0
        self._ones: set[Value] = set()

    def follow(self, jaxpr: Any, env: dict[Any, Value], count: int, region: int) -> list[Value]:
        """List the primitives of a jaxpr, and return what it returns.

        Args:
            jaxpr: what to follow.
            env: what its inputs are.
            count: how often it runs.
            region: which loop's body it is.
        """
        for eqn in jaxpr.eqns:
            inputs = [self._read(var, env) for var in eqn.invars]
            outputs = self._equation(eqn, inputs, count, region)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [self._read(var, env) for var in jaxpr.outvars]

    def _read(self, var: Any, env: dict[Any, Value]) -> Value:
        """Return what a variable or a literal holds."""
        return _value(var) if hasattr(var, "val") else env[var]

    def _equation(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """List an equation, or what it calls, and return its results."""
        name = eqn.primitive.name
        loops = {"scan": self._scan, "while": self._while, "cond": self._cond, "custom_linear_solve": self._solve}
        if name in loops:
            return loops[name](eqn, inputs, count, region)
        inner = _called(eqn)
        if inner is None:
            return self._primitive(eqn, inputs, count, region)
        given = inputs[len(inputs) - len(inner.invars) :]
        env = dict(zip(inner.invars, given, strict=True))
        env.update((var, _value(var)) for var in inner.constvars)
        return self.follow(inner, env, count, region)[: len(eqn.outvars)]

    def _primitive(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """List a primitive."""
        outputs = [_value(var) for var in eqn.outvars]
        if eqn.primitive.name == "broadcast_in_dim" and _is_one(eqn.invars[0]):
            self._ones.update(outputs)
        if self._is_by_one(eqn, inputs):
            return [next(value for value in inputs if value not in self._ones)]
        arrays = tuple(value for var, value in zip(eqn.invars, inputs, strict=True) if not hasattr(var, "val"))
        self.nodes.append(
            Node(
                name=eqn.primitive.name,
                role=_role(eqn.primitive.name),
                inputs=arrays,
                outputs=tuple(outputs),
                flops=flops_of(eqn),
                count=count,
                region=region,
                shape=matmul_shape(eqn),
            )
        )
        return outputs

    def _is_by_one(self, eqn: Any, inputs: list[Value]) -> bool:
        """Whether an equation multiplies by one, as derivatives of a sum do: XLA drops that before it counts."""
        if eqn.primitive.name != "mul":
            return False
        return any(value in self._ones for value in inputs) and not all(value in self._ones for value in inputs)

    def _scan(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:  # noqa: ARG002
        """Follow a scan's body once for each step; constants are those of outside, all else is new in each step."""
        body, num_consts = eqn.params["jaxpr"], eqn.params["num_consts"]
        self._body(body, inputs[:num_consts], count * eqn.params["length"])
        return [_value(var) for var in eqn.outvars]

    def _while(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:  # noqa: ARG002
        """Follow a loop of unknown length once, and report it."""
        num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = ", ".join(f"{value.datatype}{list(value.shape)}" for value in inputs[num_cond + num_body :])
        self.unknown_loops.append(f"a while loop of unknown length over ({carried})")
        self._body(eqn.params["cond_jaxpr"], inputs[:num_cond], count)
        self._body(eqn.params["body_jaxpr"], inputs[num_cond : num_cond + num_body], count)
        return [_value(var) for var in eqn.outvars]

    def _body(self, closed: Any, constants: Sequence[Value], count: int) -> None:
        """Follow the body of a loop, whose results have to be written for the next step."""
        if not count:
            return
        self._regions += 1
        jaxpr = without_dead_code(closed.jaxpr)
        env = {var: _value(var) for var in (*jaxpr.invars, *jaxpr.constvars)}
        env.update(zip(jaxpr.invars, constants, strict=False))
        self.kept += self.follow(jaxpr, env, count, self._regions)

    def _cond(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """Follow the branch with the most FLOPs, and of equal ones that with the most bytes."""
        walks = [self._branch(branch.jaxpr, inputs[1:], count, region) for branch in eqn.params["branches"]]
        walk, results = max(walks, key=lambda found: _weight(found[0].nodes))
        self.nodes += walk.nodes
        self.kept += walk.kept
        self.unknown_loops += walk.unknown_loops
        self._regions = walk._regions
        return results

    def _solve(self, eqn: Any, inputs: list[Value], count: int, region: int) -> list[Value]:
        """Follow how a linear system is solved, which stands beside how its derivatives are."""
        counts, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
        before = counts.matvec + counts.vecmat
        given = [*inputs[before : before + counts.solve], *inputs[sum(counts) :]]
        env = dict(zip(solve.jaxpr.invars, given, strict=True)) | {var: _value(var) for var in solve.jaxpr.constvars}
        return self.follow(solve.jaxpr, env, count, region)

    def _branch(self, jaxpr: Any, inputs: list[Value], count: int, region: int) -> tuple[_Walk, list[Value]]:
        """Follow one branch by itself."""
        walk = _Walk()
        walk._regions, walk._ones = self._regions, self._ones
        env = dict(zip(jaxpr.invars, inputs, strict=True)) | {var: _value(var) for var in jaxpr.constvars}
        return walk, walk.follow(jaxpr, env, count, region)


def _is_one(var: Any) -> bool:
    """Whether a variable is a literal one."""
    return bool(getattr(var, "val", None) == 1)


def _weight(nodes: Sequence[Node]) -> tuple[float, float]:
    """Return FLOPs and bytes of some primitives."""
    sizes = (value.bytes for node in nodes for value in (*node.inputs, *node.outputs))
    return sum(node.flops * node.count for node in nodes), math.fsum(sizes)


def _called(eqn: Any) -> Any:
    """Return the jaxpr that an equation calls, or None for a primitive."""
    for key in ("call_jaxpr", "jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        if inner is not None and eqn.primitive.name != "pallas_call":
            return getattr(inner, "jaxpr", inner)
    return None


def _role(name: str) -> Role:
    """Return how a primitive takes part in kernels."""
    fixed: dict[str, Role] = {
        "dot_general": "matmul",
        "ragged_dot_general": "matmul",
        "conv_general_dilated": "convolution",
        "transpose": "transpose",
    }
    if name in fixed:
        return fixed[name]
    if name in _VIEWS:
        return "view"
    if name in _SLICES:
        return "slice"
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        return "update"
    is_reduction = name.startswith(("reduce_", "arg", "select_and", "cum", "sort")) and name not in DATA_MOVEMENT
    return "reduction" if is_reduction else "elementwise"
