"""Runs that keep totals and no events, `simulate(..., log="summary")`: their memory does not grow with the events.

Open `log` first. An event is a row of its rank's log until it is complete. Then its values are added to the
rank's totals, and the row is dropped. The totals are the same sums as those of a whole log,
taken in the same order, so that they are the same floats. `run` reads the figures of a run from them.
"""
