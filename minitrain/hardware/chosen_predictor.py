"""The predictor that prices the operations of a run: which one `hardware` and `fidelity` mean together.

`hardware` may be a predictor, which then has prices of its own; otherwise it names a hardware config, and the fidelity
says how operations are priced on it. `RuntimePredictor` is the specified one; `KernelPredictor` is imported where it
is needed, which is for transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.errors import UsageError
from minitrain.hardware.config import load_config
from minitrain.hardware.predictor import RuntimePredictor
from minitrain.hardware.price import Predictor
from minitrain.hardware.pricing import ROOFLINE, Pricing
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import Workload


def make_predictor(
    hardware: Any,
    world_size: int,
    network: str = "auto",
    placement: Sequence[int] | None = None,
    workload: Workload | None = None,
    pricing: Pricing = ROOFLINE,
) -> Predictor:
    """Return what prices the operations of a run.

    Args:
        hardware: a shipped config's name, a path, a loaded config, or a predictor, which is returned as it is.
        world_size: number of ranks.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        workload: what is trained; the specified one, or that of a predictor, if None.
        pricing: how operations are priced on a hardware config.

    Raises:
        UsageError: a predictor is to be priced otherwise than it does, was made for fewer ranks, or the network does
            not connect so many.
        HardwareConfigError: the hardware config cannot be found or read, or is invalid.
    """
    if hasattr(hardware, "compute") and hasattr(hardware, "slowed"):
        require_default(pricing, hardware)
        _require_ranks(hardware, world_size)
        return hardware if workload in (None, hardware.workload) else hardware.training(workload)  # type: ignore[no-any-return]  # a Predictor
    if hasattr(hardware, "profile"):  # a platform
        hardware = hardware.profile.system_config()
    workload = workload or MATMUL_LAYER
    system = load_config(hardware)
    if getattr(workload, "model", None) is None and pricing.is_default:
        return RuntimePredictor(world_size, system, network=network, placement=placement, workload=workload)
    found = pricing.on(system, workload)
    return _priced_otherwise(world_size, system, network, placement, workload, found)


def _priced_otherwise(
    world_size: int,
    hardware: Any,
    network: str,
    placement: Sequence[int] | None,
    workload: Workload,
    pricing: Pricing,
) -> Predictor:
    """Return a predictor for a pricing that was decided upon."""
    from minitrain.hardware.kernel_predictor import KernelPredictor  # noqa: PLC0415  (only where it is asked for)
    from minitrain.hardware.layer_predictor import LayerPredictor  # noqa: PLC0415

    machine: Any = {"network": network, "placement": placement, "workload": workload}
    base: RuntimePredictor | KernelPredictor
    if pricing.fidelity == "roofline":
        base = RuntimePredictor(world_size, hardware, **machine)
        base.pricing = pricing  # so that a headline says it, and why
    else:
        base = KernelPredictor(world_size, hardware, pricing, **machine)
    return base if pricing.prices is None else LayerPredictor(pricing.prices, base)


def _require_ranks(predictor: Any, world_size: int) -> None:
    """Require that a predictor whose network was made for so many ranks is not used for more.

    Raises:
        UsageError: it is.
    """
    made_for = getattr(predictor, "world_size", None)
    if isinstance(made_for, int) and made_for < world_size:
        raise UsageError(
            f"hardware is a predictor whose network was made for {made_for} ranks, but the run has {world_size}; "
            f"make it with world_size={world_size}",
            world_size=world_size,
        )


def require_default(pricing: Pricing, hardware: Any) -> None:
    """Require the default pricing beside a predictor, which has prices of its own.

    Raises:
        UsageError: another pricing was asked for.
    """
    if not pricing.is_default:
        raise UsageError(
            f"fidelity is for a hardware config, and {hardware!r:.80} is a predictor with prices of its own; leave "
            "fidelity out, or give the config",
            fidelity=pricing.fidelity,
        )
