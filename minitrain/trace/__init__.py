"""Pictures, tables and other tools' files of a run: Plotly pages, SVG, Chrome traces, HTA, Chakra.

May import: the rooms up to `run`. Open `gantt` first: the figure of one run. Nothing is imported here, since numpy and
Plotly take longer to load than the rest of minitrain.

| module | what it does |
|---|---|
| `gantt`, `comparison_figure` | the figure of one run, or of several on one time axis, with `layout` and `colors` |
| `bars`, `bar_texts`, `heat_map`, `memory_panel` | what a figure consists of; a heat map stands for too many bars |
| `drawing`, `notebook_figure` | figures as plain dicts, and as a notebook keeps them |
| `page`, `page_script`, `page_style`, `page_arrangement` | a figure as an HTML page that needs no internet |
| `explanation_panel`, `link_panel` | HTML above and below a figure: where the time goes, what shared links carried |
| `run_folder` | the words of a run's page, and all files of a run or a comparison |
| `tables`, `schedule_text`, `svg` | what terminals print, the order of passes as text, a Gantt chart as SVG |
| `chrome`, `hta`, `chakra` (in `protobuf`) | files for Perfetto, HolisticTraceAnalysis and ASTRA-sim |
"""
