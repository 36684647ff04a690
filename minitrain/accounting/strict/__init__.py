"""Strict accounting: every tensor alive counts, and only tensors that came out of operations are accepted.

`simulate(..., strict=True)` runs a strategy on `StrictModel`: `computing` is what a rank does alone, `communicating`
what it does with others, `flights` what it launches, `stores` what it keeps. `ledger` knows what a rank holds in
memory, and `origin` what is remembered of a tensor: its `buffer`, what has `written` to that, and its `descent` where a
strategy adds or cuts tensors itself. `genuine` says which tensors may be used, `strangers` why the others may not,
`handmade` which were made by hand, and `rules` has the further laws. When a run ends, `audit` looks whether it is what
the operations made of it, and `replay` whether the clocks are.
"""
