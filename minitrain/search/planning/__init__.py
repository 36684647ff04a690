"""Plans for clusters of unlike devices: who takes how much of a step, which devices take part, and in what layout.

Open `planner` first.

| module | what it does |
|---|---|
| `planner` | simulates the candidates that may be the best, moves samples, layers and watts, and says why: a plan |
| `layouts` | the candidates: replicas, or pipelines of groups of devices, with samples and layers by finishing time |
| `device_times` | what a step may be computed in, and how long each device takes for parts of it |
"""
