"""The rules that the numbers given to a generator must keep."""

from minitrain.errors import UsageError


def check_sizes(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> None:
    """Refuse a count below one.

    Raises:
        UsageError: naming the count.
    """
    counts = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    for count, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{count} ({value!r}) must be a whole number of 1 or more for {name}", **counts)


def check_chunks(name: str, num_chunks: int, legal: int, remedy: str) -> None:
    """Refuse another number of chunks than the schedule is made for.

    Raises:
        UsageError: naming the legal number and a schedule for others.
    """
    if num_chunks != legal:
        raise UsageError(f"num_chunks ({num_chunks}) must be {legal} for {name}; {remedy}", num_chunks=num_chunks)
