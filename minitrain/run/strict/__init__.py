"""Strict accounting: every tensor alive counts, and operations accept only tensors that came out of operations.

`simulate(..., strict=True)` lets `StrictAccounting` watch the ranks. Open `observer` first: what it requires before
each operation, and what it notes afterwards. `buffers` has where a tensor came from, what it occupies and what
overwrites it, and the ledger of a rank, which is its memory meter. `laws` has the rules for valid tensors, and their
messages.
"""
