"""What failures cost: a step in which devices die, and runs of days with checkpoints, restarts and repairs.

May import: `errors`, `events`, `hardware`, `rank`, `analysis`, `run`. Open `disturbed_run` first: the run of a step
with `simulate(..., faults=[...])`, from the first attempt to the one that succeeds. `stopped_step` says what each rank
still does until it is stopped, `remaining_job` is the step on the devices that are left, and `checkpoints` says what is
written and how often. `long_run` simulates weeks of training with random failures, and `goodput` says how much of them
was training. The values that a user gives, `Fault`, `FaultRate` and `Recovery`, are in `minitrain.run.faults`.
"""
