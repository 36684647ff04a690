"""One execution, many machines: `price`, and what it returns.

Strategies do not look at the clock. So one execution can carry the clocks of a thousand machines: each clock and each
price is a number for each machine, and the figures are columns.

May import: the rooms up to `folding`. Open `price` first, then `execution`: the seam for whoever has predictors
already, and what is done where machines would part ways. `operations` is what differs in the engine, `together` reads
the columns, and `priced` is the result.
"""
