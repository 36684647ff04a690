"""What a simulation costs in time and memory: `python -m benchmarks`. No test asserts these figures.

`python -m benchmarks.NAME` measures one feature; docs/performance.md has the results of most.

| NAME | what is measured |
|---|---|
| (none), `growth` | events a second beside the bare event loop (`floor`), and how cost grows with sizes |
| `memory`, `large` | bytes of a kept event, and a step of 16,384 ranks with all of its events |
| `folding`, `sweep`, `vector` | ranks that are alike as one, configurations a second, many machines at once |
| `strict`, `parts`, `noise`, `platform` | what these features add to an event, or cost themselves |
| `view` | explorer, timeline and pages: `explore` and `trace_pages` with the table's sizes |
| `tune`, `mixed`, `kernels` | no cost, but results: layouts, plans for unlike devices, prices beside measurements |
| `injected`, `calibrated` | real processes: whether delays are named, and how far predicted steps are off |
"""
