"""What ranks do, as records: an operation stands once, with all that anybody has to know of it.

May import: `errors`, `tensors`. Open `collectives` first: the record of each collective says what its members must
bring and what they get, what it puts on the wire, what it does to memory, and what others call it. `computations` are
what a rank does alone: what each is given, and what others call it. `transfers` are messages and moves to the host.
Prices, laws, memory, strict runs, proofs, folded runs, logs and exports read the records; the method of a rank is in
the room `rank`.
"""
