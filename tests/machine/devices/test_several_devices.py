"""Programs of several devices are priced with the config's network or refused; lowered and compiled ones are taken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config
from minitrain.machine.devices.simulator import HostWorkWarning, UnknownLoopWarning

H100 = load_config("h100_80g_nvl8")
PARTS: Any = jax.sharding.PartitionSpec
LAX: Any = jax.lax
STRUCT: Any = jax.ShapeDtypeStruct


def over(num_devices: int, body: Any, **specs: Any) -> Any:
    """Return a function over a mesh of devices that need not be there."""
    mesh = jax.sharding.AbstractMesh((num_devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)


@pytest.mark.parametrize(
    ("body", "out", "op", "whole"),
    [
        (lambda x: LAX.psum(x, "x"), PARTS(), "all_reduce", 1024 * 512 * 4),
        (lambda x: LAX.pmax(x, "x"), PARTS(), "all_reduce", 1024 * 512 * 4),
        (lambda x: LAX.all_gather(x, "x"), PARTS(), "all_gather", 8 * 1024 * 512 * 4),
        (lambda x: LAX.psum_scatter(x, "x", tiled=True), PARTS("x"), "reduce_scatter", 1024 * 512 * 4),
        (lambda x: LAX.all_to_all(x, "x", 0, 0, tiled=True), PARTS("x"), "all_to_all", 1024 * 512 * 4),
        (lambda x: LAX.ppermute(x, "x", [(0, 1)]), PARTS("x"), "p2p", 1024 * 512 * 4),
    ],
    ids=["psum", "pmax", "all_gather", "psum_scatter", "all_to_all", "ppermute"],
)
def test_collectives_take_what_the_network_of_the_config_says(body: Any, out: Any, op: str, whole: int) -> None:
    function = over(8, body, in_specs=PARTS("x"), out_specs=out)
    result = mt.hw.simulate(function, (8 * 1024, 512), device=H100)
    (row,) = (row for row in result.operations if row.operation.collective)
    assert row.operation.collective == (op, 8)
    assert row.total_s == H100.network(8).time(op, whole, 8)
    larger = mt.hw.simulate(over(16, body, in_specs=PARTS("x"), out_specs=out), (16 * 1024, 512), device=H100)
    assert larger.time_seconds > result.time_seconds  # over two nodes


def test_each_device_computes_its_own_part() -> None:
    body = over(4, lambda x, w: LAX.psum(x @ w, "x"), in_specs=(PARTS(None, "x"), PARTS("x")), out_specs=PARTS())
    result = mt.hw.simulate(body, (256, 1024), (1024, 512), device=H100)
    assert result.flops == 2 * 256 * 256 * 512


def test_one_device_needs_no_network_and_others_do() -> None:
    alone = over(1, lambda x: LAX.psum(x, "x"), in_specs=PARTS("x"), out_specs=PARTS())
    assert all(row.operation.collective is None for row in mt.hw.simulate(alone, (8, 8)).operations)
    pair = over(2, lambda x: LAX.psum(x, "x"), in_specs=PARTS("x"), out_specs=PARTS())
    with pytest.raises(HardwareConfigError, match="NVIDIA A100 has no network for all_reduce; use a hardware config"):
        mt.hw.simulate(pair, (8, 8), device="NVIDIA A100")
    with pytest.raises(UsageError, match='fidelity="seed" knows no networks, and the program has collectives'):
        mt.hw.simulate(pair, (8, 8), fidelity="seed")


DIVIDED = """
import jax, numpy as np, minitrain as mt
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
whole = jax.ShapeDtypeStruct((8, 8), np.float32)
jitted = jax.jit(lambda x: x @ x, in_shardings=divided)
given = {
    "jit": (jitted, whole),
    "a constraint": (lambda x: jax.lax.with_sharding_constraint(x @ x, divided), whole),
    "an argument": (lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), np.float32, sharding=divided)),
    "lowered": (jitted.lower(whole),),
    "compiled": (jitted.lower(whole).compile(),),
}
for name, arguments in given.items():
    try:
        mt.hw.simulate(*arguments)
    except mt.UsageError as error:
        print(name, "divided over 2 devices by XLA's partitioner" in str(error), "jax.shard_map" in str(error))
