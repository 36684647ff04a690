"""Runs under noise: a finished run timed again under thousands of draws of what disturbs a real cluster.

Open `monte_carlo` first: the function of that name and what it returns.

| module | what it does |
|---|---|
| `noise` | what may disturb a run, and draws of how long all of it lasts |
| `monte_carlo`, `distribution` | step times under noise, and what is on the critical paths of the slowest; how the step
time depends on each kind of operation, and each figure of the hardware |
| `figure` | the pictures of these |
"""
