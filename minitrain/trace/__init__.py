"""Event logs -> pictures and explanations: Chrome traces, Plotly pages, and where the time went.

Pure functions on event logs: one `Sequence[Event]` a rank, or a `Timeline` made of them once. Import what you
need from its module (`minitrain.trace.breakdown`, `.chrome`, `.gantt`, `.page`): nothing is imported here,
since numpy and Plotly take longer to load than the rest of minitrain.
"""
