"""The explorer: a local page whose knobs simulate a step again, and the small server behind it.

Open `answers` first: what the page may ask, and what it is told. Starlette and
uvicorn are the extra `explore`; only `server` imports them, and `notebook` starts that in a process of its own.

| module | what it does |
|---|---|
| `answers` | the knobs of the page, and every answer: figures, legal values, charts, searches |
| `server` | who may ask, what is sent, and the processes that answer; the page is the folder `page` |
| `lab`, `in_browser` | the page as files for a static host, and what answers it there |
| `plain_numpy` | what NumPy does for answers, where there is none |
| `notebook` | `mt.explore()` |
"""
