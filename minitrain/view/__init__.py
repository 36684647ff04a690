"""Pictures, tables and other tools' files of a run: pages, SVG, Chrome traces, HTA, Chakra.

May import: the rooms up to `run`. Open `gantt` first: the figure of one run. Nothing is imported here, since numpy and
Plotly take longer to load than the rest of minitrain.

| module | what it does |
|---|---|
| `gantt` | the figure of one run with its memory, or of several on one time axis |
| `bars`, `layout` | what a figure consists of, and how it is arranged: as plain dicts, which are validated last |
| `notebook_figure` | a figure that an exported notebook keeps |
| `timeline` | a large run as columns, and the script that draws them on a canvas |
| `page`, `explanation_panel` | a figure as an HTML page that needs no internet, and the words above it |
| `run_folder` | all files of a run or a comparison; some ranks of a large one |
| `tables`, `lanes`, `svg` | what terminals print, also the order of passes, a Gantt chart as SVG |
| `exports` | files for Perfetto, HolisticTraceAnalysis and ASTRA-sim |
"""
