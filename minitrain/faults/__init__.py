"""What failures cost: a step in which devices die, and runs of days with checkpoints, restarts and repairs.

May import: `errors`, `events`, `hardware`, `rank`, `analysis`, `run`. Open `disturbed_run` first: the run of a step
with `simulate(..., faults=[...])`, from the first attempt to the one that comes through. `stopped_step` says what each
rank still does until it is stopped, `checkpoints` what is written and how often, `long_run` plays weeks of training by
chance, and `goodput` tells how much of them was training. The values that a user gives, `Fault`,
`FaultRate` and `Recovery`, are in `minitrain.run.faults`.
"""
