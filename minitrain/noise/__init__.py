"""Runs under noise: a finished run timed again under thousands of draws of what disturbs a real cluster.

May import: `errors`, `events`, `hardware`, `analysis`, `run`, `vector`, `trace`. Open `monte_carlo` first: the
function of that name and what it returns. `noise` says what may be drawn, `draws` draws it, `works` is the run as the
smallest graph that has its step time, `tail` finds who carries the slowest samples, and `sensitivity` says what each
kind of operation and each price is worth.
"""
