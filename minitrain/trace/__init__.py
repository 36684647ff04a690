"""Pictures, tables and other tools' files of a run: Plotly pages, SVG, Chrome traces, HTA, Chakra.

May import: the rooms up to `run`, and `analysis`. Open `gantt` first: the figure of one run, made of `bars` and the
`memory_panel`, as a `drawing` of plain dicts. `page` writes drawings as HTML, `run_folder` everything about a run,
`tables` is what `run` and `compare` print, and `chrome`, `hta` and `chakra` the files of other tools. Nothing
is imported here, since numpy and Plotly take longer to load than the rest of minitrain.
"""
