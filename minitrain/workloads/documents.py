"""Documents that are packed into sequences: how long they are, which tokens see one another, how they are cut.

A packed sequence is documents one behind the other. A token sees those of its own document up to itself, so that the
mask is block-diagonal and the work of attention follows the lengths: a document of l tokens has l (l + 1) / 2 pairs of
a query and a key (Grattafiori et al. 2024, "The Llama 3 herd of models", section 3.2). The last document of a sequence
is cut at its end.

Ranks that share a sequence cut it in one of two ways into shards of equal length:

- by *sequence*: a shard is a run of neighbouring tokens. A shard of short documents has few pairs, so that the shards i
  and 2n - 1 - i of 2n no longer leave all ranks the same work.
- by *document*: each document is cut into so many chunks by itself, and a shard has one of each. The tokens that do not
  divide go to the shards by turns (Wang et al. 2025, "WLB-LLM", section 5.1).

Left out: what kernels lose on short documents; tokens that are padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, count_fault, is_count, refuse, shown, typed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

CUTS = ("sequence", "document")
"""What ranks that share a sequence may cut into shards."""

_LOG_NORMAL = "lognormal"


@typed
@dataclass(frozen=True, slots=True)
class Documents:
    """Which documents the samples of a batch consist of.

    Args:
        lengths: tokens of the documents in their order, begun again after the last; sequences take them one after the
            other, and one that a sequence's end cuts goes on in the next. Drawn if empty.
        median: tokens of half of the documents that are drawn from a log-normal distribution.
        sigma: the standard deviation of their logarithm.
        seed: of what is drawn, for each sample by itself.

    Raises:
        UsageError: a field is not what it must be; all faults at once.

    Example:
        >>> Documents([3, 4]).of_sample(1, 5), Documents(median=8, seed=1).of_sample(0, 32)
        ((2, 3), (11, 18, 3))
    """

    lengths: Sequence[int] = ()
    median: float = 1000
    sigma: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        wrong = [each for each in self.lengths if not is_count(each)]
        faults = [f"lengths must be integers of at least 1, got {shown(each)}" for each in wrong]
        for name, least in (("median", 1), ("sigma", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
                faults.append(f"{name} must be a number of at least {least}, got {shown(value)}; use {name}={least}")
        faults += [fault for fault in [count_fault("seed", self.seed, 0, "seed=0")] if fault is not None]
        if faults:
            raise refuse("the documents", faults[:8])

    @classmethod
    def read(cls, given: Any) -> Documents:
        """Return documents as they are, or from what a command may say of them.

        Args:
            given: `Documents`; a length that all have; "lognormal:MEDIAN:SIGMA" (and ":SEED"); or the path of a file
                with a length on each line.

        Raises:
            UsageError: it is none of these, or the file cannot be read.
        """
        if isinstance(given, Documents):
            return given
        if isinstance(given, str) and given.startswith(f"{_LOG_NORMAL}:"):
            return cls._drawn(given)
        if is_count(given) or (isinstance(given, str) and re.fullmatch("[0-9]{1,12}", given.strip())):
            return cls((int(given),))
        if isinstance(given, str):
            return cls(_lengths_in(given))
        raise _unknown(given)

    @classmethod
    def _drawn(cls, words: str) -> Documents:
        """Return what the words for a distribution mean."""
        try:
            median, sigma, *seed = (float(word) for word in words.split(":")[1:])
        except ValueError:
            raise _unknown(words) from None
        if len(seed) > 1:
            raise _unknown(words)
        return cls((), median, sigma, *map(int, seed))

    @property
    def words(self) -> str:
        """Return what headlines say of them."""
        if not self.lengths:
            return f"documents drawn with median {self.median:,.0f} and sigma {self.sigma:g}"
        one = self.lengths[0] if len(set(self.lengths)) == 1 else None
        return f"{len(self.lengths):,} documents" if one is None else f"documents of {one:,} tokens"

    def are_alike(self, seq_len: int) -> bool:
        """Return whether all samples have the same documents."""
        return bool(self.lengths) and seq_len % sum(self.lengths) == 0

    def of_sample(self, sample: int, seq_len: int) -> tuple[int, ...]:
        """Return the lengths of a sample's documents, tokens, which add up to `seq_len`."""
        return _of_sample(self, 0 if self.are_alike(seq_len) else sample, seq_len)


def _unknown(given: Any) -> UsageError:
    return UsageError(
        f"documents must be a length that all have, lognormal:MEDIAN:SIGMA, a file with a length on each line, or "
        f"mt.Documents, got {shown(given)}; use lognormal:1000:1.2",
        documents=given,
    )


def _lengths_in(path: str) -> list[int]:
    """Return the lengths in a file."""
    from minitrain.files import read_text  # noqa: PLC0415 - only where a file is read

    try:
        words = read_text(path, "file with the length of a document on each line").split()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the documents' lengths in {path}: {error}", documents=path) from None
    wrong = [word for word in words if not re.fullmatch("0*[1-9][0-9]{0,11}", word, re.ASCII)]
    if wrong or not words:
        found = shown(wrong[0]) if wrong else "nothing"
        raise UsageError(f"{path} must have the tokens of a document on each line, such as 812, found {found}")
    return list(map(int, words))


