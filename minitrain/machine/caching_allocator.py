"""PyTorch's allocator of GPU memory: which blocks it gives out, keeps and takes from the driver.

A tensor's memory is a block of a segment that the driver gave. A freed block is kept for the next tensor that it fits,
so that more is **reserved** from the driver than is **allocated** to tensors. The rules, in the order in which
`malloc` tries them:

1. A size is rounded up to 512 bytes. Up to 1 MiB it is of the small pool, else of the large one.
2. The smallest free block of the pool that is large enough is taken, of equals the one with the lowest address. What it
   has too much is split off: in the small pool from 512 bytes on, in the large one if that is more than 1 MiB.
3. Else the driver gives a segment: of 2 MiB in the small pool, of 20 MiB for less than 10 MiB, else of the size rounded
   up to 2 MiB.
4. If it has no room, free blocks that are a whole segment are given back: those above `max_split_bytes` first if that
   is set, then all. Then the driver is asked again, and what it refuses now is out of memory.

A freed block joins its free neighbours in the segment. With **expandable segments**, a pool is one segment that grows
by pages, of 2 MiB in the small and 20 MiB in the large pool, and any remainder of 512 bytes is split off.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.5 (commit 001074d25084), `round_size`, `get_allocation_size`,
`should_split`, `get_free_block`, `try_merge_blocks`, `find_expandable_block`, `map_block`, `release_cached_blocks`,
`unmap_block` and the constants at its head. Left out: several streams (each has blocks of its own), private pools of
CUDA graphs, `roundup_power2_divisions` and `garbage_collection_threshold`, both off by default. Of segments, later ones
have higher addresses here; the driver may choose otherwise, which decides between blocks of equal size alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from minitrain.errors import OutOfMemoryError, UsageError, count_fault

MIN_BLOCK_BYTES = 512
"""kMinBlockSize: sizes are multiples of this."""
SMALL_BYTES = 2**20
"""kSmallSize: the largest allocation of the small pool; a remainder of the large pool that is not above it stays."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""kSmallBuffer: a segment of the small pool."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""kLargeBuffer: a segment for allocations between `SMALL_BYTES` and `MIN_LARGE_BYTES`."""
MIN_LARGE_BYTES = 10 * 2**20
"""kMinLargeAlloc: from here on, a segment is as large as what it is for."""
ROUND_LARGE_BYTES = 2 * 2**20
"""kRoundLarge: such a segment is a multiple of this."""

UNLIMITED = 2**62


def rounded(num_bytes: int, unit_bytes: int = MIN_BLOCK_BYTES) -> int:
    """Return the next multiple of a unit, at least one.

    >>> rounded(1), rounded(512), rounded(513)
    (512, 512, 1024)
    """
    return max(1, -(-num_bytes // unit_bytes)) * unit_bytes


def segment_bytes(block_bytes: int) -> int:
    """Return what the driver is asked for where a block of this size fits nowhere.

    >>> [segment_bytes(size) // 2**20 for size in (512, 2**20 + 512, 10 * 2**20, 21 * 2**20 + 512)]
    [2, 20, 10, 22]
    """
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if block_bytes < MIN_LARGE_BYTES else rounded(block_bytes, ROUND_LARGE_BYTES)


class Block:
    """A piece of a segment: given out, free, or without memory behind its addresses ("unmapped").

    Args:
        address: where it begins.
        size: bytes.
        pool: the pool that it belongs to.
    """

    __slots__ = ("address", "allocated", "mapped", "next", "pool", "prev", "size")

    def __init__(self, address: int, size: int, pool: _Pool, *, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.mapped = mapped
        self.allocated = False
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        """Return whether it is less than its segment."""
        return self.prev is not None or self.next is not None

    def put_behind(self, before: Block) -> None:
        """Become the neighbour that follows another block."""
        self.prev, self.next = before, before.next
        if before.next is not None:
            before.next.prev = self
        before.next = self

    def leave(self) -> None:
        """Let the neighbours be each other's."""
        if self.prev is not None:
            self.prev.next = self.next
        if self.next is not None:
            self.next.prev = self.prev


class _Pool:
    """The blocks of one pool that are not given out.

    Args:
        is_small: whether it is the pool of small allocations.
    """

    __slots__ = ("_blocks", "_keys", "is_small", "page_bytes", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self._keys: list[tuple[int, int]] = []  # size and address
        self._blocks: dict[int, Block] = {}  # by address
        self.unmapped: list[tuple[int, Block]] = []  # by address; addresses differ

    def add(self, block: Block) -> None:
        """Keep a free block."""
        insort(self._keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Give a free block away, or prepare it for another size."""
        del self._keys[bisect_left(self._keys, (block.size, block.address))]
        del self._blocks[block.address]

    def add_unmapped(self, block: Block) -> None:
        """Keep addresses without memory."""
        insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Forget addresses without memory."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=lambda each: each[0])]

    def from_size(self, num_bytes: int) -> Iterator[Block]:
        """Yield the blocks of at least this size, the smallest first, of equals the lowest address."""
        for _, address in self._keys[bisect_left(self._keys, (num_bytes, 0)) :]:
            yield self._blocks[address]

    def blocks(self) -> list[Block]:
        """Return all free blocks, the smallest first."""
        return [self._blocks[address] for _, address in self._keys]


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What `PYTORCH_CUDA_ALLOC_CONF` says.

    Args:
        expandable_segments: whether segments grow by pages.
        max_split_bytes: blocks of this size and more are not split; None for no limit.

    Raises:
        UsageError: the limit is not more than PyTorch's kLargeBuffer, or the other is no bool.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None

    def __post_init__(self) -> None:
        found, least = self.max_split_bytes, LARGE_SEGMENT_BYTES + 1
        if not isinstance(self.expandable_segments, bool):
            raise UsageError(f"expandable_segments must be True or False, got {self.expandable_segments!r}; write True")
        if found is not None and (fault := count_fault("max_split_bytes", found, least, "max_split_bytes=200 * 2**20")):
            raise UsageError(f"{fault}, as PyTorch's max_split_size_mb must be more than 20")


class CachingAllocator:
    """The allocator of one device and one stream.

    Args:
        capacity_bytes: what the driver can give.
        settings: its settings.

    Attributes:
        allocated_bytes: the sum of the blocks that are given out.
        reserved_bytes: what the driver gave and did not get back.
        peak_allocated_bytes: the most that was allocated at once.
        peak_reserved_bytes: the most that was reserved at once.
        num_retries: how often cached segments were given back for want of room.

    Example:
        >>> allocator = CachingAllocator()
        >>> block = allocator.allocate(3 * 2**20)
        >>> allocator.allocated_bytes // 2**20, allocator.reserved_bytes // 2**20
        (3, 20)
        >>> allocator.free(block)
        >>> allocator.allocated_bytes, allocator.reserved_bytes // 2**20
        (0, 20)
    """

    def __init__(self, capacity_bytes: int = UNLIMITED, settings: AllocatorSettings | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.num_retries = 0
        self._limit = UNLIMITED if self.settings.max_split_bytes is None else self.settings.max_split_bytes
        self._pools = (_Pool(is_small=True), _Pool(is_small=False))
        self._next_address = 0

    def allocate(self, num_bytes: int) -> Block:
        """Give out a block.

        Raises:
            OutOfMemoryError: the driver has no room for it, when all cached segments are given back.
        """
        size = rounded(num_bytes)
        pool = self._pools[size > SMALL_BYTES]
        block = self._find(pool, size) or self._from_driver(pool, size)
        rest = block.size - size
        if self._splits(pool, size, rest):
            remainder = Block(block.address + size, rest, pool)
            remainder.put_behind(block)
            block.size = size
            pool.add(remainder)
        block.allocated = True
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Keep a block that was given out, together with its free neighbours."""
        self.allocated_bytes -= block.size
        block.allocated = False
        self._merge(block)
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Give back free segments, and of expandable ones free pages."""
        for pool in self._pools:
            for block in pool.blocks():
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif not block.is_split:
                    self._give_back(block)

    def _splits(self, pool: _Pool, size: int, rest: int) -> bool:
        """Return whether what a block has too much is split off."""
        if pool.is_small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        return size < self._limit and rest > SMALL_BYTES

    def _find(self, pool: _Pool, size: int) -> Block | None:
        """Take the free block that fits best, if there is one."""
        found = self._best(pool, size)
        if found is None or (size < self._limit <= found.size):
            return None
        if size >= self._limit and found.size >= size + LARGE_SEGMENT_BYTES:
            return None
        pool.remove(found)
        return found

    def _best(self, pool: _Pool, size: int) -> Block | None:
        """Return the free block that fits best: a block that could grow counts with what it could grow to."""
        fitting = pool.from_size(size)
        found = next(fitting, None)
        if self.settings.expandable_segments and found is not None:
            for other in fitting:
                if _could_be(other) >= _could_be(found):
                    break
                found = other
        return found

    def _from_driver(self, pool: _Pool, size: int) -> Block:
        """Return a free block with memory from the driver."""
        found = self._ask(pool, size)
        if found is None and self._limit < UNLIMITED and self._give_back_oversized(pool, size):
            found = self._ask(pool, size)
        if found is None:
            self.empty_cache()
            self.num_retries += 1
            found = self._ask(pool, size)
        if found is None:
            raise OutOfMemoryError(
                f"the allocator finds no room for {size} bytes: of {self.capacity_bytes} it has reserved "
                f"{self.reserved_bytes}, of which {self.allocated_bytes} are allocated; hold less, or take a device "
                "with more memory",
                num_bytes=size,
            )
        return found

    def _ask(self, pool: _Pool, size: int) -> Block | None:
        """Return a new segment, or a part of the pool's segment that grows for it; None if the driver has no room."""
        if self.settings.expandable_segments:
            return self._grown(pool, size)
        wanted = segment_bytes(size)
        if not self._reserve(wanted):
            return None
        block = Block(self._next_address, wanted, pool)
        self._next_address += wanted
        return block

    def _reserve(self, num_bytes: int) -> bool:
        """Take memory from the driver, if it has so much."""
        if self.reserved_bytes + num_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _give_back(self, block: Block) -> None:
        """Give a free segment back to the driver."""
        self.reserved_bytes -= block.size
        block.pool.remove(block)

    def _give_back_oversized(self, pool: _Pool, size: int) -> bool:
        """Give back segments that are not split for their size: one that is enough, or the largest until they are."""
        wanted = max(size, self._limit)
        enough = next(pool.from_size(wanted), None)
        if enough is not None:
            self._give_back(enough)
            return True
        released = 0
        for block in reversed(pool.blocks()):
            if released >= wanted or block.size < self._limit:
                break
            released += block.size
            self._give_back(block)
        return released >= wanted

    def _merge(self, block: Block) -> None:
        """Join a block with its neighbours that are as free, or as unmapped, as it is."""
        for other in (block.prev, block.next):
            if other is None or other.allocated or other.mapped != block.mapped:
                continue
            if other.mapped:
                other.pool.remove(other)
            else:
                other.pool.remove_unmapped(other)
            block.address = min(block.address, other.address)
            block.size += other.size
            other.leave()

    def _grown(self, pool: _Pool, size: int) -> Block | None:
        """Return a free block of an expandable segment, which gets pages from the driver for it; None without room."""
        block = _room_in(pool, size) or self._new_addresses(pool)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:  # a free block, and unmapped addresses behind it
            behind = block.next
            assert behind is not None  # there was room
            if not self._map(behind, min(size - block.size, behind.size)):
                return None
            block = behind
        pool.remove(block)
        return block

    def _new_addresses(self, pool: _Pool) -> Block:
        """Return the addresses of a new segment: more than the device has memory."""
        num_bytes = rounded(min(self.capacity_bytes, UNLIMITED) * 9 // 8, pool.page_bytes)
        block = Block(self._next_address, num_bytes, pool, mapped=False)
        self._next_address += rounded(num_bytes, LARGE_SEGMENT_BYTES)  # pages of both pools begin at multiples
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, num_bytes: int) -> bool:
        """Get whole pages for the beginning of unmapped addresses, which join the free blocks beside them."""
        pool = block.pool
        mapped_bytes = min(rounded(num_bytes, pool.page_bytes), block.size)
        if not self._reserve(mapped_bytes):
            return False
        pool.remove_unmapped(block)
        block.mapped = True
        if mapped_bytes < block.size:
            rest = Block(block.address + mapped_bytes, block.size - mapped_bytes, pool, mapped=False)
            rest.put_behind(block)
            pool.add_unmapped(rest)
            block.size = mapped_bytes
        self._merge(block)
        pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give back the pages that lie within a free block."""
        pool = block.pool
        first = -(-block.address // pool.page_bytes) * pool.page_bytes
        end = (block.address + block.size) // pool.page_bytes * pool.page_bytes
        if end <= first:
            return
        pool.remove(block)
        for part in _cut(block, first, end):
            pool.add(part)
        block.mapped = False
        self.reserved_bytes -= block.size
        self._merge(block)
        pool.add_unmapped(block)


def _could_be(block: Block) -> int:
    """Return how large a free block could become."""
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)


def _room_in(pool: _Pool, size: int) -> Block | None:
    """Return the first of neighbours, free or unmapped, that have room together, at the lowest address."""
    for _, unmapped in pool.unmapped:
        before = unmapped.prev
        first = unmapped if before is None or before.allocated else before
        room, block = 0, first
        while room < size and block is not None and not block.allocated:
            room += block.size
            block = block.next  # type: ignore[assignment]  # None ends the loop
        if room >= size:
            return first
    return None


def _cut(block: Block, first: int, end: int) -> list[Block]:
    """Reduce a block to some addresses, and return what was before and behind."""
    parts = []
    if block.address + block.size > end:
        behind = Block(end, block.address + block.size - end, block.pool)
        behind.put_behind(block)
        parts.append(behind)
    if block.address < first:
        before = Block(block.address, first - block.address, block.pool)
        before.prev, before.next = block.prev, block
        if block.prev is not None:
            block.prev.next = before
        block.prev = before
        parts.append(before)
    block.address, block.size = first, end - first
    return parts
