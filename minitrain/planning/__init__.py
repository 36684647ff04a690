"""Plans for clusters of unlike devices: who takes how much of a step, which devices take part, and in what layout.

May import: `errors`, `files`, `events`, `hardware`, `rank`, `analysis`, `run`, `workloads`. Open `planner` first: it
simulates the candidates that may be the best. `result` is the plan that it returns, and `reasons` says why. `layouts`
says which candidates there are, made by `replicas` and `pipelines`; `precisions` in what they are computed.
`device_times` says how long each kind of device takes for a part of the step, `balanced_samples` shares samples by
finishing time, `balanced_stages` cuts layers into stages, and `refinement` moves shares where a simulation says that it
helps. `power_budget` divides watts between groups.
"""
