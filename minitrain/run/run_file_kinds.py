"""Which ranks have which device, in the file of a run on a cluster: validated, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minitrain.run.run_file_faults import ABOVE_0, LIST, OBJECT, TEXT, Faults, Rule

if TYPE_CHECKING:
    from minitrain.run.device_kinds import DeviceKind

_KEY = "device_kinds"
_SHARE = Rule("a number in 1e-100..1", lambda value: ABOVE_0.accepts(value) and value <= 1)
_RULES: Mapping[str, Rule] = {
    "name": TEXT,
    "hardware": TEXT,
    "ranks": LIST,
    "capacity_bytes": ABOVE_0.or_null(),
    "peak_flop_per_s": ABOVE_0.or_null(),
    "watts": ABOVE_0.or_null(),
    "clock_share": _SHARE,
    "limited_by": TEXT.or_null(),
}


def judge_device_kinds(header: Mapping[str, Any], faults: Faults) -> None:
    """Judge the kinds of device, if there are any: each rank has one of them."""
    before, world_size = faults.number, header["world_size"]
    kinds = header.get(_KEY, [])
    for place, kind in enumerate(kinds):
        if faults.judge(1, (_KEY, place), kind, OBJECT):
            faults.judge_keys(1, (_KEY, place), kind, _RULES)
    if faults.number > before or not kinds:
        return
    ranges = [found for kind in kinds for found in kind["ranks"]]
    if not _follow_one_another(ranges):
        faults.add(1, f"expected ranges of ranks that hold each of 0..{world_size - 1} once", (_KEY,))
        return
    names, last = {kind["name"] for kind in kinds}, max([stop for _, stop in ranges], default=0)
    if last != world_size or len(names) < len(kinds):
        faults.add(1, f"expected kinds of different names that hold each rank of 0..{world_size - 1} once", (_KEY,))


def _follow_one_another(ranges: Sequence[Any]) -> bool:
    """Return whether ranges of ranks, once they are sorted, begin with rank 0 and each where the one before ends."""
    if not all(map(_is_range, ranges)):
        return False
    ordered = sorted(ranges)
    return [start for start, _ in ordered] == [0, *[stop for _, stop in ordered]][:-1]


def _is_range(found: Any) -> bool:
    """Return whether a value is [first, past-the-last] of at least one rank."""
    if not isinstance(found, list) or len(found) != 2:
        return False
    return all(value.__class__ is int for value in found) and 0 <= found[0] < found[1]


def kinds_of_header(header: Mapping[str, Any]) -> Sequence[DeviceKind]:
    """Return the kinds of device in a first line that was validated."""
    if not header.get(_KEY):
        return ()
    from minitrain.run.device_kinds import DeviceKind  # noqa: PLC0415  (few runs have several kinds)

    return tuple(
        DeviceKind(**{key: kind[key] for key in _RULES} | {"ranks": _ranks(kind["ranks"])}) for kind in header[_KEY]
    )


def _ranks(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks of some ranges."""
    return tuple(rank for start, stop in ranges for rank in range(start, stop))
