"""Explain the gap: see gap.md."""

name = ""  # yours: it chooses what is slow
step_time_ms = 0.0  # predicted

operation = ""  # that is slow, such as "forward"
rank = None  # a number, if it is slow on this rank alone
layer = None  # a number, if it is slow in this layer alone
