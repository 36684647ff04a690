"""What failures cost: a step in which devices die, and runs of days with checkpoints, restarts and repairs.

Open `disturbed_run` first: the run of a step
with `simulate(..., faults=[...])`, from the first attempt to the one that succeeds on the devices that are left.
`goodput` simulates weeks of training with checkpoints and random failures, and says how much of them was training.
The values that a user gives, `Fault`, `FaultRate` and `Recovery`, are in `minitrain.run.faults`.
"""
