"""Runs that keep totals and no events, `simulate(..., log="summary")`: memory that does not grow with them.

An event is a row of its rank's log until its time and price are known and nobody holds the row any more; then it is
added to the rank's totals, and the row is let go. The totals are made by the same sums, taken in the same order, as
those of a whole log, so that they are the same floats.
"""
