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

from minitrain.search.schedules.generators import chimera as chimera
from minitrain.search.schedules.generators import dualpipe_v as dualpipe_v
from minitrain.search.schedules.generators import gpipe as gpipe
from minitrain.search.schedules.generators import interleaved_1f1b as interleaved_1f1b
from minitrain.search.schedules.generators import interleaved_zero_bubble as interleaved_zero_bubble
from minitrain.search.schedules.generators import looped_bfs as looped_bfs
from minitrain.search.schedules.generators import one_f_one_b as one_f_one_b
from minitrain.search.schedules.generators import zb_1p as zb_1p
from minitrain.search.schedules.generators import zb_2p as zb_2p
from minitrain.search.schedules.generators import zb_h1 as zb_h1
from minitrain.search.schedules.generators import zb_h2 as zb_h2
from minitrain.search.schedules.generators import zbv as zbv
from minitrain.search.schedules.schedule import Action as Action
from minitrain.search.schedules.schedule import Cell as Cell
from minitrain.search.schedules.schedule import Kind as Kind
from minitrain.search.schedules.schedule import Schedule as Schedule
from minitrain.search.schedules.schedule import validate as validate
