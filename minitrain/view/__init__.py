"""Pictures, tables and other tools' files of a run: pages, SVG, Chrome traces, HTA, Chakra.

May import: the rooms up to `run`. Open `gantt` first: the figure of one run. Nothing is imported here, since numpy and
Plotly take longer to load than the rest of minitrain.

| module | what it does |
|---|---|
| `gantt` | the figure of one run, or of several on one time axis, with `layout` |
| `bars`, `memory_panel` | what a figure consists of |
| `drawing`, `notebook_figure` | figures as plain dicts, and as a notebook keeps them |
| `timeline` | a large run as columns, and the script that draws them on a canvas |
| `page`, `explanation_panel` | a figure as an HTML page that needs no internet, and the words above it |
| `run_folder` | all files of a run or a comparison; some ranks of a large one |
| `tables`, `lanes`, `svg` | what terminals print, also the order of passes, a Gantt chart as SVG |
| `chrome`, `chakra` (in `protobuf`) | files for Perfetto and HolisticTraceAnalysis, and for ASTRA-sim |
"""
