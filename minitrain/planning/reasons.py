"""Why a plan is as it is: datatypes that devices lack, what precisions cost on each, and why no layout runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minitrain.errors import UsageError
from minitrain.planning.device_times import DeviceTimes
from minitrain.planning.result import Verdict

_SHOWN = 3  # kinds of reason


def lacking(times: DeviceTimes) -> Mapping[str, str]:
    """Return the datatype that a step needs and devices do not have, by group."""
    found = {group.label: times.lacks(group.label) for group in times.cluster.devices}
    return {label: datatype for label, datatype in found.items() if datatype is not None}


def compared(times_by_precision: Sequence[DeviceTimes], chosen: DeviceTimes) -> Iterator[str]:
    """Yield how each precision's times compare with the plan's, by device; nothing where there is no choice."""
    for times in times_by_precision:
        if times.precision is not None:
            said = [_said(times, chosen, group.label) for group in times.cluster.devices]
            yield f"{times.precision.name}: {', '.join(said)}"


def _said(times: DeviceTimes, chosen: DeviceTimes, group: str) -> str:
    """Say how long a group's device takes for a sample in a precision, as a multiple of that in the plan's."""
    lacks = times.lacks(group)
    if lacks is not None:
        return f"{group} lacks {lacks}"
    mine, other = times.layers(group, 1), chosen.layers(group, 1)
    if mine is None or other is None:
        return f"{group} has it" if mine else f"{group} cannot run it"
    return f"{group} x{sum(mine) / sum(other):.3g}"


def nothing_fits(
    times_by_precision: Sequence[DeviceTimes], verdicts: Sequence[Verdict], batch: int, budget_watts: float | None
) -> UsageError:
    """Return the error for a step that no layout runs, or fits.

    Args:
        times_by_precision: how long devices take, for each precision.
        verdicts: of all layouts, the likeliest first.
        batch: samples of the step.
        budget_watts: what all devices that take part may draw together.
    """
    name = times_by_precision[0].cluster.name
    missing = {group: datatype for times in times_by_precision for group, datatype in lacking(times).items()}
    if not verdicts and missing:
        said = ", ".join(f"{group} lacks {datatype}" for group, datatype in missing.items())
        return UsageError(
            f"no layout of {name} has a precision that all of its devices compute in: {said}; allow another precision, "
            "or leave these devices out",
        )
    if not verdicts and budget_watts is not None:
        return UsageError(
            f"no layout of {name} keeps to {budget_watts:g} W with a batch of {batch} samples; give more than "
            "its devices draw when they are idle, or a larger batch",
            power_budget_watts=budget_watts,
        )
    if not verdicts:
        return UsageError(
            f"no layout of {name} divides a batch of {batch} samples; use at least a sample for each device "
            "that takes part, or other strategies",
            global_batch_size=batch,
        )
    reasons: dict[str, str] = {}
    for each in verdicts:
        reasons.setdefault(each.reason, f"{each.candidate}: {each.reason}")
    said = "; ".join([*reasons.values()][:_SHOWN])
    return UsageError(
        f"none of {len(verdicts)} layouts of {name} runs within memory; the first: {said}; "
        "use a smaller model, a smaller batch, or more devices",
        global_batch_size=batch,
    )
