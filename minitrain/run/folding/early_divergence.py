"""Finding out cheaply that an attempt would fail: a dry run of its first step, where the last one like it failed.

Ranks diverge early, most of them while they are set up. A dry run takes one task, that of the first class, up to where
it has to wait. That is half the time of an attempt that fails. Several runs (the configurations of a sweep) share a
`DivergenceHistory`, which tells which attempts are worth a dry run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from minitrain.engine.transport.task_ownership import collecting_unretrieved_errors, task_of_rank
from minitrain.run.device_memory import watching_memory
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.model import FoldedModel, model_of_class
from minitrain.run.rank_tasks import PreparedRun, end_all


class DivergenceHistory:
    """The attempts in which ranks of a strategy have diverged, by `key_of_attempt`.

    It is a guess at how the next attempt ends, which a dry run then confirms or not. So it changes how long a run
    takes, and nothing else, and a key may leave out whatever varies in a sweep.

    Args:
        was_asked_for: whether its runs are to be folded or refused, as with `fold=True`; else as with `fold="auto"`.
    """

    def __init__(self, *, was_asked_for: bool = True) -> None:
        self.was_asked_for = was_asked_for
        self._diverged: set[Hashable] = set()
        self._in_vain: set[Hashable] = set()

    def expects_divergence(self, key: Hashable) -> bool:
        """Return whether ranks diverged in the last attempt with this key."""
        return key in self._diverged

    def expects_nothing(self, prepared: PreparedRun) -> bool:
        """Return whether the last search for a run like this one, where folding was optional, found no way to fold."""
        return _key_of_run(prepared) in self._in_vain

    def record_nothing(self, prepared: PreparedRun) -> None:
        """Remember that the search found no way to fold: the next run like this one is simulated in full at once."""
        self._in_vain.add(_key_of_run(prepared))

    def record(self, key: Hashable, *, diverged: bool) -> None:
        """Remember how an attempt ended."""
        if diverged:
            self._diverged.add(key)
        else:
            self._diverged.discard(key)


def _key_of_run(prepared: PreparedRun) -> Hashable:
    """Return what tells runs apart of which some fold and some do not."""
    return prepared.name, repr(prepared.options), prepared.parameters.world_size, prepared.hardware_name


def key_of_attempt(prepared: PreparedRun, attempt: FoldAttempt) -> Hashable:
    """Return what tells attempts apart: strategy, options (which shape its mesh), axes and kept axes."""
    return prepared.name, repr(prepared.options), tuple(attempt.axes.items()), attempt.kept


async def find_early_divergence(prepared: PreparedRun, attempt: FoldAttempt) -> FoldAttempt | None:
    """Return how ranks diverge, as the attempt itself would find; None if they do not before a class has to wait.

    A class that begins tasks of its own before that has unknown consequences, and nothing is found either.

    Args:
        prepared: what is to be simulated.
        attempt: how its ranks are folded; it is left as it is.
    """
    may_change = attempt.may_change_axes
    dry_run = FoldAttempt(
        attempt.mesh_axes, attempt.kept, attempt.apart, may_change_axes=may_change, split=attempt.split
    )
    dist = prepared.transport()
    with collecting_unretrieved_errors(dist):
        task = task_of_rank(dist, 0, _run(prepared, model_of_class(prepared, dry_run, 0, dist)))
        await asyncio.sleep(0)  # the first step of the task, and of none that it begins
        dist.detector.run_is_over = True  # no other rank will come
        unfinished = dist.detector.unfinished_tasks()
        await end_all(dist.detector, {task, *unfinished})
    return dry_run if dry_run.diverged is not None and not unfinished else None


async def _run(prepared: PreparedRun, model: FoldedModel) -> None:
    """Run the strategy on one class; errors other than divergence are left for the attempt to find."""
    with watching_memory([model], strict=prepared.parameters.strict_memory):
        await prepared.function(model, **prepared.options)