@lru_cache(maxsize=4096)
def _of_sample(documents: Documents, sample: int, seq_len: int) -> tuple[int, ...]:
    """Find a sample's documents for the first time."""
    import numpy as np  # noqa: PLC0415  (only where there are documents)

    if documents.lengths:
        return tuple(_cut_out(documents.lengths, sample * seq_len, seq_len))
    generator, found, rest = np.random.default_rng([documents.seed, sample]), list[int](), seq_len
    while rest:
        drawn = generator.lognormal(np.log(documents.median), documents.sigma)
        found.append(int(min(max(round(drawn), 1), rest)))
        rest -= found[-1]
    return tuple(found)


def _cut_out(lengths: Sequence[int], first: int, count: int) -> Iterator[int]:
    """Yield the lengths of what lies between two tokens of documents that begin again after the last."""
    import numpy as np  # noqa: PLC0415

    ends = np.fromiter(accumulate(lengths), dtype=np.int64)
    begin, end = first % int(ends[-1]), first % int(ends[-1]) + count
    place = int(np.searchsorted(ends, begin, side="right"))
    while begin < end:
        turn, which = divmod(place, len(lengths))
        stop = min(turn * int(ends[-1]) + int(ends[which]), end)
        yield stop - begin
        begin, place = stop, place + 1


def starts(lengths: Sequence[int]) -> Ints:
    """Return for each token of a sequence where its document begins, (seq_len,).

    >>> starts((2, 3)).tolist()
    [0, 0, 2, 2, 2]
    """
    import numpy as np  # noqa: PLC0415

    first = np.cumsum((0, *lengths[:-1]))
    return np.repeat(first, lengths)


@lru_cache(maxsize=1024)
def _shard_of_tokens(lengths: tuple[int, ...], num_shards: int, cut: str) -> Ints:
    """Return the shard of each token of a sequence, (seq_len,)."""
    import numpy as np  # noqa: PLC0415

    seq_len = sum(lengths)
    if cut == "sequence":
        return np.arange(seq_len) * num_shards // seq_len
    found: list[Ints] = []
    turn = 0
    for length in lengths:
        size, rest = divmod(length, num_shards)
        sizes = np.full(num_shards, size)
        sizes[np.arange(turn, turn + rest) % num_shards] += 1
        turn = (turn + rest) % num_shards
        found.append(np.repeat(np.arange(num_shards), sizes))
    return np.concatenate(found)


@lru_cache(maxsize=1024)
def order(lengths: tuple[int, ...], num_shards: int, cut: str) -> Ints:
    """Return the tokens of a sequence in the order of its shards, (seq_len,).

    Args:
        lengths: of its documents, tokens.
        num_shards: of equal length.
        cut: "sequence" or "document".

    >>> order((2, 6), 4, "document").tolist()
    [0, 2, 1, 3, 4, 5, 6, 7]
    """
    import numpy as np  # noqa: PLC0415

    return np.argsort(_shard_of_tokens(lengths, num_shards, cut), kind="stable")


@lru_cache(maxsize=4096)
def shard_pairs(
    lengths: tuple[int, ...], num_shards: int = 1, cut: str = "sequence", window: int | None = None
) -> Ints:
    """Return the pairs that the mask leaves between the queries and keys of shards, (num_shards, num_shards).

    Args:
        lengths: of a sequence's documents, tokens.
        num_shards: shards of equal length.
        cut: "sequence" or "document".
        window: keys that a query sees at most; None for all.

    Example:
        >>> shard_pairs((6, 2), 2).tolist(), shard_pairs((6, 2), 2, "document").tolist()
        ([[10, 0], [8, 6]], [[7, 0], [10, 7]])
    """
    import numpy as np  # noqa: PLC0415

    seq_len, shard = sum(lengths), _shard_of_tokens(lengths, num_shards, cut)
    tokens, first = np.arange(seq_len), starts(lengths)
    if window is not None:
        first = np.maximum(first, tokens - window + 1)
    found = np.zeros((num_shards, num_shards), dtype=np.int64)
    for key in range(num_shards):
        before = np.concatenate([[0], np.cumsum(shard == key)])
        found[:, key] = np.bincount(shard, before[tokens + 1] - before[first], num_shards)
    found.flags.writeable = False
    return found


def pairs_of(
    documents: Documents, samples: Iterable[int], seq_len: int, num_shards: int, cut: str, window: int | None
) -> Ints:
    """Return the sum of `shard_pairs` over some samples."""
    import numpy as np  # noqa: PLC0415

    total = np.zeros((num_shards, num_shards), dtype=np.int64)
    for sample in samples:
        total += shard_pairs(documents.of_sample(sample, seq_len), num_shards, cut, window)
    return total
