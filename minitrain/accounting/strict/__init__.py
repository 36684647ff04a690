"""Strict accounting: every tensor alive counts, and operations accept only tensors that came out of operations.

`simulate(..., strict=True)` runs a strategy on `StrictModel`. Open `model` first. `computation` adds to what a rank
does alone, `experts` and `attention` to the operations of expert and context parallelism, `communication` to what it
does with others, `launched` to what it launches, and `stores` to what it keeps.

`provenance` attaches a record to each tensor and counts its memory, `buffers` counts it when it is stored, shared or
freed and says what overwrites it, and `ledger` keeps the totals of a rank. `laws` has the rules for valid tensors, and
`unusable_tensors` why other tensors cannot be used. When a run has ended, `audit` checks that logs, stores and final
weights are what the operations made of them, by `clock_recomputation` and `price_recomputation`. `evidence` compares
the hardware and the engine's own code before and after.
"""
