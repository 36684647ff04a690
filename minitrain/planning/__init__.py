"""Plans for clusters of unlike devices: who takes how much of a step, which devices take part, and in what layout.

May import: `errors`, `files`, `events`, `hardware`, `rank`, `analysis`, `run`, `workloads`. Open `planner` first.

| module | what it does |
|---|---|
| `planner`, `result`, `reasons` | simulates the candidates that may be the best, returns a plan, and says why |
| `candidates`, `layouts` | a candidate, and all that are considered |
| `replicas`, `pipelines` | make candidates that are replicas, or pipelines of groups of devices |
| `precisions`, `device_times` | what a step may be computed in, and how long each device takes for parts of it |
| `balanced_samples`, `balanced_stages` | divide samples and layers by finishing time |
| `refinement` | moves samples or layers as long as a simulation says that it helps |
| `power_budget` | divides watts between groups |
"""
