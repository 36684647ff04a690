"""PyTorch's caching allocator against a map of all memory, which knows no blocks, and against PyTorch's examples."""

import random

import numpy as np
import pytest

from minitrain.errors import OutOfMemoryError
from minitrain.machine.caching_allocator import AllocatorSettings, CachingAllocator

MIB = 2**20
CELL = 2**16
"""Sizes are multiples of this, as all limits of the rules are, so that the map is small."""
CELLS = MIB // CELL
FREE, UNMAPPED = 0, -1


class Map:
    """What each cell of memory belongs to; free runs are found by looking at all of them."""

    def __init__(self, capacity_bytes: int, *, expandable: bool) -> None:
        self.capacity, self.expandable, self.owners = capacity_bytes // CELL, expandable, 0
        self.segments: list[tuple[bool, np.ndarray]] = []  # is small, owner of each cell

    def reserved(self) -> int:
        return sum(int((owners != UNMAPPED).sum()) for _, owners in self.segments)

    def runs(self, owners: np.ndarray, of: int) -> list[tuple[int, int]]:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], owners == of, [0]])))
        return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]

    def could_be(self, owners: np.ndarray, begin: int, end: int) -> int:
        return next((last - begin for first, last in self.runs(owners, UNMAPPED) if first == end), end - begin)

    def find(self, size: int, small: bool) -> tuple[np.ndarray, int, int] | None:
        pools = [owners for is_small, owners in self.segments if is_small == small]
        found = [
            (end - begin, place, begin, owners)
            for place, owners in enumerate(pools)
            for begin, end in self.runs(owners, FREE)
            if end - begin >= size
        ]
        found.sort(key=lambda run: run[:3])
        best = 0
        if self.expandable:
            sizes = [self.could_be(run[3], run[2], run[2] + run[0]) for run in found]
            while best + 1 < len(found) and sizes[best + 1] < sizes[best]:
                best += 1
        return (found[best][3], found[best][2], found[best][0]) if found else None

    def grow(self, size: int, small: bool) -> bool:
        page = (2 if small else 20) * CELLS
        if not self.expandable:
            up = -(-size // (2 * CELLS)) * 2 * CELLS
            wanted = 2 * CELLS if small else 20 * CELLS if size < 10 * CELLS else up
            if self.reserved() + wanted > self.capacity:
                return False
            self.segments.append((small, np.zeros(wanted, int)))
            return True
        for owners in (owners for is_small, owners in self.segments if is_small == small):
            for first, last in self.runs(owners, UNMAPPED):
                begin = next((begin for begin, end in self.runs(owners, FREE) if end == first), first)
                taken = np.flatnonzero(owners[begin:] > 0)
                if (int(taken[0]) if len(taken) else len(owners) - begin) >= size:
                    return self.map_pages(owners, begin, first, last, size, page)
        self.segments.append((small, np.full(-(-self.capacity * 9 // 8 // page) * page, UNMAPPED)))
        return self.grow(size, small)

    def map_pages(self, owners: np.ndarray, begin: int, first: int, last: int, size: int, page: int) -> bool:
        while first - begin < size:  # hole by hole, each rounded up to pages
            pages = -(-min(size - (first - begin), last - first) // page) * page
            if self.reserved() + pages > self.capacity:
                return False
            owners[first : first + pages] = FREE
            first = next(end for run, end in self.runs(owners, FREE) if run <= first < end)
            last = next((end for run, end in self.runs(owners, UNMAPPED) if run == first), first)
        return True

    def give_back(self) -> None:
        if not self.expandable:
            self.segments = [(small, owners) for small, owners in self.segments if (owners > 0).any()]
            return
        for small, owners in self.segments:
            page = (2 if small else 20) * CELLS
            pages = owners.reshape(-1, page)
            pages[(pages == FREE).all(axis=1)] = UNMAPPED

    def allocate(self, num_bytes: int) -> int:
        size = num_bytes // CELL
        small = size <= CELLS
        if self.find(size, small) is None and not self.grow(size, small):
            self.give_back()
            if not self.grow(size, small):
                raise MemoryError
        found = self.find(size, small)
        assert found is not None
        owners, begin, room = found
        keeps_rest = not (small or self.expandable) and room - size <= CELLS
        self.owners += 1
        owners[begin : begin + (room if keeps_rest else size)] = self.owners
        return self.owners

    def free(self, owner: int) -> None:
        for _, owners in self.segments:
            owners[owners == owner] = FREE

    def allocated(self) -> int:
        return sum(int((owners > 0).sum()) for _, owners in self.segments)


@pytest.mark.few(4)
@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_tensors_take_what_a_map_of_all_bytes_says(expandable: bool, seed: int) -> None:
    source, capacity = random.Random(seed), 120 * MIB
    allocator = CachingAllocator(capacity, AllocatorSettings(expandable_segments=expandable))
    truth = Map(capacity, expandable=expandable)
    held: list[tuple[object, int]] = []
    refused = 0
    for _ in range(400):
        if held and source.random() < 0.45:
            block, owner = held.pop(source.randrange(len(held)))
            allocator.free(block)  # type: ignore[arg-type]
            truth.free(owner)
        else:
            size = CELL * int(2 ** source.uniform(0, 9))
            try:
                owner = truth.allocate(size)
            except MemoryError:
                refused += 1
                with pytest.raises(OutOfMemoryError, match="no room"):
                    allocator.allocate(size)
            else:
                held.append((allocator.allocate(size), owner))
        assert allocator.allocated_bytes == CELL * truth.allocated()
        assert allocator.reserved_bytes == CELL * truth.reserved()
    assert refused
    assert allocator.num_retries


def test_what_remains_up_to_1_mib_stays_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(12 * MIB))
    assert allocator.allocate(11 * MIB).size == 12 * MIB
    expandable = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    expandable.free(expandable.allocate(12 * MIB))
    assert expandable.allocate(11 * MIB).size == 11 * MIB


def test_slivers_of_growing_tensors_go_with_expandable_segments() -> None:
    """The example of PyTorch's "Note [Expandable Segments]": tensors of a batch of N, and then of N + 1."""
    reserved = {}
    for expandable in (False, True):
        allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=expandable))
        for size in (100 * MIB, 102 * MIB):
            blocks = [allocator.allocate(size) for _ in range(10)]
            for block in blocks:
                allocator.free(block)
        reserved[expandable] = allocator.reserved_bytes
    assert reserved == {False: 2020 * MIB, True: 1020 * MIB}


def test_blocks_that_may_not_be_split_serve_no_small_request() -> None:
    allocator = CachingAllocator(300 * MIB, AllocatorSettings(max_split_bytes=200 * MIB))
    allocator.free(allocator.allocate(200 * MIB))
    allocator.allocate(50 * MIB)
    assert allocator.reserved_bytes == 250 * MIB
    allocator.allocate(210 * MIB)  # the cached 200 MiB are given back for it
    assert allocator.reserved_bytes == 260 * MIB
