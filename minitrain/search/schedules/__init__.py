"""Pipeline schedules as data: who computes what, in which order.

A `Schedule` holds, for each rank, an ordered list of `Action`s: forward, backward, or the two halves of a
backward. It contains no seconds, bytes or messages: those follow from the order once it runs.
Generators make the schedules of the literature for any legal size, `validate` says why an order cannot run,
and `Schedule.to_csv` and `Schedule.from_csv` write and read the CSV form of PyTorch's pipelining.

Open `schedule` first, which has `validate` and the CSV too; `generators` makes schedules, also such that follow times
and memory. `pipeline` runs one on ranks: it does what its actions say by the passes of `layer_passes`, for ranks that
are divided and hold layers as `held_layers` says. A new schedule is a generator. A file in `strategies/` gives it a
name for the command line.

Every generator is called as `generator(num_ranks, num_microbatches, num_chunks)`. In the closed forms of
their docstrings p, m and v are these three numbers, and tf, ti, tw are the seconds that forward, input
gradient and weight gradient of one microbatch take on one rank (on a chunk 1/v of it), tb = ti + tw. Communication
takes no time. The bubble is the last end of all ranks minus a rank's m (tf + tb) of work. Live
activations count a microbatch from its forward until its full backward, or its weight gradient where the
backward is split (a weight gradient still needs the activations), in units of a rank's whole share: a chunk
counts 1/v.
"""

from minitrain.search.schedules.generators import (
    chimera,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    zb_1p,
    zb_2p,
    zb_h1,
    zb_h2,
    zbv,
)
from minitrain.search.schedules.schedule import Action, Cell, Kind, Schedule, validate

__all__ = [
    "Action",
    "Cell",
    "Kind",
    "Schedule",
    "chimera",
    "dualpipe_v",
    "gpipe",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "looped_bfs",
    "one_f_one_b",
    "validate",
    "zb_1p",
    "zb_2p",
    "zb_h1",
    "zb_h2",
    "zbv",
]
