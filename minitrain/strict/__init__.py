"""Strict accounting: every tensor alive counts, and only tensors that came out of operations are accepted.

`simulate(..., strict=True)` runs a strategy on `StrictModel`. `ledger` knows what a rank holds in memory, `origin` what
is remembered of a tensor, `handmade` which tensors were made by hand, `rules` the further laws, and `audit` looks, when
a run ends, whether clocks and logs are what the transport and the operations made of them.
"""