"""


@pytest.mark.ci
def test_what_the_partitioner_would_divide_is_refused() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    said = subprocess.run([sys.executable, "-c", DIVIDED], env=flags, capture_output=True, text=True, check=True)
    expected = ("jit", "a constraint", "an argument", "lowered", "compiled")
    assert said.stdout.splitlines() == [f"{name} True True" for name in expected]


def test_lowered_and_compiled_programs_are_priced_by_what_xla_counts() -> None:
    lowered = jax.jit(lambda x, w: x @ w).lower(*[STRUCT((512, 512), jnp.bfloat16)] * 2)
    function = mt.hw.simulate(lambda x, w: x @ w, (512, 512), (512, 512), dtype="bfloat16")
    for stage in (lowered, lowered.compile()):
        result = mt.hw.simulate(stage)
        assert result.flops == pytest.approx(function.flops, rel=0.01)
        assert result.operations[0].operation.datatype == "bfloat16"
    assert mt.hw.compile(lowered) == mt.hw.compile(mt.hw.compile(lowered))
    loop = jax.jit(lambda x: LAX.fori_loop(0, 5, lambda _, y: y @ y, x)).lower(STRUCT((8, 8), "f4"))
    with pytest.warns(UnknownLoopWarning, match="a loop of this Lowered counts once"):
        mt.hw.simulate(loop)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hlo_text_is_priced_as_the_program_that_says_it(dtype: str) -> None:
    lowered = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(STRUCT((96, 160), dtype), STRUCT((160, 320), dtype))
    compiled, text = lowered.compile(), lowered.as_text("hlo")
    for stage, said in ((compiled, compiled.as_text()), (lowered, text)):
        result, expected = mt.hw.simulate(said), mt.hw.simulate(stage)
        assert result.flops == pytest.approx(expected.flops, rel=1e-6)
        assert result.operations[0].operation.datatype == dtype
    assert mt.hw.simulate(compiled.as_text()).time_seconds == mt.hw.simulate(compiled).time_seconds
    larger = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(STRUCT((96, 160), dtype), STRUCT((160, 640), dtype))
    assert mt.hw.simulate(larger.as_text("hlo")).flops == pytest.approx(2 * mt.hw.simulate(text).flops)


def test_hlo_text_says_what_xla_does_not_count_or_is_refused() -> None:
    loop = jax.jit(lambda x: LAX.fori_loop(0, 5, lambda _, y: y @ y, x)).lower(STRUCT((8, 8), "f4"))
    with pytest.warns(UnknownLoopWarning, match="a loop of this HLO text counts once"):
        mt.hw.simulate(loop.as_text("hlo"))
    text = jax.jit(lambda x: x @ x).lower(STRUCT((8, 8), "f4")).as_text("hlo")
    with pytest.raises(UsageError, match=r"XLA cannot read this HLO text: .*; give what Compiled.as_text"):
        mt.hw.simulate(text.replace("ENTRY", "ENTRANCE"))
    with pytest.raises(UsageError, match="this HLO text is divided over 8 devices"):
        mt.hw.simulate(text.replace("HloModule jit__lambda", "HloModule jit__lambda, num_partitions=8", 1))
    solve = jax.jit(jnp.linalg.cholesky).lower(STRUCT((8, 8), "f4")).compile().as_text()
    with pytest.raises(UsageError, match=r"this HLO text calls .*potrf.*, which XLA does not count"):
        mt.hw.simulate(solve)
    with pytest.raises(UsageError, match="a closed jaxpr, HLO text or an exported torch program, got str"):
        mt.hw.simulate("module @jit")


def test_what_the_host_does_is_said() -> None:
    def calls(x: Any) -> Any:
        return jax.pure_callback(np.asarray, STRUCT((4, 4), jnp.float32), x) + 1

    with pytest.warns(HostWorkWarning, match="pure_callback is done by the host, which is not counted"):
        result = mt.hw.simulate(calls, (4, 4))
    assert result.notes == ("not counted, since the host does it: pure_callback",)
