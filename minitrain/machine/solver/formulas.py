"""The bottleneck formula: the roofline of one pass over a model's weights (Williams et al., CACM 52(4), 2009)."""

from typing import Any, TypedDict

from minitrain.machine.solver.constants import of_ours, ureg


class Bottleneck(TypedDict):
    """What limits a model on a device.

    Attributes:
        compute_ms: time of the arithmetic, ms.
        memory_ms: time of reading the weights, ms.
        bottleneck: "Memory" where reading takes longer, else "Compute".
        intensity: FLOP a byte.
    """

    compute_ms: float
    memory_ms: float
    bottleneck: str
    intensity: float


def calc_bottleneck(ops: Any, model_bytes: Any, device_flops: Any, device_bw: Any) -> Bottleneck:
    """Return what limits a model on a device; quantities of other registries are converted.

    Args:
        ops: operations, in `ureg.flop`.
        model_bytes: size of the weights, in `ureg.byte`.
        device_flops: rate, in FLOP/s.
        device_bw: bandwidth of the memory, in byte/s.

    Returns:
        Both times in ms, the longer one's name, and the arithmetic intensity in FLOP/byte.

    Raises:
        pint.DimensionalityError: a quantity has another dimension.
        UsageError: one of another registry has a unit that is not known here.
    """
    given = {"ops": ops, "model_bytes": model_bytes, "device_flops": device_flops, "device_bw": device_bw}
    ops, model_bytes, device_flops, device_bw = (of_ours(name, value) for name, value in given.items())
    compute_ms = (ops / device_flops).to(ureg.ms).magnitude
    memory_ms = (model_bytes / device_bw).to(ureg.ms).magnitude
    return {
        "compute_ms": compute_ms,
        "memory_ms": memory_ms,
        "bottleneck": "Memory" if memory_ms > compute_ms else "Compute",
        "intensity": ops.to(ureg.flop).magnitude / model_bytes.to(ureg.byte).magnitude,
    }
