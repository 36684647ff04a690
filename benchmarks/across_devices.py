"""A platform fitted on one device, judged by runs on another: the cross-device table of docs/accuracy.md.

Run by `python -m benchmarks.across_devices`. No number of a platform was chosen by a run on the devices that it is
judged by here; beside it stands the platform that was fitted on that device, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import minitrain as mt
from minitrain.evidence.errors_by_table import RowResult, summarize
from minitrain.evidence.similar_runs import family_of

JUDGED = (
    ("eager-a100", "a1", ("h100",)),
    ("eager-h100", "a1", ("a100",)),
    ("eager-h100", "a2", ("a100",)),
    ("compiled-fsdp:clock=0.85", "f4", ("a100",)),
    ("compiled-fsdp:clock=0.98", "d1", ("h100",)),
    ("compiled-fsdp:clock=0.98", "f4", ("h100",)),
    ("compiled-fsdp:clock=0.9", "f3", ("h200",)),
    ("compiled-fsdp", "f4", ("b200",)),
    ("compiled-fsdp", "f6", ("b200",)),
    ("compiled-fsdp", "f7", ("b200",)),
    ("nemo-h100", "p1", ("b200",)),
    ("nemo-h100", "p2", ("b200", "b300")),
    ("nemo-h100", "p3", ("b200",)),
    ("nemo-h100", "p1", ("gb200", "gb300")),
    ("nemo-h100", "p2", ("gb200", "gb300")),
    ("nemo-h100", "p3", ("gb200", "gb300")),
)
"""Platforms, tables of the same framework, and the families of devices that the platform was not fitted on.

Clocks that are named are those that the other devices' runs give."""

EXPERTS = "mixture of experts"


def judged() -> Iterator[tuple[str, str, list[RowResult], list[RowResult]]]:
    """Yield platform; table and kind of device; the runs as that platform prices them; and as their own does."""
    for platform, table, families in JUDGED:
        own = mt.validate(table).results
        is_own = any(run.platform == platform and family_of(run.device) in families for run in own)
        other = (
            own if is_own else mt.validate(table, platform=platform).results
        )  # where that device has none of its own
        if ":" in platform:  # other numbers of a platform: only for the runs that it prices
            own = tuple(run for run in own if run.platform == platform.partition(":")[0])
            other = tuple(run for run in other if run.row_id in {each.row_id for each in own})
        kinds = ((", dense", False), (", experts", True)) if table.startswith("p") else (("", None),)
        for name, has_experts in kinds:
            asked = f"{table}, {' and '.join(families).upper()}{name}"
            yield platform, asked, _of(other, families, has_experts), _of(own, families, has_experts)


def _of(results: Sequence[RowResult], families: Sequence[str], has_experts: bool | None) -> list[RowResult]:
    """Return the runs on some families of devices, with experts or without; with either if None."""
    return [run for run in results if family_of(run.device) in families and has_experts in (None, run.kind == EXPERTS)]


def main() -> None:
    """Print the table."""
    print("| platform | judged by | runs | mean % | bias % | the device's own, mean % |\n|---|---|---|---|---|---|")
    for platform, asked, other, own in judged():
        found = summarize([run.error for run in other if run.error is not None])
        if found is None:
            continue
        by_own = summarize([run.error for run in own if run.error is not None and run.platform != platform])
        beside = f"{100 * by_own.mean:.1f}" if by_own else ""
        figures = f"{found.num_runs} | {100 * found.mean:.1f} | {100 * found.bias:+.1f}"
        print(f"| {platform} | {asked} | {figures} | {beside} |")


if __name__ == "__main__":
    main()
