"""Rehearsing an attempt: one step of a task, the first class's, up to where it has to wait.

Ranks part ways early, most of them while they are set up. A rehearsal finds that out in half an attempt's time, and
finds what the attempt would: if the class waits or begins tasks before ranks part, nothing is found.
"""

from __future__ import annotations

import asyncio
import contextvars

from minitrain.folding.job import Job
from minitrain.folding.model import FoldedModel
from minitrain.folding.rank_values import Fold
from minitrain.run.out_of_memory import watching_memory
from minitrain.run.rank_tasks import end_all
from minitrain.run.unretrieved_errors import collecting_unretrieved_errors


async def rehearse(job: Job, fold: Fold) -> Fold | None:
    """Return how ranks part ways; None if they do not before the first class has to wait.

    Args:
        job: what is to be simulated.
        fold: how its ranks are folded, as long as nothing is known.
    """
    rehearsed = Fold(fold.axes, fold.kept, free=fold.free)
    dist = job.transport()
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    context.run(dist.detector.claim_running_task, 0)
    task = loop.create_task(_run(job, job.model(rehearsed, 0, dist)), context=context)
    with collecting_unretrieved_errors(dist, [task]):
        await asyncio.sleep(0)  # its first step, and none of what it begins
        dist.detector.run_is_over = True  # nobody else will come
        unfinished = dist.detector.unfinished_tasks(loop)
        await end_all(dist.detector, {task, *unfinished})
    return rehearsed if rehearsed.diverged is not None and not unfinished else None


async def _run(job: Job, model: FoldedModel) -> None:
    """Run the strategy on one class; of whatever is wrong beside that ranks part ways, the attempt tells."""
    with watching_memory([model], strict=job.strict_memory):
        await job.function(model, **job.options)
