"""Pictures, tables and other tools' files of a run: Plotly pages, SVG, Chrome traces, HTA, Chakra.

May import: the rooms up to `run`, and `analysis`. Open `gantt` first, then `page`. Import what you need from its
module: nothing is imported here, since numpy and Plotly take longer to load than the rest of minitrain.
"""
